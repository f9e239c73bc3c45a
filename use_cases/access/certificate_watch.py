"""Looking after certificates: renewed ones are taken, broken ones are refused and told, and none expires unannounced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import structlog

from ...entities.channel import DAY_MS
from ...entities.errors import CertificateRejected, Unavailable
from ..ports.certificates import Certificates, Validity
from ..ports.clock import Clock

EVERY_S: Final = 1.0
DAYS_BEFORE: Final = (30, 7, 1, 0)
PARTS_BEFORE: Final = (0.25, 0.1, 0.0)  # of the life of a list of revoked certificates, which may be a day or a month

Tell: TypeAlias = Callable[[str, Mapping[str, object]], Awaitable[None]]


class CertificateWatch:
    """``tell`` (alert, facts) tells the operator. ``renewed`` and ``rejected``: changes of the files so far."""

    def __init__(self, certificates: Certificates, clock: Clock, tell: Tell) -> None:
        self._certificates = certificates
        self._clock = clock
        self._tell = tell
        self._told: dict[tuple[str, str], int] = {}
        self._untold: list[tuple[str, Mapping[str, object]]] = []
        self.renewed = 0
        self.rejected = 0

    async def __call__(self) -> None:
        """Look once. Raises LogUnavailable and LogFull for an alert that could not be told, which is told next time."""
        logger = structlog.get_logger("iotsphere.tls")
        try:
            if await self._certificates.refresh():
                self.renewed += 1
                logger.info("certificates_renewed", until={each.name: each.until for each in self._validities()})
        except CertificateRejected as error:
            self.rejected += 1
            logger.error("certificate_rejected", message=error.message, remedy="the old certificates go on to count")
            self._untold.append(("certificate_rejected", {"message": error.message}))
        current = {(each.name, each.id) for each in self._validities()}
        self._told = {each: level for each, level in self._told.items() if each in current}
        for each in self._validities():
            level = self._level(each)
            if level > self._told.get((each.name, each.id), 0):
                self._told[each.name, each.id] = level
                facts = {"what": each.name, "expiresAt": each.until, "daysLeft": round(self._days(each), 2)}
                logger.warning("certificate_expires", **facts)
                self._untold.append(("certificate_expires", facts))
        del self._untold[:-100]  # a log that is away for long gets the newest
        while self._untold:
            await self._tell(*self._untold[0])
            del self._untold[0]

    def days_left(self, name: str) -> float:
        """Days until this expires, negative after that; infinite where there is no such thing."""
        return min((self._days(each) for each in self._validities() if each.name == name), default=float("inf"))

    async def keep(self) -> None:
        """Look every second until cancelled."""
        logger = structlog.get_logger("iotsphere.tls")
        while True:
            try:
                await self()
            except Unavailable as error:
                logger.warning("alert_postponed", code=error.code)
            await asyncio.sleep(EVERY_S)

    def _validities(self) -> Sequence[Validity]:
        return self._certificates.validities()

    def _days(self, each: Validity) -> float:
        return (each.until - self._clock.now()) / DAY_MS

    def _level(self, each: Validity) -> int:
        """How many warnings are due."""
        left = each.until - self._clock.now()
        if each.name == "client_crl":
            return sum(left <= part * (each.until - each.since) for part in PARTS_BEFORE)
        return sum(left <= days * DAY_MS for days in DAYS_BEFORE)
