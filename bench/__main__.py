"""`python -m bench`: the whole way from MQTT QoS 1 to a WebSocket, under load, beside a peer."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .idle import measure_idle, show_idle
from .machine import describe
from .programs import HERE, BenchFailed, build
from .report import Row, as_markdown, save, show, write_docs
from .run import measure
from .scenarios import DEVICES, Scenario, scenarios

PAGE = HERE.parent / "docs" / "explanation" / "performance.md"


def main(
    *,
    quick: Annotated[bool, typer.Option(help="One short run a row, under two minutes in all.")] = False,
    seconds: Annotated[float, typer.Option(help="Length of one run; 0 = 4 when quick, else 12.")] = 0,
    repeat: Annotated[int, typer.Option(help="Runs a row; 0 = 1 when quick, else 3.")] = 0,
    devices: Annotated[int, typer.Option(help="Connections that publish.")] = DEVICES,
    only: Annotated[
        list[str] | None, typer.Option(help="Only these scenarios, such as redis-logged; `idle` for idle connections.")
    ] = None,
    connections: Annotated[int, typer.Option(help="Idle connections held; 0 = 1,000 when quick, else 10,000.")] = 0,
    docs: Annotated[bool, typer.Option("--write-docs", help="Put the results into docs/explanation.")] = False,
) -> None:
    """Measure ceilings and latencies, check that nothing was lost, and print one table."""
    console = Console() if Console().is_terminal else Console(width=150)
    if only is not None and "idle" in only:
        _idle(connections or (1_000 if quick else 10_000), console)
        only = [name for name in only if name != "idle"]
        if not only:
            return
    chosen = [
        each for each in scenarios(seconds or (4 if quick else 12), quick=quick) if only is None or each.name in only
    ]
    for program in ("load", "listen"):
        build(program)
    rows: list[Row] = []
    for scenario in chosen:
        try:
            rows += asyncio.run(_rows(scenario, repeat or (1 if quick else 3), devices, console))
        except BenchFailed as error:
            if not scenario.is_peer:
                raise
            console.print(f"[yellow]{scenario.title} is left out: {error}")
    machine = describe()
    show(rows, machine, console)
    console.print(f"All figures: {save(rows, machine, HERE / 'results').relative_to(HERE.parent)}")
    if docs:
        write_docs(as_markdown(rows, machine), PAGE)
    if not all(run.is_clean for row in rows if not row.scenario.is_peer for run in row.runs):
        raise typer.Exit(1)


def _idle(connections: int, console: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="iotsphere-bench-") as folder, console.status("idle connections"):
        rows = asyncio.run(measure_idle(connections, Path(folder)))
    show_idle(rows, describe(), HERE / "results", console)
    if any(row.kept != row.asked for row in rows):
        raise typer.Exit(1)


async def _rows(scenario: Scenario, repeat: int, devices: int, console: Console) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="iotsphere-bench-") as folder:
        async with scenario.start(Path(folder), devices) as subject:
            rows = []
            for name, load in scenario.loads.items():
                runs = []
                for number in range(repeat):
                    with console.status(f"{scenario.title}, {name}, run {number + 1} of {repeat}"):
                        runs.append(await measure(subject, load, Path(folder)))
                rows.append(Row(scenario, name, tuple(runs)))
            await subject.check_ledger(sum(run.acked for row in rows for run in row.runs))
            return rows


if __name__ == "__main__":
    typer.run(main)
