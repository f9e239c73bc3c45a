"""A round goes on when a part of it fails, and says so in the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import __main__ as program
from bench.__main__ import Round, finish
from bench.part import Part, Scale
from bench.programs import BenchFailed
from bench.progress import Progress
from bench.run import Load
from bench.scenarios import CEILING, Scenario
from bench.section import Section
from bench.subjects import Subject

SCALE = Scale(quick=True, seconds=1)


@asynccontextmanager
async def not_to_be_had(_folder: Path, _devices: int) -> AsyncGenerator[Subject]:
    raise BenchFailed("it is\nnot installed")
    yield


async def works(_scale: Scale, _folder: Path) -> Section:
    return Section("works", "Works", ("what",), (("fine",),), figures={"faults": 0})


async def breaks(_scale: Scale, _folder: Path) -> Section:
    raise BenchFailed("too few files")


def round_of(*, is_peer: bool, parts: list[Part]) -> tuple[Round, StringIO]:
    text = StringIO()
    scenario = Scenario("absent", "Absent", not_to_be_had, {CEILING: Load(0, 1)}, is_peer)
    plan = Round([scenario], parts, SCALE, 2, Progress(Console(file=text, width=150)))
    plan.plan()
    return plan, text


@pytest.mark.parametrize("is_peer", [True, False])
async def test_only_a_peer_may_be_missing(is_peer: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "HERE", tmp_path / "bench")
    part = Part("works", "Works", works, lambda _: 1)
    plan, text = round_of(is_peer=is_peer, parts=[part])
    rows = await plan.systems(2)
    await plan.further()
    assert rows == []
    assert plan.left_out == {"absent": "Absent is left out: it is not installed"}
    console = Console(file=text, width=150)
    assert finish(rows, plan, console, docs=False) is is_peer
    assert "it is not installed" in text.getvalue()
    assert text.getvalue().count("round 2 of 2") == 0  # it is not tried again
    assert len(list((tmp_path / "bench" / "results").iterdir())) == 1


async def test_a_part_that_fails_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "HERE", tmp_path / "bench")
    parts = [Part("breaks", "Breaks", breaks, lambda _: 1), Part("works", "Works", works, lambda _: 1)]
    plan, text = round_of(is_peer=True, parts=parts)
    await plan.further()
    assert [section.cells for section in plan.sections] == [(("too few files",),), (("fine",),)]
    assert finish([], plan, Console(file=text, width=150), docs=False) is False
