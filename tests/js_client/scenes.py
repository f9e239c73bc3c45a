"""What tests of the JavaScript client begin with: a connected client, somebody who publishes, a connection to be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.js_client.engines import Engine
from tests.support.gateway import Gateway
from tests.support.proxy import FaultyProxy, faulty_proxy

# With given.url and given.token.
CONNECT = """
g.client = lib.connect(given.url, { token: given.token, backoff: { min: 20, max: 200 }, storage: g.storage });
g.states = g.record(g.client, "state").state;
await g.client.opened();
"""
LISTEN = """
g.subscription = await g.client.subscribe(given.topic).ready();
g.told = g.record(g.subscription, "message", "gap");
"""
PUBLISH = """
const client = lib.connect(given.url, { token: given.token });
await Promise.all(given.values.map((value) => client.publish(given.topic, value)));
await client.close();
"""


@asynccontextmanager
async def proxied(gateway: Gateway) -> AsyncIterator[tuple[FaultyProxy, str]]:
    """A proxy in front of the gateway, and its address."""
    port = urlsplit(gateway.websocket).port
    assert port is not None
    async with faulty_proxy(port) as proxy:
        yield proxy, f"ws://127.0.0.1:{proxy.port}/"


async def connect(engine: Engine, gateway: Gateway) -> None:
    """A client of the gateway, as ``g.client``."""
    await engine.run(CONNECT, url=gateway.websocket, token=gateway.token)
