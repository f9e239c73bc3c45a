"""The load generator and the listener: built from C on the spot, run as processes that speak JSON lines."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import die_with_parent

HERE = Path(__file__).resolve().parent
BUILD = HERE / ".build"
HEADERS = ("measure.h", "socket.h", "json.h", "check.h", "doors.h")


class BenchFailed(RuntimeError):
    """A run that cannot be trusted; the message says why."""


def build(name: str) -> Path:
    """The path of the program ``name``, compiled when its sources are newer. Raises BenchFailed without a compiler."""
    target = BUILD / name
    source = HERE / f"{name}.c"
    newest = max(path.stat().st_mtime for path in (source, *(HERE / header for header in HEADERS)))
    if target.exists() and target.stat().st_mtime >= newest:
        return target
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchFailed("the benchmark needs a C compiler: install one, such as `apt-get install gcc libc6-dev`")
    BUILD.mkdir(exist_ok=True)
    command = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(f"{' '.join(command)}\n{done.stderr}")
    return target


class Program:
    """A running program. ``answer`` reads its next JSON line; ``tell`` writes a command to its standard input."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str]) -> Program:
        """Build it if needed, and start it."""
        path = await asyncio.to_thread(build, name)
        return await cls.run([str(path), *arguments], name)

    @classmethod
    async def run(cls, command: Sequence[str], name: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start what needs no building; it dies with us."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, preexec_fn=die_with_parent
        )
        return cls(process, name)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def answer(self, within: float) -> dict[str, Any]:
        """The next line. Raises BenchFailed with what the program complained of when it ends or stays silent."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), within)
        except TimeoutError as error:
            await self.end()
            raise BenchFailed(f"{self._name} said nothing within {within:.0f} s{await self._complaint()}") from error
        if not line:
            await self.wait()  # not end(): killing what has just ended would take its exit code from asyncio
            raise BenchFailed(f"{self._name} ended early{await self._complaint()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def tell(self, command: str) -> None:
        """Send it a command. Raises BenchFailed with what the program complained of when it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command.encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError as error:
            await self.wait()
            raise BenchFailed(f"{self._name} ended early{await self._complaint()}") from error

    async def wait(self) -> int:
        """Wait until it ends; its exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """Kill it if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _complaint(self) -> str:
        assert self._process.stderr is not None
        text = (await self._process.stderr.read()).decode(errors="replace").strip()
        return f": {text}" if text else ""
