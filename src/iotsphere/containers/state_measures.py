"""What operators see of state: the change listener, the processors, the timers and the care for devices here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..use_cases.ports.facts import APPLIED, EXPIRED, SUPERSEDED
from .state import State


def state_measures(state: State) -> Any:
    """Figures of this process. What a reader has still to handle, in all processes, is in the ledger's figures."""
    from ..gateways.http import Measure

    def count(name: str, meaning: str, read: Callable[[], float]) -> Measure:
        return Measure(f"iotsphere_{name}", meaning, read)

    def gauge(name: str, meaning: str, read: Callable[[], float]) -> Measure:
        return Measure(f"iotsphere_{name}", meaning, read, "gauge")

    def outcome(name: str, meaning: str, word: str) -> Measure:
        return count(f"facts_{name}", meaning, lambda: sum(each.outcomes[word] for each in state.processors))

    listener, care, timers, commands = state.listener, state.care, state.timers, state.commands
    writer = state.shadows.writer
    return (
        gauge("changes_listening", "1 while this process listens to the database", lambda: listener.is_listening),
        count("changes_told", "Messages told of changes of the database", lambda: listener.told),
        count("changes_repeated", "Messages of changes that the log held already", lambda: listener.repeated),
        count("changes_gaps", "Times that the database no longer knew what had changed", lambda: listener.gaps),
        gauge("changes_lag_seconds", "From the last change to its message", lambda: listener.lag / 1_000),
        count("changes_not_told", "Changes that could not be told, and are alerts", lambda: state.tell.failed),
        count("changes_damaged", "Changes told with something replaced that is no JSON", lambda: state.tell.damaged),
        count("changes_not_kept", "Versions of shadows that could not be kept", lambda: state.keeping.unkept),
        outcome("applied", "Facts folded into the database", APPLIED),
        outcome("superseded", "Facts that were older than what is known", SUPERSEDED),
        outcome("expired", "Facts that had expired", EXPIRED),
        outcome("dead_lettered", "Facts that were refused, and are dead letters", "dead_lettered"),
        gauge("facts_waiting", "Facts that wait to be tried again", lambda: sum(p.waiting for p in state.processors)),
        gauge(
            "facts_partitions", "Partitions that are read here", lambda: sum(len(p.partitions) for p in state.processors)
        ),
        gauge("facts_halted", "Partitions that wait for something", lambda: sum(len(p.halted) for p in state.processors)),
        count("shadow_writes", "Writes of shadows, each with all that waited", lambda: writer.writes),
        count("shadow_conflicts", "Writes that another process was ahead of", lambda: writer.conflicts),
        gauge("shadow_waiting", "Changes of shadows that wait", lambda: writer.waiting),
        gauge("command_waiters", "Callers that wait for the end of a command", lambda: commands.waiting),
        gauge("care_connections", "Connections of devices that are cared for", lambda: care.connected),
        count("care_dropped", "Evidence of deliveries that could not be kept", lambda: care.dropped),
        count("timers_done", "What was due, and was done", lambda: timers.done),
        count("timers_failed", "Times that a timer could not do its part", lambda: timers.failed),
    )  # fmt: skip
