"""Everything that a client of the client protocol can reach, in memory; and the WebSocket door in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from iotsphere.adapters.client.delivery import ClientDeliveryAdapter
from iotsphere.adapters.client.protocol import SUBPROTOCOL
from iotsphere.adapters.client.use_cases import ClientUseCases
from iotsphere.adapters.edge import Edge
from iotsphere.adapters.poison import poison_letters
from iotsphere.containers.state import COLLECTIONS, Ground, State
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.gateways.websocket import WebSocketGateway, WebSocketLimits
from iotsphere.use_cases.access.rate_limit import Rate, RateLimit
from iotsphere.use_cases.work import WorkQueueUseCase, WorkSettings, WorkStores
from tests.client.raw import RawClient
from tests.support.identity import Identity
from tests.use_cases.stage import DOMAIN, Stage

TOPIC = f"{DOMAIN}/devices/d1/telemetry/temperature"
EVERYTHING = f"{DOMAIN}/#"
ADA = "ada's token"
NO_LIMIT = Rate()
ALL = (f"publish:{EVERYTHING}", f"subscribe:{EVERYTHING}", f"command:{EVERYTHING}")


class House(Stage):
    """A stage with an edge, identities and work queues. ``visibility``: ms."""

    def __init__(
        self,
        clock: ManualClock | None = None,
        log: MemoryLog | None = None,
        rate: Rate = NO_LIMIT,
        visibility: int = 30_000,
    ) -> None:
        super().__init__(clock, log)
        self.identity = Identity(self.documents, self.clock)
        self.edge = Edge(self.clock, self.log.partitions)
        bury = poison_letters(self.edge, self.clock)
        stores = WorkStores(self.log, self.queue, self.documents)
        self.work = WorkQueueUseCase(stores, self.feed, self.publish, bury, WorkSettings(visibility, max_attempts=3))
        self.use_cases = ClientUseCases(
            self.identity.authenticate,
            self.subscribe,
            self.publish,
            self.work,
            self.edge,
            ClientDeliveryAdapter(self.feed, b"cursor key, 32 bytes of secrets "),
            self.clock,
            RateLimit(rate, NO_LIMIT),
        )

    async def open_state(self) -> State:
        """Give clients shadows, commands and what users have, over a database in memory."""
        database = MemoryDatabase(self.clock)
        await database.ensure(COLLECTIONS)
        ground = Ground(database, self.edge, self.publish, self.identity.devices, self.clock)
        state = State(ground, self.log, self.documents)
        self.use_cases = replace(self.use_cases, state=state.client)
        return state

    def token(self, subject: str = "user:ada", grants: Sequence[str] = ALL, lifetime: int = 3_600) -> str:
        """A token of the operator's domain, good for ``lifetime`` seconds."""
        return self.identity.tokens.issue(self.identity.operator, subject, grants, lifetime=lifetime).token


@asynccontextmanager
async def open_house(
    *,
    partitions: int = 2,
    clock: ManualClock | None = None,
    log: MemoryLog | None = None,
    rate: Rate = NO_LIMIT,
    visibility: int = 30_000,
) -> AsyncIterator[House]:
    """A house with its domain made and its feed running."""
    house = House(clock, log, rate, visibility)
    await house.make(partitions)
    await house.feed.start()
    feed = asyncio.get_running_loop().create_task(house.feed.run())
    try:
        yield house
    finally:
        feed.cancel()
        await asyncio.wait((feed,))


