"""MQTT over TCP: passes on what the transport reports, and ends a connection so that its last words arrive.

Who closes a socket to which the client is still sending makes the system answer with a reset, and a reset takes from the
client what it has not read yet: the DISCONNECT that says why, above all. So this side is closed first. The other one is
read on, and not looked at, until the client closes as well, falls silent or sends without end (RFC 9112 section 9.6 asks
the same of HTTP servers).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

from ..tls import peer_certificate
from .client import MqttClient
from .door import MqttDoor

WRITE_BUFFER_BYTES: Final = 256 * 1024
SILENCE_S: Final = 2.0
UNHEEDED_BYTES: Final = 16 * 1024 * 1024
FAILURES: Final = 0x80


class MqttOverTcp(asyncio.Protocol):
    """The wire between a TCP or TLS connection and its MQTT client."""

    __slots__ = ("_client", "_closing", "_door", "_heard", "_loop", "_silence", "_transport", "_unheeded")

    _transport: asyncio.Transport

    def __init__(self, door: MqttDoor) -> None:
        self._door = door
        self._client: MqttClient | None = None
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._silence: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._unheeded = 0

    # -- from the transport -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the socket, or cut it."""
        self._transport = wire = cast(asyncio.Transport, transport)
        wire.set_write_buffer_limits(WRITE_BUFFER_BYTES, WRITE_BUFFER_BYTES // 4)
        peer = wire.get_extra_info("peername")
        client = MqttClient(self._door, self, sys.intern(str(peer[0])) if peer else "?", peer_certificate(wire))
        if self._door.admission.opened(client):
            self._client = client
            self._door.enter(client)
        else:
            wire.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._closing:
            self._heard = self._loop.time()
            self._unheeded += len(data)
            if self._unheeded > UNHEEDED_BYTES:
                self._transport.abort()
        elif self._client is not None:
            self._client.receive(data)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        if self._client is not None:
            self._client.has_room(False)

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._client is not None:
            self._client.has_room(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._silence is not None:
            self._silence.cancel()
        if self._client is not None:
            self._client.lost(f"the connection was lost: {exc}" if exc else "the connection was lost")

    # -- the wire of the client ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent; nothing more once the connection is being closed, or was reset."""
        if not self._closing and not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Take no more from the client."""
        if not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        self._transport.resume_reading()

    def close(self) -> None:
        """End it once everything is sent: at once after the client's own goodbye, else when the client has heard why."""
        if self._closing:
            return
        self._closing = True
        ended = self._client.ended if self._client is not None else None
        transport = self._transport
        if ended is None or ended.reason < FAILURES or transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        transport.resume_reading()
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection, which the transport has not noticed yet
            transport.abort()
            return
        self._heard = self._loop.time()
        self._silence = self._loop.call_later(SILENCE_S, self._listen_on)

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()

    def _listen_on(self) -> None:
        left = self._heard + SILENCE_S - self._loop.time()
        if left > 0:
            self._silence = self._loop.call_later(left, self._listen_on)
        else:
            self._transport.close()
