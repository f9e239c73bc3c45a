"""Commands: what a caller asks a device to do, and its life, which only evidence moves on.

accepted -> queued -> sent -> acknowledged -> running -> succeeded | failed | rejected | expired | timed_out | cancelled
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

from .documents import at_schema, fitted, whole

ACCEPTED: Final = "accepted"
QUEUED: Final = "queued"
SENT: Final = "sent"
ACKNOWLEDGED: Final = "acknowledged"
RUNNING: Final = "running"
FINAL: Final = ("succeeded", "failed", "rejected", "expired", "timed_out", "cancelled")
STATES: Final = (ACCEPTED, QUEUED, SENT, ACKNOWLEDGED, RUNNING, *FINAL)
ANSWERS: Final = {"running": "progress", "succeeded": "succeed", "failed": "fail", "rejected": "reject"}

MAX_STEPS: Final = 50
MAX_LATE: Final = 5
HEAL_AFTER_MS: Final = 2_000
_NAMESPACE: Final = uuid.UUID("5f2d3c1e-0c55-5e0e-9d3a-6f1f0a8f7c11")

_ANSWERED: Final = {"progress": RUNNING, "succeed": "succeeded", "fail": "failed", "reject": "rejected"}
_ON_ITS_WAY: Final = {"sent": SENT, "acknowledged": ACKNOWLEDGED, **_ANSWERED}

# What may be learned in a state, and where it leads. What is not listed changes nothing: it came twice, or too late.
LIFE: Final[dict[tuple[str, str], str]] = {
    (ACCEPTED, "logged"): QUEUED,
    **{(ACCEPTED, evidence): state for evidence, state in _ON_ITS_WAY.items()},
    (ACCEPTED, "cancel"): "cancelled",
    (ACCEPTED, "expire"): "expired",
    **{(QUEUED, evidence): state for evidence, state in _ON_ITS_WAY.items()},
    (QUEUED, "cancel"): "cancelled",
    (QUEUED, "expire"): "expired",
    (SENT, "acknowledged"): ACKNOWLEDGED,
    **{(SENT, evidence): state for evidence, state in _ANSWERED.items()},
    (SENT, "unsent"): QUEUED,  # it was handed to a connection, and is known not to have left on it
    (SENT, "time_out"): "timed_out",
    **{(ACKNOWLEDGED, evidence): state for evidence, state in _ANSWERED.items()},
    (ACKNOWLEDGED, "time_out"): "timed_out",
    **{(RUNNING, evidence): state for evidence, state in _ANSWERED.items()},
    (RUNNING, "time_out"): "timed_out",
}


class Step(NamedTuple):
    """When (ms since 1970) a command came into a state."""

    state: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command. Times in ms since 1970; ``timeout`` in ms, from sending it on and from each report of progress.

    ``caller``: the identity of who asked. ``due``: when a timer has to look at it, 0 = never. ``order``: its place in the
    log as a text that sorts, empty before it is there. ``answer``: ``progress``, ``result`` and ``reason`` as the
    device told them. ``late``: what was learned after the end. ``carrier``: what it was handed to last, a session or, where
    that is not kept, a connection.
    """

    id: str
    domain: str
    device: str
    caller: str
    payload: Mapping[str, Any]
    created_at: int
    expires_at: int
    timeout: int
    state: str = ACCEPTED
    due: int = 0
    order: str = ""
    steps: tuple[Step, ...] = ()
    answer: Mapping[str, Any] | None = None
    late: tuple[Mapping[str, Any], ...] = ()
    rollout: str = ""
    carrier: str = ""

    @property
    def key(self) -> str:
        """Its key in the database."""
        return f"{self.domain}/{self.id}"

    @property
    def is_final(self) -> bool:
        """Whether nothing can change it any more."""
        return self.state in FINAL

    @property
    def is_outstanding(self) -> bool:
        """Whether the device may not have it yet."""
        return self.state in (ACCEPTED, QUEUED, SENT)


# What a document holds, by type, and what it must hold.
_FORM: Final[Mapping[str, type]] = {
    **dict.fromkeys(("id", "domain", "device", "caller", "state", "order", "rollout", "carrier"), str),
    **dict.fromkeys(("createdAt", "expiresAt", "timeout", "due"), int),
    **dict.fromkeys(("payload", "answer"), dict),
    **dict.fromkeys(("steps", "late"), list),
}
_NEEDED: Final = frozenset(_FORM) - {"order", "rollout", "carrier", "due", "steps", "late", "answer"}


