"""Gateways that one would build in an afternoon: from aedes, Redis and ws, and from the packages fixed for this one."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers import Server, answers, free_port, mosquitto, redis

from ..programs import HERE, BenchFailed
from ..subjects import Subject, strangers
from .brokers import MOSQUITTO_SETTINGS
from .found import program

AEDES = HERE / "aedes"
PIPELINE = HERE / "stock" / "pipeline.py"


@asynccontextmanager
async def aedes_with_redis(folder: Path, devices: int) -> AsyncGenerator[Subject]:
    """MQTT QoS 1 in, acknowledged once Redis has appended it to a stream; out from the stream over WebSocket."""
    node, websocket = program("node"), free_port()
    if not (AEDES / "node_modules" / ".installed-lock.json").exists():
        raise BenchFailed("aedes is not installed: run `python tests/support/provision.py --peers`")
    with redis(folder / "redis", options={"appendfsync": "everysec"}) as store:
        command = [node, str(AEDES / "gateway.mjs")]
        with Server(
            "node",
            folder / "aedes",
            lambda port, _: [*command, str(port), str(websocket), str(store.port)],
            answers,
        ) as server:
            assert server.process is not None
            assert store.process is not None
            listener = ("--protocol", "envelopes", "--host", "127.0.0.1", "--port", str(websocket))
            pids = {"aedes": server.process.pid, "redis": store.process.pid}
            yield Subject(("127.0.0.1", server.port), listener, strangers(devices), pids)


@asynccontextmanager
async def fixed_packages(folder: Path, devices: int) -> AsyncGenerator[Subject]:
    """Mosquitto in front, which acknowledges from memory; behind it bench/stock/pipeline.py."""
    program("mosquitto")
    with (
        mosquitto(folder / "mosquitto", MOSQUITTO_SETTINGS) as broker,
        redis(folder / "redis", options={"appendfsync": "everysec"}) as store,
        Server(
            "pipeline",
            folder / "pipeline",
            lambda port, _: [sys.executable, str(PIPELINE), str(broker.port), str(store.port), str(port)],
            answers,
        ) as server,
    ):
        assert broker.process is not None
        assert store.process is not None
        assert server.process is not None
        listener = ("--protocol", "envelopes", "--host", "127.0.0.1", "--port", str(server.port))
        pids = {"pipeline": server.process.pid, "mosquitto": broker.process.pid, "redis": store.process.pid}
        yield Subject(("127.0.0.1", broker.port), listener, strangers(devices), pids)
