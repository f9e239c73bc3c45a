"""Wills: put off, cancelled, kept over crashes, and never spoken after a newer connection (case B25)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.errors import LogUnavailable
from iotsphere.gateways.mqtt import MqttGateway
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer

T = "iotsphere/devices/d1/telemetry"
KEPT = Properties(session_expiry_interval=600)


class Stage:
    """A house whose clock stands still, and its device."""

    def __init__(self, house: House, clock: ManualClock) -> None:
        self.house = house
        self.clock = clock
        self.address = ("", 0)
        self.device: Any = None

    async def come(self, will: bytes = b"99", delay: int = 60, clean: bool = False, **session: Any) -> Peer:
        properties = Properties(**session) if session else KEPT
        peer = Peer(self.address)
        await peer.__aenter__()
        block = Properties(will_delay_interval=delay)
        wanted = p.Will(T, will, 2, False, block) if will else None
        answer = await peer.connect(self.device, clean_start=clean, properties=properties, will=wanted)
        assert answer.reason == 0
        return peer

    async def lose(self, peer: Peer) -> None:
        await peer.drop()
        await until(lambda: self.house.gateway.connections == 0, "it is gone")

    async def said(self) -> list[Any]:
        return [envelope["payload"]["value"] for envelope in await self.house.envelopes()]

    async def after(self, seconds: float) -> list[Any]:
        self.clock.advance(int(seconds * 1000))
        await self.house.wills.publish_due()
        return await self.said()

    async def crash(self) -> MqttGateway:
        """Another door on the same log and documents, as after kill -9."""
        crashed = self.house.doors.pop()
        old = self.house.wills
        self.house._begin_again()
        old._documents = Gone()
        self.address = await self.house.door()
        await self.house.wills.recover()
        return crashed


class Gone:
    """The documents of a process that is dead."""

    def __getattr__(self, name: str) -> Any:
        async def unavailable(*_: Any, **__: Any) -> Any:
            raise LogUnavailable("this process is dead")

        return unavailable


@pytest.fixture(params=["memory", "sqlite"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    # Doors look for themselves, four times a second: in the midst of what a test does, or just before it looks.
    monkeypatch.setattr("iotsphere.gateways.mqtt.gateway.WILLS_S", 3_600.0)
    clock = ManualClock(1_790_000_000_000)
    async with open_house(tmp_path if request.param == "sqlite" else None, clock) as house:
        made = Stage(house, clock)
        made.device = await house.device("d1")
        made.address = await house.door()
        yield made


async def test_a_delayed_will_waits_and_is_published_once(stage: Stage) -> None:
    await stage.lose(await stage.come())
    assert await stage.after(59.9) == []
    assert await stage.after(0.1) == [99]
    assert await stage.after(600) == [99]
    assert await stage.house.documents.scan("wills") == []


async def test_coming_back_cancels_a_delayed_will(stage: Stage) -> None:
    await stage.lose(await stage.come())
    stage.clock.advance(30_000)
    peer = await stage.come(will=b"")
    assert await stage.after(60) == []
    await stage.lose(peer)
    assert await stage.after(600) == []


async def test_a_delayed_will_is_published_when_the_session_ends_first(stage: Stage) -> None:
    await stage.lose(await stage.come(delay=60, session_expiry_interval=10))
    assert await stage.after(9.9) == []
    assert await stage.after(0.1) == [99]


async def test_without_a_session_that_is_kept_nothing_is_delayed(stage: Stage) -> None:
    await stage.lose(await stage.come(delay=60, session_expiry_interval=0))
    assert await stage.said() == [99]


async def test_a_clean_start_ends_the_session_and_so_the_delay(stage: Stage) -> None:
    await stage.lose(await stage.come())
    peer = await stage.come(will=b"", clean=True)
    assert await stage.said() == [99]
    await stage.lose(peer)


async def test_a_goodbye_takes_the_will_along(stage: Stage) -> None:
    peer = await stage.come()
    assert len(await stage.house.documents.scan("wills")) == 1
    peer.send(p.Disconnect())
    await peer.end()
    await stage.lose(peer)
    assert await stage.after(600) == []
    assert await stage.house.documents.scan("wills") == []


async def test_a_takeover_cancels_a_delayed_will_and_the_new_one_counts(stage: Stage) -> None:
    first = await stage.come(will=b"1")
    second = await stage.come(will=b"2")
    assert (await first.expect(p.Disconnect)).reason == 0x8E
    await first.drop()
    await stage.lose(second)
    assert await stage.after(60) == [2]


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_will_survives_a_crash(stage: Stage, delay: int) -> None:
    peer = await stage.come(delay=delay)
    crashed = await stage.crash()
    assert await stage.after(0) == ([] if delay else [99])
    assert await stage.after(delay) == [99]
    assert await stage.after(600) == [99]
    await peer.drop()
    await crashed.close()
    assert await stage.said() == [99]


async def test_a_delay_goes_on_over_a_crash_and_a_return_after_it_cancels(stage: Stage) -> None:
    await stage.lose(await stage.come())
    stage.clock.advance(30_000)
    crashed = await stage.crash()
    assert await stage.after(29) == []
    peer = await stage.come(will=b"")
    assert await stage.after(600) == []
    await stage.lose(peer)
    await crashed.close()


async def test_b25_a_will_of_an_old_connection_never_speaks_after_a_newer_one(stage: Stage) -> None:
    """The first connection hangs at another process when the client comes to this one."""
    first = await stage.come(will=b"1", delay=0)
    elsewhere = stage.house.gateway
    stage.house._begin_again()
    stage.address = await stage.house.door()
    second = await stage.come(will=b"2", delay=0)
    assert await stage.said() == [1]
    second.send(p.Publish(T.encode(), b"3", 1, 2))
    await second.expect(p.Ack)
    await first.drop()
    await until(lambda: elsewhere.connections == 0, "the old connection is lost at last")
    assert await stage.said() == [1, 3]
    await stage.lose(second)
    assert await stage.said() == [1, 3, 2]


async def test_wills_of_a_process_that_does_not_come_back_are_taken_up(stage: Stage) -> None:
    await stage.lose(await stage.come())
    stage.clock.advance(119_000)
    other = type(stage.house.wills)(
        stage.house.documents, stage.house.publish, stage.house.wills._compose, stage.clock, "another"
    )
    assert await other.adopt() == 0
    stage.clock.advance(1_000)
    assert (await other.adopt(), await other.adopt()) == (1, 0)
    assert await other.publish_due() == 1
    assert await stage.after(0) == [99]


async def test_a_will_that_the_log_cannot_take_now_is_published_later(stage: Stage) -> None:
    stage.house.log.failure = LogUnavailable("full", code="log_full")
    peer = await stage.come(delay=0)
    await peer.drop()
    stage.house.log.failure = None
    await until(lambda: stage.house.gateway.connections == 0, "it is gone")
    assert await stage.after(1) == [99]


async def test_a_will_may_take_a_retained_value_away(stage: Stage) -> None:
    await stage.house.say(T, 1, retain=True)
    peer = Peer(stage.address)
    await peer.__aenter__()
    await peer.connect(stage.device, will=p.Will(T, b"", 1, True))
    await stage.lose(peer)
    entries = await stage.house.entries()
    assert [(len(entry.record.body) > 0, entry.record.retain) for entry in entries] == [(True, True), (False, True)]


async def test_24_hours_of_delay_are_24_hours(stage: Stage) -> None:
    day = 24 * 3600
    await stage.lose(await stage.come(delay=day, session_expiry_interval=7 * day))
    assert await stage.after(day - 1) == []
    assert await stage.after(1) == [99]
