"""A device that runs commands, and remembers what it runs across connections, as a careful client of QoS 2 does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from iotsphere.adapters.mqtt import packets as p
from iotsphere.use_cases.access.devices import Credential as Login
from tests.gateways.mqtt.peer import Peer
from tests.support.gateway import Credential

from .exactly_once import Client


class Commanded(Client):
    """Runs each command that is handed to it and answers it. ``ran``: their ids, in order. It keeps the packet ids that the
    gateway has not released; at QoS 1 nothing tells it of repetitions.
    """

    def __init__(
        self, address: Callable[[], tuple[str, int]], version: int, credential: Credential, qos: int, room: int
    ) -> None:
        super().__init__(address, version)
        self.ran: list[str] = []
        self.repeated = 0
        self._credential = credential
        self._qos = qos
        self._room = room
        self._held: set[int] = set()
        self._answers: dict[str, None] = {}

    def done(self) -> bool:
        return False

    async def visit(self, peer: Peer) -> None:
        who = self._credential
        first = not self.connections
        await self.enter(peer, Login(who.device_id, who.username, who.password), "runner")
        if first:
            wanted = p.Request(f"iotsphere/devices/{who.device_id}/commands/request", self._qos)
            assert await peer.subscribe(wanted) == (self._qos,)
        for command_id in self._answers:
            self._answer(peer, command_id)
        while True:
            packet: Any = await peer.expect(tuple, lambda x: isinstance(x, p.Publish | p.Ack))
            if isinstance(packet, p.Publish):
                if packet.packet_id not in self._held:
                    self._run(peer, packet)
                else:
                    self.repeated += 1
                if packet.qos == 2:
                    self._held.add(packet.packet_id)
                peer.send(p.Ack(p.PUBREC if packet.qos == 2 else p.PUBACK, packet.packet_id))
            elif packet.kind == p.PUBREL:
                self._held.discard(packet.packet_id)
                peer.send(p.Ack(p.PUBCOMP, packet.packet_id))
            elif packet.kind == p.PUBACK and self._answers:
                self._answers.pop(next(iter(self._answers)))

    def _run(self, peer: Peer, packet: p.Publish) -> None:
        command_id = json.loads(packet.payload)["metadata"]["messageId"]
        self.ran.append(command_id)
        self._answers[command_id] = None
        self._answer(peer, command_id)

    def _answer(self, peer: Peer, command_id: str) -> None:
        topic = f"iotsphere/devices/{self._credential.device_id}/commands/response"
        body = {"metadata": {"correlationId": command_id}, "payload": {"status": "succeeded"}}
        peer.send(p.Publish(topic.encode(), json.dumps(body).encode(), 60_000, 2))
