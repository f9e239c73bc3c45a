"""The doors, each with the use cases that it leads to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from ..adapters.client.use_cases import ClientUseCases
from ..settings import Settings
from ..use_cases.access.certificate_watch import CertificateWatch
from ..use_cases.feed import Feed
from ..use_cases.flow_control import MessageFlowControlUseCase
from ..use_cases.publish import MessagePublishUseCase
from ..use_cases.retention import RetentionUseCase
from .bridges import bridge_measures
from .mqtt_measures import mqtt_measures
from .state_measures import state_measures


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
    from ..gateways.mqtt import MqttGateway, MqttLimits

    settings = box.settings()
    limits = MqttLimits(
        connections=settings.max_connections,
        per_address=settings.max_connections_per_address,
        limit_loopback=settings.limit_loopback,
    )
    use_cases = _mqtt_use_cases(box, box.edge(), box.wills())
    return MqttGateway(replace(use_cases, care=box.state().care, requests=box.requests()), limits)


def playground_door(box: Any) -> Any:
    """An MQTT door for guests alone, as ``mqtt_door`` for everything but topics, payloads, and what needs a database."""
    from ..adapters.mqtt.life import Offer
    from ..adapters.mqtt.playground import Playground, PlaygroundEdge
    from ..gateways.mqtt import MqttGateway, MqttLimits
    from .parts import wills_of

    edge = PlaygroundEdge(box.clock(), box.log().partitions)
    wills = wills_of(box.documents(), box.publish(), edge, box.clock(), box.settings())
    use_cases = replace(_mqtt_use_cases(box, edge, wills), playground=Playground(box.settings().domains[0]))
    limits = MqttLimits(close_on_denial=False, offer=Offer(connect_within=4.5, max_keep_alive=60))
    return MqttGateway(use_cases, limits)


def _mqtt_use_cases(box: Any, edge: Any, wills: Any) -> Any:
    from ..gateways.mqtt import MqttUseCases

    return MqttUseCases(
        authenticate=box.authenticate(),
        publish=box.publish(),
        subscribe=box.subscribe(),
        edge=edge,
        last_values=box.last_values(),
        sessions=box.sessions(),
        presence=box.presence(),
        wills=wills,
        rates=box.rates(),
        clock=box.clock(),
        sharing=box.sharing(),
    )


def http_publishing(*parts: Any) -> Any:
    from ..adapters.http.publishing import HttpPublishing

    return HttpPublishing(*parts)


def http_door(box: Any) -> Any:
    from ..gateways.http import ConsolePlace, HttpGateway, HttpLimits, HttpUseCases

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
        state=box.client_state(),
        fleet=box.state().fleet,
        overview=box.overview(),
        sign_in=box.sign_in(),
        console=ConsolePlace(box.endpoints(), settings.websocket_url, settings.websocket_origins, settings.console),
        measures=(
            *box.measures(),
            *state_measures(box.state()),
            *box.tls_measures(),
            *bridge_measures(box.running_bridges()),
            *mqtt_measures(box),
        ),
        checks=box.readiness(),
    )
    return HttpGateway(use_cases, limits)


def measures_of(
    publish: MessagePublishUseCase, feed: Feed, flow: MessageFlowControlUseCase, retention: RetentionUseCase
) -> Any:
    from ..gateways.http import Measure

    return (
        Measure("iotsphere_accepted", "Messages made durable by this process", lambda: publish.accepted),
        Measure("iotsphere_duplicates", "Messages that were in the log already", lambda: publish.duplicates),
        Measure("iotsphere_renamed", "Messages whose id another topic's message had already", lambda: publish.renamed),
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


def tls_measures_of(certificates: Any, watch: CertificateWatch | None) -> Any:
    from ..gateways.http import Measure

    if certificates is None or watch is None:
        return ()

    def failed() -> int:
        return sum(count for why, count in certificates.handshakes.items() if why != "accepted")

    def accepted() -> int:
        return int(certificates.handshakes.get("accepted", 0))

    left = partial(partial, watch.days_left)
    found = [
        Measure("iotsphere_certificate_days_left", "Days until our certificate expires", left("certificate"), "gauge"),
        Measure("iotsphere_client_ca_days_left", "Days until a client authority expires", left("client_ca"), "gauge"),
        Measure("iotsphere_client_crl_days_left", "Days until a revocation list expires", left("client_crl"), "gauge"),
        Measure("iotsphere_certificates_renewed", "Times that changed files were taken", lambda: watch.renewed),
        Measure("iotsphere_certificates_rejected", "Times that changed files were refused", lambda: watch.rejected),
        Measure("iotsphere_tls_handshakes", "TLS handshakes that went well", accepted),
        Measure("iotsphere_tls_handshakes_failed", "TLS handshakes that failed; the log says why", failed),
    ]
    return tuple(each for each in found if each.kind != "gauge" or each.read() != float("inf"))
