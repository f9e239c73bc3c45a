"""The messages of a client, as far as the protocol goes: how many are unanswered, and what each is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import packets as p
from .aliases import AliasesIn
from .encode import encode, pubacks
from .inflow import Inflow
from .primitives import Malformed
from .reasons import PUBACK, Reason
from .speech import Speech

ERROR: Final = Reason.UNSPECIFIED_ERROR


class Incoming:
    """``unanswered``: messages that wait for their PUBACK or PUBREC; with those that wait for their PUBREL they are at
    most ``maximum`` (MQTT 5 section 4.9; MQTT 3.1.1 knows no such limit: its socket is read no further).

    ``recovering``: the client goes on with a session, and may ask to release what was complete before it knew that. It
    does so before anything new (section 4.4), and it is no error then (section 3.7.2.1).
    """

    __slots__ = ("_aliases", "_inflow", "_most_aliases", "_speech", "maximum", "recovering", "unanswered")

    def __init__(self, speech: Speech, maximum: int, aliases: int) -> None:
        self.unanswered = 0
        self.recovering = False
        self.maximum = maximum
        self._speech = speech
        self._most_aliases = aliases
        # Made when the client publishes: most only listen.
        self._inflow: Inflow | None = None
        self._aliases: AliasesIn | None = None

    @property
    def inflow(self) -> Inflow:
        """The messages at QoS 2 that the client has not released."""
        if self._inflow is None:
            self._inflow = Inflow()
        return self._inflow

    def go_on(self, inflow: Inflow | None, recovering: bool) -> None:
        """Begin with what an earlier connection of the session had received (None: nothing)."""
        self._inflow = inflow
        self.recovering = recovering

    def burst(self, burst: p.Burst) -> tuple[p.Burst, bool]:
        """Take simple messages; returns those that are within the limit, and whether that is all of them."""
        if self.takes(burst):
            return burst, True
        room = self.maximum - self.unanswered - self.inflow.held
        self.unanswered += room
        return burst.first(room), False

    def takes(self, burst: p.Burst) -> bool:
        """Take simple messages, if all of them are within the limit."""
        count = sum([message[2] > 0 for message in burst.messages])
        if self.unanswered + count > self.maximum - self.inflow.held and self._speech.version == p.MQTT_5:
            return False
        self.unanswered += count
        return True

    def publish(self, packet: p.Publish | p.Oversized) -> p.Publish | p.Oversized | None:
        """Take any other message; None when there is nothing to do. Raises Malformed with what it breaks."""
        if packet.properties.subscription_identifiers:
            raise Malformed("a client sends no subscription identifier", Reason.PROTOCOL_ERROR)
        if packet.properties.topic_alias is not None:
            if self._aliases is None:
                self._aliases = AliasesIn(self._most_aliases)
            packet = self._aliases.resolve(packet)
        taken: bool | None = True
        if packet.flags & 4:
            if not packet.flags & p.DUP:
                self.recovering = False
            taken = self.inflow.take(packet)
            if taken is False:
                if not self.unanswered:
                    self._speech.put(encode(p.Ack(p.PUBREC, packet.packet_id), self._speech.version))
                    return None
                self.inflow.repeat(packet.packet_id)  # its turn comes behind the others
        if taken is None:
            return None
        if packet.packet_id:
            if self.unanswered + self.inflow.held >= self.maximum and self._speech.version == p.MQTT_5:
                raise self.too_many()
            self.unanswered += 1
        return packet

    def too_many(self) -> Malformed:
        """The client exceeds what it was granted."""
        return Malformed(f"more than {self.maximum} unanswered messages", Reason.RECEIVE_MAXIMUM_EXCEEDED)

    def release(self, packet_id: int) -> None:
        """Take a PUBREL. Raises Malformed."""
        inflow, version = self.inflow, self._speech.version
        if inflow.is_pending(packet_id):
            raise Malformed(f"PUBREL {packet_id} before its PUBREC", Reason.PROTOCOL_ERROR)
        found = self.recovering or packet_id in inflow or version != p.MQTT_5
        reason = Reason.SUCCESS if found else Reason.PACKET_IDENTIFIER_NOT_FOUND
        answer = encode(p.Ack(p.PUBCOMP, packet_id, reason), version)
        if inflow.free(packet_id):
            self._speech.promise(answer)
        else:
            self._speech.put(answer)

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        """Answer messages at QoS 1 that are in the log."""
        if packet_ids:
            self.unanswered -= len(packet_ids)
            if self._speech.online:
                self._speech.put(pubacks(packet_ids))

    def answer(self, packet_id: int, reason: Reason = Reason.SUCCESS, text: str = "") -> None:
        """Answer a message at QoS 2, or one that was turned away; MQTT 3.1.1 has no words for that and gets a bare answer.

        A PUBREC with an error frees the packet id.
        """
        self.unanswered -= 1
        code = reason if reason in PUBACK else ERROR
        promise, kind = False, p.PUBACK
        if self.inflow.is_pending(packet_id):
            kind = p.PUBREC
            if self._speech.version == p.MQTT_5 and code >= ERROR:
                promise = self.inflow.free(packet_id)
            else:
                self.inflow.done(packet_id)
        if self._speech.online:
            said = text if self._speech.explain else ""
            self._speech.say(lambda block: p.Ack(kind, packet_id, code, block), said, promise=promise)
