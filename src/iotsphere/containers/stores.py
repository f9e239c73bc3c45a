"""Which family of drivers keeps the log, the work queues and the documents."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..entities.errors import RequestInvalid
from ..settings import Settings
from ..use_cases.ports.clock import Clock


def kind_of(settings: Settings) -> str:
    """Which family of drivers the log setting asks for. Raises RequestInvalid."""
    name, _, place = settings.log.partition(":")
    kind = {"rediss": "redis", "unix": "redis"}.get(name, name)
    if kind not in ("memory", "sqlite", "redis"):
        raise RequestInvalid(f"{settings.log!a} is no log: write sqlite, memory or redis://HOST:PORT/DB")
    if place.strip("/") and kind != "redis":
        raise RequestInvalid(f"{settings.log!a} is no log: write {kind}, and name its folder with --data")
    return kind


class Stores(NamedTuple):
    """The drivers of one family; those that need it are context managers that app.py enters."""

    log: Any
    queue: Any
    documents: Any


def memory_stores(settings: Settings, clock: Clock) -> Stores:
    from ..drivers.memory.documents import MemoryDocuments
    from ..drivers.memory.log import MemoryLog
    from ..drivers.memory.queue import MemoryWorkQueue

    log = MemoryLog(clock)
    return Stores(log, MemoryWorkQueue(log), MemoryDocuments())


def sqlite_stores(settings: Settings, clock: Clock) -> Stores:
    from ..drivers.sqlite.documents import SqliteDocuments
    from ..drivers.sqlite.log import SqliteLog
    from ..drivers.sqlite.queue import SqliteWorkQueue

    log = SqliteLog(settings.data / "log", clock, settings.durability)
    return Stores(log, SqliteWorkQueue(log), SqliteDocuments(settings.data / "documents.db"))


def redis_stores(settings: Settings, clock: Clock) -> Stores:
    from ..drivers.redis.documents import RedisDocuments
    from ..drivers.redis.log import RedisMessagingDriver
    from ..drivers.redis.options import RedisOptions
    from ..drivers.redis.queue import RedisWorkQueue

    options = RedisOptions(trust_server=settings.trust_log_server)
    log = RedisMessagingDriver(settings.log, clock, settings.durability, options)
    return Stores(log, RedisWorkQueue(log), RedisDocuments(log))
