"""The messages to a client, as far as the protocol goes: sent within its window, and settled as it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import packets as p
from .aliases import AliasesOut
from .encode import encode
from .life import Settled, Tag
from .primitives import Malformed
from .reasons import Reason
from .speech import Speech
from .window import Window

ERROR: Final = Reason.UNSPECIFIED_ERROR


class Outgoing:
    """``window``: what is under way. ``aliases``: the topics that the client lets the server abbreviate."""

    __slots__ = ("_abandoned", "_speech", "aliases", "window")

    def __init__(self, speech: Speech) -> None:
        self.window: Window[Tag] = Window(0)
        self.aliases: AliasesOut | None = None
        self._speech = speech
        self._abandoned: tuple[int, ...] = ()

    def fits(self, size: int) -> bool:
        """Whether the client takes a packet of so many bytes."""
        return size <= self._speech.maximum

    def send(self, parts: tuple[bytes, bytes], tag: Tag, packet_id: int = 0, *, recorded: bool = False) -> None:
        """Send a message at QoS 1, made by ``publish_parts``; ``recorded``: it leaves once it is on record.

        Raises ValueError when the window is full.
        """
        head, tail = parts
        packet_id = self.window.take(tag, packet_id)
        if recorded:
            self._speech.withhold()
        self._speech.deliveries.extend((head, packet_id.to_bytes(2, "big"), tail))

    def send_once(self, parts: tuple[bytes, bytes], tag: Tag, packet_id: int = 0) -> None:
        """Send a message at QoS 2; it leaves once it is on record. Raises ValueError when the window is full."""
        packet_id = self.window.take(tag, packet_id, two=True)
        self._speech.withhold()
        head, tail = parts
        self._speech.deliveries += (head, packet_id.to_bytes(2, "big"), tail)

    def send_unanswered(self, packet: bytes) -> None:
        """Send a message at QoS 0."""
        self._speech.deliveries.append(packet)

    def abandon(self, packet_id: int) -> None:
        """Let a message at QoS 2 of an earlier connection go that cannot be sent again: its id must not stay taken."""
        if not self._speech.online:
            self._abandoned += (packet_id,)  # the welcome comes first
            return
        self.window.ask_back((packet_id,))
        self._speech.promise(encode(p.Ack(p.PUBREL, packet_id), self._speech.version))

    def resume(self) -> None:
        """Ask the client once more to let go what it has (MQTT 5 section 4.4)."""
        if self._abandoned:
            self.window.ask_back(self._abandoned)
        for packet_id in self.window.released:
            self._speech.put(encode(p.Ack(p.PUBREL, packet_id), self._speech.version))

    def acknowledged(self, packet_ids: Sequence[int]) -> list[Tag]:
        """Take PUBACKs; returns the tags of what was under way. Raises Malformed."""
        window = self.window
        if window.twos and not window.twos.keys().isdisjoint(packet_ids):
            raise Malformed("a PUBACK for a message at QoS 2", Reason.PROTOCOL_ERROR)
        return [tag for tag in map(window.release, packet_ids) if tag is not None]

    def step(self, packet: p.Ack) -> Settled | None:
        """Take a PUBREC or PUBCOMP (MQTT 5 section 4.3.3); None: it changed nothing. Raises Malformed."""
        packet_id, window = packet.packet_id, self.window
        if packet.kind == p.PUBCOMP:
            return Settled([], 0) if window.given_back(packet_id) else None
        if window.answered_once(packet_id):
            if packet.reason >= ERROR:
                return Settled([window.release(packet_id)], 1)
            self._speech.promise(encode(p.Ack(p.PUBREL, packet_id), self._speech.version))
            return Settled([window.receive(packet_id)], 0)
        if packet_id in window.released:
            self._speech.promise(encode(p.Ack(p.PUBREL, packet_id), self._speech.version))
        elif packet_id in window:
            raise Malformed("a PUBREC for a message at QoS 1", Reason.PROTOCOL_ERROR)
        else:
            five = self._speech.version == p.MQTT_5
            reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if five else Reason.SUCCESS
            self._speech.put(encode(p.Ack(p.PUBREL, packet_id, reason), self._speech.version))
        return None
