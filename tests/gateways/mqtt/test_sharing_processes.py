"""kill -9 of gateways whose clients share a filter: all that was acknowledged to the devices reaches the group, in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import orjson
import pytest

from iotsphere.adapters.mqtt import packets as p
from tests.faults.fleet import ledger_balances
from tests.support.device import Device
from tests.support.gateway import Gateway
from tests.support.servers import Server, redis
from tests.support.waiting import until

from .peer import Gone, Peer, ack

DEVICES = 8
COUNT = 150
TOTAL = DEVICES * COUNT
FILTER = "iotsphere/devices/+/telemetry/#"
SHARE = f"$share/workers/{FILTER}"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    with redis(tmp_path / "redis") as server:
        yield server


class Worker:
    """A member that acknowledges what it gets and comes back when it is cut. ``seen``: all members' messages, in order."""

    def __init__(self, name: str, gateway: Gateway, seen: list[tuple[str, str, int]]) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._gateway = gateway
        self._seen = seen

    async def run(self) -> None:
        while True:
            with suppress(OSError, Gone):
                async with Peer(self._gateway.mqtt) as peer:
                    await peer.connect(self._gateway.token, self.name)
                    assert await peer.subscribe(SHARE) == (1,)
                    self.ready.set()
                    await self._work(peer)
            await asyncio.sleep(0.05)

    async def _work(self, peer: Peer) -> None:
        while not peer.closed.is_set():
            for packet in [each for each in peer.packets if isinstance(each, p.Publish)]:
                peer.packets.remove(packet)
                envelope = orjson.loads(packet.payload)
                self._seen.append((self.name, envelope["metadata"]["source"], envelope["payload"]["seq"]))
                peer.send(ack(packet.packet_id))
            await asyncio.sleep(0.005)


class Scene:
    """Workers at gateways, and devices that publish to one of them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.devices: list[Device] = []
        self._stack = stack

    async def work(self, *workers: tuple[str, Gateway]) -> None:
        for name, gateway in workers:
            worker = Worker(name, gateway, self.seen)
            task = asyncio.create_task(worker.run())
            self._stack.push_async_callback(_end, task)
            await asyncio.wait_for(worker.ready.wait(), 60)

    async def send(self, gateway: Gateway) -> None:
        credentials = await gateway.add_devices([f"d{number}" for number in range(DEVICES)])
        self.devices = [Device(each, lambda: gateway.mqtt, count=COUNT, window=10, pause=0.04) for each in credentials]
        for device in self.devices:
            self._stack.push_async_callback(_end, asyncio.create_task(device.run()))

    async def share_of_it(self, share: float) -> None:
        await until(lambda: len(self.seen) >= share * TOTAL, f"{share:.0%} have arrived", 150)

    async def all_of_it(self, gateways: Sequence[Gateway]) -> None:
        await until(self._complete, f"everything has arrived; {len(set(self._messages()))} of {TOTAL}", 150)
        await ledger_balances(gateways[0], TOTAL)
        firsts: dict[str, list[int]] = defaultdict(list)
        for source, seq in dict.fromkeys(self._messages()):
            firsts[source].append(seq)
        assert firsts == {f"d{number}": list(range(COUNT)) for number in range(DEVICES)}

    def _messages(self) -> list[tuple[str, int]]:
        return [(source, seq) for _, source, seq in self.seen]

    def _complete(self) -> bool:
        return all(len(device.acked) == COUNT for device in self.devices) and len(set(self._messages())) == TOTAL

    def by(self, name: str) -> int:
        return sum(worker == name for worker, _, _ in self.seen)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.slow
async def test_kill_9_of_one_of_two_gateways_strands_nothing(tmp_path: Path, redis_server: Server) -> None:
    log = f"redis://127.0.0.1:{redis_server.port}/0"
    secrets = tmp_path / "secrets.json"
    async with AsyncExitStack() as stack:
        here, there = [
            await stack.enter_async_context(
                Gateway(tmp_path / name, log=log, settings={"node": name, "secrets": secrets})
            )
            for name in ("here", "there")
        ]
        scene = Scene(stack)
        await scene.work(("here-1", here), ("there-1", there), ("there-2", there), ("here-2", here))
        await scene.send(here)
        # A process that comes is given its part within seconds; until then the first one serves the group alone.
        await until(lambda: scene.by("there-1") + scene.by("there-2") > 0, "both gateways have a part", 150)
        await scene.share_of_it(0.4)
        await there.kill()
        await scene.all_of_it([here])


@pytest.mark.slow
@pytest.mark.parametrize("log", ["sqlite", "redis"])
async def test_kill_9_of_the_only_gateway_loses_nothing_of_the_group(
    tmp_path: Path, log: str, request: pytest.FixtureRequest
) -> None:
    url = log
    if log == "redis":
        server: Server = request.getfixturevalue("redis_server")
        url = f"redis://127.0.0.1:{server.port}/0"
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(tmp_path / "data", log=url))
        scene = Scene(stack)
        await scene.work(*((f"w{number}", gateway) for number in range(3)))
        await scene.send(gateway)
        for share in (0.25, 0.6):
            await scene.share_of_it(share)
            await gateway.restart()
        await scene.all_of_it([gateway])
        assert all(device.connections == 3 for device in scene.devices)
        repeated = len(scene.seen) - TOTAL
        assert repeated < TOTAL // 2, "what was committed does not come again"
