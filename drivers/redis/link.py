"""Connections to a Redis server that come back by themselves, and the translation of what goes wrong on them."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import hiredis
from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ...entities.errors import DurabilityTooWeak, IotSphereError, LogFull, LogUnavailable
from . import durability as levels
from .options import RedisOptions

Command = tuple[bytes | str | int, ...]
LONGEST_PAUSE_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.02
# Refusals that end by themselves: a failover, a cluster that is being put right.
_PASSING: Final = (ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
_scripts: Final[dict[str, str]] = {}
# The stub takes a tuple of one for a tuple of any length.
_pack: Final = cast("Callable[[Command], bytes]", hiredis.pack_command)


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


class Wire(Protocol):
    """What is used of the library's connections; they are not typed throughout."""

    @property
    def is_connected(self) -> bool:
        """Whether it was opened and not yet closed from this side."""
        ...

    async def connect(self) -> None:
        """Open, authenticate and select the database."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:
        """Close."""
        ...

    async def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:
        """Write commands."""
        ...

    async def read_response(self, disable_decoding: bool = False) -> Any:
        """Read one answer; raises it when it is an error."""
        ...


class Greeting(NamedTuple):
    """What a connection learnt of its server. ``ahead``: the server's clock minus ``time.monotonic``, in ms."""

    run: str
    version: str
    ahead: float

    def now(self) -> float:
        """The server's time, ms since 1970."""
        return time.monotonic() * 1000 + self.ahead


class Endpoint:
    """Where the server is, and what must hold of it before a connection is used."""

    def __init__(self, url: str, durability: str, options: RedisOptions) -> None:
        settings = cast(dict[str, Any], parse_url(url))
        self._kind = cast(Callable[..., Wire], settings.pop("connection_class", Connection))
        settings.pop("max_connections", None)
        self._settings = {
            "client_name": "iotsphere",
            **settings,
            "protocol": 2,
            "socket_connect_timeout": options.timeout,
            # Answers are timed here: the library's way (wait_for) can lose a cancellation before Python 3.12.
            "socket_timeout": None,
        }
        self.durability = durability
        self.options = options
        self.name = str(settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}")

    async def connect(self) -> tuple[Wire, Greeting]:
        """Open and examine a connection. Raises LogUnavailable, DurabilityTooWeak."""
        connection = self._kind(**self._settings)
        try:
            await connection.connect()
            greeting = await self._greet(connection)
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise self.translate(error) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection, greeting

    def confirm(self) -> list[Command]:
        """What to send after writes: WAIT, within the timeout, where replicas are asked for."""
        if not self.options.replicas:
            return []
        return [("WAIT", self.options.replicas, int(self.options.timeout * 800))]

    def check(self, confirmed: Sequence[int]) -> None:
        """Raise LogUnavailable when too few replicas confirmed; ``confirmed`` is what ``confirm`` was answered."""
        for count in confirmed:
            if count < self.options.replicas:
                raise LogUnavailable(
                    f"{count} of {self.options.replicas} replicas of Redis at {self.name} confirmed the write in time"
                )

    async def _greet(self, connection: Wire) -> Greeting:
        # PING first: it is refused while the server still loads its data, and INFO is not.
        _, info, (seconds, micros) = await self._ask(connection, ("PING",), ("INFO", "server"), ("TIME",))
        facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        levels.check_version(facts["redis_version"], self.name)
        required = levels.REQUIRED[self.durability]
        if required and not self.options.trust_server:
            try:
                (found,) = await self._ask(connection, ("CONFIG", "GET", *required))
            except ResponseError as error:
                raise DurabilityTooWeak(
                    f"Redis at {self.name} does not let this user look at its durability ({error}): allow CONFIG GET, "
                    f"or set trust_server once its settings were checked by hand"
                ) from error
            words = [word.decode() for word in found]
            levels.check(self.durability, dict(zip(words[::2], words[1::2], strict=True)), self.name)
        ahead = int(seconds) * 1000 + int(micros) / 1000 - time.monotonic() * 1000
        return Greeting(facts["run_id"], facts["redis_version"], ahead)

    async def exchange(self, connection: Wire, commands: Sequence[Command], replies: list[Any]) -> None:
        """Send commands in one write and add their answers to ``replies``, errors as values.

        Raises RedisError or OSError when the connection breaks; TimeoutError, one of the latter, when the next answer
        takes longer than the timeout.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.options.timeout) as patience:
            # hiredis packs several times faster than the library's asyncio connection does.
            packed = [_pack(command) for command in commands]
            await connection.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    replies.append(await connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    replies.append(error)
                patience.reschedule(loop.time() + self.options.timeout)

    async def _ask(self, connection: Wire, *commands: Command) -> list[Any]:
        replies: list[Any] = []
        await self.exchange(connection, commands, replies)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return replies

    def translate(self, error: Exception) -> IotSphereError:
        """The error of the house for one of the library."""
        text = str(error) or type(error).__name__
        if isinstance(error, OutOfMemoryError):
            return LogFull(f"Redis at {self.name} is at its maxmemory: raise it, or shorten the retention")
        if text.startswith("MISCONF"):
            return LogFull(f"Redis at {self.name} cannot write to its disk: {text}")
        if isinstance(error, (MovedError, AskError, ClusterCrossSlotError)):
            return LogUnavailable(f"Redis at {self.name} is a cluster of several nodes; one node is supported: {text}")
        if isinstance(error, ResponseError) and not isinstance(error, _PASSING):
            return IotSphereError(f"Redis at {self.name} refused a command: {text}")
        return LogUnavailable(f"Redis at {self.name} is not available: {text}")


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
            await self.endpoint.exchange(connection, commands, replies)
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise self.endpoint.translate(error) from error
        except BaseException:
            # The answers that are still under way must not be taken for those of the next call.
            await connection.disconnect(nowait=True)
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
            await self._connection.disconnect()


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
