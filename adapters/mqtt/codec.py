"""MQTT bytes to packets, incrementally: whatever a socket delivers goes in, whole packets come out.

A packet's size is judged by its fixed header, before anything is set aside for it. PUBLISH, which is nearly all of the
traffic, is taken apart in place; a payload beyond ``Limits.payload`` streams past and leaves only its head and hash.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple, TypeAlias

from .decode import check_topic, decode
from .packets import CONNECT, MQTT_5, PUBLISH, Acks, Burst, Connect, Packet, PingReq, Publish
from .passing import Passing
from .primitives import Malformed, protocol_error
from .reasons import Reason

_PREFIX_BYTES: Final = 8 * 1024
_KNOWN_TOPICS: Final = 1_024
NO_TOPICS: Final[dict[bytes, None]] = {}  # of all that have not published, and never written to
_PUBLISHES: Final = frozenset(bytes((first,)) for first in range(0x30, 0x34))
_PROTOCOL: Final = b"\x00\x04MQTT"
_HEAD: Final = struct.Struct(">BBH").unpack_from
_PINGS: Final = re.compile(rb"(?:\xc0\x00)+")
_ACKS: Final = re.compile(rb"(?:\x40\x02(?!\x00\x00)..)+", re.DOTALL)


class Limits(NamedTuple):
    """Sizes in bytes of whole packets.

    ``connect``: before authentication. ``packet``: what is kept in memory. ``stream``: a PUBLISH above ``packet`` and
    up to this passes as Oversized; everything larger is 0x95.
    """

    connect: int = 128 * 1024
    packet: int = 320 * 1024
    stream: int = 8 * 1024 * 1024


class Fault(NamedTuple):
    """The bytes are no MQTT from here on; nothing after it is read. ``version``: 0 when it was not known yet."""

    reason: Reason
    text: str
    version: int = 0


Item: TypeAlias = Packet | Burst | Acks | Fault


class Parser:
    """Takes bytes apart into packets; nothing is ever raised.

    ``version``: 4 or 5 reads what follows a CONNECT; 0 waits for the CONNECT, and stops behind it until ``resume``, so
    that a stranger cannot have anything else decoded.
    """

    __slots__ = ("_dead", "_held", "_need", "_pending", "_stream", "_topics", "limits", "version")

    def __init__(self, version: int = 0, limits: Limits | None = None) -> None:
        self.version = version
        self.limits = limits or Limits()
        self._held = version == 0
        self._pending: bytearray | None = None
        self._need = 0
        self._stream: Passing | None = None
        self._topics = NO_TOPICS
        self._dead = False

    @property
    def pending(self) -> int:
        """How many bytes wait for the rest of their packet."""
        return len(self._pending or b"")

    def resume(self) -> list[Item]:
        """Go on behind the CONNECT."""
        self._held = False
        self._need = 0
        return self.feed(b"")

    def feed(self, data: bytes) -> list[Item]:
        """The packets that the bytes complete, in order; a Fault is the last item that the parser ever returns."""
        items: list[Item] = []
        if self._dead:
            return items
        if self._held and self.version:
            self._keep(data)
            return items
        if self._pending is not None or self._need:
            self._keep(data)
            if self.pending < self._need:
                return items
            data = bytes(self._pending or b"")
            self._pending = None
            self._need = 0
        at = 0
        try:
            if self._stream is not None:
                at = self._pass(self._stream, data, 0, items)
            elif not self._held and data[:1] in _PUBLISHES:
                at = self._burst(data, 0, items)
            if at < len(data):
                at = self._packets(data, at, items)
        except Malformed as error:
            self._fault(items, error, self.version)
        else:
            if at < len(data):
                self._keep(data[at:] if at else data)
        return items

    def _keep(self, data: bytes) -> None:
        if self._pending is not None:
            self._pending += data
        elif data:
            self._pending = bytearray(data)

    def _fault(self, items: list[Item], error: Malformed, version: int) -> None:
        self._dead = True
        self._topics = NO_TOPICS
        self._stream = None
        items.append(Fault(error.reason, str(error), version))

    def _packets(self, data: bytes, at: int, items: list[Item]) -> int:
        """Decode what is complete; returns the index of what is not."""
        if self._held:
            return self._connect(data, at, items)
        size = len(data)
        while at < size and self._stream is None:
            at = self._run(data, at, items)
            if size - at < 2:
                break
            length, body = _length(data, at + 1, size)
            if length < 0:
                break
            end = body + length
            if end - at > self.limits.packet:
                after = self._large(data, at, body, end, items)
                if after == at:
                    break
                at = after
            elif end > size:
                self._need = end - at
                break
            elif data[at] >> 4 == CONNECT:
                raise protocol_error("a second CONNECT")
            else:
                items.append(decode(data[at], data, body, end, self.version))
                at = end
        return at

    def _run(self, data: bytes, at: int, items: list[Item]) -> int:
        """Take a run of equal packets at once, where it is one of the three that come by the thousand."""
        first = data[at]
        if first >> 4 == PUBLISH:
            return self._burst(data, at, items)
        if first == 0x40:
            run = _ACKS.match(data, at)
            if run is not None:
                at, start = run.end(), at
                items.append(Acks(struct.unpack(f">{(at - start) // 2}H", data[start:at])[1::2]))
        elif first == 0xC0:
            run = _PINGS.match(data, at)
            if run is not None:
                at, start = run.end(), at
                items.append(PingReq((at - start) // 2))
        return at

    def _burst(self, data: bytes, at: int, items: list[Item]) -> int:
        """Take a run of simple PUBLISH packets apart: QoS 0 or 1, no DUP, no properties, less than 16 KiB."""
        messages: list[tuple[bytes, bytes, int, int]] = []
        append = messages.append
        topics = self._topics
        five = self.version == MQTT_5
        size = len(data)
        last = size - 4
        while at <= last:
            first, length, name = _HEAD(data, at)
            if not 0x30 <= first <= 0x33:
                break
            body = at + 4
            if length > 127:
                high = data[at + 2]
                if not 0 < high < 128 or at == last:
                    break
                length += (high << 7) - 128
                name = data[at + 3] << 8 | data[at + 4]
                body = at + 5
            end = body - 2 + length
            if end > size:
                break
            payload = mark = body + name
            packet_id = 0
            if first & 2:
                payload += 2
                if payload > end:
                    break
                packet_id = data[mark] << 8 | data[mark + 1]
                if not packet_id:
                    break
            if five:
                if payload >= end or data[payload]:
                    break
                payload += 1
            elif payload > end:
                break
            topic = data[body:mark]
            if topic not in topics:
                if not self._remember(topic):
                    break
                topics = self._topics
            append((topic, data[payload:end], packet_id, first))
            at = end
        if messages:
            items.append(Burst(messages))
        return at

    def _remember(self, topic: bytes) -> bool:
        """Check a topic that was not seen lately; a bad one is left for ``decode`` to refuse."""
        try:
            check_topic(topic)
        except Malformed:
            return False
        if len(self._topics) >= _KNOWN_TOPICS:
            self._topics.clear()
        if self._topics is NO_TOPICS:
            self._topics = {}
        self._topics[topic] = None
        return True

    def _connect(self, data: bytes, at: int, items: list[Item]) -> int:
        size = len(data)
        if at >= size or self.version:
            return at
        if data[at] >> 4 != CONNECT:
            raise protocol_error("the first packet must be CONNECT")
        length, body = _length(data, at + 1, size)
        if length < 0:
            return at
        end = body + length
        if end - at > self.limits.connect:
            raise Malformed("CONNECT is too large", Reason.PACKET_TOO_LARGE)
        if end > size:
            self._need = end - at
            return at
        try:
            packet = decode(data[at], data, body, end, 0)
        except Malformed as error:
            known = data[body : body + 6] == _PROTOCOL and length > 6 and data[body + 6] in (4, MQTT_5)
            self._fault(items, error, data[body + 6] if known else 0)
            return size
        assert isinstance(packet, Connect)
        self.version = packet.version
        items.append(packet)
        return end

    def _large(self, data: bytes, at: int, body: int, end: int, items: list[Item]) -> int:
        """A packet that is not kept: refuse it by its size, or let its payload stream past."""
        first = data[at]
        if first >> 4 != PUBLISH or end - at > self.limits.stream:
            raise Malformed(f"the packet has {end - at} bytes", Reason.PACKET_TOO_LARGE)
        if len(data) - at < _PREFIX_BYTES:
            self._need = _PREFIX_BYTES
            return at
        try:
            start = decode(first, data, body, at + _PREFIX_BYTES, self.version)
        except Malformed as error:
            if error.reason == Reason.MALFORMED_PACKET:
                raise Malformed(f"no sound PUBLISH head in {_PREFIX_BYTES} bytes", Reason.PACKET_TOO_LARGE) from error
            raise
        assert isinstance(start, Publish)
        behind = at + _PREFIX_BYTES - len(start.payload)
        self._stream = Passing(start._replace(payload=b""), end - behind)
        return self._pass(self._stream, data, behind, items)

    def _pass(self, stream: Passing, data: bytes, at: int, items: list[Item]) -> int:
        at = stream.take(data, at)
        if not stream.left:
            self._stream = None
            items.append(stream.packet())
        return at


def _length(data: bytes, at: int, size: int) -> tuple[int, int]:
    """The remaining length and the index behind it; a negative length while bytes are missing."""
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= size:
            return -1, at
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and shift:
                raise Malformed("the remaining length is longer than it needs to be")
            return value, at
    raise Malformed("the remaining length has more than 4 bytes")
