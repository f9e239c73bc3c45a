"""Members of a group that die (B14, B16): poison ends in the dead letters, duplicates in nothing, all else is done once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import iotsphere
from tests.client.house import Talker
from tests.support import servers
from tests.support.gateway import ROOT, Gateway
from tests.support.waiting import until

from .clients import browser, letters
from .worker import open_sink

TOPIC = "iotsphere/devices/d1/telemetry/t"
ATTEMPTS = 3
VISIBILITY_S = 0.5
EITHER_LOG = pytest.mark.parametrize("log", ["sqlite", "redis"])


@asynccontextmanager
async def open_gateway(folder: Path, log: str) -> AsyncIterator[Gateway]:
    settings = {"max_attempts": ATTEMPTS, "visibility_seconds": VISIBILITY_S}
    if log == "sqlite":
        async with Gateway(folder / "data", settings=settings) as gateway:
            yield gateway
    else:
        with servers.redis(folder / "redis") as server:
            async with Gateway(folder / "data", log=f"redis://127.0.0.1:{server.port}/0", settings=settings) as gateway:
                yield gateway


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
def worker(gateway: Gateway, sink: Sink, die_after: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the group ``billing``; killed at the end if it still runs."""
    process = subprocess.Popen(
        (sys.executable, "-m", "tests.cases.worker", gateway.websocket, "billing", str(sink.path), str(die_after)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TOKEN": gateway.token},
        stdin=subprocess.DEVNULL,
        preexec_fn=servers.die_with_parent,  # noqa: PLW1509 - nothing else ties its life to ours
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def publish(page: Talker, values: range) -> None:
    for value in values:
        await page.publish({"value": value}, TOPIC)


async def reader(gateway: Gateway) -> dict[str, Any]:
    """The group in the ledger, where everything adds up."""
    async with gateway.api() as api:
        ledger = (await api.get("/api/v1/ledger")).json()
    assert ledger["imbalance"] == 0, ledger
    (found,) = [each for each in ledger["readers"] if "billing" in each["reader"] and each["channel"] == "telemetry"]
    return dict(found)


async def settled(gateway: Gateway, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The group once it has nothing left to do, or once its worker is dead."""
    deadline = asyncio.get_running_loop().time() + 60
    while (found := await reader(gateway))["pending"] and process.poll() is None:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.05)
    return found


@EITHER_LOG
async def test_case_b14_a_message_that_kills_its_worker_ends_in_the_dead_letters_and_takes_no_other_along(
    tmp_path: Path, log: str, sink: Sink
) -> None:
    async with open_gateway(tmp_path, log) as gateway, browser(gateway) as page:
        poison = await page.publish({"poison": 1}, TOPIC)
        await publish(page, range(100))
        deaths = 0
        while not await letters(gateway, reason="poison"):
            with worker(gateway, sink) as process:
                await until(
                    lambda: process.poll() is not None or sink.count_and_sum[0] >= 100, "it dies or is done", 60
                )
                if process.poll() is not None:
                    assert process.returncode == 1
                    deaths += 1
                    if deaths == 1:  # what is new keeps flowing
                        await publish(page, range(100, 150))
            assert deaths <= ATTEMPTS, await letters(gateway)
        with worker(gateway, sink) as process:
            await until(lambda: sink.count_and_sum[0] >= 150, "the others are done", 60)
            found = await settled(gateway, process)
            assert process.poll() is None
        assert sink.count_and_sum == (150, sum(range(150)))
        assert deaths == ATTEMPTS
        (letter,) = await letters(gateway)
        assert (letter.reason, letter.topic, letter.raw) == ("poison", TOPIC, b'{"poison":1}')
        assert (letter.facts["message_id"], letter.facts["attempts"]) == (poison["messageId"], ATTEMPTS)
        assert (found["accepted"], found["lost"], found["pending"]) == (151, 0, 0)


@EITHER_LOG
async def test_case_b14_a_transient_error_is_no_poison(tmp_path: Path, log: str) -> None:
    async with (
        open_gateway(tmp_path, log) as gateway,
        browser(gateway) as page,
        iotsphere.connect(gateway.websocket, token=gateway.token) as broker,
    ):
        await publish(page, range(2))
        deliveries = broker.subscribe("iotsphere/devices/+/telemetry/#", group="billing", from_="earliest")
        seen: list[tuple[int, int]] = []
        async with asyncio.timeout(60):
            while len(seen) < 2 + 3 * ATTEMPTS:
                delivery = await anext(deliveries)
                value = delivery.message.json()["value"]
                seen.append((value, delivery.attempt))
                if value == 0 and seen.count((0, 1)) <= 3 * ATTEMPTS:
                    await delivery.release()  # the database is away, and stays so for longer than there are attempts
                else:
                    await delivery.ack()
        assert sorted(seen) == [(0, 1)] * (3 * ATTEMPTS + 1) + [(1, 1)]
        assert await letters(gateway) == []
        assert (await reader(gateway))["pending"] == 0


@EITHER_LOG
async def test_case_b14_a_slow_worker_is_no_poison_to_what_waits_in_its_buffer(tmp_path: Path, log: str) -> None:
    async with (
        open_gateway(tmp_path, log) as gateway,
        browser(gateway) as page,
        iotsphere.connect(gateway.websocket, token=gateway.token) as broker,
    ):
        await publish(page, range(30))
        deliveries = broker.subscribe("iotsphere/devices/+/telemetry/#", group="billing", from_="earliest")
        seen: list[tuple[int, int]] = []
        for _ in range(30):
            delivery = await asyncio.wait_for(anext(deliveries), 20)
            seen.append((delivery.message.json()["value"], delivery.attempt))
            await asyncio.sleep(VISIBILITY_S / 5)  # the work; all 30 take six times as long as a delivery is hidden
            await delivery.ack()
        assert seen == [(value, 1) for value in range(30)]
        assert await letters(gateway) == []
        assert (await reader(gateway))["pending"] == 0


@EITHER_LOG
async def test_case_b16_a_worker_killed_between_its_write_and_its_acknowledgement_counts_nothing_twice(
    tmp_path: Path, log: str, sink: Sink
) -> None:
    async with open_gateway(tmp_path, log) as gateway, browser(gateway) as page:
        await publish(page, range(100))
        for die_after in (40, 5):
            with worker(gateway, sink, die_after) as process:
                await until(lambda: process.poll() is not None, "it dies", 60)
                assert process.returncode == -signal.SIGKILL
        with worker(gateway, sink) as process:
            await until(lambda: sink.count_and_sum[0] == 100, "all is written", 60)
            found = await settled(gateway, process)  # so nothing is tried for ever
            assert process.poll() is None
        assert sink.count_and_sum == (100, sum(range(100)))
        assert sink.duplicates >= 1, "the message whose acknowledgement was lost came again"
        assert await letters(gateway) == []
        assert (found["accepted"], found["applied"], found["lost"]) == (100, 100, 0)
