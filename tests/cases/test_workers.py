"""Members of a group that die (B14, B16): poison ends in the dead letters, duplicates in nothing, all else is done once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

import iotsphere
from tests.client.house import Talker
from tests.support import servers
from tests.support.gateway import ROOT, Gateway
from tests.support.processes import die_with_parent
from tests.support.waiting import until

from .clients import Letter, browser, letters
from .worker import open_sink

pytestmark = pytest.mark.asyncio(loop_scope="module")
ATTEMPTS = 3
VISIBILITY_S = 3.0
SETTINGS = {"max_attempts": ATTEMPTS, "visibility_seconds": VISIBILITY_S}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "redis"])
async def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp("workers")
    with servers.redis(folder / "redis") as server:
        log = "sqlite" if request.param == "sqlite" else f"redis://127.0.0.1:{server.port}/0"
        async with Gateway(folder / "data", log=log, settings=SETTINGS) as running:
            yield running


class Group(NamedTuple):
    """A group of workers with a device of its own to listen to. ``page``: who publishes."""

    gateway: Gateway
    name: str
    page: Talker

    @property
    def topic(self) -> str:
        return f"iotsphere/devices/{self.name}/telemetry/t"

    @property
    def wanted(self) -> str:
        return f"iotsphere/devices/{self.name}/telemetry/#"

    async def publish(self, values: range) -> None:
        for value in values:
            await self.page.publish({"value": value}, self.topic)

    async def letters(self) -> list[Letter]:
        return [letter for letter in await letters(self.gateway) if letter.topic == self.topic]

    async def account(self) -> dict[str, Any]:
        """The group in the ledger, where everything adds up."""
        async with self.gateway.api() as api:
            ledger = (await api.get("/api/v1/ledger")).json()
        assert ledger["imbalance"] == 0, ledger
        reader = f"iotsphere/{self.name}"
        (found,) = [each for each in ledger["readers"] if (each["reader"], each["channel"]) == (reader, "telemetry")]
        return dict(found)

    async def settled(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """The account once nothing is left to do, or once the worker is dead."""
        deadline = asyncio.get_running_loop().time() + 60
        while (found := await self.account())["pending"] and process.poll() is None:
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
        return found


@pytest_asyncio.fixture(loop_scope="module")
async def group(gateway: Gateway, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[-64:].strip("-")
    async with browser(gateway) as page:
        yield Group(gateway, name, page)


class Sink:
    """What the workers have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_sink(str(path))

    def one(self, question: str) -> Any:
        return self._file.execute(question).fetchone()

    @property
    def count_and_sum(self) -> tuple[int, int]:
        count, total = self.one("SELECT count(*), coalesce(sum(value), 0) FROM readings")
        return count, total

    @property
    def duplicates(self) -> int:
        return int(self.one("SELECT count(*) FROM duplicates")[0])

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    opened = Sink(tmp_path / "sink.db")
    yield opened
    opened.close()


@contextmanager
def worker(group: Group, sink: Sink, die_after: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the group; killed at the end if it still runs."""
    words = ("-m", "tests.cases.worker", group.gateway.websocket, group.wanted, group.name, sink.path, die_after)
    process = subprocess.Popen(
        (sys.executable, *map(str, words)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TOKEN": group.gateway.token},
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing else ties its life to ours
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_case_b14_a_message_that_kills_its_worker_ends_in_the_dead_letters_and_takes_no_other_along(
    group: Group, sink: Sink
) -> None:
    poison = await group.page.publish({"poison": 1}, group.topic)
    await group.publish(range(100))
    for death in range(ATTEMPTS):
        with worker(group, sink) as process:
            await until(lambda: process.poll() is not None, "it dies", 60)
            assert process.returncode == 1
        assert await group.letters() == []
        if death == 0:
            await group.publish(range(100, 150))  # what is new keeps flowing
    with worker(group, sink) as process:
        account = await group.settled(process)
        assert process.poll() is None
    assert sink.count_and_sum == (150, sum(range(150)))
    (letter,) = await group.letters()
    assert (letter.reason, letter.raw) == ("poison", b'{"poison":1}')
    assert (letter.facts["message_id"], letter.facts["attempts"]) == (poison["messageId"], ATTEMPTS)
    assert (account["applied"], account["dead_lettered"]) == (150, 1)
    assert (account["lost"], account["pending"]) == (0, 0)


async def test_case_b14_a_transient_error_is_no_poison(group: Group) -> None:
    await group.publish(range(2))
    seen: list[tuple[int, int]] = []
    async with iotsphere.connect(group.gateway.websocket, token=group.gateway.token) as broker, asyncio.timeout(100):
        deliveries = broker.subscribe(group.wanted, group=group.name, from_="earliest")
        while len(seen) < 2 + 3 * ATTEMPTS:
            delivery = await anext(deliveries)
            value = delivery.message.json()["value"]
            seen.append((value, delivery.attempt))
            if value == 0 and seen.count((0, 1)) <= 3 * ATTEMPTS:
                await delivery.release()  # the database is away, and stays so for longer than there are attempts
            else:
                await delivery.ack()
    assert sorted(seen) == [(0, 1)] * (3 * ATTEMPTS + 1) + [(1, 1)]
    assert await group.letters() == []
    assert (await group.account())["pending"] == 0


async def test_case_b14_a_slow_worker_is_no_poison_to_what_waits_in_its_buffer(group: Group) -> None:
    await group.publish(range(8))
    seen: list[tuple[int, int]] = []
    async with iotsphere.connect(group.gateway.websocket, token=group.gateway.token) as broker, asyncio.timeout(100):
        deliveries = broker.subscribe(group.wanted, group=group.name, from_="earliest")
        for _ in range(8):
            delivery = await anext(deliveries)
            seen.append((delivery.message.json()["value"], delivery.attempt))
            await asyncio.sleep(VISIBILITY_S / 4)  # the work; all of it takes twice as long as one is hidden
            await delivery.ack()
    assert seen == [(value, 1) for value in range(8)]
    assert await group.letters() == []
    assert (await group.account())["pending"] == 0


async def test_case_b16_a_worker_killed_between_its_write_and_its_acknowledgement_counts_nothing_twice(
    group: Group, sink: Sink
) -> None:
    await group.publish(range(100))
    for die_after in (40, 5):
        with worker(group, sink, die_after) as process:
            await until(lambda: process.poll() is not None, "it dies", 60)
            assert process.returncode == -signal.SIGKILL
    with worker(group, sink) as process:
        account = await group.settled(process)  # so nothing is tried for ever
        assert process.poll() is None
    assert sink.count_and_sum == (100, sum(range(100)))
    assert sink.duplicates >= 1, "the message whose acknowledgement was lost came again"
    assert await group.letters() == []
    assert (account["lost"], account["pending"]) == (0, 0)
