"""aiomqtt, the asyncio client."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from .library import WITHIN_S, Got, Login, Lost, Refused


class AiomqttLibrary:
    """aiomqtt connects on entering its context, so a new client of it is made for each connection."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._client: aiomqtt.Client | None = None
        self.patient = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self, *, clean: bool = True) -> bool:
        login = self._login
        five = login.version == 5
        kept = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own lack
        kept.SessionExpiryInterval = 0 if clean else 600
        client = aiomqtt.Client(
            login.host,
            login.port,
            identifier=login.client_id,
            username=login.username,
            password=login.password,
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
            clean_session=None if five else clean,
            clean_start=clean if five else paho.MQTT_CLEAN_START_FIRST_ONLY,
            properties=kept if five else None,
            transport="websockets" if login.websocket else "tcp",
            timeout=WITHIN_S,
        )
        present = asyncio.get_running_loop().create_future()
        inner: Any = client._client.on_connect  # the only place that tells whether a session was present

        def on_connect(*given: Any) -> None:
            inner(*given)
            if not present.done():
                present.set_result(bool(getattr(given[2], "session_present", False)))

        client._client.on_connect = on_connect
        try:
            await client.__aenter__()
        except aiomqtt.MqttCodeError as error:
            raise Refused(error.rc.value if isinstance(error.rc, ReasonCode) else None, str(error)) from error
        self._client = client
        return bool(await present)

    async def subscribe(self, topic_filter: str, qos: int) -> int:
        assert self._client is not None
        (reason,) = await self._client.subscribe(topic_filter, qos=qos)
        value = reason.value if isinstance(reason, ReasonCode) else int(reason)
        if value >= 0x80:
            raise Refused(value, str(reason))
        return value

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        assert self._client is not None
        try:
            await self._client.publish(topic, payload, qos=qos, retain=retain)
        except aiomqtt.MqttCodeError as error:
            raise Refused(error.rc.value if isinstance(error.rc, ReasonCode) else None, str(error)) from error
        except aiomqtt.MqttError as error:
            raise Lost(str(error)) from error

    async def message(self) -> Got:
        assert self._client is not None
        got = await asyncio.wait_for(anext(aiter(self._client.messages)), WITHIN_S)
        assert isinstance(got.payload, bytes)
        return Got(str(got.topic), got.payload, got.qos, got.retain)

    async def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)
