"""Both ends of QoS 2 as careful clients: a sender and a receiver that keep their state when the gateway is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.use_cases.access.devices import Credential as Login
from tests.gateways.mqtt.peer import Gone, Peer
from tests.support.gateway import Credential

RECONNECT_PAUSE = 0.02
KEPT = Properties(session_expiry_interval=3600)


class Client:
    """One client that comes back whenever its connection is lost. ``connections``: how often it was welcomed."""

    def __init__(self, address: Callable[[], tuple[str, int]], version: int) -> None:
        self.connections = 0
        self.resumed = 0
        self._address = address
        self._version = version

    async def run(self) -> None:
        while not self.done():
            with suppress(ConnectionError, Gone):
                async with Peer(self._address(), self._version) as peer:
                    await self.visit(peer)
            await asyncio.sleep(RECONNECT_PAUSE)

    def done(self) -> bool:
        raise NotImplementedError

    async def visit(self, peer: Peer) -> None:
        raise NotImplementedError

    async def enter(self, peer: Peer, login: Login | str, client_id: str) -> None:
        kept = KEPT if self._version == p.MQTT_5 else Properties()
        answer = await peer.connect(login, client_id, clean_start=False, properties=kept)
        if answer.reason:
            raise Gone(f"refused for now: {answer.reason}")
        if self.connections:
            assert answer.session_present, "the session is lost"
        self.connections += 1


class Sender(Client):
    """Publishes ``count`` bare numbers at QoS 1 and 2 in turns of topics; nobody can tell a repetition by its content.

    ``allowed``: it stops there, until it has been raised and the connection lost.
    """

    def __init__(
        self, address: Callable[[], tuple[str, int]], version: int, credential: Credential, count: int, window: int = 16
    ) -> None:
        super().__init__(address, version)
        self.credential = credential
        self.completed = 0
        self.sent = 0
        self.allowed = count
        self._count = count
        self._window = window
        self._publishing: dict[int, p.Publish] = {}
        self._releasing: dict[int, None] = {}
        self._next_id = 0

    def done(self) -> bool:
        return self.completed == self._count

    async def visit(self, peer: Peer) -> None:
        who = self.credential
        await self.enter(peer, Login(who.device_id, who.username, who.password), who.device_id)
        for packet_id in self._releasing:
            peer.send(p.Ack(p.PUBREL, packet_id))
        for packet in self._publishing.values():
            peer.send(packet._replace(flags=packet.flags | p.DUP))
        while not self.done():
            while self.sent < self.allowed and len(self._publishing) + len(self._releasing) < self._window:
                peer.send(self._new())
            self._take(peer, await peer.expect(p.Ack))

    def _new(self) -> p.Publish:
        # Few ids, so that they are used again and again: each of them stands for many messages.
        while True:
            self._next_id = self._next_id % (self._window + 3) + 1
            if self._next_id not in self._publishing and self._next_id not in self._releasing:
                break
        qos = 1 if self.sent % 4 == 3 else 2
        topic = f"iotsphere/devices/{self.credential.device_id}/telemetry/q{qos}"
        packet = p.Publish(topic.encode(), str(self.sent).encode(), self._next_id, qos << 1)
        self._publishing[self._next_id] = packet
        self.sent += 1
        return packet

    def _take(self, peer: Peer, packet: p.Ack) -> None:
        if packet.kind == p.PUBREC:
            if self._publishing.pop(packet.packet_id, None) is not None:
                self._releasing[packet.packet_id] = None
            peer.send(p.Ack(p.PUBREL, packet.packet_id))
        elif packet.kind == p.PUBCOMP:
            if packet.packet_id in self._releasing:
                del self._releasing[packet.packet_id]
                self.completed += 1
        elif self._publishing.pop(packet.packet_id, None) is not None:
            self.completed += 1


class Receiver(Client):
    """Takes everything at QoS 2, keeps the ids that it has not let go, and hands each message on once (``got``)."""

    def __init__(self, address: Callable[[], tuple[str, int]], version: int, token: Callable[[], str]) -> None:
        super().__init__(address, version)
        self.got: dict[tuple[str, str], list[int]] = {}
        self.repeated = 0
        self.ready = asyncio.Event()
        self._token = token
        self._held: set[int] = set()

    def done(self) -> bool:
        return False

    async def visit(self, peer: Peer) -> None:
        await self.enter(peer, self._token(), "receiver")
        if not self.ready.is_set():
            everything = "iotsphere/devices/+/telemetry/"
            assert await peer.subscribe(p.Request(f"{everything}q2", 2), p.Request(f"{everything}q1", 1)) == (2, 1)
            self.ready.set()
        while True:
            packet: Any = await peer.expect(tuple, lambda x: isinstance(x, p.Publish | p.Ack))
            if isinstance(packet, p.Publish):
                if packet.qos == 1 or packet.packet_id not in self._held:
                    self._hand_on(packet)
                else:
                    self.repeated += 1
                if packet.qos == 2:
                    self._held.add(packet.packet_id)
                peer.send(p.Ack(p.PUBREC if packet.qos == 2 else p.PUBACK, packet.packet_id))
            elif packet.kind == p.PUBREL:
                self._held.discard(packet.packet_id)
                peer.send(p.Ack(p.PUBCOMP, packet.packet_id))

    def _hand_on(self, packet: p.Publish) -> None:
        envelope = json.loads(packet.payload)
        place = envelope["metadata"]["source"], packet.topic.decode().rpartition("/")[2]
        self.got.setdefault(place, []).append(envelope["payload"]["value"])

    def numbers(self, device: str, metric: str) -> list[int]:
        return self.got.get((device, metric), [])
