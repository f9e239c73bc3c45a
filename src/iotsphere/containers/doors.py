"""The doors, each with the use cases that it leads to."""

from __future__ import annotations

from typing import Any

from ..adapters.client_use_cases import ClientUseCases
from ..settings import Settings
from ..use_cases.feed import Feed
from ..use_cases.flow_control import MessageFlowControlUseCase
from ..use_cases.publish import MessagePublishUseCase
from ..use_cases.retention import RetentionUseCase


def websocket_door(use_cases: ClientUseCases, settings: Settings, mqtt_gateway: Any) -> Any:
    from ..gateways.websocket import WebSocketGateway, WebSocketLimits

    limits = WebSocketLimits(
        outbox_bytes=settings.outbox_bytes,
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        limit_loopback=settings.limit_loopback,
        compression=settings.websocket_compression,
        origins=settings.websocket_origins,
    )
    return WebSocketGateway(use_cases, limits, {"mqtt": mqtt_gateway.over_websocket})


def mqtt_door(box: Any) -> Any:
    from ..gateways.mqtt import MqttGateway, MqttLimits, MqttUseCases

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


def http_door(box: Any) -> Any:
    from ..gateways.http import HttpGateway, HttpLimits, HttpUseCases

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


def measures_of(
    publish: MessagePublishUseCase, feed: Feed, flow: MessageFlowControlUseCase, retention: RetentionUseCase
) -> Any:
    from ..gateways.http import Measure

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
