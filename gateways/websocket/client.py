"""One client at the WebSocket door: its bounded way out, and its requests, carried out one after the other.

Nothing waits here for a client that says nothing: a task is made when a request has come, and ends when no more wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import BytesLike

from ...adapters.client.frames import SharedFrame
from ...adapters.client.session import CLOSE_UNAUTHENTICATED, ClientSession
from ...adapters.client.use_cases import ClientUseCases
from .limits import CLOSE_TIMEOUT_S, WebSocketLimits

if TYPE_CHECKING:
    from .connection import Connection

REQUESTS_IN_A_ROW: Final = 100
FRAGMENTS_AT_MOST: Final = 4_096
REQUESTS_WAITING: Final = 4  # more are left in the socket until one waits at most
NONE_YET: Final[deque[Any]] = deque()  # shared by all that have not asked for anything: an empty one has 760 bytes


class Client:
    """A connected client. ``done``: set once its connection is lost, with the error if it was a fault of ours."""

    __slots__ = (
        "_leaving", "_limits", "_parts", "_requests", "_row", "_stopped", "_tokens", "_tokens_at", "_unsent",
        "_working",
        "bytes_out", "closing", "connection", "done", "session",
    )  # fmt: skip

    def __init__(self, connection: Connection, use_cases: ClientUseCases, limits: WebSocketLimits, exact: bool) -> None:
        self.connection = connection
        self.session = ClientSession(use_cases, self, connection.principal, exact)
        self.closing: asyncio.Task[None] | None = None
        self.done: asyncio.Future[None] = connection.loop.create_future()
        self.bytes_out = 0
        self._limits = limits
        self._unsent = 0
        self._leaving = False
        self._parts: list[BytesLike] | None = None
        self._requests: deque[bytes] = NONE_YET
        self._working: asyncio.Task[None] | None = None
        self._stopped = False
        self._tokens = limits.requests_per_second
        self._tokens_at = 0.0
        self._row = 0

    # -- out ----------------------------------------------------------------------------------------------------------

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
        if not self._leaving:  # all frames of one turn of the event loop leave in one write
            self._leaving = True
            self.connection.loop.call_soon(self._flush)

    def write_shared(self, frame: SharedFrame) -> None:
        """Send one text frame that others get as well, framed once for all of them."""
        connection = self.connection
        if self._leaving or connection.protocol.extensions:  # behind what waits, or compressed for this client
            self.write(frame.text)
            return
        if connection.protocol.state is not State.OPEN or connection.transport.is_closing() or self.closing is not None:
            return
        if not frame.wire:
            frame.wire = Frame(Opcode.TEXT, frame.text).serialize(mask=False)
        connection.transport.write(frame.wire)  # the event loop joins what is written in one turn
        self.bytes_out += len(frame.text)

    def _flush(self) -> None:
        self._leaving = False
        was_full = self._unsent > self._limits.outbox_bytes
        self._unsent = 0
        self.connection.send_waiting()
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

    # -- in -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until it is gone, and everything that it had asked for is carried out."""
        connection = self.connection
        connection.transport.set_write_buffer_limits(self._limits.outbox_bytes, self._limits.outbox_bytes // 4)
        timer = None
        if self.session.principal is None:
            timer = connection.loop.call_later(self._limits.authentication, self._demand_token)
        try:
            await self.done
            if self._working is not None:
                await asyncio.wait((self._working,))
        finally:
            if timer is not None:
                timer.cancel()
            if self._working is not None:
                self._working.cancel()
            self.session.close()

    def take(self, frame: Frame) -> None:
        """A frame with data came: a request, or a part of one."""
        if self.closing is not None:
            return  # read on up to its close frame, but nothing more is carried out
        request = self._whole(frame)
        if request is None:
            return
        if self._requests is NONE_YET:
            self._requests = deque()
        self._requests.append(request)
        if len(self._requests) > REQUESTS_WAITING and not self._stopped and not self.connection.transport.is_closing():
            self._stopped = True
            self.connection.transport.pause_reading()
        if self._working is None:
            self._working = self.connection.loop.create_task(self._carry_out())
            self._working.add_done_callback(self._carried_out)

    def _whole(self, frame: Frame) -> bytes | None:
        """The message that the frame completes; None when there is more to come."""
        parts = self._parts
        if frame.fin and parts is None:
            return bytes(frame.data)
        if parts is None:
            parts = self._parts = []
        parts.append(frame.data)
        if frame.fin:
            self._parts = None
            return b"".join(parts)
        if len(parts) > FRAGMENTS_AT_MOST:  # the library has counted their bytes, but there may be none in them
            self.close(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
        return None

    def lost(self) -> None:
        """The connection is gone."""
        if not self.done.done():
            self.done.set_result(None)

    @property
    def is_heard(self) -> bool:
        """Whether the socket is read: who is not heard may be alive."""
        return not self._stopped

    async def _carry_out(self) -> None:
        connection, requests, rate = self.connection, self._requests, self._limits.requests_per_second
        while requests:
            request = requests.popleft()
            if self._stopped and len(requests) <= 1:
                self._stopped = False
                if not connection.transport.is_closing():
                    connection.transport.resume_reading()
            if self.closing is not None:
                continue
            now = connection.loop.time()
            self._tokens = min(rate, self._tokens + (now - self._tokens_at) * rate) - 1
            self._tokens_at = now
            self._row += 1
            if self._tokens < 0:
                await asyncio.sleep(-self._tokens / rate)
            elif self._row % REQUESTS_IN_A_ROW == 0:
                await asyncio.sleep(0)  # frames that came together would be carried out without a pause
            while connection.paused:
                await connection.drain()
            await self.session.receive(request)
        self._requests, self._working = NONE_YET, None

    def _carried_out(self, task: asyncio.Task[None]) -> None:
        self._working = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, ConnectionClosed | ConnectionResetError):  # while it waited for a client that took nothing
            return
        if not self.done.done():
            self.done.set_exception(error)
        else:
            self.connection.logger.error("a request was not carried out", exc_info=error)

    def _demand_token(self) -> None:
        if self.session.principal is None:
            self.close(CLOSE_UNAUTHENTICATED, "authenticate")
