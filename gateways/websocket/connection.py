"""One WebSocket connection at the door: what the library's own does, less what a connection that says nothing costs.

The library makes two tasks, a queue and a place for every header that came, for each connection. Here frames are handed
over as they come, one round of the door looks after all who are silent, and the handshake is forgotten once it is over.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from websockets.asyncio.messages import Assembler
from websockets.asyncio.server import Server, ServerConnection
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from ...adapters.client.session import CLOSE_UNAUTHENTICATED
from ...entities.certificate import Certificate
from ...entities.principal import Principal
from ..tls import peer_certificate
from .limits import WebSocketLimits

if TYPE_CHECKING:
    from .admission import Admission
    from .client import Client

OVERDUE: Final = -1.0


class FrameUser(Protocol):
    """A protocol of its own inside the frames, which wants each as it comes. The MQTT door has one."""

    def arrived(self, size: int) -> bool:
        """So many bytes came, whole frames or not; False: they are not to be read."""
        ...

    def receive(self, data: bytes) -> None:
        """Take the contents of the binary frames that came together."""
        ...

    def refuse_text(self) -> None:
        """A text frame came."""
        ...

    def has_room(self, room: bool) -> None:
        """The client takes more, or no more for now."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...


class _NoQueue:
    """In the place of the library's queue of frames, once nothing is put there any more."""

    def close(self) -> None:
        """There is nothing to end."""


NO_QUEUE: Final = _NoQueue()


class Connection(ServerConnection):
    """A connection that tells the door when it opens and ends, and its session when the client has taken everything.

    ``user``: who gets the frames instead of the session, once the handshake has chosen its subprotocol.
    """

    __slots__ = (
        "_frames", "_heard_at", "_pinged_at", "address", "admission", "admitted", "certificate", "client", "opened_at",
        "principal", "user",
    )  # fmt: skip  # beside the library's own attributes: past 30 of them in one place, each object carries its own table

    def __init__(self, protocol: ServerProtocol, server: Server, admission: Admission, **options: Any) -> None:
        super().__init__(protocol, server, **options)
        self.protocol.logger = self.logger = server.logger  # instead of an adapter for each
        self.drain_waiters = cast(
            "deque[asyncio.Future[None]]", []
        )  # it is used as a list, and an empty deque is large
        self.admission = admission
        self.client: Client | None = None
        self.user: FrameUser | None = None
        self.principal: Principal | None = None
        self.certificate: Certificate | None = None
        self._frames: list[bytes] | None = None
        self.address = "?"
        self.opened_at = self._heard_at = self._pinged_at = 0.0
        self.admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open (asyncio.Protocol)."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = sys.intern(str(peer[0])) if peer else "?"
        self.certificate = peer_certificate(transport)
        self.opened_at = self._heard_at = self.loop.time()
        self.admission.opened(self)

    def begin(self, client: Client) -> None:
        """The handshake is over: let its headers go, and hand the client what comes, and what has come already."""
        self.client = client
        if self.request is not None and self.response is not None:
            self.request.headers.clear()
            self.response.headers.clear()
        del self.protocol.select_subprotocol  # its choice is made
        queue, self.recv_messages = self.recv_messages, cast(Assembler, NO_QUEUE)
        while queue.frames.queue:
            client.take(queue.frames.queue.popleft())
        if client.is_heard:
            queue.maybe_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed (asyncio.Protocol)."""
        super().connection_lost(exc)
        self.admission.lost(self)
        if self.user is not None:
            self.user.lost()
        elif self.client is not None:
            self.client.lost()

    def data_received(self, data: bytes) -> None:
        """Bytes came (asyncio.Protocol)."""
        user = self.user
        if user is None:
            self._heard_at = self.loop.time()
            self._pinged_at = 0.0
            super().data_received(data)
        elif user.arrived(len(data)):
            super().data_received(data)
            if self._frames:
                whole, self._frames = b"".join(self._frames), None
                user.receive(whole)

    def process_event(self, event: Event) -> None:
        """A frame came, or the handshake's request (websockets' Connection)."""
        if not isinstance(event, Frame) or (self.user is None and self.client is None):
            super().process_event(event)
        elif self.client is not None:
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self.client.take(event)
        elif event.opcode in (Opcode.BINARY, Opcode.CONT):
            if self._frames is None:
                self._frames = []
            self._frames.append(bytes(event.data))
        elif event.opcode is Opcode.TEXT and self.user is not None:
            self._frames = None
            self.user.refuse_text()

    def start_keepalive(self) -> None:
        """Make no task (websockets' Connection): the door's round asks who is silent, and MQTT has a way of its own."""

    def look_after(self, now: float, limits: WebSocketLimits) -> None:
        """Ask a client that is silent whether it is there, and end its connection when it does not say so in time."""
        if now - self._heard_at < limits.ping_interval or self.protocol.state is not State.OPEN:
            return
        client = self.client
        if client is None or self.paused or not client.is_heard:
            self._heard_at = now  # who takes nothing, or is not listened to, cannot answer
            self._pinged_at = 0.0
        elif self._pinged_at == OVERDUE:
            client.close(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
        elif not self._pinged_at:
            self._pinged_at = now
            self.protocol.send_ping(b"")
            self.send_waiting()
        elif now - self._pinged_at >= limits.ping_timeout:
            self._pinged_at = OVERDUE  # not ended before the next round: its answer may lie unread if we were held up

    def send_waiting(self) -> None:
        """Write what the protocol has to say.

        Once the close handshake has begun, the library has written everything itself, and maybe closed its half.
        """
        if self.protocol.state is State.OPEN and not self.transport.is_closing():
            self.transport.write(b"".join(self.protocol.data_to_send()))

    def pause_writing(self) -> None:
        """The client does not take what was written (asyncio.Protocol)."""
        super().pause_writing()
        if self.user is not None:
            self.user.has_room(False)

    def resume_writing(self) -> None:
        """The client has taken most of what was written (asyncio.Protocol)."""
        super().resume_writing()
        if self.user is not None:
            self.user.has_room(True)
        if self.client is not None:
            self.client.session.has_room()

    @property
    def is_known(self) -> bool:
        """True once the client has shown a token."""
        return self.principal is not None or (self.client is not None and self.client.session.principal is not None)

    def cut(self) -> None:
        """End a connection that did not show a token."""
        if self.client is not None:
            self.client.close(CLOSE_UNAUTHENTICATED, "authenticate")
        else:
            self.transport.abort()
