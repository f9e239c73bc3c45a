"""Rollouts on a database in memory and a clock by hand: pace, abort, restarts, two processes at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from iotsphere.adapters.shadow.body import ShadowDocument
from iotsphere.entities.errors import Conflict, MessageRefused
from iotsphere.entities.rollout import Rollout, body_of
from iotsphere.entities.shadow import ShadowKey
from iotsphere.use_cases.command.documents import COMMANDS, ROLLOUTS, TARGETS
from iotsphere.use_cases.command.rollouts import Reach, Rollouts
from iotsphere.use_cases.fleet import DEVICES, Fleet
from iotsphere.use_cases.ports.database import Write
from iotsphere.use_cases.shadow.shadows import Shadows
from iotsphere.use_cases.shadow.writer import SHADOWS
from tests.use_cases.command.test_commands import House
from tests.use_cases.shadow_house import no_log

ID = "00000000-0000-4000-8000-00000000aaaa"
SPEC = Rollout(
    id=ID,
    domain="iotsphere",
    caller="iotsphere/service/ui",
    kind="command",
    payload={"action": "update"},
    filter={"labels": {"model": "p2"}},
    rate=10,
    created_at=0,
)


class Works(House):
    def __init__(self) -> None:
        super().__init__()
        self.shadows = Shadows(self.database, ShadowDocument(), self.clock, no_log)
        self.rollouts = self.runner()

    def runner(self) -> Rollouts:
        reach = Reach(Fleet(self.database, self.shadows), self.commands, self.shadows)
        return Rollouts(self.database, reach, self.clock)

    async def add(self, count: int, **labels: str) -> None:
        writes = [
            Write(f"iotsphere/d{number:04d}", None, {"domain": "iotsphere", "labels": labels or {"model": "p2"}})
            for number in range(count)
        ]
        await self.database.write("devices", writes)

    async def run(self, minutes: float, step_ms: int = 5_000) -> None:
        for _ in range(int(minutes * 60_000 / step_ms)):
            self.clock.advance(step_ms)
            await self.rollouts.tend()

    async def rollout(self) -> Rollout:
        return await self.rollouts.get("iotsphere", ID)

    async def end(self, evidence: str, count: int) -> None:
        for state in ("queued",):
            page = await self.database.find("commands", "rollout", (SPEC.key, state), after="", limit=count)
            for stored in page:
                await self.commands.learn("iotsphere", stored.body["id"], evidence, {})


@pytest.fixture
async def works() -> Works:
    made = Works()
    await made.database.ensure([COMMANDS, SHADOWS, DEVICES, ROLLOUTS, TARGETS])
    return made


async def test_a_rollout_goes_at_its_pace_and_ends_when_all_are_over(works: Works) -> None:
    await works.add(35)
    await works.database.write("devices", [Write("iotsphere/dx", None, {"labels": {"model": "p1"}})])
    begun = await works.rollouts.start(SPEC)
    assert (begun.state, begun.total) == ("resolving", 0)
    await works.rollouts.tend()
    assert ((await works.rollout()).state, (await works.rollout()).total) == ("running", 35)
    await works.run(1)
    assert 10 <= (await works.rollout()).issued <= 11
    await works.run(3)
    assert ((await works.rollout()).issued, (await works.rollout()).state) == (35, "running")
    assert await works.rollouts.counts(await works.rollout()) == {"queued": 35}
    await works.end("succeed", 100)
    await works.run(1)
    last = await works.rollout()
    assert (last.state, last.issued) == ("finished", 35)
    assert await works.rollouts.counts(last) == {"succeeded": 35}
    assert len(works.log) == 35


async def test_too_many_failures_end_it_and_take_back_what_waits(works: Works) -> None:
    await works.add(60)
    await works.rollouts.start(replace(SPEC, abort_percent=20.0, abort_minimum=5))
    await works.run(1.2)
    await works.end("fail", 4)
    await works.run(0.2)
    assert (await works.rollout()).state == "running"
    await works.end("fail", 1)
    await works.run(0.2)
    last = await works.rollout()
    assert last.state == "aborted"
    counts = await works.rollouts.counts(last)
    assert counts == {"failed": 5, "cancelled": last.issued - 5}
    await works.run(2)
    assert (await works.rollout()).issued == last.issued < 60


async def test_it_can_be_paused_resumed_and_cancelled(works: Works) -> None:
    await works.add(60)
    await works.rollouts.start(SPEC)
    await works.run(0.5)
    await works.rollouts.steer("iotsphere", ID, "pause")
    held = (await works.rollout()).issued
    await works.run(3)
    assert (await works.rollout()).issued == held
    await works.rollouts.steer("iotsphere", ID, "resume")
    await works.run(0.5)
    assert held < (await works.rollout()).issued <= held + 7
    assert (await works.rollouts.steer("iotsphere", ID, "cancel")).state == "cancelled"
    assert set(await works.rollouts.counts(await works.rollout())) == {"cancelled"}
    with pytest.raises(Conflict):
        await works.rollouts.steer("iotsphere", ID, "resume")


async def test_what_a_crash_or_a_neighbour_left_of_an_ended_rollout_is_taken_back(works: Works) -> None:
    await works.add(30)
    await works.rollouts.start(replace(SPEC, rate=120))
    await works.run(0.2)
    ended = replace(await works.rollout(), state="cancelled", over_at=works.clock.now(), recalling=True)
    stored = await works.database.get("rollouts", SPEC.key)
    await works.database.put("rollouts", Write(SPEC.key, stored, body_of(ended)))  # and then it was killed
    assert set(await works.rollouts.counts(ended)) == {"queued"}
    await works.run(0.1)
    assert await works.rollouts.counts(ended) == {"cancelled": ended.issued}
    neighbour = works.runner()
    await neighbour._give(ended, ["d0029"])
    await works.run(0.1)
    assert await works.rollouts.counts(ended) == {"cancelled": ended.issued + 1}
    await works.run(0.2)
    assert (await works.rollout()).recalling is False
    assert await works.database.find("rollouts", "open", (True,), after=0) == []


async def test_processes_side_by_side_and_restarts_give_each_device_one_command(works: Works) -> None:
    await works.add(40)
    await works.rollouts.start(replace(SPEC, rate=600))
    for _ in range(12):
        works.clock.advance(1_000)
        await asyncio.gather(*(works.runner().tend() for _ in range(4)))
    assert (await works.rollout()).issued == 40
    assert len(works.log) == len(set(works.log)) == 40
    assert await works.rollouts.counts(await works.rollout()) == {"queued": 40}


async def test_an_outage_is_not_followed_by_a_flood(works: Works) -> None:
    await works.add(200)
    await works.rollouts.start(SPEC)
    await works.rollouts.tend()
    works.clock.advance(3_600_000)
    await works.rollouts.tend()
    assert (await works.rollout()).issued <= 11


async def test_desired_changes_roll_out_too(works: Works) -> None:
    await works.add(12)
    await works.rollouts.start(replace(SPEC, kind="desired", payload={"interval": 5}, rate=600))
    await works.run(0.2)
    last = await works.rollout()
    assert (last.state, last.issued) == ("finished", 12)
    shadow = await works.shadows.get(ShadowKey("iotsphere", "d0007"))
    assert (shadow.desired, shadow.version) == ({"interval": 5}, 1)


async def test_devices_that_are_gone_are_counted_as_refused(works: Works) -> None:
    await works.add(3)
    await works.database.write("devices", [Write("iotsphere/x1", None, {"labels": {"model": "p2"}})])
    await works.rollouts.start(replace(SPEC, rate=600))
    await works.run(0.3)
    last = await works.rollout()
    assert (last.issued, last.refusals) == (4, 1)
    assert set(last.refused or {}) == {"x1"}


@pytest.mark.parametrize("changes", [{"filter": {}}, {"filter": {"labels": 7}}])
async def test_a_filter_that_is_none_is_refused(works: Works, changes: dict[str, Any]) -> None:
    with pytest.raises(MessageRefused):
        await works.rollouts.start(replace(SPEC, **changes))


async def test_an_id_stands_for_one_rollout(works: Works) -> None:
    await works.rollouts.start(SPEC)
    works.clock.advance(5)
    assert (await works.rollouts.start(SPEC)).created_at == (await works.rollout()).created_at
    with pytest.raises(Conflict):
        await works.rollouts.start(replace(SPEC, payload={"action": "else"}))
