"""Rollouts: one command or one desired change for many devices, at a rate, until it is done or goes wrong too often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from .documents import at_schema, fitted

KINDS: Final = ("command", "desired")
RESOLVING: Final = "resolving"
RUNNING: Final = "running"
PAUSED: Final = "paused"
OPEN: Final = (RESOLVING, RUNNING, PAUSED)
FAILURES: Final = ("failed", "rejected", "timed_out", "expired")
MINUTE_MS: Final = 60_000
MAX_RATE: Final = 60_000.0
MAX_REFUSALS: Final = 100

# What may be asked or found out in a state, and where it leads.
LIFE: Final[dict[tuple[str, str], str]] = {
    (RESOLVING, "resolved"): RUNNING,
    (RESOLVING, "cancel"): "cancelled",
    (RUNNING, "pause"): PAUSED,
    (RUNNING, "cancel"): "cancelled",
    (RUNNING, "abort"): "aborted",
    (RUNNING, "finish"): "finished",
    (PAUSED, "resume"): RUNNING,
    (PAUSED, "cancel"): "cancelled",
}


STATES: Final = (*OPEN, "finished", "cancelled", "aborted")

# What a document holds, by type, and what it must hold.
_FORM: Final[Mapping[str, type]] = {
    **dict.fromkeys(("id", "domain", "caller", "kind", "state"), str),
    **dict.fromkeys(("payload", "filter", "refused"), dict),
    **dict.fromkeys(("rate", "growth", "abort_percent", "earned", "minutes"), float),
    **dict.fromkeys(("abort_minimum", "timeout", "expires_in", "created_at", "total", "issued", "earned_at"), int),
    **dict.fromkeys(("refusals", "over_at"), int),
    "recalling": bool,
}
_NEEDED: Final = frozenset(("id", "domain", "caller", "kind", "payload", "filter", "rate", "created_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout. Times in ms since 1970, ``timeout`` and ``expires_in`` in ms, 0 for the defaults of commands.

    ``rate``: devices per minute; ``growth``: by what it is multiplied each minute. ``abort_percent``: the share of failures
    among what is over that ends it, once ``abort_minimum`` are over; 0 = never. ``total``: devices selected; ``issued``: how
    many of them were given it, in the order of their ids. ``earned``: how many more may be given it, as of ``earned_at``.
    ``recalling``: it was ended, and what no device was sent yet has still to be taken back.
    ``refused``: device -> why it could not be given it (the first 100); ``refusals``: how many there were.
    """

    id: str
    domain: str
    caller: str
    kind: str
    payload: Mapping[str, Any]
    filter: Mapping[str, Any]
    rate: float
    growth: float = 1.0
    abort_percent: float = 0.0
    abort_minimum: int = 1
    timeout: int = 0
    expires_in: int = 0
    created_at: int
    state: str = RESOLVING
    total: int = 0
    issued: int = 0
    earned: float = 0.0
    earned_at: int = 0
    minutes: float = 0.0
    refusals: int = 0
    refused: Mapping[str, str] | None = None
    over_at: int = 0
    recalling: bool = False

    @property
    def key(self) -> str:
        """Its key in the database."""
        return f"{self.domain}/{self.id}"

    @property
    def is_open(self) -> bool:
        """Whether it goes on, or may."""
        return self.state in OPEN


def earn(rollout: Rollout, now: int) -> tuple[float, float]:
    """How many devices may be given it now, and for how many minutes it has been running.

    Time in which nobody looked is worth one minute at most, so an outage is not followed by a flood.
    """
    passed = max(0.0, min(1.0, (now - rollout.earned_at) / MINUTE_MS))
    pace = min(MAX_RATE, rollout.rate * rollout.growth ** int(rollout.minutes))
    return rollout.earned + pace * passed, rollout.minutes + passed


def goes_wrong(rollout: Rollout, counts: Mapping[str, int]) -> bool:
    """Whether too many have failed. ``counts``: commands that are over, by state."""
    if not rollout.abort_percent:
        return False
    failures = sum(counts.get(state, 0) for state in FAILURES) + rollout.refusals
    executed = sum(counts.values()) + rollout.refusals
    return executed >= rollout.abort_minimum and failures * 100 >= rollout.abort_percent * executed


def body_of(rollout: Rollout) -> dict[str, Any]:
    """The rollout as a document; ``open`` is there for the index while there is something to do."""
    body = {"schema": 1, **asdict(rollout)}
    body["refused"] = dict(rollout.refused or {})
    if rollout.is_open or rollout.recalling:
        body["open"] = True
    return body


def rollout_of(body: Mapping[str, Any]) -> Rollout:
    """Read a document. Raises ValueError for one that is no rollout, since people can write documents too, and
    DocumentNewer."""
    known = fitted(at_schema(body, "the rollout"), _FORM, _NEEDED)
    if known["kind"] not in KINDS or known.get("state", RESOLVING) not in STATES:
        raise ValueError(
            f"{known['kind'][:40]!a} and {str(known.get('state'))[:40]!a} are no kind and state of a rollout"
        )
    return Rollout(**known)
