"""The measurement of idle connections, small: a gateway, what it is told of the one too many, and a peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.idle import HEADINGS, Idle, cells, hold, measure_idle
from bench.programs import BenchFailed
from tests.support.gateway import Credential, Gateway
from tests.support.servers import binary

CONNECTIONS = 40


async def test_a_small_round_holds_what_it_says(tmp_path: Path) -> None:
    binary("mosquitto")
    gateway, peer = await measure_idle(CONNECTIONS, tmp_path)
    assert (gateway.connections, peer.connections) == (CONNECTIONS, CONNECTIONS)
    assert (gateway.kept, peer.kept) == (gateway.asked, peer.asked) == (CONNECTIONS, CONNECTIONS)
    assert (gateway.refused, peer.refused) == (0x97, None)
    assert gateway.per_second > 0


async def test_a_client_that_is_not_let_in_is_no_idle_connection(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        with pytest.raises(BenchFailed, match="was answered"):
            await hold("it", gateway.mqtt, gateway.pid, [Credential("d1", "d1", "wrong")], None)


def test_a_row_has_a_cell_for_each_heading() -> None:
    row = Idle("it", 10_000, 1_234.5, 8 * 1024, 0.0123, 200, 200, 0x97, 0.5)
    assert dict(zip(HEADINGS, cells(row), strict=True)) == {
        "system": "it",
        "connections": "10,000",
        "connections/s": "1,234",
        "KiB each": "8.0",
        "CPU when idle": "1.2% of one core",
        "still answered": "200 of 200",
        "the next one": "refused, 0x97",
    }
