"""Connections to the Redis server that come back by themselves, and the scripts that they give it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import NoScriptError, RedisError

from ...entities.errors import IotSphereError, LogUnavailable
from .endpoint import Endpoint, Greeting
from .wire import Command, Wire

LONGEST_PAUSE_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.02
_scripts: Final[dict[str, str]] = {}


class Script(NamedTuple):
    """A Lua script by its digest; the server loads it when it is first asked for."""

    sha: str

    def __call__(self, keys: Sequence[str], *arguments: bytes | str | int) -> Command:
        """The command that runs it."""
        return (b"EVALSHA", self.sha, len(keys), *keys, *arguments)


def script(text: str) -> Script:
    """Make a script known to all links of this process."""
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    _scripts[sha] = text
    return Script(sha)


def source(known: Script) -> str:
    """The text of a script, for a client of another kind."""
    return _scripts[known.sha]


class Link:
    """One connection, used by one call at a time, in the order of the calls."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.greeting = Greeting("", "", 0.0)
        self.waiting = 0
        self._connection: Wire | None = None
        self._lock = asyncio.Lock()
        self._served = 0
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    async def open(self) -> Wire:
        """The connection, made anew where needed; after failures only when its jittered pause is over."""
        if self._connection is not None and self._connection.is_connected:
            return self._connection
        if self._closed:
            raise LogUnavailable("this log was closed")
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            await asyncio.sleep(pause)
        try:
            self._connection, self.greeting = await self.endpoint.connect()
        except IotSphereError:
            longest = min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._failures, 10))
            self._not_before = loop.time() + longest * random.uniform(0.5, 1)
            self._failures += 1
            raise
        self._failures = self._served = 0
        return self._connection

    async def send(self, commands: Sequence[Command], replies: list[Any]) -> None:
        """Send commands and add their answers to ``replies``, errors as values.

        Raises LogUnavailable when the connection breaks; the answers that came are in ``replies`` then. ``stale``
        tells whether it may just have been closed while idle.
        """
        connection = await self.open()
        try:
            await connection.exchange(commands, replies, self.endpoint.options.timeout)
        except (RedisError, OSError) as error:
            connection.close()
            raise self.endpoint.translate(error) from error
        except BaseException:
            # The answers that are still under way must not be taken for those of the next call.
            connection.close()
            raise
        self._served += 1

    @property
    def served(self) -> bool:
        """Whether the present or last connection has answered before: its loss may just have been idleness."""
        return self._served > 0

    async def write(self, *commands: Command) -> list[Any]:
        """Run commands that write and are safe to repeat, and wait for the replicas that are asked for."""
        replies = await self.call(*commands, *self.endpoint.confirm())
        self.endpoint.check(replies[len(commands) :])
        return replies[: len(commands)]

    async def call(self, *commands: Command) -> list[Any]:
        """Run commands that are safe to repeat and return their answers. Raises the first error among them."""
        self.waiting += 1
        try:
            async with self._lock:
                return await self._call(commands)
        finally:
            self.waiting -= 1

    async def _call(self, commands: Sequence[Command]) -> list[Any]:
        replies: list[Any] = []
        try:
            await self.send(commands, replies)
        except LogUnavailable as error:
            if not self.served or isinstance(error.__cause__, TimeoutError):
                raise
            replies.clear()
            await self.send(commands, replies)
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            again: list[Any] = []
            await self.load()
            await self.send([commands[index] for index in missing], again)
            for index, reply in zip(missing, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self.endpoint.translate(reply) from reply
        return replies

    async def load(self) -> None:
        """Give the server all scripts."""
        replies: list[Any] = []
        await self.send([("SCRIPT", "LOAD", text) for text in _scripts.values()], replies)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self.endpoint.translate(reply) from reply

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()


class Links:
    """A few links for everything but appends; a call takes the least busy one."""

    def __init__(self, endpoint: Endpoint, count: int = 4) -> None:
        self.endpoint = endpoint
        self._links = [Link(endpoint) for _ in range(count)]

    async def call(self, *commands: Command) -> list[Any]:
        """Run commands that are safe to repeat. Raises LogUnavailable, LogFull."""
        return await min(self._links, key=lambda link: link.waiting).call(*commands)

    async def write(self, *commands: Command) -> list[Any]:
        """Run commands that write and are safe to repeat, and wait for the replicas that are asked for."""
        return await min(self._links, key=lambda link: link.waiting).write(*commands)

    async def close(self) -> None:
        """Close the connections."""
        for link in self._links:
            await link.close()
