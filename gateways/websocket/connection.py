"""One WebSocket connection: its bounded way to the client, and the loop that reads the client's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from ...adapters.client.session import CLOSE_UNAUTHENTICATED, ClientSession
from ...adapters.client.use_cases import ClientUseCases
from ...entities.certificate import Certificate
from ...entities.principal import Principal
from ..tls import peer_certificate

if TYPE_CHECKING:
    from .admission import Admission

REQUESTS_IN_A_ROW: Final = 100
CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Bounds of the door. Times in seconds.

    ``outbox_bytes``: what may wait for one client; what comes after it has reached that stays in the log.
    ``per_address`` does not bind loopback addresses unless ``limit_loopback``; ``unauthenticated_per_address`` always
    does: past it the oldest connection that has not shown a token within a second is cut. A client that sends more
    than ``requests_per_second`` is read more slowly.
    """

    outbox_bytes: int = 1024 * 1024
    connections: int = 10_000
    per_address: int = 200
    limit_loopback: bool = False
    unauthenticated_per_address: int = 100
    handshake: float = 5.0
    authentication: float = 5.0
    ping_interval: float = 20.0
    ping_timeout: float = 60.0
    requests_per_second: float = 10_000.0
    compression: bool = False
    origins: tuple[str, ...] = ()


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


class Connection(ServerConnection):
    """A connection that tells the door when it opens and ends, and its session when the client has taken everything.

    ``user``: who gets the frames instead of the session, once the handshake has chosen its subprotocol.
    """

    def __init__(self, protocol: ServerProtocol, server: Server, admission: Admission, **options: Any) -> None:
        super().__init__(protocol, server, **options)
        self.admission = admission
        self.client: Client | None = None
        self.user: FrameUser | None = None
        self.principal: Principal | None = None
        self.certificate: Certificate | None = None
        self._frames: list[bytes] = []
        self.address = "?"
        self.opened_at = 0.0
        self.admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open (asyncio.Protocol)."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "?"
        self.certificate = peer_certificate(transport)
        self.opened_at = self.loop.time()
        self.admission.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed (asyncio.Protocol)."""
        super().connection_lost(exc)
        self.admission.lost(self)
        if self.user is not None:
            self.user.lost()

    def data_received(self, data: bytes) -> None:
        """Bytes came (asyncio.Protocol)."""
        user = self.user
        if user is None:
            super().data_received(data)
        elif user.arrived(len(data)):
            super().data_received(data)
            if self._frames:
                whole, self._frames = b"".join(self._frames), []
                user.receive(whole)

    def process_event(self, event: Event) -> None:
        """A frame came, or the handshake's request (websockets' Connection)."""
        if self.user is None or not isinstance(event, Frame):
            super().process_event(event)
        elif event.opcode in (Opcode.BINARY, Opcode.CONT):
            self._frames.append(bytes(event.data))
        elif event.opcode is Opcode.TEXT:
            self._frames.clear()
            self.user.refuse_text()

    def start_keepalive(self) -> None:
        """Send pings, unless the protocol inside looks after that (websockets' Connection)."""
        if self.user is None:
            super().start_keepalive()

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


class Client:
    """One connected client: the session's outbox, and the loop that reads its requests."""

    def __init__(self, connection: Connection, use_cases: ClientUseCases, limits: WebSocketLimits, exact: bool) -> None:
        self.connection = connection
        self.session = ClientSession(use_cases, self, connection.principal, exact)
        self.closing: asyncio.Task[None] | None = None
        self._limits = limits
        self._unsent = 0
        self._due: list[Callable[[], None]] = []
        self._leaving = False
        self.bytes_out = 0

    @property
    def full(self) -> bool:
        """True while ``outbox_bytes`` or more wait for the client, and once it is being closed."""
        return self.connection.paused or self._unsent > self._limits.outbox_bytes or self.closing is not None

    def write(self, frame: bytes) -> None:
        """Send one text frame, without waiting; a client that is gone or being closed gets nothing more."""
        connection = self.connection
        if connection.protocol.state is not State.OPEN or connection.transport.is_closing() or self.closing is not None:
            return
        connection.protocol.send_text(frame)
        self.bytes_out += len(frame)
        self._unsent += len(frame)
        self._leave()

    def soon(self, write: Callable[[], None]) -> None:
        """Call ``write`` once, before what was written in this turn of the event loop leaves."""
        self._due.append(write)
        self._leave()

    def _leave(self) -> None:
        if not self._leaving:  # all frames of one turn of the event loop leave in one write
            self._leaving = True
            self.connection.loop.call_soon(self._flush)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for write in due:
            write()
        self._leaving = False
        was_full = self._unsent > self._limits.outbox_bytes
        self._unsent = 0
        connection = self.connection
        # Once the close handshake has begun, the library has written everything itself, and maybe closed its half.
        if connection.protocol.state is State.OPEN and not connection.transport.is_closing():
            connection.transport.write(b"".join(connection.protocol.data_to_send()))
        if was_full and not self.full:
            self.session.has_room()

    def close(self, code: int, reason: str) -> None:
        """End the connection."""
        if self.closing is None:
            self.closing = asyncio.get_running_loop().create_task(self._close(code, reason))

    async def _close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.connection.close(code, reason)
        except TimeoutError:  # it does not even take the close frame
            self.connection.transport.abort()

    async def run(self) -> None:
        """Read requests until the client is gone."""
        loop = asyncio.get_running_loop()
        connection = self.connection
        connection.transport.set_write_buffer_limits(self._limits.outbox_bytes, self._limits.outbox_bytes // 4)
        timer = None
        if self.session.principal is None:
            timer = loop.call_later(self._limits.authentication, self._demand_token)
        rate = self._limits.requests_per_second
        tokens, at, row = rate, loop.time(), 0
        try:
            while True:
                raw = await connection.recv(decode=False)
                if self.closing is not None:
                    continue  # read on up to its close frame, but carry out nothing more
                now = loop.time()
                tokens = min(rate, tokens + (now - at) * rate) - 1
                at = now
                row += 1
                if tokens < 0:
                    await asyncio.sleep(-tokens / rate)
                elif row % REQUESTS_IN_A_ROW == 0:
                    await asyncio.sleep(0)  # frames that came together would be carried out without a pause
                while connection.paused:
                    await connection.drain()
                await self.session.receive(raw)
        except (ConnectionClosed, ConnectionResetError):  # the latter while it waited for a client that took nothing
            return
        finally:
            if timer is not None:
                timer.cancel()
            self.session.close()

    def _demand_token(self) -> None:
        if self.session.principal is None:
            self.close(CLOSE_UNAUTHENTICATED, "authenticate")
