"""How a run gets on: rows, messages, messages a second, and how many messages still wait."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Progress:
    """What a run has done so far. ``lag``: messages that waited at the last look, None where nobody knows.

    ``seconds``: how long all batches took. ``counts``: what the job counted, summed up. ``place``: offsets up to which
    everything is kept. ``busy``: a batch of a stream is under way.

    Of a single pass, and of a stream's first batch: ``range``, the messages that it reads, None until that is known;
    ``step``, which of Spark's jobs is under way, from 1 (how many there will be is not known before); ``tasks``: done and
    in all, of the stages under way.
    """

    rows: int = 0
    messages: int = 0
    batches: int = 0
    seconds: float = 0.0
    lag: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    place: Mapping[str, list[int]] = field(default_factory=dict)
    busy: bool = False
    range: int | None = None
    step: int = 0
    tasks: tuple[int, int] = (0, 0)

    @property
    def pace(self) -> float:
        """Messages a second, over the time that batches took."""
        return self.messages / max(self.seconds, 0.001)

    def batch(self, told: Mapping[str, Any], counted: int | None = None) -> None:
        """Take note of what Spark says of a batch that is done, as JSON's values.

        ``counted``: its rows where the job counted them; Spark counts them each time that the job looks at them.
        """
        source = told["sources"][0]
        start, end, latest = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        rows = int(told.get("numInputRows") or 0) if counted is None else counted
        moved = distance(start or self.place, end)  # of its first batch, Spark does not say where it began
        self.rows += rows
        self.messages += moved
        if moved or rows:
            self.batches += 1
            self.seconds += max(int((told.get("durationMs") or {}).get("triggerExecution") or 0) / 1000, 0.001)
        self.place = end or self.place
        self.lag = distance(end, latest) if latest else None


def distance(start: Mapping[str, list[int]], end: Mapping[str, list[int]]) -> int:
    """How many messages lie between two places."""
    return sum(max(0, place[1] - start.get(name, [0, 0])[1]) for name, place in end.items())


def _offsets(text: Any) -> dict[str, list[int]]:
    found = json.loads(text) if isinstance(text, str) else text
    return found if isinstance(found, dict) else {}
