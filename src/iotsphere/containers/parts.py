"""Parts that need more than their neighbours: what they take from the settings and the secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..adapters.client.delivery import ClientDeliveryAdapter
from ..adapters.edge import Edge
from ..adapters.mqtt.wills import will_records
from ..adapters.notices import presence_record
from ..adapters.tokens import JsonWebTokens
from ..drivers.secrets import Secrets, load_trusted_keys
from ..entities.channel import DAY_MS, DEFAULT_CHANNELS, GIB, Retention
from ..entities.position import Gap
from ..settings import Settings
from ..use_cases.access.devices import Devices
from ..use_cases.access.rate_limit import Rate, RateLimit
from ..use_cases.access.revocations import Revocations
from ..use_cases.feed import Feed
from ..use_cases.ports.clock import Clock
from ..use_cases.publish import MessagePublishUseCase
from ..use_cases.retention import channels_with
from ..use_cases.session.presence import Presence
from ..use_cases.session.sessions import Sessions
from ..use_cases.session.wills import Wills
from ..use_cases.work import WorkSettings


def retention_of(settings: Settings) -> Retention:
    return Retention(
        int(settings.retention_days * DAY_MS),
        int(settings.retention_gib * GIB),
        int(settings.hard_cap_days * DAY_MS),
        int(settings.hard_cap_gib * GIB),
    )


def channels_of(settings: Settings) -> Any:
    return channels_with(retention_of(settings), DEFAULT_CHANNELS)


def rates_of(settings: Settings) -> RateLimit:
    return RateLimit(
        Rate(settings.messages_per_second, settings.bytes_per_second),
        Rate(settings.domain_messages_per_second, settings.bytes_per_second * 100),
    )


def edge_of(clock: Clock, log: Any) -> Edge:
    return Edge(clock, log.partitions)


def tokens_of(secrets: Secrets, clock: Clock, settings: Settings) -> JsonWebTokens:
    return JsonWebTokens(secrets.token, clock, load_trusted_keys(settings.trusted_keys))


def devices_of(documents: Any, revocations: Revocations, clock: Clock, secrets: Secrets) -> Devices:
    return Devices(documents, revocations, clock, secrets.device)


def delivery_of(feed: Feed, secrets: Secrets) -> ClientDeliveryAdapter:
    return ClientDeliveryAdapter(feed, secrets.cursor)


def work_settings_of(settings: Settings) -> WorkSettings:
    return WorkSettings(int(settings.visibility_seconds * 1000), settings.max_attempts)


def announce_of(edge: Edge, publish: MessagePublishUseCase, clock: Clock) -> Callable[[Gap], Awaitable[None]]:
    from ..adapters.alerts import loss_alert

    async def announce(gap: Gap) -> None:
        await publish([loss_alert(edge, gap, clock.now())])

    return announce


def sessions_of(documents: Any, log: Any, clock: Clock, settings: Settings) -> Sessions:
    return Sessions(documents, log, clock, settings.node)


def wills_of(documents: Any, publish: MessagePublishUseCase, edge: Edge, clock: Clock, settings: Settings) -> Wills:
    return Wills(documents, publish, partial(will_records, edge), clock, settings.node)


def presence_of(
    documents: Any, publish: MessagePublishUseCase, edge: Edge, clock: Clock, settings: Settings
) -> Presence:
    return Presence(documents, publish, partial(presence_record, edge), clock, settings.node)
