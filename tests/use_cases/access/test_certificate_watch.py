"""Looking after certificates: what is told, when, and once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.channel import DAY_MS
from iotsphere.entities.errors import CertificateRejected, LogUnavailable
from iotsphere.use_cases.access.certificate_watch import CertificateWatch
from iotsphere.use_cases.ports.certificates import Validity


class Held:
    """Certificates that a test renews."""

    def __init__(self, *validities: Validity) -> None:
        self.found = list(validities)
        self.next: bool | str = False

    def holds(self, certificate_id: str) -> bool:
        return bool(certificate_id)

    def validities(self) -> list[Validity]:
        return self.found

    async def refresh(self) -> bool:
        outcome, self.next = self.next, False
        if isinstance(outcome, str):
            raise CertificateRejected(outcome)
        return outcome


class Operator:
    """Whom the alerts reach, unless the log is away."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, Mapping[str, object]]] = []
        self.away = False

    async def tell(self, name: str, facts: Mapping[str, object]) -> None:
        if self.away:
            raise LogUnavailable("try again")
        self.alerts.append((name, facts))


@pytest.mark.parametrize(
    ("name", "life", "left"),
    [("certificate", 90, [30, 7, 1, 0]), ("client_ca", 3650, [30, 7, 1, 0]), ("client_crl", 10, [2.5, 1, 0])],
)
async def test_expiry_is_told_in_good_time_and_once_each(name: str, life: int, left: list[float]) -> None:
    clock, operator = ManualClock(), Operator()
    validity = Validity(name, "x", clock.now(), clock.now() + life * DAY_MS)
    watch = CertificateWatch(Held(validity), clock, operator.tell)
    for _ in range(2 * (life + 3)):
        await watch()
        await watch()
        clock.advance(DAY_MS // 2)
    expected = [("certificate_expires", {"what": name, "expiresAt": validity.until, "daysLeft": each}) for each in left]
    assert operator.alerts == expected
    assert watch.days_left(name) == -3


async def test_a_renewed_certificate_is_watched_anew() -> None:
    clock, operator = ManualClock(), Operator()
    held = Held(Validity("certificate", "old", 0, clock.now() + 5 * DAY_MS))
    watch = CertificateWatch(held, clock, operator.tell)
    await watch()
    held.found, held.next = [Validity("certificate", "new", 0, clock.now() + 90 * DAY_MS)], True
    await watch()
    assert (watch.renewed, len(operator.alerts)) == (1, 1)
    clock.advance(84 * DAY_MS)
    await watch()
    assert [facts["daysLeft"] for _, facts in operator.alerts] == [5, 6]


async def test_a_rejected_file_is_counted_and_told() -> None:
    operator, held = Operator(), Held()
    watch = CertificateWatch(held, ManualClock(), operator.tell)
    held.next = "it is broken"
    await watch()
    await watch()
    assert watch.rejected == 1
    assert operator.alerts == [("certificate_rejected", {"message": "it is broken"})]


async def test_an_alert_waits_for_a_log_that_is_away() -> None:
    operator, held = Operator(), Held()
    watch = CertificateWatch(held, ManualClock(), operator.tell)
    operator.away, held.next = True, "it is broken"
    for _ in range(3):
        with pytest.raises(LogUnavailable):
            await watch()
    operator.away = False
    await watch()
    await watch()
    assert [name for name, _ in operator.alerts] == ["certificate_rejected"]


async def test_what_is_not_there_never_expires() -> None:
    watch = CertificateWatch(Held(), ManualClock(), Operator().tell)
    assert watch.days_left("client_crl") == float("inf")
