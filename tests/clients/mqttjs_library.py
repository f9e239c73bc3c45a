"""MQTT.js, the client of Node.js and of browsers, over TCP and over WebSocket: each client is a Node process."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from tests.support.processes import die_with_parent
from tests.support.servers import binary, environment, missing

from .library import WITHIN_S, Got, Login, Lost, Refused

HERE: Final = Path(__file__).with_name("js")


class MqttjsLibrary:
    """``client.mjs`` does what its standard input says, and tells on its standard output what came of it.

    ``patient``: a lost connection fails no publish; MQTT.js connects again and sends it again.
    """

    def __init__(self, login: Login) -> None:
        self._login = login
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._came: asyncio.Queue[Got] = asyncio.Queue()
        self.connections = 0
        self.patient = False
        self._ending = False

    async def __aenter__(self) -> Self:
        node = binary("node")
        if not (HERE / "node_modules" / "mqtt").is_dir():
            missing("MQTT.js is not installed: run `python tests/support/provision.py`")
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *(node, str(HERE / "client.mjs")),
            stdin=pipe,
            stdout=pipe,
            limit=8 * 1024 * 1024,
            env=environment(),
            preexec_fn=die_with_parent,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        process, reading = self._process, self._reading
        assert process is not None
        assert process.stdin is not None
        assert reading is not None
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            event = told.get("event")
            if event is None:
                future = self._waiting.pop(told["id"])
                if not future.done():
                    future.set_result(told)
            elif event == "message":
                payload = base64.b64decode(told["payload"])
                self._came.put_nowait(Got(told["topic"], payload, told["qos"], told["retain"]))
            elif event == "connect":
                self.connections += 1
            elif event == "close" and not self.patient:
                for future in self._waiting.values():
                    if not future.done() and not self._ending:
                        future.set_result({"lost": True})
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Lost("the Node process has ended"))

    async def _do(self, op: str, **given: Any) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"id": number, "op": op, **given}).encode() + b"\n")
        await self._process.stdin.drain()
        told = await asyncio.wait_for(future, WITHIN_S)
        if "lost" in told:
            raise Lost("the connection was closed")
        if "error" in told:
            raise Refused(told["error"]["code"], told["error"]["text"])
        answer: dict[str, Any] = told["ok"]
        return answer

    async def connect(self, *, clean: bool = True) -> bool:
        login = self._login
        form = "ws://{}:{}/" if login.websocket else "mqtt://{}:{}"
        options: dict[str, Any] = {
            "protocolVersion": login.version,
            "clientId": login.client_id,
            "username": login.username,
            "password": login.password,
            "clean": clean,
        }
        if login.version == 5:
            options["properties"] = {"sessionExpiryInterval": 0 if clean else 600}
        answer = await self._do("connect", url=form.format(login.host, login.port), options=options)
        return bool(answer["present"])

    async def subscribe(self, topic_filter: str, qos: int) -> int:
        (granted,) = (await self._do("subscribe", filter=topic_filter, qos=qos))["granted"]
        if granted >= 0x80:
            raise Refused(granted)
        return int(granted)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        await self.publish_with({"qos": qos, "retain": retain}, topic, payload)

    async def publish_with(self, options: Mapping[str, Any], topic: str, payload: bytes) -> None:
        """Publish with MQTT.js's own options."""
        answer = await self._do("publish", topic=topic, payload=base64.b64encode(payload).decode(), options=options)
        if answer["code"] >= 0x80:
            raise Refused(answer["code"])

    async def message(self) -> Got:
        return await asyncio.wait_for(self._came.get(), WITHIN_S)

    async def disconnect(self) -> None:
        self._ending = True
        await self._do("end")
