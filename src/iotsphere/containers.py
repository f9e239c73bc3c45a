"""All wiring in one place: which driver answers which port, and which door leads to which use case."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from dependency_injector import containers, providers

from .adapters.client_delivery import ClientDeliveryAdapter
from .adapters.client_use_cases import ClientUseCases
from .adapters.edge import Edge
from .adapters.http.publishing import HttpPublishing
from .adapters.notices import presence_record
from .adapters.poison import poison_letters
from .adapters.redrive import DeadLetterFormat
from .adapters.tokens import JsonWebTokens
from .adapters.values import pack_values, unpack_values
from .drivers.clock import SystemClock
from .drivers.secrets import Secrets, load_trusted_keys
from .entities.channel import DAY_MS, DEFAULT_CHANNELS, GIB, Retention
from .entities.errors import RequestInvalid
from .entities.position import Gap
from .settings import Settings
from .use_cases.authenticate import Authenticate
from .use_cases.dead_letters import DeadLetters
from .use_cases.devices import Devices
from .use_cases.feed import Feed
from .use_cases.flow_control import MessageFlowControlUseCase
from .use_cases.history import History
from .use_cases.last_values import LastValues
from .use_cases.ledger import Ledger
from .use_cases.ports.clock import Clock
from .use_cases.presence import Presence
from .use_cases.publish import MessagePublishUseCase
from .use_cases.rate_limit import Rate, RateLimit
from .use_cases.retention import RetentionUseCase, channels_with
from .use_cases.revocations import Revocations
from .use_cases.sessions import Sessions
from .use_cases.subscribe import MessageSubscriptionUseCase
from .use_cases.tokens import Tokens
from .use_cases.trace import Trace
from .use_cases.work import WorkQueueUseCase, WorkSettings, WorkStores


def _kind(settings: Settings) -> str:
    """Which family of drivers the log setting asks for. Raises RequestInvalid."""
    name = settings.log.partition(":")[0]
    kind = {"rediss": "redis", "unix": "redis"}.get(name, name)
    if kind not in ("memory", "sqlite", "redis"):
        raise RequestInvalid(f"{settings.log!a} is no log: write sqlite, memory or redis://HOST:PORT/DB")
    return kind


class Stores(NamedTuple):
    """The drivers of one family; those that need it are context managers that app.py enters."""

    log: Any
    queue: Any
    documents: Any


def _memory(settings: Settings, clock: Clock) -> Stores:
    from .drivers.memory.documents import MemoryDocuments
    from .drivers.memory.log import MemoryLog
    from .drivers.memory.queue import MemoryWorkQueue

    log = MemoryLog(clock)
    return Stores(log, MemoryWorkQueue(log), MemoryDocuments())


def _sqlite(settings: Settings, clock: Clock) -> Stores:
    from .drivers.sqlite.documents import SqliteDocuments
    from .drivers.sqlite.log import SqliteLog
    from .drivers.sqlite.queue import SqliteWorkQueue

    log = SqliteLog(settings.data / "log", clock, settings.durability)
    return Stores(log, SqliteWorkQueue(log), SqliteDocuments(settings.data / "documents.db"))


def _redis(settings: Settings, clock: Clock) -> Stores:
    from .drivers.redis.documents import RedisDocuments
    from .drivers.redis.log import RedisMessagingDriver
    from .drivers.redis.options import RedisOptions
    from .drivers.redis.queue import RedisWorkQueue

    options = RedisOptions(trust_server=settings.trust_log_server)
    log = RedisMessagingDriver(settings.log, clock, settings.durability, options)
    return Stores(log, RedisWorkQueue(log), RedisDocuments(log))


def _retention(settings: Settings) -> Retention:
    return Retention(
        int(settings.retention_days * DAY_MS),
        int(settings.retention_gib * GIB),
        int(settings.hard_cap_days * DAY_MS),
        int(settings.hard_cap_gib * GIB),
    )


def _channels(settings: Settings) -> Any:
    return channels_with(_retention(settings), DEFAULT_CHANNELS)


def _rates(settings: Settings) -> RateLimit:
    return RateLimit(
        Rate(settings.messages_per_second, settings.bytes_per_second),
        Rate(settings.domain_messages_per_second, settings.bytes_per_second * 100),
    )


def _edge(clock: Clock, log: Any) -> Edge:
    return Edge(clock, log.partitions)


def _tokens(secrets: Secrets, clock: Clock, settings: Settings) -> JsonWebTokens:
    return JsonWebTokens(secrets.token, clock, load_trusted_keys(settings.trusted_keys))


def _devices(documents: Any, revocations: Revocations, clock: Clock, secrets: Secrets) -> Devices:
    return Devices(documents, revocations, clock, secrets.device)


def _delivery(feed: Feed, secrets: Secrets) -> ClientDeliveryAdapter:
    return ClientDeliveryAdapter(feed, secrets.cursor)


def _work_settings(settings: Settings) -> WorkSettings:
    return WorkSettings(int(settings.visibility_seconds * 1000), settings.max_attempts)


def _announce(edge: Edge, publish: MessagePublishUseCase, clock: Clock) -> Callable[[Gap], Awaitable[None]]:
    from .adapters.alerts import loss_alert

    async def announce(gap: Gap) -> None:
        await publish([loss_alert(edge, gap, clock.now())])

    return announce


def _websocket(use_cases: ClientUseCases, settings: Settings) -> Any:
    from .gateways.websocket import WebSocketGateway, WebSocketLimits

    limits = WebSocketLimits(
        outbox_bytes=settings.outbox_bytes,
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        limit_loopback=settings.limit_loopback,
        compression=settings.websocket_compression,
        origins=settings.websocket_origins,
    )
    return WebSocketGateway(use_cases, limits)


def _sessions(documents: Any, log: Any, clock: Clock, settings: Settings) -> Sessions:
    return Sessions(documents, log, clock, settings.node)


def _presence(documents: Any, publish: MessagePublishUseCase, edge: Edge, clock: Clock, settings: Settings) -> Presence:
    return Presence(documents, publish, partial(presence_record, edge), clock, settings.node)


def _mqtt(box: Any) -> Any:
    from .gateways.mqtt import MqttGateway, MqttLimits, MqttUseCases

    settings = box.settings()
    limits = MqttLimits(
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        limit_loopback=settings.limit_loopback,
    )
    use_cases = MqttUseCases(
        authenticate=box.authenticate(),
        publish=box.publish(),
        subscribe=box.subscribe(),
        edge=box.edge(),
        last_values=box.last_values(),
        sessions=box.sessions(),
        presence=box.presence(),
        rates=box.rates(),
        clock=box.clock(),
    )
    return MqttGateway(use_cases, limits)


def _http(box: Any) -> Any:
    from .gateways.http import HttpGateway, HttpLimits, HttpUseCases

    settings = box.settings()
    limits = HttpLimits(
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        limit_loopback=settings.limit_loopback,
    )
    use_cases = HttpUseCases(
        authenticate=box.authenticate(),
        publishing=box.http_publishing(),
        history=box.history(),
        dead_letters=box.dead_letters(),
        devices=box.devices(),
        tokens=box.tokens(),
        ledger=box.ledger(),
        trace=box.trace(),
        log=box.log(),
        cursor_key=box.secrets().cursor,
        measures=box.measures(),
    )
    return HttpGateway(use_cases, limits)


def _measures(
    publish: MessagePublishUseCase, feed: Feed, flow: MessageFlowControlUseCase, retention: RetentionUseCase
) -> Any:
    from .gateways.http import Measure

    return (
        Measure("iotsphere_accepted", "Messages made durable by this process", lambda: publish.accepted),
        Measure("iotsphere_duplicates", "Messages that were in the log already", lambda: publish.duplicates),
        Measure("iotsphere_appends", "Batches appended", lambda: publish.batches),
        Measure("iotsphere_append_failures", "Appends that the log did not take", lambda: publish.failures),
        Measure("iotsphere_pending_bytes", "Bytes waiting for the log", lambda: publish.pending_bytes, "gauge"),
        Measure(
            "iotsphere_log_stalled", "1 while the log does not answer", lambda: publish.stalled is not None, "gauge"
        ),
        Measure("iotsphere_feed_entries", "Entries of the log that the feed has handed out", lambda: feed.entries_seen),
        Measure("iotsphere_feed_gaps", "Gaps that the feed met in the log", lambda: len(feed.gaps)),
        Measure("iotsphere_expired", "Messages not delivered since they had expired", lambda: feed.expired),
        Measure("iotsphere_delivered", "Messages handed to readers", lambda: flow.delivered),
        Measure("iotsphere_deferred", "Batches that a slow reader gets later from the log", lambda: flow.deferred),
        Measure("iotsphere_superseded", "Values not sent since a newer one replaced them", lambda: flow.superseded),
        Measure("iotsphere_lost", "Messages trimmed past the cap before a registered reader", lambda: retention.lost),
    )


class Container(containers.DeclarativeContainer):
    """One gateway's objects; drivers are context managers that app.py enters."""

    settings = providers.Dependency(instance_of=Settings)
    secrets = providers.Dependency(instance_of=Secrets)
    kind = providers.Callable(_kind, settings)
    channels = providers.Singleton(_channels, settings)

    clock = providers.Singleton(SystemClock)
    stores_of = providers.Selector(
        kind,
        memory=providers.Singleton(_memory, settings, clock),
        sqlite=providers.Singleton(_sqlite, settings, clock),
        redis=providers.Singleton(_redis, settings, clock),
    )
    log: providers.Provider[Any] = providers.Callable(attrgetter("log"), stores_of)
    queue: providers.Provider[Any] = providers.Callable(attrgetter("queue"), stores_of)
    documents: providers.Provider[Any] = providers.Callable(attrgetter("documents"), stores_of)

    edge = providers.Singleton(_edge, clock, log)
    publish = providers.Singleton(MessagePublishUseCase, log)
    last_values = providers.Singleton(LastValues, documents, pack_values, unpack_values)
    feed = providers.Singleton(Feed, log, last_values, clock)
    flow = providers.Singleton(MessageFlowControlUseCase)
    subscribe = providers.Singleton(MessageSubscriptionUseCase, log, feed, flow)
    stores = providers.Singleton(WorkStores, log, queue, documents)
    bury = providers.Singleton(poison_letters, edge, clock)
    work_settings = providers.Singleton(_work_settings, settings)
    work = providers.Singleton(WorkQueueUseCase, stores, feed, publish, bury, work_settings)
    announce = providers.Singleton(_announce, edge, publish, clock)
    retention = providers.Singleton(RetentionUseCase, log, clock, channels, announce)

    revocations = providers.Singleton(Revocations, documents, clock)
    access_tokens = providers.Singleton(_tokens, secrets, clock, settings)
    devices = providers.Singleton(_devices, documents, revocations, clock, secrets)
    tokens = providers.Singleton(Tokens, access_tokens, revocations, clock)
    authenticate = providers.Singleton(Authenticate, devices, access_tokens, revocations)
    rates = providers.Singleton(_rates, settings)

    delivery = providers.Singleton(_delivery, feed, secrets)
    client_use_cases = providers.Singleton(
        ClientUseCases, authenticate, subscribe, publish, work, edge, delivery, clock, rates
    )

    letter_format = providers.Singleton(DeadLetterFormat, edge)
    dead_letters = providers.Singleton(DeadLetters, log, documents, publish, letter_format, clock)
    history = providers.Singleton(History, log, last_values)
    ledger = providers.Singleton(Ledger, log, queue, documents, dead_letters)
    trace = providers.Singleton(Trace, log, dead_letters)
    http_publishing = providers.Singleton(HttpPublishing, edge, publish, clock, rates)
    websocket_gateway: providers.Provider[Any] = providers.Singleton(_websocket, client_use_cases, settings)
    measures = providers.Singleton(_measures, publish, feed, flow, retention)
    here: providers.Self[Any] = providers.Self()
    sessions = providers.Singleton(_sessions, documents, log, clock, settings)
    presence = providers.Singleton(_presence, documents, publish, edge, clock, settings)
    mqtt_gateway: providers.Provider[Any] = providers.Singleton(_mqtt, here)
    http_gateway: providers.Provider[Any] = providers.Singleton(_http, here)


def make_container(settings: Settings, secrets: Secrets) -> Container:
    """The objects of one gateway."""
    return Container(settings=providers.Object(settings), secrets=providers.Object(secrets))