class Door:
    """The WebSocket door of a house, and clients on real sockets."""

    def __init__(self, house: House, gateway: WebSocketGateway, address: tuple[str, int]) -> None:
        self.house = house
        self.gateway = gateway
        self.host, self.port = address
        self.url = f"ws://{self.host}:{self.port}/"
        self._stack = AsyncExitStack()

    async def connect(self, token: str | None = ADA, query: str = "", **options: Any) -> Talker:
        """A connected client. ``token``: None shows none; ``ADA`` stands for that of a user with all rights."""
        if token is ADA:
            token = self.house.token()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        options = {
            "compression": None,
            "proxy": None,
            "max_size": None,
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "additional_headers": headers,
        } | options
        connection = await self._stack.enter_async_context(connect(self.url + query, **options))
        return Talker(connection)

    async def socket(self) -> RawClient:
        """A socket that has said nothing yet."""
        client = await RawClient.open(self.host, self.port)
        self._stack.push_async_callback(client.close)
        return client

    async def raw(self, token: str | None = ADA, *headers: str) -> RawClient:
        """A socket after its handshake, for frames by hand."""
        client = await self.socket()
        await client.upgrade(self.house.token() if token is ADA else token, *headers)
        return client

    async def close(self) -> None:
        """Close every client."""
        await self._stack.aclose()


@asynccontextmanager
async def open_door(house: House, limits: WebSocketLimits | None = None) -> AsyncIterator[Door]:
    """The house's door on a free port of the loopback interface."""
    gateway = WebSocketGateway(house.use_cases, limits)
    door = Door(house, gateway, await gateway.start("127.0.0.1", 0))
    try:
        yield door
        await door.close()
    finally:
        await gateway.close()


class Talker:
    """One client that speaks the protocol by hand. ``pushes``: what came that was no answer, in order."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.pushes: list[dict[str, Any]] = []
        self._refs = 0

    async def read(self) -> dict[str, Any]:
        """The next frame, parsed."""
        frame: dict[str, Any] = orjson.loads(await asyncio.wait_for(self.connection.recv(), 60))
        return frame

    async def say(self, kind: str, **members: object) -> int:
        """Send a request; returns its ref."""
        self._refs += 1
        await self.connection.send(orjson.dumps({"type": kind, "ref": self._refs, **members}), text=True)
        return self._refs

    async def ask(self, kind: str, **members: object) -> dict[str, Any]:
        """Send a request and read up to its answer."""
        return await self.answer(await self.say(kind, **members))

    async def answer(self, ref: object) -> dict[str, Any]:
        """Read up to an answer; what comes before it is kept in ``pushes``."""
        while True:
            frame = await self.read()
            if frame["type"] in ("ok", "error"):
                assert frame["ref"] == ref
                return frame
            self.pushes.append(frame)

    async def subscribe(self, *filters: str, **members: object) -> dict[str, Any]:
        """Subscribe, and expect it to be granted."""
        answer = await self.ask("subscribe", filters=filters or (EVERYTHING,), **members)
        assert answer["type"] == "ok", answer
        return answer

    async def publish(self, payload: object, topic: str = TOPIC, **members: object) -> dict[str, Any]:
        """Publish, and expect it to be taken."""
        answer = await self.ask("publish", topic=topic, payload=payload, **members)
        assert answer["type"] == "ok", answer
        return answer

    async def push(self, kind: str) -> dict[str, Any]:
        """The next frame of this kind that is no answer."""
        while True:
            for number, frame in enumerate(self.pushes):
                if frame["type"] == kind:
                    return self.pushes.pop(number)
            frame = await self.read()
            assert frame["type"] not in ("ok", "error"), frame
            self.pushes.append(frame)

    async def push_or_answer(self, kind: str) -> dict[str, Any]:
        """Read up to the first frame of this kind, answers included; the others are dropped."""
        while (frame := await self.read())["type"] != kind:
            continue
        return frame

    async def messages(self, count: int) -> list[dict[str, Any]]:
        """The next ``count`` messages, from as many frames as that takes."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += (await self.push("messages"))["messages"]
        assert len(found) == count
        return found

    async def closed(self) -> tuple[int | None, str | None]:
        """Read until the connection ends; returns code and reason."""
        with suppress(ConnectionClosed):
            async with asyncio.timeout(60):
                while True:
                    await self.connection.recv()
        return self.connection.close_code, self.connection.close_reason


def values(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The ``value`` of each payload."""
    return [message["payload"]["value"] for message in messages]
