"""The bridges to external brokers: from their files to running objects, and what they show to operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..adapters.bridge.file import BridgeSpec, parse_bridge
from ..entities.errors import RequestInvalid


def load_bridge(path: Path, domains: Sequence[str]) -> BridgeSpec:
    """Read a bridge's file. Raises RequestInvalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"cannot read the bridge's file {path}: {error}; see IOTSPHERE_BRIDGES") from error
    return parse_bridge(text, path.absolute(), domains)


def bridges_of(box: Any) -> tuple[Any, ...]:
    """The bridges that the settings name. Raises RequestInvalid."""
    settings = box.settings()
    if not settings.bridges:
        return ()  # a quarter of what a gateway imports at its start serves bridges alone
    from ..gateways.mqtt_bridge import BridgeOptions, BridgeUseCases, MqttBridge

    use_cases = BridgeUseCases(box.edge(), box.publish(), box.log(), box.documents(), box.clock(), box.requests())
    options = BridgeOptions(node=settings.node, ordinal=settings.bridge_ordinal)
    specs = [load_bridge(path, settings.domains) for path in settings.bridges]
    named = {(spec.domain, spec.name) for spec in specs}
    if len(named) != len(specs):
        raise RequestInvalid("two bridges have one name: their sessions and readers would mix; give each its own")
    return tuple(MqttBridge(spec, use_cases, options) for spec in specs)


def bridge_measures(running: Sequence[Any]) -> Any:
    """Figures over all bridges of this process; ``running`` may grow later."""
    from ..gateways.http import Measure

    def total(name: str, meaning: str, word: str) -> Measure:
        return Measure(f"iotsphere_bridge_{name}", meaning, lambda: sum(b.counts[word] for b in running))

    def gauge(name: str, meaning: str, read: Callable[[], float]) -> Measure:
        return Measure(f"iotsphere_bridge_{name}", meaning, read, "gauge")

    return (
        gauge("connected", "Bridges that their broker serves", lambda: sum(b.connected for b in running)),
        gauge("stopped", "Bridges that look for their broker no more", lambda: sum(b.stopped is not None for b in running)),
        gauge("unacknowledged", "Messages that brokers wait for", lambda: sum(b.unacknowledged for b in running)),
        gauge("oldest_seconds", "Age of the oldest of them", lambda: max((b.oldest for b in running), default=0.0)),
        total("received", "Messages that came from brokers", "received"),
        total("appended", "Messages and dead letters from brokers in the log", "appended"),
        total("refused", "Messages from brokers that became dead letters", "refused"),
        total("decided", "Requests from brokers that were carried out", "decided"),
        total("decisions_postponed", "Times that a request had to wait for the database", "decisions_postponed"),
        total("acknowledged", "Messages acknowledged to brokers", "acknowledged"),
        total("repeated", "Messages that came again and were known", "repeated"),
        total("own", "Messages of this log that came back, and were not taken in", "own"),
        total("other_slice", "Messages left to another slice", "other_slice"),
        total("empty", "Messages without a payload", "empty"),
        total("dropped_qos0", "QoS 0 messages dropped while the log was away", "dropped_qos0"),
        total("published", "Messages carried to brokers", "published"),
        total("published_again", "Messages sent again after a lost connection", "published_again"),
        total("publish_refused", "Messages that brokers refused, now dead letters", "publish_refused"),
        total("expired", "Messages that expired before they could be carried out", "expired"),
        total("missed", "Messages that retention took before they could be carried out", "missed"),
        total("connects", "Connections made", "connects"),
        total("connect_failures", "Connections that failed", "connect_failures"),
        total("takeovers", "Sessions taken by another process", "takeovers"),
        total("sessions_lost", "Sessions that a broker forgot", "sessions_lost"),
        Measure(
            "iotsphere_bridge_brought_in",
            "Messages not carried out, since a bridge had brought them in",
            lambda: sum(b.brought_in for b in running),
        ),
    )  # fmt: skip
