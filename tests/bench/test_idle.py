"""The measurement of idle connections, small: a gateway, what it is told of the one too many, and a peer."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bench.held import MqttHeld, WebSocketHeld
from bench.idle import HEADINGS, Door, Idle, cells, hold, measure_idle, table
from bench.programs import BenchFailed
from tests.support.gateway import Credential, Gateway
from tests.support.servers import binary

CONNECTIONS = 40


async def test_a_small_round_holds_what_it_says(tmp_path: Path) -> None:
    binary("mosquitto")
    rows = await measure_idle(CONNECTIONS, tmp_path, settle=0.1, quiet=0.3)
    assert [row.title for row in rows] == ["embedded, MQTT", "embedded, WebSocket", "Mosquitto alone, MQTT"]
    assert {(row.connections, row.kept, row.asked) for row in rows} == {(CONNECTIONS, CONNECTIONS, CONNECTIONS)}
    assert [row.refused for row in rows] == [0x97, 503, None]
    assert all(row.per_second > 0 for row in rows)
    section = table(rows)
    assert not section.failed
    assert section.figures == {}  # forty say nothing about ten thousand


async def test_a_client_that_is_not_let_in_is_no_idle_connection(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        device = Credential("d1", "d1", "wrong")
        door = Door("it", gateway.mqtt, gateway.pid, lambda _: MqttHeld(device), None)
        with pytest.raises(BenchFailed, match="was answered"):
            await hold(door, 1)
        url = httpx.URL(gateway.websocket)
        address = (url.host, url.port or 80)
        browser = Door("it", address, gateway.pid, lambda _: WebSocketHeld(url, "no token"), None)
        with pytest.raises(BenchFailed, match="status 401"):
            await hold(browser, 1)


def test_connections_that_were_not_kept_fail_the_round() -> None:
    row = Idle("it", 10_000, 1_234.5, 8 * 1024, 0.0123, 199, 200, 0x97, 0.5)
    section = table([row])
    assert section.failed
    assert section.faulty == {0}
    assert section.figures == {"idle/mqtt/mib": 7.8125, "idle/mqtt/held": 0}


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