def derived_id(domain: str, caller: str, idempotency_key: str) -> str:
    """The id that a caller's idempotency key stands for (UUID version 5, RFC 9562)."""
    return str(uuid.uuid5(_NAMESPACE, json.dumps([domain, caller, idempotency_key])))


def accept(command: Command) -> Command:
    """A new command in its first state."""
    now = command.created_at
    return replace(command, state=ACCEPTED, steps=(Step(ACCEPTED, now),), due=now + HEAL_AFTER_MS)


def advance(command: Command, evidence: str, now: int, answer: Mapping[str, Any] | None = None) -> Command:
    """The command after something was learned of it; the same one when that changes nothing.

    ``answer``: what the device told. What arrives after the end is noted and changes no state.
    """
    state = LIFE.get((command.state, evidence))
    if state is None:
        is_news = answer is not None and answer != command.answer and answer not in command.late
        if command.is_final and answer is not None and is_news and len(command.late) < MAX_LATE:
            return replace(command, late=(*command.late, answer))
        return command
    if state == RUNNING == command.state and answer == command.answer:
        return command
    steps = command.steps
    if state != command.state:
        steps = (*steps, Step(state, now))[-MAX_STEPS:]
    moved = replace(command, state=state, steps=steps, answer=command.answer if answer is None else answer)
    return replace(moved, due=_due(moved, now))


def _due(command: Command, now: int) -> int:
    if command.is_final:
        return 0
    if command.state == ACCEPTED:
        return now + HEAL_AFTER_MS
    if command.state == QUEUED:
        return command.expires_at
    return now + command.timeout


def timed_evidence(command: Command, now: int) -> str | None:
    """What the passing of time says about a command: ``expire``, ``time_out``, ``heal`` (append it again), or nothing."""
    if command.is_final or not command.due or now < command.due:
        return None
    if command.state in (ACCEPTED, QUEUED):
        if now >= command.expires_at:
            return "expire"
        return "heal" if command.state == ACCEPTED else None
    return "time_out"


def same_order(one: Command, other: Command) -> bool:
    """Whether two commands ask for the same: a repetition, not another command under a used id."""
    return (one.domain, one.device, one.caller) == (other.domain, other.device, other.caller) and _digest(
        one.payload
    ) == _digest(other.payload)


def _digest(payload: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).digest()


def body_of(command: Command) -> dict[str, Any]:
    """The command as a document. ``open`` and ``outstanding`` are there for the indexes while they are true."""
    body: dict[str, Any] = {"schema": 1}
    for field in fields(command):
        value = getattr(command, field.name)
        body[_camel(field.name)] = list(value) if field.name == "late" else value
    body["steps"] = [list(step) for step in command.steps]
    body["payload"] = dict(command.payload)
    if not command.is_final:
        body["open"] = True
    if command.is_outstanding:
        body["outstanding"] = True
    return body


def command_of(body: Mapping[str, Any]) -> Command:
    """Read a document. Raises ValueError for one that is no command, since people can write documents too, and
    DocumentNewer."""
    known = fitted(at_schema(body, "the command"), _FORM, _NEEDED)
    if known["state"] not in STATES:
        raise ValueError(f"{known['state'][:40]!a} is no state")
    known["steps"] = tuple(map(_step, known.get("steps", ())))
    known["late"] = tuple(known.get("late", ()))
    if not all(type(late) is dict for late in known["late"]):
        raise ValueError("late is no list of objects")
    return Command(**{name: known[_camel(name)] for name in _NAMES if _camel(name) in known})


def _step(item: object) -> Step:
    if type(item) is not list or len(item) != 2 or item[0] not in STATES or (at := whole(item[1])) is None:
        raise ValueError("steps is no list of [state, time]")
    return Step(item[0], at)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


_NAMES: Final = tuple(field.name for field in fields(Command))


def picture() -> str:
    """The life as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, evidence), following in LIFE.items():
        edges.setdefault((state, following), []).append(evidence)
    lines = ["stateDiagram-v2", f"    [*] --> {ACCEPTED}"]
    lines += [f"    {state} --> {following}: {', '.join(found)}" for (state, following), found in edges.items()]
    return "\n".join([*lines, *(f"    {state} --> [*]" for state in FINAL)])
