"""A wire within one process: the adapter API on a client session of its own, so directly on a log."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ...entities.errors import ShuttingDown, error_of
from ...entities.principal import Principal
from ..client.frames import SharedFrame
from ..client.session import CLOSE_FORBIDDEN, CLOSE_TOO_FAST, CLOSE_UNAUTHENTICATED, ClientSession
from ..client.use_cases import ClientUseCases
from .wire import WireUser

OUTBOX_BYTES: Final = 1024 * 1024
TELL_EVERY_S: Final = 2.0
CLOSE_ERRORS: Final = {
    CLOSE_UNAUTHENTICATED: "unauthenticated",
    CLOSE_FORBIDDEN: "forbidden",
    CLOSE_TOO_FAST: "rate_limited",
}


class _SessionOutbox:
    """Frames on their way from the session to the user; full at a mebibyte, until three quarters of it are taken."""

    def __init__(self, user: WireUser) -> None:
        self._user = user
        self._bytes = 0
        self.frames: deque[bytes] = deque()
        self.filled = asyncio.Event()
        self.full = False

    def write(self, frame: bytes) -> None:
        """Put a frame on its way."""
        self.frames.append(frame)
        self._bytes += len(frame)
        self.full = self.full or self._bytes >= OUTBOX_BYTES
        self.filled.set()

    def write_shared(self, frame: SharedFrame) -> None:
        """Put a frame on its way."""
        self.write(frame.text)

    def take(self) -> tuple[bytes, bool]:
        """The next frame, and whether there is room again since it is gone."""
        frame = self.frames.popleft()
        self._bytes -= len(frame)
        if self.full and self._bytes <= OUTBOX_BYTES // 4:
            self.full = False
            return frame, True
        return frame, False

    def close(self, code: int, reason: str) -> None:
        """End the session from its own side."""
        kind = CLOSE_ERRORS.get(code)
        message = f"the session was closed: {reason}; connect again"
        self._user.lost(ShuttingDown(message) if kind is None else error_of(kind, message))


class SessionWire:
    """Feeds a ``ClientSession`` of its own; the session falls back to the log when the user is slow."""

    def __init__(self, use_cases: ClientUseCases, principal: Principal) -> None:
        self._use = use_cases
        self._principal = principal
        self._session: ClientSession | None = None
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, user: WireUser) -> None:
        """Begin a session."""
        outbox = _SessionOutbox(user)
        self._session = session = ClientSession(self._use, outbox, self._principal, exact=True)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._carry_out(session)),
            loop.create_task(self._pass_on(session, outbox, user)),
            loop.create_task(self._keep_telling(session)),
        ]
        user.opened()

    def send(self, frame: bytes) -> None:
        """Put a request on its way."""
        self._requests.put_nowait(frame)

    def use_token(self, token: str) -> None:
        """Nothing to do: no other connection will follow."""

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry_out(self, session: ClientSession) -> None:
        while True:
            await session.receive(await self._requests.get())

    async def _pass_on(self, session: ClientSession, outbox: _SessionOutbox, user: WireUser) -> None:
        while True:
            while outbox.frames:
                frame, room_again = outbox.take()
                await user.received(frame)
                if room_again:
                    session.has_room()
            outbox.filled.clear()
            await outbox.filled.wait()

    async def _keep_telling(self, session: ClientSession) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            session.tell_cursors()
