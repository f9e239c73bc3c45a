"""What the cases reach a running gateway with: paho as the device, a WebSocket as the browser, HTTP and the CLI."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.client.house import Talker
from tests.support.gateway import ROOT, Credential, Gateway

WITHIN = 60.0
V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5


class Refused(ConnectionError):
    """The CONNACK was a refusal: its reason code (of MQTT 5, also in 3.1.1) and, in MQTT 5, its words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class PahoClient:
    """A paho client in its own thread; everything is awaited from the test's loop.

    ``ended``: why the connection is over, a reason code of MQTT 5.
    """

    def __init__(self, username: str, password: str, client_id: str, version: MQTTProtocolVersion) -> None:
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        self._acks: dict[int, asyncio.Future[int]] = {}
        self.ended: asyncio.Future[int] = self._loop.create_future()
        clean = True if version is V311 else None
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, clean, protocol=version, reconnect_on_failure=False
        )
        self._paho.username_pw_set(username, password)
        self._paho.on_connect = lambda _c, _u, _f, reason, facts: self._tell(self._on_connect, reason, facts)
        self._paho.on_publish = lambda _c, _u, mid, reason, _p: self._tell(self._on_ack, mid, reason)

        self._paho.on_disconnect = lambda _c, _u, _f, reason, _p: self._tell(self._on_end, reason)

    def _tell(self, callback: Any, *facts: object) -> None:
        self._loop.call_soon_threadsafe(callback, *facts)

    def _on_connect(self, reason: ReasonCode, facts: object) -> None:
        if not self._connected.done():
            self._connected.set_result((reason.value, str(getattr(facts, "ReasonString", ""))))

    def _on_end(self, reason: ReasonCode) -> None:
        if not self.ended.done():
            self.ended.set_result(reason.value)

    def _ack(self, mid: int) -> asyncio.Future[int]:
        return self._acks.setdefault(mid, self._loop.create_future())

    def _on_ack(self, mid: int, reason: ReasonCode) -> None:
        self._ack(mid).set_result(reason.value)

    async def open(self, address: tuple[str, int]) -> None:
        """Connect. Raises Refused."""
        await asyncio.to_thread(self._paho.connect, *address, keepalive=30)
        self._paho.loop_start()
        code, text = await asyncio.wait_for(self._connected, WITHIN)
        if code:
            raise Refused(code, text)

    async def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> int:
        """Publish and wait for the acknowledgement; returns its reason code, always 0 in MQTT 3.1.1."""
        mid = self._paho.publish(topic, payload, qos, retain).mid
        reason = await asyncio.wait_for(self._ack(mid), WITHIN)
        del self._acks[mid]
        return reason

    async def close(self) -> None:
        """Say goodbye."""
        self._paho.disconnect()
        await asyncio.to_thread(self._paho.loop_stop)


@asynccontextmanager
async def mqtt(
    gateway: Gateway, who: Credential | str, *, client_id: str = "case", version: MQTTProtocolVersion = V5
) -> AsyncIterator[PahoClient]:
    """A connected paho client: a device with its credential, or anybody with a token. Raises Refused."""
    username, password = ("token", who) if isinstance(who, str) else (who.username, who.password)
    client = PahoClient(username, password, client_id, version)
    try:
        await client.open(gateway.mqtt)
        yield client
    finally:
        await client.close()


class WebSocketDoor(Protocol):
    """What a browser has to know: the URL, and an operator's token."""

    websocket: str
    token: str


@asynccontextmanager
async def browser(gateway: WebSocketDoor, *, exact: bool = False, token: str | None = "") -> AsyncIterator[Talker]:
    """A WebSocket client. ``token``: the operator's by default; None shows none. ``exact``: large integers are numbers."""
    shown = gateway.token if token == "" else token
    async with connect(
        f"{gateway.websocket}/?numbers=exact" if exact else gateway.websocket,
        subprotocols=[Subprotocol("iotsphere.v1.json")],
        additional_headers={} if shown is None else {"Authorization": f"Bearer {shown}"},
        compression=None,
        proxy=None,
        max_size=None,
    ) as connection:
        yield Talker(connection)


class Letter(NamedTuple):
    """A dead letter as the HTTP door shows it."""

    reason: str
    topic: str
    raw: bytes
    facts: dict[str, Any]


async def letters(gateway: Gateway, **query: str) -> list[Letter]:
    """The open dead letters that a query selects (``device``, ``reason``), newest first."""
    found = []
    async with gateway.api() as api:
        page = (await api.get("/api/v1/dead-letters", params=query)).json()
        for item in page["dead_letters"]:
            facts = (await api.get(f"/api/v1/dead-letters/{item['id']}")).json()
            found.append(Letter(facts["reason"], facts["topic"], b64decode(facts["raw"]), facts))
    return found


async def history(gateway: Gateway, wanted: str) -> list[dict[str, Any]]:
    """All that the log holds for a filter."""
    messages: list[dict[str, Any]] = []
    query: dict[str, str | int] = {"filter": wanted, "limit": 1_000}
    async with gateway.api() as api:
        while True:
            answer = await api.get("/api/v1/messages", params=query)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            assert page["gaps"] == []
            messages += page["messages"]
            if not page["more"]:
                return messages
            query["cursor"] = page["cursor"]


def log_lines(gateway: Gateway) -> list[dict[str, Any]]:
    """What the gateway logged so far. Raises AssertionError for a line that is no JSON object in printable ASCII."""
    lines = []
    for line in gateway.tail(1_000_000).split("\n"):
        if line:
            assert not re.search("[^ -~]", line), repr(line)
            parsed = json.loads(line)
            assert isinstance(parsed, dict), line
            lines.append(parsed)
    return lines


async def command_line(gateway: Gateway, *words: str) -> str:
    """What `iotsphere WORDS --data …` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "iotsphere", *words, "--data", str(gateway.data)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out
    return out.decode()
