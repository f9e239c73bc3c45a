"""All wiring in one place: which driver answers which port, and which door leads to which use case."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from dependency_injector import containers, providers

from ..adapters.client.use_cases import ClientUseCases
from ..adapters.poison import poison_letters
from ..adapters.redrive import DeadLetterFormat
from ..adapters.values import pack_values, unpack_values
from ..drivers.clock import SystemClock
from ..drivers.secrets import Secrets
from ..settings import Settings
from ..use_cases.access.revocations import Revocations
from ..use_cases.access.sign_in import SignIn
from ..use_cases.access.tokens import Tokens
from ..use_cases.dead_letters import DeadLetters
from ..use_cases.feed import Feed
from ..use_cases.flow_control import MessageFlowControlUseCase
from ..use_cases.history import History
from ..use_cases.last_values import LastValues
from ..use_cases.ledger import Ledger
from ..use_cases.overview import Overview
from ..use_cases.publish import MessagePublishUseCase
from ..use_cases.retention import RetentionUseCase
from ..use_cases.sharing.sharing import Sharing
from ..use_cases.subscribe import MessageSubscriptionUseCase
from ..use_cases.trace import Trace
from ..use_cases.work import WorkQueueUseCase, WorkStores
from . import bridges as wired_bridges
from . import doors, parts, stores, tls
from . import state as states


class Container(containers.DeclarativeContainer):
    """One gateway's objects; drivers are context managers that app.py enters."""

    settings = providers.Dependency(instance_of=Settings)
    secrets = providers.Dependency(instance_of=Secrets)
    kind = providers.Callable(stores.kind_of, settings)
    channels = providers.Singleton(parts.channels_of, settings)

    clock = providers.Singleton(SystemClock)
    stores_of = providers.Selector(
        kind,
        memory=providers.Singleton(stores.memory_stores, settings, clock),
        sqlite=providers.Singleton(stores.sqlite_stores, settings, clock),
        redis=providers.Singleton(stores.redis_stores, settings, clock),
    )
    log: providers.Provider[Any] = providers.Callable(attrgetter("log"), stores_of)
    queue: providers.Provider[Any] = providers.Callable(attrgetter("queue"), stores_of)
    documents: providers.Provider[Any] = providers.Callable(attrgetter("documents"), stores_of)

    database_kind = providers.Callable(states.kind_of, settings)
    database: providers.Provider[Any] = providers.Selector(
        database_kind,
        memory=providers.Singleton(states.memory_database, settings, clock),
        sqlite=providers.Singleton(states.sqlite_database, settings, clock),
        mongodb=providers.Singleton(states.mongodb_database, settings, clock),
    )

    edge = providers.Singleton(parts.edge_of, clock, log)
    publish = providers.Singleton(MessagePublishUseCase, log)
    last_values = providers.Singleton(LastValues, documents, pack_values, unpack_values)
    feed = providers.Singleton(Feed, log, last_values, clock)
    flow = providers.Singleton(MessageFlowControlUseCase)
    subscribe = providers.Singleton(MessageSubscriptionUseCase, log, feed, flow)
    work_stores = providers.Singleton(WorkStores, log, queue, documents)
    bury = providers.Singleton(poison_letters, edge, clock)
    work_settings = providers.Singleton(parts.work_settings_of, settings)
    work = providers.Singleton(WorkQueueUseCase, work_stores, feed, publish, bury, work_settings)
    announce = providers.Singleton(parts.announce_of, edge, publish, clock)
    retention = providers.Singleton(RetentionUseCase, log, clock, channels, announce)

    revocations = providers.Singleton(Revocations, documents, clock)
    access_tokens = providers.Singleton(parts.tokens_of, secrets, clock, settings)
    devices = providers.Singleton(parts.devices_of, documents, revocations, clock, secrets)
    tokens = providers.Singleton(Tokens, access_tokens, revocations, clock)
    sign_in = providers.Singleton(SignIn, documents, tokens, clock)
    certificates: providers.Provider[Any] = providers.Singleton(tls.certificates_of, settings, clock)
    certificate_login = providers.Singleton(tls.login_of, settings, certificates, devices, clock)
    certificate_watch = providers.Singleton(tls.watch_of, settings, certificates, clock, edge, publish)
    authenticate = providers.Singleton(tls.authenticate_of, devices, access_tokens, revocations, certificate_login)
    rates = providers.Singleton(parts.rates_of, settings)

    telemetry = providers.Singleton(states.telemetry_of, settings, database_kind, database)
    ground = providers.Singleton(states.Ground, database, edge, publish, devices, clock, telemetry)
    mapped = providers.Singleton(states.mapped_of, settings)
    state = providers.Singleton(states.State, ground, log, documents, mapped)
    client_state = providers.Callable(attrgetter("client"), state)
    requests = providers.Callable(attrgetter("requests"), state)
    roster = providers.Callable(attrgetter("roster"), state)
    overview = providers.Singleton(Overview, devices, roster, last_values)

    delivery = providers.Singleton(parts.delivery_of, feed, secrets)
    client_use_cases = providers.Singleton(
        ClientUseCases, authenticate, subscribe, publish, work, edge, delivery, clock, rates, client_state
    )

    letter_format = providers.Singleton(DeadLetterFormat, edge)
    dead_letters = providers.Singleton(DeadLetters, log, documents, publish, letter_format, clock)
    history = providers.Singleton(History, log, last_values)
    ledger = providers.Singleton(Ledger, log, queue, documents, dead_letters)
    trace = providers.Singleton(Trace, log, dead_letters)
    http_publishing = providers.Singleton(doors.http_publishing, edge, publish, clock, rates, requests)
    measures = providers.Singleton(doors.measures_of, publish, feed, flow, retention)
    tls_measures = providers.Singleton(doors.tls_measures_of, certificates, certificate_watch)
    endpoints: providers.Provider[Any] = providers.Singleton(dict)
    here: providers.Self[Any] = providers.Self()
    sharing = providers.Singleton(Sharing, log, documents, feed)
    sessions = providers.Singleton(parts.sessions_of, documents, log, clock, settings)
    wills = providers.Singleton(parts.wills_of, documents, publish, edge, clock, settings)
    presence = providers.Singleton(parts.presence_of, documents, publish, edge, clock, settings)
    mqtt_gateway: providers.Provider[Any] = providers.Singleton(doors.mqtt_door, here)
    websocket_gateway: providers.Provider[Any] = providers.Singleton(
        doors.websocket_door, client_use_cases, settings, mqtt_gateway
    )
    bridges: providers.Provider[Any] = providers.Singleton(wired_bridges.bridges_of, here)
    running_bridges: providers.Provider[Any] = providers.Singleton(list)
    readiness: providers.Provider[Any] = providers.Singleton(list)
    http_gateway: providers.Provider[Any] = providers.Singleton(doors.http_door, here)


def make_container(settings: Settings, secrets: Secrets) -> Container:
    """The objects of one gateway."""
    return Container(settings=providers.Object(settings), secrets=providers.Object(secrets))
