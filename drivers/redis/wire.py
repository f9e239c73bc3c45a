"""The wire to a Redis server: the library opens a connection, and from then on its bytes are read here.

The library's streams cost three hops of the event loop an answer; a transport and a parser cost one. In the message
path, where each batch waits for its answer, that is most of what an append costs this process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import InvalidResponse, RedisError

Command = tuple[bytes | str | int, ...]
# The stub takes a tuple of one for a tuple of any length.
_pack: Final = cast("Callable[[Command], bytes]", hiredis.pack_command)


class Wire(asyncio.Protocol):
    """A connection that the library has opened and authenticated. One ``exchange`` or ``read`` at a time."""

    def __init__(self, connection: AbstractConnection) -> None:
        """Take over the connection's transport; nothing may be under way on it."""
        # The library has no public way to its transport; tests/drivers/redis/test_wire.py holds it to this one.
        opened = cast(Any, connection)
        self._writer = opened._writer  # kept, since it closes its transport when it is collected
        self._transport: asyncio.Transport = self._writer.transport
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=opened._parser.parse_error)
        opened._writer = opened._reader = None
        self._answers: deque[Any] = deque()
        self._wanted = 0
        self._ready: asyncio.Future[None] | None = None
        self._limit: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._broken: Exception | None = None
        self._progress = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport.set_protocol(self)

    @property
    def is_connected(self) -> bool:
        """Whether it is open, as far as this side knows."""
        return self._broken is None and not self._transport.is_closing()

    def close(self) -> None:
        """Cut it; whoever waits for an answer gets ConnectionBroken."""
        self._transport.abort()
        self._break(ConnectionBroken("the connection was closed"))

    async def exchange(self, commands: Sequence[Command], replies: list[Any], limit: float) -> None:
        """Send commands in one write and add their answers to ``replies``, errors as values.

        Raises ConnectionBroken when the connection breaks, with the answers so far in ``replies``, and TimeoutError when
        the next answer takes longer than ``limit`` seconds. After either, and after a cancellation, close the wire.
        """
        if self._broken is not None:
            raise self._broken
        self._transport.write(b"".join([_pack(command) for command in commands]))
        try:
            await self._wait(len(commands), limit)
        finally:
            replies.extend(self._answers)
            self._answers.clear()

    async def read(self) -> Any:
        """The next message that the server sends by itself, however long it takes. Raises what it is when an error."""
        await self._wait(1, None)
        answer = self._answers.popleft()
        if isinstance(answer, RedisError):
            raise answer
        return answer

    async def _wait(self, count: int, limit: float | None) -> None:
        if len(self._answers) >= count:
            return
        if self._broken is not None:
            raise self._broken
        self._wanted = count
        self._ready = ready = self._loop.create_future()
        self._limit = limit
        if limit is not None:
            self._progress = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_at(self._progress + limit, self._late)
        try:
            await ready
        finally:
            self._ready = None

    def _late(self) -> None:
        """Time may be up for the next answer. One timer looks after all waits: most end long before."""
        self._watch = None
        ready, limit = self._ready, self._limit
        if ready is None or limit is None or ready.done():
            return
        due = self._progress + limit
        if self._loop.time() < due:
            self._watch = self._loop.call_at(due, self._late)
        else:
            ready.set_exception(TimeoutError(f"no answer within {limit:g} s"))

    # -- from the transport -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take answers apart."""
        reader, answers = self._reader, self._answers
        reader.feed(data)
        try:
            while (answer := reader.gets()) is not False:
                answers.append(answer)
        except RedisError as error:
            self._transport.abort()
            self._break(error)
            return
        ready = self._ready
        if ready is None:
            return
        if len(answers) < self._wanted:
            self._progress = self._loop.time()
        elif not ready.done():
            ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._break(ConnectionBroken(f"the connection was lost: {exc}" if exc else "the server closed the connection"))

    def _break(self, error: Exception) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._broken is None:
            self._broken = error
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(error)
