"""Brokers as they come: Mosquitto, which keeps nothing here, and NATS, whose JetStream keeps what MQTT brings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers import Server, answers, free_port, mosquitto

from ..programs import BenchFailed
from ..subjects import Subject, strangers
from .found import program

MOSQUITTO_SETTINGS = """\
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
persistence false
"""
# The stream in which NATS keeps what MQTT clients publish at QoS 1, and under which subjects.
STREAM = "$MQTT_msgs"
SUBJECTS = "$MQTT.msgs.iotsphere.devices.*.telemetry"
CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05first"


@asynccontextmanager
async def mosquitto_alone(folder: Path, devices: int) -> AsyncGenerator[Subject]:
    """A broker without accounts, checks or a disk: QoS 1 in, QoS 1 out to an MQTT subscriber."""
    program("mosquitto")
    with mosquitto(folder / "mosquitto", MOSQUITTO_SETTINGS) as server:
        assert server.process is not None
        address = ("127.0.0.1", server.port)
        listener = ("--protocol", "mqtt", "--host", address[0], "--port", str(address[1]))
        yield Subject(address, listener, strangers(devices), {"mosquitto": server.process.pid})


@asynccontextmanager
async def nats_jetstream(folder: Path, devices: int) -> AsyncGenerator[Subject]:
    """MQTT QoS 1 in, acknowledged once JetStream has it on file; out by a push consumer of the stream, over WebSocket.

    The consumer asks for no acknowledgements, as a live subscription of the gateway needs none.
    """
    executable, websocket = program("nats-server"), free_port()

    def command(port: int, home: Path) -> list[str]:
        (home / "nats.conf").write_text(
            f'listen: "127.0.0.1:{free_port()}"\n'
            "server_name: bench\n"
            f'jetstream {{ store_dir: "{home / "store"}" }}\n'
            f'mqtt {{ listen: "127.0.0.1:{port}" }}\n'
            f'websocket {{ listen: "127.0.0.1:{websocket}", no_tls: true }}\n'
        )
        return [executable, "-c", str(home / "nats.conf")]

    with Server("nats-server", folder / "nats", command, answers) as server:
        assert server.process is not None
        await _greet("127.0.0.1", server.port)
        door = ("--protocol", "nats", "--host", "127.0.0.1", "--port", str(websocket))
        listener = (*door, "--stream", STREAM, "--filter", SUBJECTS)
        yield Subject(("127.0.0.1", server.port), listener, strangers(devices), {"nats": server.process.pid})


async def _greet(host: str, port: int) -> None:
    """Connect once over MQTT: NATS makes its stream for an account when the first device comes."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(CONNECT)
    answer = await asyncio.wait_for(reader.readexactly(4), 20)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    if answer[3]:
        raise BenchFailed(f"the broker refuses MQTT clients: CONNACK {answer[3]}")
