"""`python -m bench`: the whole way from MQTT QoS 1 to a WebSocket, under load, beside its peers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.support.gateway import GatewayFailed
from tests.support.servers import ServerFailed

from .machine import describe
from .part import Part, Scale
from .parts import PARTS
from .programs import HERE, BenchFailed, build
from .progress import Progress
from .report import Row, as_markdown, draw, ratios, save, systems, write_docs
from .run import Load, Result, measure
from .scenarios import CEILING, DEVICES, Scenario, scenarios
from .section import Section, disturbance, together
from .sizing import sizing
from .targets import against_targets

EXPLANATION = HERE.parent / "docs" / "explanation"
PAGE = EXPLANATION / "performance.md"
SCALE_PAGE = EXPLANATION / "scale.md"
SETTLES_S = 0.7  # beyond its length, a run takes this to start its programs and to drain
WARMING_S = 1.5
ROUNDS = 3
FAILURES = (BenchFailed, ServerFailed, GatewayFailed)


@dataclass(slots=True)
class Round:
    """What is to be measured, and what was found so far."""

    scenarios: list[Scenario]
    parts: list[Part]
    scale: Scale
    rounds: int
    progress: Progress
    runs: dict[tuple[str, str], list[Result]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    failed: bool = False

    def plan(self) -> None:
        """Estimate everything, so that the remaining time can be told."""
        for scenario in self.scenarios:
            self.progress.plan(self.rounds * cost(scenario, self.scale))
        for part in self.parts:
            self.progress.plan(part.estimate(self.scale))

    async def systems(self, devices: int) -> list[Row]:
        """Every system once a round, so that a ratio compares what was measured within a few minutes."""
        for number in range(self.rounds):
            for scenario in self.scenarios:
                if scenario.name in self.left_out:
                    self.progress.drop(cost(scenario, self.scale))
                    continue
                with self.progress.step(
                    f"round {number + 1} of {self.rounds}: {scenario.title}", cost(scenario, self.scale)
                ):
                    try:
                        await self._system(scenario, devices)
                    except FAILURES as error:  # the others are measured all the same
                        self.left_out[scenario.name] = f"{scenario.title} is left out: {' '.join(str(error).split())}"
                        self.failed |= not scenario.is_peer
        return [
            Row(scenario, load, tuple(self.runs[scenario.name, load]))
            for scenario in self.scenarios
            for load in scenario.loads
            if (scenario.name, load) in self.runs
        ]

    async def _system(self, scenario: Scenario, devices: int) -> None:
        with folder() as home:
            async with scenario.start(home, devices) as subject:
                acked = 0
                if not self.scale.quick:  # Node.js and Erlang compile what runs often: nobody is measured cold
                    acked = (await measure(subject, warming(scenario), home)).acked
                for name, load in scenario.loads.items():
                    run = await measure(subject, load, home)
                    acked += run.acked
                    self.runs.setdefault((scenario.name, name), []).append(run)
                await subject.check_ledger(acked)

    async def further(self) -> None:
        """Every other part, one after the other."""
        for part in self.parts:
            with self.progress.step(part.title, part.estimate(self.scale)), folder() as home:
                try:
                    self.sections.append(await part.measure(self.scale, home))
                except FAILURES as error:
                    reason = " ".join(str(error).split())
                    self.sections.append(Section(part.name, part.title, ("not measured",), ((reason,),), failed=True))


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that goes with the block."""
    with tempfile.TemporaryDirectory(prefix="iotsphere-bench-") as name:
        yield Path(name)


def warming(scenario: Scenario) -> Load:
    """A short run before those that count."""
    return replace(scenario.loads[CEILING], seconds=WARMING_S, warmup=0)


def cost(scenario: Scenario, scale: Scale) -> float:
    """Seconds that a scenario takes in one round."""
    warming_up = 0 if scale.quick else WARMING_S + SETTLES_S
    return scenario.starts + warming_up + sum(load.seconds + SETTLES_S for load in scenario.loads.values())


def main(
    *,
    quick: Annotated[bool, typer.Option(help="One short run a row, under two minutes in all.")] = False,
    seconds: Annotated[float, typer.Option(help="Length of one run; 0 = 2.5 when quick, else 6.")] = 0,
    repeat: Annotated[int, typer.Option(help="Rounds over all systems; 0 = 1 when quick, else 3.")] = 0,
    devices: Annotated[int, typer.Option(help="Connections that publish.")] = DEVICES,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this system or part, such as redis-logged or fan-out; can be given several times."),
    ] = None,
    docs: Annotated[bool, typer.Option("--write-docs", help="Put the results into docs/explanation.")] = False,
) -> None:
    """Measure ceilings, latencies and more, check that nothing was lost, and print the tables."""
    console = Console() if Console().is_terminal else Console(width=170)
    scale = Scale(quick, seconds or (2.5 if quick else 6))
    systems_wanted, parts_wanted = chosen(scale, only)
    plan = Round(systems_wanted, parts_wanted, scale, repeat or (1 if quick else ROUNDS), Progress(console))
    plan.plan()
    for program in ("load", "listen"):
        build(program)
    rows = asyncio.run(plan.systems(devices))
    asyncio.run(plan.further())
    if not finish(rows, plan, console, docs=docs):
        raise typer.Exit(1)


def chosen(scale: Scale, only: Sequence[str] | None) -> tuple[list[Scenario], list[Part]]:
    """The systems and parts of a round. Raises typer.BadParameter for a name that is none."""
    every = scenarios(scale.seconds, quick=scale.quick and not only)
    if not only:
        return [each for each in every if each.in_quick or not scale.quick], [
            part for part in PARTS if part.in_quick or not scale.quick
        ]
    known = {each.name for each in every} | {part.name for part in PARTS}
    if strange := set(only) - known:
        raise typer.BadParameter(f"{', '.join(sorted(strange))}: choose from {', '.join(sorted(known))}")
    return [each for each in every if each.name in only], [part for part in PARTS if part.name in only]


def finish(rows: Sequence[Row], plan: Round, console: Console, *, docs: bool) -> bool:
    """Show, keep and, where asked, write down what was found. Returns whether the gateway made no mistake."""
    left_out = tuple(plan.left_out.values())
    found = [systems(rows, left_out), ratios(rows)] if rows or left_out else []
    found += plan.sections
    figures = together(found)
    every = [against_targets(figures), *(section for section in found if section.cells or section.notes)]
    machine = describe()
    console.print(f"[bold]{machine['cores']} cores, {machine['cpu']}; IoTSphere {machine['iotsphere']}")
    for section in every[1:]:
        section.show(console)
    every[0].show(console)
    for sentence in disturbance(every):
        console.print(f"[yellow]{sentence}")
    console.print(f"All figures: {save(every, machine, HERE / 'results').relative_to(HERE.parent)}")
    if docs:
        draw(every, PAGE)
        write_docs(as_markdown(every, machine), PAGE)
        write_docs(sizing(figures), SCALE_PAGE)
    return not plan.failed and not any(section.failed for section in found)


if __name__ == "__main__":
    typer.run(main)
