"""One running gateway, or one playground, for each module of these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.gateway import ROOT, Gateway
from tests.support.servers import die_with_parent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path_factory.mktemp("clients") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a playground process."""
    folder = tmp_path_factory.mktemp("playground")
    log = folder / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "iotsphere", "playground", "--mqtt", "127.0.0.1:0", "--json"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
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
            yield host, int(port)
        finally:
            process.terminate()
            code = process.wait(20)
            process.stdout.close()
    assert code == 0, log.read_text()
