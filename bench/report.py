"""The rows of all systems as tables, the round as JSON in a file, and its section of the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .run import Result
from .scenarios import CEILING, Scenario
from .section import Section, disturbance, percentiles

BEGIN = "<!-- begin of what `make bench` writes -->"
END = "<!-- end of what `make bench` writes -->"


class Marks(NamedTuple):
    """The two lines of a page between which a command writes."""

    begin: str
    end: str


WHOLE = Marks(BEGIN, END)
HEADINGS = (
    "system",
    "load",
    "messages/s",
    "PUBACK ms p50/p99/p99.9",
    "delivery ms p50/p99/p99.9",
    "CPU µs a message (of one core)",
    "lost / reordered / duplicated",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario under one load: its runs, one a round."""

    scenario: Scenario
    load: str
    runs: tuple[Result, ...]

    @property
    def middle(self) -> Result:
        """The run with the median figure: of the rate at the ceiling, of the 99th percentile at a given rate."""
        order = sorted(self.runs, key=lambda run: run.delivery["p99"] if self.is_paced else run.rate)
        return order[len(order) // 2]

    @property
    def is_paced(self) -> bool:
        """Whether messages fell due by the clock, so that the times are worth comparing and the rate is not."""
        return self.scenario.loads[self.load].rate > 0 and self.load != CEILING

    @property
    def is_clean(self) -> bool:
        """Whether no run lost, reordered, repeated or invented a message."""
        return all(run.is_clean for run in self.runs)

    def cells(self) -> tuple[str, ...]:
        """The row as texts."""
        run = self.middle
        rates = [each.rate for each in self.runs]
        spread = f" ({min(rates):,.0f}–{max(rates):,.0f})" if len(rates) > 1 and not self.is_paced else ""
        return (
            self.scenario.title,
            self.load,
            f"{run.rate:,.0f}{spread}",
            percentiles(run.puback),
            percentiles(run.delivery),
            costs(run),
            faults(self.runs),
        )


def costs(run: Result) -> str:
    """What each process cost, for a message delivered and as a share of one core."""
    return " · ".join(
        f"{name} {1e6 * used / run.delivered:.1f} ({used / run.seconds:.0%})" for name, used in run.cpu.items()
    )


def faults(runs: Sequence[Result]) -> str:
    """What went wrong over all runs."""
    return " / ".join(str(sum(getattr(run, kind) for run in runs)) for kind in ("lost", "reordered", "duplicated"))


def systems(rows: Sequence[Row], left_out: Sequence[str] = ()) -> Section:
    """The table of all systems. ``left_out``: a sentence for each peer that could not be had."""
    cells = []
    for number, row in enumerate(rows):
        title, *rest = row.cells()
        again = number and rows[number - 1].scenario is row.scenario
        cells.append(("″" if again else title, *rest))
    faulty = frozenset(number for number, row in enumerate(rows) if not row.is_clean)
    figures = {f"{row.scenario.name}/{row.load}/{name}": row.middle.delivery[name]
               for row in rows for name in ("p50", "p99")}  # fmt: skip
    figures |= {f"{row.scenario.name}/{row.load}/rate": row.middle.rate for row in rows}
    figures |= {f"{row.scenario.name}/{row.load}/redis": 1e6 * row.middle.cpu["redis"] / row.middle.acked
                for row in rows if "redis" in row.middle.cpu}  # fmt: skip
    own = [run for row in rows if not row.scenario.is_peer for run in row.runs]
    return Section(
        "systems",
        "Devices to one client",
        HEADINGS,
        tuple(cells),
        tuple(left_out),
        figures | ({"faults": total_faults(own)} if own else {}),
        faulty,
        failed=any(not run.is_clean for run in own),
        others=tuple(run.others / run.seconds for row in rows for run in row.runs),
        raw=[
            {"scenario": row.scenario.name, "load": row.load, "runs": [run.as_json() for run in row.runs]}
            for row in rows
        ],
    )


def total_faults(runs: Sequence[Result]) -> int:
    """Messages lost, reordered, repeated or invented, over all runs."""
    return sum(run.lost + run.reordered + run.duplicated + run.phantom for run in runs)


def ratios(rows: Sequence[Row]) -> Section:
    """Each ceiling of the gateway as a multiple of each peer's.

    Machines drift, so a ratio is taken within each round, and the median of these is shown with the least and the most.
    """
    ceilings = {row.scenario.name: row for row in rows if row.load == CEILING}
    peers = [row for row in ceilings.values() if row.scenario.is_peer]
    cells, figures = [], {}
    for row in ceilings.values():
        if row.scenario.is_peer:
            continue
        texts = [row.scenario.title]
        for peer in peers:
            each = [ours.rate / theirs.rate for ours, theirs in zip(row.runs, peer.runs, strict=False)]
            figures[f"{row.scenario.name}/{peer.scenario.name}"] = median(each)
            spread = f" ({min(each):.2f}–{max(each):.2f})" if len(each) > 1 else ""
            texts.append(f"{median(each):.2f}{spread}")
        cells.append(tuple(texts))
    headings = ("ceiling, as a multiple of", *(peer.scenario.title for peer in peers))
    return Section("ratios", "Ratios from one round", headings, tuple(cells), figures=figures)


def save(sections: Sequence[Section], machine: dict[str, str], folder: Path) -> Path:
    """Write the JSON into the folder, under the date and the version; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    version = machine["iotsphere"].partition("(")[2].rstrip(")") or "unknown"
    path = folder / f"{machine['date']}-{version}.json"
    everything: dict[str, Any] = {"machine": machine}
    everything |= {section.name: {"figures": dict(section.figures), "raw": section.raw} for section in sections}
    path.write_text(json.dumps(everything, indent=1) + "\n")
    return path


def as_markdown(sections: Sequence[Section], machine: dict[str, str]) -> str:
    """What goes between the marks of the page."""
    software = ", ".join(
        machine[name] for name in ("redis", "mosquitto", "nats", "aedes", "rabbitmq") if machine.get(name)
    )
    facts = (
        f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), {machine['memory']}, "
        f"Linux {machine['kernel']}, Python {machine['python']}, {software}, IoTSphere {machine['iotsphere']}."
    )
    return "\n\n".join([facts, *disturbance(sections), *(section.markdown() for section in sections)])


def draw(sections: Sequence[Section], page: Path) -> None:
    """Write the pictures to where the page looks for them."""
    for section in sections:
        if section.picture is not None:
            address, _, drawing = section.picture
            (page.parent / address).write_text(drawing)


def write_docs(text: str, page: Path, marks: Marks = WHOLE) -> None:
    """Put the section between the two marks of the page. Raises ValueError when the page has no marks."""
    before, begin, rest = page.read_text().partition(marks.begin)
    _, end, after = rest.partition(marks.end)
    if not begin or not end:
        raise ValueError(f"{page.name} lacks the two lines {marks.begin!r} and {marks.end!r}")
    page.write_text(f"{before}{marks.begin}\n\n{text}\n\n{marks.end}{after}")
