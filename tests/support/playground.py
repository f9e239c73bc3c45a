"""A playground for MQTT guests as a process of its own: `python -m iotsphere playground`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .gateway import SOURCES
from .processes import die_with_parent


class Playground(NamedTuple):
    """Where it listens, and which process it is."""

    address: tuple[str, int]
    pid: int


@contextmanager
def open_playground(folder: Path) -> Iterator[Playground]:
    """A playground as long as the block lasts; it must end well when it is asked to."""
    log = folder / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "iotsphere", "playground", "--mqtt", "127.0.0.1:0", "--json"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - nothing else ties its life to ours
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, log.read_text()
            host, _, port = json.loads(line)["mqtt"].rpartition(":")
            yield Playground((host, int(port)), process.pid)
        finally:
            process.terminate()
            code = process.wait(60)
            process.stdout.close()
    assert code == 0, log.read_text()
