"""Entries as the bytes of a PUBLISH, made once for all clients that get them in the same form."""

from __future__ import annotations

from dataclasses import replace

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.encode import encode, publish_parts
from ...adapters.mqtt.handed_on import handed_on
from ...adapters.mqtt.playground import Playground
from ...adapters.mqtt.properties import NONE
from ...adapters.mqtt.session import Session
from ...entities.message import Record
from ...use_cases.feed import Batch
from ...use_cases.ports.clock import Clock


class Parts:
    """Writes PUBLISH packets for one client, in two parts around the packet id (QoS 0: in one)."""

    __slots__ = ("_clock", "_outgoing", "_playground", "_shared", "_version")

    def __init__(self, session: Session, clock: Clock, playground: Playground | None = None) -> None:
        self._version = session.version
        self._outgoing = session.outgoing
        self._playground = playground
        self._clock = clock
        self._shared = "mqtt5" if session.version == p.MQTT_5 else "mqtt4"

    def of_entry(self, batch: Batch, index: int, flags: int, identifiers: tuple[int, ...]) -> tuple[bytes, bytes]:
        """The parts of a batch's entry; they are kept with the batch unless something of them is this client's own."""
        record = batch.entries[index].record
        if identifiers or record.expires_at or self._outgoing.aliases is not None:
            return self.of_record(record, flags, identifiers)
        shared: dict[int, tuple[bytes, bytes]] | None = batch.encoded.get(self._shared)
        if shared is None:
            shared = batch.encoded[self._shared] = {}
        place = index << 4 | flags
        parts = shared.get(place)
        if parts is None:
            parts = shared[place] = self.of_record(record, flags, ())
        return parts

    def of_record(self, record: Record, flags: int, identifiers: tuple[int, ...]) -> tuple[bytes, bytes]:
        """The parts of any record."""
        topic, body, properties = record.topic.encode(), record.body, NONE
        if self._playground is not None:
            topic, body, properties = self._playground.handed(record)
        elif self._version == p.MQTT_5:
            properties = handed_on(record)
        if self._version == p.MQTT_5 and (identifiers or record.expires_at):
            left = None
            if record.expires_at:
                left = max(1, (record.expires_at - self._clock.now()) // 1000)
            properties = replace(properties, message_expiry_interval=left, subscription_identifiers=identifiers)
        aliases = self._outgoing.aliases
        if aliases is None:
            return self._parts(p.Publish(topic, body, 0, flags, properties))
        alias, known = aliases.of(record.topic, at_once=self._playground is not None)
        if alias:
            properties = replace(properties, topic_alias=alias)
            topic = b"" if known else topic
        parts = self._parts(p.Publish(topic, body, 0, flags, properties))
        if alias and not known and not self._outgoing.fits(len(parts[0]) + len(parts[1]) + 2):
            aliases.forget(record.topic)  # the client will never see this packet
        return parts

    def _parts(self, packet: p.Publish) -> tuple[bytes, bytes]:
        if packet.flags & 6:
            return publish_parts(packet.topic, packet.payload, packet.flags, self._version, packet.properties)
        return encode(packet, self._version), b""
