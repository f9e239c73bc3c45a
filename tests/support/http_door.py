"""A real HTTP door over memory drivers, on a free port, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

from iotsphere.adapters.http.publishing import HttpPublishing
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.gateways.http import ConsolePlace, HttpGateway, HttpLimits, HttpUseCases, Measure
from iotsphere.use_cases.access.sign_in import SignIn
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.overview import Overview
from tests.support.rooms import Rooms, open_rooms

CURSOR_KEY = b"c" * 32


class Door:
    """A door that listens, with the use cases behind it."""

    def __init__(self, rooms: Rooms, limits: HttpLimits) -> None:
        self.rooms = rooms
        self.sign_in = SignIn(rooms.documents, rooms.tokens, rooms.clock)
        self.gateway = HttpGateway(
            HttpUseCases(
                authenticate=rooms.authenticate,
                publishing=HttpPublishing(rooms.edge, rooms.publish, rooms.clock, rooms.rates, rooms.state.requests),
                history=rooms.history,
                dead_letters=rooms.dead_letters,
                devices=rooms.devices,
                tokens=rooms.tokens,
                ledger=rooms.ledger,
                trace=rooms.trace,
                log=rooms.log,
                cursor_key=CURSOR_KEY,
                state=rooms.state.client,
                fleet=rooms.state.fleet,
                overview=Overview(rooms.devices, rooms.state.roster, rooms.last_values),
                sign_in=self.sign_in,
                console=ConsolePlace({"websocket": "ws://127.0.0.1:8765"}),
                measures=(Measure("iotsphere_published", "Messages", lambda: rooms.publish.accepted),),
            ),
            limits,
        )
        self.host, self.port = "", 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def token(
        self,
        domain: str = "iotsphere",
        subject: str = "service:tests",
        grants: Sequence[str] | None = None,
        roles: Sequence[str] | None = None,
    ) -> str:
        """A token; an operator's with all grants, unless grants or roles are given."""
        issuer = operator(domain)
        if grants is None and roles is None:
            grants, roles = [f"{grant.action}:{grant.filter.text}" for grant in issuer.grants], ["operator"]
        return self.rooms.tokens.issue(issuer, subject, grants or (), roles or ()).token

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """A client; an operator of the default domain unless a token is given, anonymous with ``""``."""
        chosen = self.token() if token is None else token
        headers = {"Authorization": f"Bearer {chosen}"} if chosen else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, verify=False, timeout=60)


@asynccontextmanager
async def open_door(limits: HttpLimits | None = None, log_class: type[MemoryLog] = MemoryLog) -> AsyncIterator[Door]:
    """A door that is closed at the end."""
    async with open_rooms(log_class=log_class) as rooms:
        door = Door(rooms, limits or HttpLimits())
        door.host, door.port = await door.gateway.start("127.0.0.1", 0)
        try:
            yield door
        finally:
            await door.gateway.close()
