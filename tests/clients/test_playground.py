"""The playground as a process: loopback only, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import ROOT

from .guest import Guest


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.test:0"])
def test_it_opens_on_loopback_only(tmp_path: Path, address: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "iotsphere", "playground", "--mqtt", address],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "is not loopback" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("payload", [b"\x00\xff{", b"x" * 180_000])
def test_any_payload_comes_back_as_it_was(playground: tuple[str, int], payload: bytes) -> None:
    with Guest(playground, 5) as guest:
        guest.subscribe("bytes")
        assert guest.publish("bytes", payload, 1) == 0
        assert [m.payload for m in guest.receives(1)] == [payload]


def test_what_is_too_large_or_too_deep_is_refused(playground: tuple[str, int]) -> None:
    with Guest(playground, 5) as guest:
        assert guest.publish("bytes", b"x" * 200_000, 1) == 0x97
        assert guest.publish("/".join("abcdefg"), b"1", 1) == 0
        assert guest.publish("/".join("abcdefgh"), b"1", 1) == 0x90
