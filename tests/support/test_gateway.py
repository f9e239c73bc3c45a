"""Starting, killing and restarting the product as a process, and what is shown when it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from .gateway import Gateway, GatewayFailed


async def test_it_starts_on_free_ports_and_restarts_on_the_same_ones(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        doors = (gateway.mqtt, gateway.websocket, gateway.http)
        first = gateway.pid
        assert gateway.mqtt[1] > 0
        assert gateway.token
        assert gateway.resident_bytes > 10 * 1024 * 1024
        async with gateway.api() as api:
            assert (await api.get("/healthz")).status_code == 200
        await gateway.kill()
        await gateway.start()
        assert (gateway.mqtt, gateway.websocket, gateway.http) == doors
        assert gateway.pid != first
        credentials = await gateway.add_devices(["d1", "d2"])
        assert [credential.device_id for credential in credentials] == ["d1", "d2"]
        assert await gateway.terminate() == 0
        with pytest.raises(GatewayFailed, match="not running"):
            _ = gateway.pid


async def test_why_it_did_not_start_is_in_the_error(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "data", log="carrier-pigeon://nowhere")
    with pytest.raises(GatewayFailed, match=r"(?s)ended with [12] before it was ready:.*carrier-pigeon"):
        await gateway.start()
