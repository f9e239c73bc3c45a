"""Figures for Prometheus. Labels come from fixed sets only: routes, methods, statuses, channels, reasons."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...entities.dead_letter import REASONS
from ...use_cases.ledger import LedgerReport
from ...use_cases.ports.facts import READERS
from .access import Measure

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
METHODS: Final = frozenset(("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"))
FRESH_S: Final = 1.0
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One door's figures, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._text = b""
        self._rendered_at = -FRESH_S
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "iotsphere_http_requests", "Requests by route", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "iotsphere_http_seconds", "Time to answer", ("route",), buckets=BUCKETS, registry=self._registry
        )

    def answered(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count an answer. ``route``: the route's template, None when none matched."""
        shown = route if route is not None else "none"
        self._requests.labels(method if method in METHODS else "other", shown, str(status)).inc()
        self._seconds.labels(shown).observe(seconds)

    def render(self, reports: Sequence[LedgerReport], measures: Sequence[Measure]) -> bytes:
        """All figures as text: this door's, those of the measures, and the ledgers of all domains together."""
        moment = CollectorRegistry()
        moment.register(_Moment([*_measured(measures), *_accounts(reports)]))
        self._text = generate_latest(self._registry) + generate_latest(moment)
        self._rendered_at = time.monotonic()
        return self._text

    @property
    def recent(self) -> bytes | None:
        """What was rendered within the last second, so that asking often costs little."""
        return self._text if time.monotonic() - self._rendered_at < FRESH_S else None


class _Moment(Collector):
    """Figures that were worked out already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        """The figures."""
        return iter(self._families)


def _measured(measures: Sequence[Measure]) -> Iterator[Metric]:
    up = GaugeMetricFamily("iotsphere_up", "1 while the gateway runs")
    up.add_metric((), 1)
    yield up
    for measure in measures:
        kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
        family = kind(measure.name, measure.meaning, labels=(measure.label,) if measure.label else ())
        found = measure.read()
        if isinstance(found, Mapping):
            for value, figure in sorted(found.items()):
                family.add_metric((value,), figure)
        else:
            family.add_metric((), found)
        yield family


def _accounts(reports: Sequence[LedgerReport]) -> Iterator[Metric]:
    accepted: Tally[str] = Tally()
    retained: Tally[str] = Tally()
    pending: Tally[str] = Tally()
    lost: Tally[str] = Tally()
    behind: Tally[str] = Tally(dict.fromkeys(READERS, 0))
    letters: Tally[str] = Tally(dict.fromkeys(REASONS, 0))
    for report in reports:
        for channel in report.channels:
            accepted[channel.channel] += channel.accepted
            retained[channel.channel] += channel.retained
        for reader in report.readers:
            pending[reader.channel] += reader.pending
            lost[reader.channel] += reader.lost
            name = reader.reader.removeprefix(f"{report.domain}/")
            if reader.kind == "reader" and name in behind:  # clients choose names below others, or of groups
                behind[name] += reader.pending
        for reason, count in report.dead_letters.items():
            letters[reason if reason in REASONS else "other"] += count
    yield _family(CounterMetricFamily, "iotsphere_log_accepted", "Messages ever accepted", "channel", accepted)
    yield _family(GaugeMetricFamily, "iotsphere_log_retained", "Messages in the log", "channel", retained)
    yield _family(GaugeMetricFamily, "iotsphere_ledger_pending", "Not yet read, over all readers", "channel", pending)
    yield _family(CounterMetricFamily, "iotsphere_ledger_lost", "Lost to readers, announced", "channel", lost)
    yield _family(GaugeMetricFamily, "iotsphere_facts_lag", "Facts not yet folded, in all processes", "reader", behind)
    yield _family(CounterMetricFamily, "iotsphere_dead_letters", "Refused messages", "reason", letters)
    imbalance = GaugeMetricFamily("iotsphere_ledger_imbalance", "Messages unaccounted for; anything but 0 is a fault")
    imbalance.add_metric((), sum(report.imbalance for report in reports))
    yield imbalance


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, meaning: str, label: str, values: Tally[str]
) -> Metric:
    family = kind(name, meaning, labels=(label,))
    for value, count in sorted(values.items()):
        family.add_metric((value,), count)
    return family
