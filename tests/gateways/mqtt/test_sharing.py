"""Shared subscriptions over real sockets: each message to one member, in its device's order, and never to nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import orjson
import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.use_cases.ports.message_log import Tally
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack, message

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
ALL = "subscribe:iotsphere/#"
FILTER = "iotsphere/devices/+/telemetry"
SHARE = f"$share/workers/{FILTER}"
READER = f"iotsphere/share/workers/{FILTER}"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


def seen(packet: p.Publish) -> tuple[str, int]:
    """The device, and the value that it sent."""
    envelope = orjson.loads(packet.payload)
    return packet.topic.decode().split("/")[2], envelope["payload"]["value"]


class Crew:
    """Clients of one group. ``got``: what each of them received, in order."""

    def __init__(self, house: House, address: tuple[str, int]) -> None:
        self.house = house
        self.address = address
        self.got: dict[str, list[tuple[str, int]]] = defaultdict(list)

    async def member(self, stack: AsyncExitStack, name: str, wanted: str | p.Request = SHARE, **fields: object) -> Peer:
        peer = await stack.enter_async_context(Peer(self.address))
        await peer.connect(self.house.token(name, ALL), name, **fields)
        (reason,) = await peer.subscribe(wanted)
        assert reason < 0x80
        return peer

    async def collect(self, peers: dict[str, Peer], count: int, *, answer: bool = True) -> None:
        """Take what comes until all of them together have ``count`` more."""
        before = sum(map(len, self.got.values()))

        def step() -> bool:
            for name, peer in peers.items():
                for packet in [each for each in peer.packets if isinstance(each, p.Publish)]:
                    peer.packets.remove(packet)
                    self.got[name].append(seen(packet))
                    if answer and packet.packet_id:
                        peer.send(ack(packet.packet_id))
            return sum(map(len, self.got.values())) - before >= count

        await until(step, f"{count} messages at {sorted(peers)}")


async def say(house: House, devices: int, *values: int) -> None:
    for value in values:
        for number in range(devices):
            await house.say(f"iotsphere/devices/d{number}/telemetry", value)


async def accounts(house: House, reader: str = READER) -> Tally:
    total = Tally()
    for progress in (await house.log.committed(reader)).values():
        total = total.plus(progress.tally)
    return total


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1])
async def test_each_message_goes_to_one_member_and_each_device_stays_with_one(
    house: House, version: int, qos: int
) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        peers = {}
        for name in ("one", "two", "three"):
            peer = peers[name] = await stack.enter_async_context(Peer(crew.address, version))
            await peer.connect(house.token(name, ALL), name)
            assert await peer.subscribe(p.Request(SHARE, qos)) == (qos,)
        await say(house, 12, *range(5))
        await crew.collect(peers, 60)
        for name, got in crew.got.items():
            per_device = defaultdict(list)
            for device, value in got:
                per_device[device].append(value)
            assert all(values == [0, 1, 2, 3, 4] for values in per_device.values()), (name, got)
        assert Counter(each for got in crew.got.values() for each in got) == {
            (f"d{number}", value): 1 for number in range(12) for value in range(5)
        }
        assert len(crew.got) > 1
