"""The Paho client for Python (paho-mqtt), over TCP and over WebSocket."""

from __future__ import annotations

import asyncio
import queue
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from .library import WITHIN_S, Got, Login, Lost, Refused


class PahoLibrary:
    """Paho's own thread runs the connection; its callbacks fill queues.

    ``patient``: a lost connection fails no publish; Paho connects again and sends it again.
    """

    def __init__(self, login: Login) -> None:
        self._login = login
        self._client: paho.Client | None = None
        self._connacks: queue.Queue[Any] = queue.Queue()
        self._subacks: queue.Queue[Any] = queue.Queue()
        self._answers: dict[int, queue.Queue[Any]] = {}
        self._came: queue.Queue[Got] = queue.Queue()
        self.patient = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            await asyncio.to_thread(client.loop_stop)

    def _made(self, clean: bool) -> paho.Client:
        login = self._login
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            login.client_id,
            clean if login.version == paho.MQTTv311 else None,
            protocol=MQTTProtocolVersion(login.version),
            transport="websockets" if login.websocket else "tcp",
            reconnect_on_failure=True,
        )
        client.reconnect_delay_set(1, 1)
        client.username_pw_set(login.username, login.password)
        client.on_connect = lambda _c, _u, flags, reason, _p: self._connacks.put((flags, reason))
        client.on_subscribe = lambda _c, _u, _m, reasons, _p: self._subacks.put(reasons)
        client.on_publish = lambda _c, _u, mid, reason, _p: self._answer(mid).put(reason)
        client.on_disconnect = lambda *_: self._lost()
        client.on_message = lambda _c, _u, m: self._came.put(Got(m.topic, bytes(m.payload), m.qos, m.retain))
        return client

    def _lost(self) -> None:
        if not self.patient:
            for answers in list(self._answers.values()):
                answers.put(None)

    def _answer(self, number: int) -> queue.Queue[Any]:
        return self._answers.setdefault(number, queue.Queue())

    async def connect(self, *, clean: bool = True) -> bool:
        login = self._login
        client = self._client = self._made(clean)
        more: dict[str, Any] = {}
        if login.version == paho.MQTTv5:
            kept = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own lack
            kept.SessionExpiryInterval = 0 if clean else 600
            more = {"clean_start": clean, "properties": kept}
        await asyncio.to_thread(client.connect, login.host, login.port, 30, **more)
        client.loop_start()
        flags, reason = await _get(self._connacks)
        if reason.is_failure:
            await self._stop()
            raise Refused(reason.value, str(reason))
        return bool(flags.session_present)

    async def subscribe(self, topic_filter: str, qos: int) -> int:
        assert self._client is not None
        self._client.subscribe(topic_filter, qos)
        (reason,) = await _get(self._subacks)
        if reason.is_failure:
            raise Refused(reason.value, str(reason))
        return int(reason.value)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        assert self._client is not None
        info = self._client.publish(topic, payload, qos, retain)
        reason = await _get(self._answer(info.mid))
        del self._answers[info.mid]
        if reason is None:
            raise Lost("the connection was closed")
        if reason.is_failure:
            raise Refused(reason.value, str(reason))

    async def message(self) -> Got:
        got: Got = await _get(self._came)
        return got

    async def disconnect(self) -> None:
        await self._stop()


async def _get(source: queue.Queue[Any]) -> Any:
    return await asyncio.to_thread(source.get, True, WITHIN_S)
