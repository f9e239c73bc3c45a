"""Random writers, devices, crashes and listeners on one shadow: it is always the fold of what was accepted."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from iotsphere.adapters.shadow.messages import tell
from iotsphere.entities.errors import VersionConflict
from iotsphere.entities.merge_patch import leaves, merge, same
from iotsphere.entities.shadow import Answer, Shadow, ShadowKey
from iotsphere.use_cases.ports.database import Write
from iotsphere.use_cases.shadow.shadows import Shadows
from tests.entities.json_values import PATCHES, plain_merge
from tests.support.examples import tried
from tests.use_cases.shadow_house import KEY, House, at_offset, open_house, said, wanted

WRITERS = st.lists(st.tuples(st.integers(0, 2), PATCHES), min_size=1, max_size=6)


class ShadowMachine(RuleBasedStateMachine):
    """Three processes on one database. ``accepted``: what was answered, in the order of the versions."""

    place: str | None = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._folder = tempfile.TemporaryDirectory()
        self._context = open_house(self.place or Path(self._folder.name))
        self.house: House = self._run(self._context.__aenter__())
        self.houses = [self.house, self.house.neighbour(), self.house.neighbour()]
        self.accepted: dict[int, tuple[str, dict[str, Any]]] = {}
        self.log: list[dict[str, Any]] = []
        self.committed = 0
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []

    def _run(self, work: Any) -> Any:
        return self._runner.run(work)

    def teardown(self) -> None:
        self._run(self._context.__aexit__(None, None, None))
        self._runner.close()
        self._folder.cleanup()

    @rule(writers=WRITERS)
    def write_at_once(self, writers: list[tuple[int, dict[str, Any]]]) -> None:
        """Several processes ask at the same time, each with an id of its own; then one of them asks again."""
        ids = [f"r{self.requests + number}" for number in range(len(writers))]
        self.requests += len(writers)

        async def ask(number: int) -> Answer:
            process, patch = writers[number]
            shadows: Shadows = self.houses[process].shadows
            return await shadows.desire(KEY, wanted(patch, message_id=ids[number]))

        async def all_ask() -> list[Answer]:
            return list(await asyncio.gather(*map(ask, range(len(writers)))))

        answers = self._run(all_ask())
        for (_, patch), answer in zip(writers, answers, strict=True):
            self._accept(answer, "desired", patch)
        assert self._run(ask(0)) == answers[0]

    @rule(patch=PATCHES, behind=st.integers(0, 3))
    def write_for_a_version(self, patch: dict[str, Any], behind: int) -> None:
        version = max(self.accepted, default=0)
        expected = max(0, version - behind)
        try:
            answer = self._run(self.house.shadows.desire(KEY, wanted(patch, version=expected)))
        except VersionConflict:
            assert expected != version
        else:
            assert expected == version
            self._accept(answer, "desired", patch)

    @rule(patches=st.lists(PATCHES, min_size=1, max_size=5), crash=st.booleans(), process=st.integers(0, 2))
    def report(self, patches: list[dict[str, Any]], crash: bool, process: int) -> None:
        """The processor folds what came since its last commit; a crash loses the commit, so that it comes again."""
        self.log += patches
        entries = range(self.committed, len(self.log))
        reports = [(KEY, said(self.log[offset], place=at_offset(offset + 1))) for offset in entries]
        answers = self._run(self.houses[process].shadows.fold(reports))
        for offset, answer in zip(entries, answers, strict=True):
            self._accept(answer, "reported", self.log[offset])
        if not crash:
            self.committed = len(self.log)

    @rule(status=st.sampled_from(("delivered", "acknowledged")))
    def take_evidence(self, status: str) -> None:
        self._run(self.house.shadows.deliver([(KEY, 99, status)]))

    @rule()
    def listen(self) -> None:
        # A request that changed nothing is remembered, and makes no version.
        self.bodies += [body for body in self._run(self.house.catch_up()) if body["version"]]

    def _accept(self, answer: Answer, kind: str, patch: dict[str, Any]) -> None:
        if answer.changed:
            assert answer.version not in self.accepted
            self.accepted[answer.version] = (kind, patch)

    @invariant()
    def it_is_the_fold_of_what_was_accepted(self) -> None:
        assert sorted(self.accepted) == list(range(1, len(self.accepted) + 1))
        if not self.accepted:
            return
        states: dict[str, Any] = {"reported": {}, "desired": {}}
        for version in sorted(self.accepted):
            kind, patch = self.accepted[version]
            states[kind] = plain_merge(states[kind], patch)
        shadow = self._run(self.house.shadow())
        assert shadow.version == len(self.accepted)
        assert same(shadow.reported, states["reported"])
        assert same(shadow.desired, states["desired"])
        assert shadow.marks.keys() == leaves(shadow.reported).keys()

    @invariant()
    def each_version_is_told_once_and_in_order(self) -> None:
        told = [body["version"] for body in self.bodies]
        assert told == sorted(told)
        assert set(told) == set(range(1, max(told, default=0) + 1))
        shadow = Shadow(key=ShadowKey("", ""))
        state: dict[str, Any] = {}
        delta: dict[str, Any] = {}
        form = self.house.form
        for body in self.bodies:
            after = form.read(KEY, body)
            for kind, payload in tell(shadow, after):
                if kind == "desired":  # whoever follows the patches has the same state as whoever reads the whole
                    state = merge(state, payload["patch"])
                    assert same(state, payload["desired"])
                elif kind == "delta":
                    assert payload["sequence"] == shadow.sequence + 1
                    delta = payload["delta"]
            assert same(delta, after.delta)
            shadow = after


class SqliteShadowMachine(ShadowMachine):
    place = None


TestShadowsInMemory = ShadowMachine.TestCase
TestShadowsInMemory.settings = tried(30, 20)
TestShadowsInSqlite = SqliteShadowMachine.TestCase
TestShadowsInSqlite.settings = tried(5, 15)


@pytest.mark.slow
def test_shadows_in_mongodb(mongo_url: str) -> None:
    class MongoShadowMachine(ShadowMachine):
        place = mongo_url

        def teardown(self) -> None:
            async def empty() -> None:
                for stored in await self.house.database.scan("shadows"):
                    await self.house.database.put("shadows", Write(stored.key, stored, None))

            self._run(empty())
            super().teardown()

    few = tried(3, 12)
    run_state_machine_as_test(MongoShadowMachine, settings=few)
