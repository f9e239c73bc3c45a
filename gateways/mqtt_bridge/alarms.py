"""What a bridge tells its domain on ``system/alerts``: each kind at most once a minute, and one of a kind at a time."""

from __future__ import annotations

from collections import Counter
from typing import Final

import structlog

from ...adapters.bridge.file import BridgeSpec
from ...adapters.bridge.messages import bridge_alert
from ...entities.errors import IotSphereError
from ...use_cases.ports.message_log import Appended
from .options import BridgeUseCases

MAX_KINDS: Final = 1_000

log = structlog.get_logger("iotsphere.bridge")


class Alarms:
    """``counts`` gets each alert, also those that are held back. ``every``: seconds."""

    def __init__(self, use: BridgeUseCases, spec: BridgeSpec, counts: Counter[str], every: float) -> None:
        self._use = use
        self._spec = spec
        self._counts = counts
        self._every = int(every * 1000)
        self._told: dict[tuple[str, str], int] = {}
        self._under_way: set[tuple[str, str]] = set()

    def raise_alert(self, alert: str, about: str = "", **facts: object) -> None:
        """Tell it. A log that is away gets it when it is back."""
        now = self._use.clock.now()
        self._counts[f"alert_{alert}"] += 1
        kind = (alert, about)
        if kind in self._under_way or now - self._told.get(kind, -self._every) < self._every:
            return
        if len(self._told) >= MAX_KINDS:
            self._told.clear()
        self._told[kind] = now
        self._under_way.add(kind)
        log.error("bridge_alert", alert=alert, bridge=self._spec.name, **facts)
        record = bridge_alert(self._use.edge, self._spec, alert, facts, now)

        def done(result: Appended | IotSphereError) -> None:
            self._under_way.discard(kind)
            if isinstance(result, IotSphereError):
                self._told.pop(kind, None)
                log.warning("bridge_alert_not_stored", alert=alert, code=result.code)

        self._use.publish.submit([record], done)
