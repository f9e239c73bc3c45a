"""The command line as its users meet it, in a process of its own; or, where no process is in question, without one."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from iotsphere.cli import main

from .gateway import SOURCES

ENVIRONMENT = {"COLUMNS": "200", "NO_COLOR": "1"}


async def iotsphere_process(*words: str, expect: int = 0) -> str:
    """Run a command in a process. Returns its standard output, or its standard error where another code is expected."""
    async with running(*words) as process:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    return _answer(words, (process.returncode, expect), out.decode(), err.decode())


async def iotsphere_command(*words: str, expect: int = 0) -> str:
    """The same in a thread: a process takes a second of a core to start. One at a time, since there is one ``sys.stdout``."""
    out, err, code = await asyncio.wait_for(asyncio.to_thread(_run, words), 60)
    return _answer(words, (code, expect), out, err)


@asynccontextmanager
async def running(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command in a process group of its own, for as long as the block; what still runs then is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "iotsphere", *words,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env=_environment() | {"PYTHONPATH": str(SOURCES)},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _answer(words: tuple[str, ...], codes: tuple[int | None, int], out: str, err: str) -> str:
    assert codes[0] == codes[1], f"{words} ended with {codes[0]}: {out}{err}"
    return out if codes[1] == 0 else err


def _run(words: tuple[str, ...]) -> tuple[str, str, int]:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with _as_a_process(words), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return out.getvalue(), err.getvalue(), code


@contextmanager
def _as_a_process(words: tuple[str, ...]) -> Iterator[None]:
    """What a process has of its own: its words and its environment."""
    arguments, environment = sys.argv, dict(os.environ)
    sys.argv = [str(Path("iotsphere")), *words]
    os.environ.clear()
    os.environ.update(_environment())
    try:
        yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")} | ENVIRONMENT
