"""Shared subscriptions over real sockets: each message to one member, in its device's order, and never to nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.use_cases.ports.message_log import Tally
from iotsphere.use_cases.sharing.group import ShareSettings
from iotsphere.use_cases.sharing.sharing import Sharing
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

    async def member(self, stack: AsyncExitStack, name: str, wanted: str | p.Request = SHARE, **fields: Any) -> Peer:
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


async def test_what_a_lost_member_did_not_acknowledge_goes_to_another(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        one = await crew.member(stack, "one")
        await say(house, 5, *range(4))
        await crew.collect({"one": one}, 20, answer=False)
        two = await crew.member(stack, "two")
        one.abort()
        await crew.collect({"two": two}, 20)
        for number in range(5):
            assert [value for device, value in crew.got["two"] if device == f"d{number}"] == [0, 1, 2, 3]
        assert not any(packet.flags & p.DUP for packet in one.packets if isinstance(packet, p.Publish))


async def test_an_offline_session_takes_no_part_and_takes_part_again_when_it_is_back(house: House) -> None:
    crew = Crew(house, await house.door())
    kept: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}
    async with AsyncExitStack() as stack:
        one = await crew.member(stack, "one", **kept)
        await say(house, 6, 0)
        await crew.collect({"one": one}, 6, answer=False)
        one.abort()
        two = await crew.member(stack, "two")
        await crew.collect({"two": two}, 6)
        await say(house, 6, 1)
        await crew.collect({"two": two}, 6)
        await two.drop()
        await until(lambda: house.gateway.connections == 0, "two is gone")
        await say(house, 6, 2)
        again = await stack.enter_async_context(Peer(crew.address))
        connack = await again.connect(house.token("one", ALL), "one", **kept)
        assert connack.session_present
        await crew.collect({"again": again}, 6)
        assert sorted(crew.got["again"]) == [(f"d{number}", 2) for number in range(6)]
        await again.ping()
        assert again.packets == []


async def test_unsubscribing_ends_the_membership_and_others_go_on(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        one, two = await crew.member(stack, "one"), await crew.member(stack, "two")
        one.send(p.Unsubscribe(7, (SHARE, "$share/others/iotsphere/devices/+/telemetry")))
        assert (await one.expect(p.UnsubAck)).reasons == (0x00, 0x11)
        await say(house, 8, 0)
        await crew.collect({"two": two}, 8)
        await one.ping()
        assert one.packets == []


async def test_a_client_may_share_and_subscribe_for_itself_and_be_in_several_groups(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        one = await crew.member(stack, "one")
        assert await one.subscribe(SHARE, FILTER, f"$share/others/{FILTER}") == (1, 1, 1)
        await say(house, 1, 5)
        await crew.collect({"one": one}, 3)
        assert crew.got["one"] == [("d0", 5)] * 3
        await one.ping()
        assert one.packets == []


async def test_groups_of_two_domains_never_meet(house: House) -> None:
    address = await house.door()
    async with Peer(address) as here, Peer(address) as there:
        await here.connect(house.token("s", ALL))
        await there.connect(house.token("s", "subscribe:other/#", domain="other"))
        assert await here.subscribe(SHARE) == (1,)
        assert await there.subscribe("$share/workers/other/devices/+/telemetry") == (1,)
        assert await there.subscribe(SHARE) == (0x87,)
        await house.say("other/devices/d1/telemetry", 1)
        await house.say("iotsphere/devices/d1/telemetry", 2)
        assert seen(await here.expect(p.Publish)) == ("d1", 2)
        assert seen(await there.expect(p.Publish)) == ("d1", 1)
        for peer in (here, there):
            await peer.ping()
            assert peer.packets == []


async def test_no_local_on_a_shared_subscription_is_a_protocol_error(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        peer.send(p.Subscribe(1, (p.Request(SHARE, 1, no_local=True),)))
        assert (await peer.expect(p.Disconnect)).reason == 0x82


async def test_qos_2_is_granted_as_qos_1(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        assert await peer.subscribe(p.Request(SHARE, 2)) == (1,)
        await house.say("iotsphere/devices/d1/telemetry", 1)
        assert (await peer.expect(p.Publish)).flags == 2


async def test_retained_values_are_not_sent_and_the_options_count(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        await house.say("iotsphere/devices/d1/telemetry", 1, retain=True)
        request = p.Request(SHARE, 1, retain_as_published=True)
        peer.send(p.Subscribe(1, (request,), Properties(subscription_identifiers=(7,))))
        assert (await peer.expect(p.SubAck)).reasons == (1,)
        await house.say("iotsphere/devices/d1/telemetry", 2, retain=True)
        got = await peer.expect(p.Publish)
        assert (seen(got), got.flags, got.properties.subscription_identifiers) == (("d1", 2), 3, (7,))


async def test_a_refused_message_is_not_sent_to_anybody_else(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        one = await crew.member(stack, "one")
        await say(house, 1, 1)
        refused = await one.expect(p.Publish)
        one.send(p.Ack(p.PUBACK, refused.packet_id, 0x97))
        await one.ping()
        one.abort()
        two = await crew.member(stack, "two")
        await say(house, 1, 2)
        await crew.collect({"two": two}, 1)
        assert crew.got["two"] == [("d0", 2)]
        assert house.gateway.counts["refused_by_client"] == 1


async def test_a_members_window_is_kept_and_the_others_are_not_held_back(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        narrow = await crew.member(stack, "narrow", properties=Properties(receive_maximum=2))
        wide = await crew.member(stack, "wide")
        await say(house, 10, *range(5))
        await until(lambda: sum(isinstance(each, p.Publish) for each in narrow.packets) == 2, "the window is full")
        await narrow.ping()
        sent = [seen(each)[0] for each in narrow.packets if isinstance(each, p.Publish)]
        await crew.collect({"wide": wide}, 1)
        await crew.collect({"wide": wide, "narrow": narrow}, 50 - len(crew.got["wide"]))
        assert set(sent) <= {device for device, _ in crew.got["narrow"]}
        assert not {device for device, _ in crew.got["narrow"]} & {device for device, _ in crew.got["wide"]}
        assert Counter(each for got in crew.got.values() for each in got) == {
            (f"d{number}", value): 1 for number in range(10) for value in range(5)
        }


async def test_a_member_that_was_taken_over_is_replaced_by_itself(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        kept: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}
        one = await crew.member(stack, "one", **kept)
        await say(house, 3, 0)
        await crew.collect({"one": one}, 3, answer=False)
        newer = await stack.enter_async_context(Peer(crew.address))
        await newer.connect(house.token("one", ALL), "one", **kept)
        await crew.collect({"newer": newer}, 3)
        await one.end()


async def test_a_share_that_is_no_longer_granted_is_gone_when_the_client_returns(house: House) -> None:
    address = await house.door()
    kept: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}
    async with Peer(address) as peer:
        await peer.connect(house.token("s", ALL), **kept)
        assert await peer.subscribe(SHARE) == (1,)
    async with Peer(address) as peer:
        await peer.connect(house.token("s", "subscribe:iotsphere/users/#"), **kept)
        await house.say("iotsphere/devices/d1/telemetry", 1)
        await peer.ping()
        assert peer.packets == []
        assert house.gateway.counts["filters_withdrawn"] == 1


async def test_more_groups_than_allowed_are_refused(house: House) -> None:
    house.sharing = Sharing(house.log, house.documents, house.feed, ShareSettings(groups=1))
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        assert await peer.subscribe(SHARE, f"$share/b/{FILTER}", SHARE) == (1, 0x97, 1)


async def test_a_message_too_large_for_its_member_is_counted_and_holds_nothing_up(house: House) -> None:
    crew = Crew(house, await house.door())
    async with AsyncExitStack() as stack:
        one = await crew.member(stack, "one", properties=Properties(maximum_packet_size=1_000))
        await house.say("iotsphere/devices/d0/telemetry", "x" * 2_000)
        await say(house, 1, 1)
        await crew.collect({"one": one}, 1)
        assert crew.got["one"] == [("d0", 1)]
        assert house.gateway.counts["too_large_for_client"] == 1


async def test_a_members_own_publishes_reach_the_group(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        assert await peer.subscribe("$share/g/iotsphere/devices/d1/telemetry") == (1,)
        peer.send(message("iotsphere/devices/d1/telemetry", b"7", 5))
        got = await peer.expect(p.Publish)
        assert seen(got) == ("d1", 7)


async def test_a_group_goes_on_after_a_restart_of_the_gateway(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        crew = Crew(house, await house.door())
        async with AsyncExitStack() as stack:
            one = await crew.member(stack, "one")
            await say(house, 4, 0)
            await crew.collect({"one": one}, 4, answer=False)
            for packet_id in (1, 2):
                one.send(ack(packet_id))
            await one.ping()
        await house.restart()
        await say(house, 4, 1)
        crew = Crew(house, await house.door())
        async with AsyncExitStack() as stack:
            two = await crew.member(stack, "two")
            await crew.collect({"two": two}, 6)
            assert sorted(value for _, value in crew.got["two"]) == [0, 0, 1, 1, 1, 1]
            await two.ping()
        await house.restart()
        assert await accounts(house) == Tally(applied=8)
