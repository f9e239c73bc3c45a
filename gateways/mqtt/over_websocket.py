"""MQTT over WebSocket (MQTT 5 section 6): the same client as over TCP, its bytes in binary frames.

Packets may span frames, and a frame may hold many. What came together is handed over together, so that it is one batch;
the library's queue, its pings and its reader are passed by, since MQTT has its own limits and keep alive.
"""

from __future__ import annotations

import asyncio
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode
from websockets.protocol import State

from ...adapters.mqtt.life import ONLINE
from ...adapters.mqtt.reasons import Reason
from ..tls import peer_certificate
from .client import MqttClient
from .door import MqttDoor

FRAME_BYTES: Final = 64 * 1024  # libraries take a MiB at least, small devices far less
WRITE_BUFFER_BYTES: Final = 256 * 1024
STRANGER_BYTES: Final = 384 * 1024  # a CONNECT, and what may follow it before it is answered
HEAD_BYTES: Final = 16
AUTHENTICATE: Final = 4401

# Why it is over, for libraries that read no DISCONNECT, and for MQTT 3.1.1, which has none.
_CLOSE_CODES: Final = {
    Reason.SERVER_SHUTTING_DOWN: CloseCode.SERVICE_RESTART,
    Reason.SERVER_UNAVAILABLE: CloseCode.TRY_AGAIN_LATER,
    Reason.SERVER_BUSY: CloseCode.TRY_AGAIN_LATER,
    Reason.QUOTA_EXCEEDED: CloseCode.TRY_AGAIN_LATER,
    Reason.CONNECTION_RATE_EXCEEDED: CloseCode.TRY_AGAIN_LATER,
    Reason.MALFORMED_PACKET: CloseCode.PROTOCOL_ERROR,
    Reason.PROTOCOL_ERROR: CloseCode.PROTOCOL_ERROR,
    Reason.PACKET_TOO_LARGE: CloseCode.MESSAGE_TOO_BIG,
    Reason.NOT_AUTHORIZED: AUTHENTICATE,
    Reason.BAD_USER_NAME_OR_PASSWORD: AUTHENTICATE,
    Reason.ADMINISTRATIVE_ACTION: AUTHENTICATE,
}


class MqttOverWebSocket:
    """The wire between a WebSocket connection and its MQTT client. Made before the client's first frame is read."""

    def __init__(self, door: MqttDoor, connection: ServerConnection, address: str) -> None:
        self._connection = connection
        self._code: int | None = None
        self._closing: asyncio.Task[None] | None = None
        self._paused = False
        self._stranger_bytes = 0
        connection.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES, WRITE_BUFFER_BYTES // 4)
        connection.protocol.max_message_size = door.limits.offer.limits.stream + HEAD_BYTES
        self.client = MqttClient(door, self, address, peer_certificate(connection.transport))
        door.counts["websocket_opened"] += 1

    # -- from the connection ------------------------------------------------------------------------------------------

    def arrived(self, size: int) -> bool:
        """Bytes came, which may be a part of a frame; False: a stranger sent too many, and gets no more room."""
        if self.client.session.state == ONLINE:
            return True
        self._stranger_bytes += size
        if self._stranger_bytes > STRANGER_BYTES:
            self._end(CloseCode.MESSAGE_TOO_BIG, "log in first")
            return False
        return True

    def receive(self, data: bytes) -> None:
        """Take the contents of binary frames."""
        if self._closing is None:
            self.client.receive(data)

    def refuse_text(self) -> None:
        """Only binary frames carry MQTT [MQTT-6.0.0-1]."""
        self._code = CloseCode.UNSUPPORTED_DATA
        if self.client.session.state == ONLINE:
            self.client.close(Reason.PROTOCOL_ERROR, "MQTT comes in binary frames, never in text")
        else:
            self._end(self._code, "binary frames only")

    def has_room(self, room: bool) -> None:
        """The client takes more, or no more for now."""
        self.client.has_room(room)

    def lost(self) -> None:
        """The connection is gone."""
        self.client.lost("the connection was lost")

    # -- the wire of the client ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes in frames that any client takes; nothing more once the connection is being closed."""
        protocol, transport = self._connection.protocol, self._connection.transport
        if protocol.state is not State.OPEN or transport.is_closing():
            return
        if len(data) <= FRAME_BYTES:
            protocol.send_binary(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), FRAME_BYTES):
                protocol.send_binary(view[start : start + FRAME_BYTES])
        transport.write(b"".join(protocol.data_to_send()))

    def pause_reading(self) -> None:
        """Take no more from the client."""
        if not self._paused and self._closing is None:
            self._paused = True
            self._connection.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if self._paused and not self._connection.transport.is_closing():
            self._paused = False
            self._connection.transport.resume_reading()

    def close(self) -> None:
        """End it with a close frame, after everything that was written."""
        ended = self.client.ended
        reason = ended.reason if ended is not None else Reason.SUCCESS
        code = self._code if self._code is not None else _CLOSE_CODES.get(reason, CloseCode.NORMAL_CLOSURE)
        self._end(code, reason.name.lower())

    def abort(self) -> None:
        """End it now."""
        self._connection.transport.abort()

    def _end(self, code: int, text: str) -> None:
        if self._closing is None:
            self.resume_reading()  # for its close frame; what else comes is not looked at
            self._closing = asyncio.get_running_loop().create_task(self._connection.close(code, text))
