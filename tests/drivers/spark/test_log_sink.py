"""The sink that publishes results: one message per result, however often it is told, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import iotsphere
from iotsphere.adapters.broker.broker import Receipt
from iotsphere.adapters.message_id import is_message_id
from iotsphere.containers.spark import sink_of, told_before
from iotsphere.drivers.spark.jobs import Announcement, Run
from iotsphere.drivers.spark.sinks.log import LogSink, id_of, topic_of
from iotsphere.entities.errors import BrokerUnavailable, Forbidden, RequestInvalid, Unavailable
from iotsphere.entities.message import Message
from tests.support.gateway import Gateway
from tests.support.jobs import Kept

JOB = ("anomaly", 1)


@dataclass
class Desk:
    """A gateway with a memory: topics, ids and payloads in the order in which they came."""

    taken: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    stamps: list[str] = field(default_factory=list)
    connections: int = 0
    away: int = 0
    silent: bool = False
    forbidden: bool = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Desk]:
        if self.away:
            self.away -= 1
            raise Unavailable("no gateway yet")
        self.connections += 1
        yield self

    async def publish(self, topic: str, payload: Message | bytes, *, message_id: str | None = None) -> Receipt:
        if self.silent:
            await asyncio.Event().wait()
        if self.forbidden:
            raise Forbidden("ask for a grant")
        assert message_id is not None
        if isinstance(payload, Message):
            self.stamps.append(payload.metadata.timestamp)
            payload = payload.payload
        duplicate = message_id in self.taken
        self.taken.setdefault(message_id, (topic, payload))
        return Receipt(message_id, "1", duplicate)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def sink(desk: Desk) -> Iterator[LogSink]:
    with LogSink(desk.connect, JOB) as sink:
        yield sink


def alert(key: str, **changes: object) -> Announcement:
    fields: dict[str, object] = {"key": key, "topic": "alerts", "domain": "iotsphere", "payload": {"key": key}}
    return Announcement(**(fields | changes))  # type: ignore[arg-type]  # tests change one at a time


def test_results_are_published_in_order_and_once(desk: Desk, sink: LogSink) -> None:
    told = [alert(f"d{number}/raised/1") for number in range(250)]
    assert sink(told) == 250
    assert [payload for _, payload in desk.taken.values()] == [b'{"key":"d%d/raised/1"}' % n for n in range(250)]
    assert {topic for topic, _ in desk.taken.values()} == {"iotsphere/devices/batch/alerts"}
    assert sink([*told, alert("new"), alert("new")]) == 1
    assert sink([]) == 0
    assert desk.connections == 1


def test_ids_follow_from_what_is_told(desk: Desk, sink: LogSink) -> None:
    one = alert("k")
    assert is_message_id(id_of(JOB, one))
    assert id_of(JOB, one) == id_of(JOB, alert("k", payload={"other": 1}))
    others = [alert("l"), alert("k", topic="status"), alert("k", domain="b")]
    assert (
        len({id_of(JOB, one), id_of(("anomaly", 2), one), id_of(("health", 1), one), *(id_of(JOB, o) for o in others)})
        == 6
    )
    assert topic_of(others[1]) == "iotsphere/devices/batch/status"
    sink([alert("k", at=1_767_225_600_000)])
    assert desk.stamps == ["2026-01-01T00:00:00.000Z"]


def test_what_the_log_holds_already_is_not_told_again(desk: Desk) -> None:
    known = {id_of(JOB, alert("old"))}
    with LogSink(desk.connect, JOB, lambda: known) as sink:
        assert sink([alert("old"), alert("new")]) == 1
    assert [payload for _, payload in desk.taken.values()] == [b'{"key":"new"}']


def test_a_gateway_that_comes_late_is_waited_for(desk: Desk, sink: LogSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotsphere.drivers.spark.sinks.log.PAUSE_S", 0.01)
    desk.away = 3
    assert sink([alert("k")]) == 1


def test_a_gateway_that_stays_away_ends_the_batch(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.silent = True
    with LogSink(desk.connect, JOB) as sink:
        with monkeypatch.context() as hasty:
            hasty.setattr("iotsphere.drivers.spark.sinks.log.WAIT_S", 0.2)
            with pytest.raises(BrokerUnavailable, match="did not take the results"):
                sink([alert("k")])
        desk.silent = False
        assert sink([alert("k")]) == 1


def test_a_refusal_comes_out_as_it_is(desk: Desk, sink: LogSink) -> None:
    desk.forbidden = True
    with pytest.raises(Forbidden, match="ask for a grant"):
        sink([alert("k")])


async def test_a_service_publishes_through_a_real_gateway_and_a_later_run_repeats_nothing(tmp_path: Path) -> None:
    told = [alert(f"k{number}") for number in range(5)]
    topic = topic_of(told[0])
    async with Gateway(tmp_path / "data") as gateway, gateway.api() as api:
        job, log = Kept().job(), f"sqlite:{tmp_path / 'data'}"

        async def token(grant: str) -> str:
            asked = {"subject": "service:spark", "grants": [grant], "lifetime": 600}
            answer = await api.post("/api/v1/tokens", json=asked)
            assert answer.status_code in (200, 201), answer.text
            return str(answer.json()["token"])

        def run(credential: str, results: list[Announcement]) -> int:
            with sink_of((gateway.websocket, credential), job, log, ("iotsphere",)) as sink:
                return sink(results)

        mine = await token(f"publish:{topic}")
        assert await asyncio.to_thread(run, mine, told) == 5
        assert told_before(log, ("iotsphere",)) == {id_of((job.name, job.version), one) for one in told}
        assert await asyncio.to_thread(run, mine, [*told, alert("another")]) == 1
        with pytest.raises(Forbidden):
            await asyncio.to_thread(run, await token("publish:iotsphere/devices/batch/status"), [alert("no grant")])
        async with iotsphere.connect(gateway.websocket, token=gateway.token) as broker:
            reading = broker.subscribe(topic, from_="earliest")
            found = [(await anext(reading)).json()["key"] for _ in range(6)]
    assert found == ["k0", "k1", "k2", "k3", "k4", "another"]


def test_a_job_without_a_gateway_says_where_to_name_one(tmp_path: object) -> None:
    run = Run({}, "a", False, tmp_path, "")  # type: ignore[arg-type]  # nothing is written there
    with pytest.raises(RequestInvalid, match="--gateway"):
        run.announce([alert("k")])
