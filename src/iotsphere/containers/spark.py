"""What a Spark job is given: which log it reads, and where its results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

from ..adapters.broker.broker import MessageBrokerAdapter
from ..drivers.spark.jobs import Job, Run
from ..drivers.spark.sinks.documents import EMBEDDED_FILE, MONGODB
from ..drivers.spark.sinks.log import LogSink
from ..drivers.websocket_wire import WebSocketWire
from ..entities.errors import RequestInvalid
from ..settings import Settings
from ..spark import open_ranges
from .stores import kind_of

TOLD_AT_MOST = 200_000


class Outlets(NamedTuple):
    """Where results go that are not published."""

    output: Path
    database: str

    @property
    def documents(self) -> str:
        """Where documents are, as a person is told it: an address may hold a password."""
        return "MongoDB" if self.database.startswith(MONGODB) else str(Path(self.database) / EMBEDDED_FILE)


def log_of(settings: Settings) -> str:
    """The address of the log as the data source takes it; ``sqlite:FOLDER`` names another folder than the data's."""
    name, _, folder = settings.log.partition(":")
    if name == "sqlite" and folder:
        return f"sqlite:{Path(folder.removeprefix('//')).resolve()}"
    kind = kind_of(settings)
    if kind == "memory":
        raise RequestInvalid("a log in memory is read by its gateway alone: use sqlite or redis://HOST:PORT/DB")
    return f"sqlite:{settings.data.resolve()}" if kind == "sqlite" else settings.log


def database_of(settings: Settings) -> str:
    """Where documents are kept: an address of MongoDB, or the data folder."""
    if settings.database in ("sqlite", "memory"):
        return str(settings.data.resolve())
    if not settings.database.startswith(MONGODB):
        raise RequestInvalid(f"{settings.database!a} is no database: write mongodb://HOST:PORT/NAME?replicaSet=…")
    return settings.database


def sink_of(gateway: tuple[str, str], job: Job, log: str, domains: tuple[str, ...]) -> LogSink:
    url, token = gateway
    WebSocketWire(url, token)  # what is no address is refused now

    def connecting() -> AbstractAsyncContextManager[Any]:
        return MessageBrokerAdapter(WebSocketWire(url, token))

    return LogSink(connecting, (job.name, job.version), lambda: told_before(log, domains))


def told_before(log: str, domains: tuple[str, ...]) -> set[str]:
    """The ids of the newest messages on the topics where results are published."""
    ids: list[str] = []
    with open_ranges(log) as ranges:
        for partition in ranges.partitions("batch", domains):
            bounds = ranges.bounds(partition)
            start = bounds.last._replace(offset=max(bounds.first.offset - 1, bounds.last.offset - TOLD_AT_MOST))
            for piece in ranges.read(partition, start, bounds.last):
                ids += [entry.record.message_id for entry in piece.entries]
    return set(ids)


def runs_of(
    options: Mapping[str, Any], outlets: Outlets, announce: Callable[..., int] | None
) -> Callable[[str, bool], Run]:
    def make(application: str, following: bool) -> Run:
        run = Run(options, application, following, outlets.output, outlets.database)
        if announce is None:
            return run
        return Run(options, application, following, outlets.output, outlets.database, announce)

    return make
