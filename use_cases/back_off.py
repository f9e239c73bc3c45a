"""Back-off after failed logins: whoever keeps failing has to wait longer each time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FREE_FAILURES: Final = 5
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 600.0
REMEMBERED: Final = 10_000


class BackOff:
    """Counts failures per name. Bounded: the names that failed longest ago are forgotten first.

    Times are seconds of any clock that never goes back.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._remembered = remembered

    def wait(self, name: str, now: float) -> float:
        """Seconds until this name may try again; 0 when it may now."""
        failures, last = self._failures.get(name, (0, 0.0))
        if failures < FREE_FAILURES or now - last > FORGOTTEN_AFTER_S:
            return 0.0
        wait: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(failures - FREE_FAILURES, 30))
        return max(0.0, last + wait - now)

    def failed(self, name: str, now: float) -> None:
        """Count a failure."""
        failures, last = self._failures.pop(name, (0, now))
        if now - last > FORGOTTEN_AFTER_S:
            failures = 0
        self._failures[name] = (failures + 1, now)
        if len(self._failures) > self._remembered:
            self._failures.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the failures of a name."""
        self._failures.pop(name, None)

    def __len__(self) -> int:
        return len(self._failures)
