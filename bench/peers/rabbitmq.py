"""RabbitMQ with its MQTT plugin: what devices publish goes into a stream, and to an MQTT subscriber."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.servers import Server, answers, free_port

from ..subjects import Subject, strangers
from .found import first_of, program

HOME_OF_SCRIPTS = "/usr/lib/rabbitmq/bin"  # the one on PATH changes to another user first
STREAM = "telemetry"
ROUTING_KEY = "iotsphere.devices.*.telemetry.#"
SALT = b"salt"
STARTED = "Server startup complete"


@asynccontextmanager
async def rabbitmq_stream(folder: Path, devices: int) -> AsyncGenerator[Subject]:
    """MQTT QoS 1 in, acknowledged once the stream and the subscriber's queue have it; out over MQTT at QoS 1.

    Nodes of a cluster find each other through epmd: it runs here as a child of ours, on loopback, and ends with us.
    """
    server, mapper = first_of(HOME_OF_SCRIPTS, "rabbitmq-server"), program("epmd")
    epmd = Server(
        "epmd", folder / "epmd", lambda port, _: [mapper, "-port", str(port), "-address", "127.0.0.1"], answers
    )
    with epmd:

        def command(port: int, home: Path) -> list[str]:
            _configure(port, home)
            variables = {
                "HOME": str(home),
                "ERL_EPMD_PORT": str(epmd.port),
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODENAME": "bench@localhost",
                "RABBITMQ_DIST_PORT": str(free_port()),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
                "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
                "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
                "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
                "RABBITMQ_LOG_BASE": str(home / "log"),
                "RABBITMQ_PID_FILE": str(home / "pid"),
                "RABBITMQ_LOGS": "-",
            }
            return ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items()), server]

        # Its doors open before it has read the definitions of its users and queues.
        log = folder / "rabbitmq" / "server.log"
        started = Server(
            "rabbitmq-server", folder / "rabbitmq", command, lambda _: STARTED in log.read_text(), patience=60
        )
        with started as running:
            assert running.process is not None
            address = ("127.0.0.1", running.port)
            listener = ("--protocol", "mqtt", "--host", address[0], "--port", str(address[1]))
            yield Subject(address, listener, strangers(devices), {"rabbitmq": running.process.pid})


def _configure(port: int, home: Path) -> None:
    (home / "plugins").write_text("[rabbitmq_mqtt].\n")
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{free_port()}\n"
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\n"
        "mqtt.allow_anonymous = true\n"
        "mqtt.default_user = bench\n"
        "mqtt.default_pass = bench\n"
        "mqtt.prefetch = 1000\n"
        f"load_definitions = {home / 'definitions.json'}\n"
    )
    secret = base64.b64encode(SALT + hashlib.sha256(SALT + b"bench").digest()).decode()
    queue = {"name": STREAM, "vhost": "/", "durable": True, "auto_delete": False}
    binding = {"source": "amq.topic", "vhost": "/", "destination": STREAM, "destination_type": "queue"}
    definitions = {
        "vhosts": [{"name": "/"}],
        "users": [
            {
                "name": "bench",
                "password_hash": secret,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
            }
        ],
        "permissions": [{"user": "bench", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{**queue, "arguments": {"x-queue-type": "stream"}}],
        "bindings": [{**binding, "routing_key": ROUTING_KEY, "arguments": {}}],
    }
    (home / "definitions.json").write_text(json.dumps(definitions))
