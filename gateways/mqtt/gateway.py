"""The MQTT door: devices publish and listen over MQTT 5 and 3.1.1, and an acknowledgement means "in the log".

On asyncio's transports and protocols, which cost a tenth of its streams. Everything that MQTT says is in
``adapters/mqtt``; everything that one connection does is in its neighbours here.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import Counter
from collections.abc import Sequence
from typing import Final

import structlog
from websockets.asyncio.server import ServerConnection

from ...entities.errors import IotSphereError
from ..tls import HANDSHAKE_S
from .door import MqttDoor
from .limits import MqttLimits
from .over_tcp import MqttOverTcp
from .over_websocket import MqttOverWebSocket
from .use_cases import MqttUseCases

log = structlog.get_logger("iotsphere.mqtt")

TICK_S: Final = 0.5
REVALIDATE_S: Final = 2.0
CHECKPOINT_S: Final = 5.0
EXPIRE_S: Final = 30.0
WILLS_S: Final = 0.25
CLOSE_WITHIN_S: Final = 2.0
RETRY_S: Final = 1.0
YIELD_AFTER: Final = 500


class MqttGateway:
    """Listens for MQTT clients. ``counts``: what happened, by fixed names, never by anything that a client chose."""

    def __init__(self, use_cases: MqttUseCases, limits: MqttLimits | None = None) -> None:
        self._door = MqttDoor(use_cases, limits or MqttLimits())
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> Counter[str]:
        """What happened so far."""
        return self._door.counts

    @property
    def connections(self) -> int:
        """How many sockets are open."""
        return len(self._door.clients)

    async def open(self) -> None:
        """Take care of sessions and presences that a crash left open, and watch over connections from now on.

        Without a port of its own the door serves those that another one hands over. Repeating is harmless. Raises
        LogUnavailable.
        """
        if self._tasks:
            return
        loop = asyncio.get_running_loop()
        await self._door.use.sessions.recover()
        for work in (self._recover(), self._watch(), self._commit(), self._expire(), self._wills()):
            task = loop.create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def start(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> tuple[str, int]:
        """Open, and listen; port 0 takes any free one. Returns the address that is listened on.

        May be called again for a further address. Raises LogUnavailable, and OSError when it cannot listen there.
        """
        await self.open()
        server = await asyncio.get_running_loop().create_server(
            lambda: MqttOverTcp(self._door),
            host,
            port,
            ssl=ssl,
            backlog=4_096,
            ssl_handshake_timeout=HANDSHAKE_S if ssl is not None else None,
        )
        self._servers.append(server)
        address: Sequence[object] = server.sockets[0].getsockname()
        return str(address[0]), int(str(address[1]))

    def over_websocket(self, connection: ServerConnection, address: str) -> MqttOverWebSocket | None:
        """Serve a WebSocket connection of the subprotocol ``mqtt``; None when there is no room for it."""
        user = MqttOverWebSocket(self._door, connection, address)
        if not self._door.admission.opened(user.client):
            return None
        self._door.enter(user.client)
        return user

    async def drain(self, timeout: float) -> None:
        """Stop accepting, answer what is on its way into the log, say goodbye; gives up after ``timeout`` seconds."""
        self._door.draining = True
        for server in self._servers:
            server.close()
        leaving = [asyncio.ensure_future(client.leave()) for client in list(self._door.clients)]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=timeout)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """Cut what is left."""
        self._door.draining = True
        for task in self._tasks:
            task.cancel()
        for client in list(self._door.clients):
            client.cut()
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._door.empty.wait()
        except TimeoutError:
            log.warning("clients_not_ended", count=len(self._door.clients))
            farewells = [client.farewell for client in self._door.clients if client.farewell is not None]
            for farewell in farewells:
                farewell.cancel()
            await asyncio.gather(*farewells, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._servers.clear()

    # -- watching -----------------------------------------------------------------------------------------------------

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody may think that credentials are watched when they are not."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.counts["watches_failed"] += 1
            log.critical("watch_failed", exc_info=error)

    async def _recover(self) -> None:
        while True:
            try:
                await self._door.use.wills.recover()
                found = await self._door.use.presence.recover()
            except IotSphereError as error:
                log.warning("presence_not_recovered_yet", code=error.code)
                await asyncio.sleep(RETRY_S)
            else:
                if found:
                    log.info("presence_recovered", devices=found)
                return

    async def _watch(self) -> None:
        """Look after keep alives every half second, and after credentials every two."""
        loop = asyncio.get_running_loop()
        validated = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            due = now - validated >= REVALIDATE_S
            if due:
                validated = now
            for count, client in enumerate(list(self._door.clients)):
                if client.due <= now:
                    client.tick(now)
                if due:
                    client.revalidate()
                if count % YIELD_AFTER == YIELD_AFTER - 1:
                    await asyncio.sleep(0)

    async def _commit(self) -> None:
        """Commit the places of persistent sessions every few seconds."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            for count, visit in enumerate(list(self._door.online.values())):
                if count % YIELD_AFTER == YIELD_AFTER - 1:
                    await asyncio.sleep(0)
                if not visit.keeps_place:
                    continue
                try:
                    await visit.checkpoint()
                except IotSphereError as error:
                    self.counts["checkpoints_failed"] += 1
                    log.warning("checkpoint_failed", code=error.code)

    async def _expire(self) -> None:
        """End sessions whose time is over, and take up the wills of processes that are gone."""
        while True:
            await asyncio.sleep(EXPIRE_S)
            try:
                self.counts["sessions_expired"] += await self._door.use.sessions.expire()
                self.counts["wills_adopted"] += await self._door.use.wills.adopt()
            except IotSphereError as error:
                log.warning("expiry_failed", code=error.code)

    async def _wills(self) -> None:
        """Publish wills whose delay is over."""
        while True:
            await asyncio.sleep(WILLS_S)
            try:
                self.counts["wills_published_late"] += await self._door.use.wills.publish_due()
            except IotSphereError as error:
                log.warning("will_not_published_yet", code=error.code)
                await asyncio.sleep(RETRY_S)
