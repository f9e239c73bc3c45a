"""The documents: links that lead somewhere, reference pages that follow the code, and examples that run.

A fenced block is run when the line above its fence is a comment `<!-- run -->`, or `<!-- run: gateway -->` for one that
needs a gateway. The blocks of one page run in order, in one empty folder. In `console` blocks each line after `$ ` is a
command, and the lines below it are what it must print; `…` stands for anything. `python` blocks must end without an
error. With a gateway, the default addresses in the text become those of a real one, which the page has for itself, with
its data in `.iotsphere` of that folder, as with `make run`; `$TOKEN` is its operator's token.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pytest

from iotsphere.entities.dead_letter import REASONS
from tests.support.gateway import Gateway

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = re.compile(r"<!-- run(: gateway)? -->")
FENCE = re.compile(r"(```+)(\w*)\s*\Z")
SECONDS = 240  # for one command, on a machine that does much else


@dataclass
class Block:
    """A fenced block. ``line``: where its fence is, from 1. ``gateway``: it needs a running one."""

    line: int
    language: str
    gateway: bool
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def runnable(text: str) -> list[Block]:
    """The blocks of a page that are marked to be run. A mark without a block below it is an error."""
    found: list[Block] = []
    lines = text.splitlines()
    for index, line in enumerate(lines):
        mark = RUN.fullmatch(line.strip())
        if mark is None:
            continue
        fence = FENCE.match(lines[index + 1]) if index + 1 < len(lines) else None
        assert fence, f"line {index + 1}: no block follows the mark"
        block = Block(index + 2, fence[2], mark[1] is not None)
        for inner in lines[index + 2 :]:
            if inner.startswith(fence[1]):
                break
            block.lines.append(inner)
        found.append(block)
    return found


def steps(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it must print. A line that ends with a backslash goes on."""
    command = ""
    printed: list[str] = []
    for line in block.lines:
        if command.endswith("\\"):
            command += "\n" + line
        elif line.startswith("$ "):
            if command:
                yield command, "\n".join(printed)
            command, printed = line[2:], []
        else:
            assert command, f"line {block.line}: output before the first command"
            printed.append(line)
    assert command, f"line {block.line}: no command"
    yield command, "\n".join(printed)


def agrees(expected: str, printed: str) -> bool:
    """Tell whether the output is what the page says, up to white space at line ends; `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    actual = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


def execute(block: Block, text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run one block in a folder. Raises AssertionError with the output when it does not do what the page says."""
    here = Block(block.line, block.language, block.gateway, text.splitlines())
    commands: list[tuple[list[str], str | None]]
    if block.language == "python":
        commands = [([sys.executable, "-c", here.text], None)]
    else:
        assert block.language == "console", f"line {block.line}: only python and console blocks are run"
        commands = [(["sh", "-c", command], expected) for command, expected in steps(here)]
    for command, expected in commands:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        told = f"line {block.line}: {command[-1]}\n{result.stdout}{result.stderr}"
        assert result.returncode == 0, told
        assert not expected or agrees(expected, result.stdout), f"{told}\nbut the page says:\n{expected}"


async def run_page(blocks: list[Block], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT / "src")
    gateway = Gateway(folder / ".iotsphere") if any(block.gateway for block in blocks) else None
    real: dict[str, str] = {}
    try:
        if gateway is not None:
            await gateway.start()
            real = {
                "127.0.0.1:1883": f"{gateway.mqtt[0]}:{gateway.mqtt[1]}",
                "127.0.0.1:8765": gateway.websocket.partition("://")[2].partition("/")[0],
                "127.0.0.1:8080": gateway.http.partition("://")[2].partition("/")[0],
            }
            environment |= {"TOKEN": gateway.token, "IOTSPHERE_DATA": str(gateway.data)}
            environment |= {
                f"IOTSPHERE_{door}": address
                for door, address in zip(("MQTT", "WEBSOCKET", "HTTP"), real.values(), strict=True)
            }
        for block in blocks:
            text = block.text
            for default, address in real.items():
                text = text.replace(default, address)
            await asyncio.to_thread(execute, block, text, folder, environment)
    finally:
        if gateway is not None:
            await gateway.terminate()


EXAMPLES = {page.relative_to(ROOT).as_posix(): runnable(page.read_text(encoding="utf-8")) for page in PAGES}
MARKED = sorted(name for name, blocks in EXAMPLES.items() if blocks)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", MARKED)
async def test_examples_do_what_the_page_says(page: str, tmp_path: Path) -> None:
    await run_page(EXAMPLES[page], tmp_path)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("<!-- run -->\n```python\nassert 1 + 1 == 2\n```\n", True),
        ("<!-- run -->\n```python\nassert 1 + 1 == 3\n```\n", False),
        ("<!-- run -->\n```console\n$ echo one; echo two\none\n…\n$ true\n```\n", True),
        ("<!-- run -->\n```console\n$ echo one \\\n  two\none two\n```\n", True),
        ("<!-- run -->\n```console\n$ echo one\ntwo\n```\n", False),
        ("<!-- run -->\n```console\n$ false\n```\n", False),
        ("<!-- run -->\n```console\n$ echo x > kept\n```\n\n<!-- run -->\n```console\n$ cat kept\nx\n```\n", True),
    ],
)
async def test_an_example_that_lies_is_noticed(text: str, good: bool, tmp_path: Path) -> None:
    try:
        await run_page(runnable(text), tmp_path)
    except AssertionError:
        assert not good
    else:
        assert good


def prose(text: str) -> str:
    """A page without its fenced blocks and code spans, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(```+).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    found = set()
    for title in re.findall(r"^#+ +(.*)", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", title)).strip().lower()
        found.add(plain.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\[[^]]*]\(([^)\s]+)[^)]*\)", prose(text)):
        if re.match(r"(https?|mailto|mqtts?|wss?):", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        there = page if not name else (page.parent / name)
        assert there.exists(), f"{target}: no such file"
        assert ROOT in there.resolve().parents, f"{target} leaves the project"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{target}: no such heading"


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / target).resolve() for target in re.findall(r"]\(([^)#]+)", index)}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page != ROOT / "docs" / "README.md"}
    assert pages <= linked, sorted(page.name for page in pages - linked)


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "pages.py"), "--check"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
    environment["PYTHONPATH"] = str(ROOT / "src")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_dead_letter_reason_has_its_row() -> None:
    page = (ROOT / "docs" / "reference" / "dead-letters.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(REASONS)


def test_decision_records_are_numbered_and_have_their_parts() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04d}" for number in range(1, len(records) + 1)]
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(record.name[:4])}. "), record.name
        for heading in ("## Question", "## Decision", "## Alternatives", "## Consequences"):
            assert f"\n{heading}\n" in text, f"{record.name} lacks {heading}"
        assert len(text.split()) <= 700, f"{record.name} is longer than a page"


def test_pictures_are_well_formed_and_have_a_description() -> None:
    pictures = list((ROOT / "docs").rglob("*.svg"))
    assert pictures
    for picture in pictures:
        drawing = ET.parse(picture).getroot()
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert drawing.findtext("{http://www.w3.org/2000/svg}title")
        assert drawing.findtext("{http://www.w3.org/2000/svg}desc")
        for element in drawing.iter():
            assert not element.tag.endswith(("script", "foreignObject", "image")), picture.name
