"""The Redis server that the driver speaks with: how to reach it, what must hold of it, and what its errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ...entities.errors import DurabilityTooWeak, IotSphereError, LogFull, LogUnavailable, RequestInvalid
from . import durability as levels
from .options import RedisOptions
from .wire import Command, Wire

# Refusals that end by themselves: a failover, a cluster that is being put right.
_PASSING: Final = (ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)


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
        try:
            settings = cast(dict[str, Any], parse_url(url))
        except ValueError as error:
            raise RequestInvalid("the log's address is no Redis URL; write redis://HOST:PORT/DB") from error
        self._kind = cast(Callable[..., AbstractConnection], settings.pop("connection_class", Connection))
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
            await cast(Any, connection).connect()
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise self.translate(error) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        wire = Wire(connection)
        try:
            return wire, await self._greet(wire)
        except (RedisError, OSError) as error:
            wire.close()
            raise self.translate(error) from error
        except BaseException:
            wire.close()
            raise

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

    async def _greet(self, wire: Wire) -> Greeting:
        # PING first: it is refused while the server still loads its data, and INFO is not.
        _, info, (seconds, micros) = await self._ask(wire, ("PING",), ("INFO", "server"), ("TIME",))
        facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        levels.check_version(facts["redis_version"], self.name)
        required = levels.REQUIRED[self.durability]
        if required and not self.options.trust_server:
            try:
                (found,) = await self._ask(wire, ("CONFIG", "GET", *required))
            except ResponseError as error:
                raise DurabilityTooWeak(
                    f"Redis at {self.name} does not let this user look at its durability ({error}): allow CONFIG GET, "
                    f"or set trust_server once its settings were checked by hand"
                ) from error
            words = [word.decode() for word in found]
            levels.check(self.durability, dict(zip(words[::2], words[1::2], strict=True)), self.name)
        ahead = int(seconds) * 1000 + int(micros) / 1000 - time.monotonic() * 1000
        return Greeting(facts["run_id"], facts["redis_version"], ahead)

    async def _ask(self, wire: Wire, *commands: Command) -> list[Any]:
        replies: list[Any] = []
        await wire.exchange(commands, replies, self.options.timeout)
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
