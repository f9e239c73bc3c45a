"""The WebSocket door: browsers and services listen and publish through the client protocol.

On the `websockets` library. What the library's ``send`` and ``broadcast`` leave open is decided here: a frame is
written only while the client takes what it is sent, so memory per client is bounded and nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import http
import ssl as tls
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, cast
from urllib.parse import parse_qs

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers, MultipleValuesError
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.http11 import Request, Response
from websockets.typing import Origin, Subprotocol

from ...adapters.client_protocol import MAX_REQUEST_BYTES, SUBPROTOCOL, notice
from ...adapters.client_session import CLOSE_UNAUTHENTICATED
from ...adapters.client_use_cases import ClientUseCases
from ...entities.errors import IotSphereError, Limited, TooManyConnections, Unauthenticated
from .admission import Admission
from .connection import CLOSE_TIMEOUT_S, Client, Connection, WebSocketLimits

__all__ = ("WebSocketGateway", "WebSocketLimits")

CHECK_EVERY_S: Final = 2.0
CLOSE_RESTARTING: Final = 1012


class WebSocketGateway:
    """Listens for WebSocket clients of the protocol ``iotsphere.v1.json``."""

    def __init__(self, use_cases: ClientUseCases, limits: WebSocketLimits | None = None) -> None:
        self._use = use_cases
        self._limits = limits = limits or WebSocketLimits()
        self._server: Server | None = None
        self._clients: dict[Client, None] = {}
        self._check: asyncio.Task[None] | None = None
        self._draining = False
        self.counts: Counter[str] = Counter()
        self._admission = Admission(limits, self.counts)

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    async def start(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> tuple[str, int]:
        """Listen; port 0 takes any free one. Returns the address that is listened on."""
        limits = self._limits
        self._server = await serve(
            self._handle,
            host,
            port,
            ssl=ssl,
            subprotocols=[cast(Subprotocol, SUBPROTOCOL)],
            select_subprotocol=_choose_subprotocol,
            process_request=self._admit,
            compression=None,
            extensions=_deflate() if limits.compression else None,
            origins=[*(cast(Origin, origin) for origin in limits.origins), None] if limits.origins else None,
            max_size=MAX_REQUEST_BYTES,
            max_queue=4,
            open_timeout=limits.handshake,
            ping_interval=limits.ping_interval,
            ping_timeout=limits.ping_timeout,
            close_timeout=CLOSE_TIMEOUT_S,
            server_header=None,
            create_connection=cast(type[ServerConnection], partial(Connection, admission=self._admission)),
            backlog=4096,
        )
        self._check = asyncio.get_running_loop().create_task(self._keep_checking())
        address: Sequence[object] = next(iter(self._server.sockets)).getsockname()
        return str(address[0]), int(str(address[1]))

    # -- connections --------------------------------------------------------------------------------------------------

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        assert isinstance(connection, Connection)
        try:
            if self._draining:
                raise TooManyConnections("the gateway is restarting; try again in a moment")
            self._admission.admit(connection)
            header = request.headers.get("Authorization")
            if header is not None:
                scheme, _, token = header.partition(" ")
                if scheme.lower() != "bearer":
                    raise Unauthenticated("send Authorization: Bearer TOKEN, or an auth request as the first message")
                connection.principal = self._use.authenticate.token(token.strip())
                self._admission.knows(connection)
        except Unauthenticated as error:
            self.counts["refused_unauthenticated"] += 1
            return _refuse(http.HTTPStatus.UNAUTHORIZED, error)
        except Limited as error:
            self.counts[f"refused_{error.code}"] += 1
            return _refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, error)
        except MultipleValuesError:
            self.counts["refused_unauthenticated"] += 1
            return _refuse(http.HTTPStatus.UNAUTHORIZED, Unauthenticated("send one Authorization header"))
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        client = connection.client = Client(connection, self._use, self._limits, _wants_exact(connection))
        self._clients[client] = None
        self.counts["connected"] += 1
        try:
            await client.run()
        finally:
            del self._clients[client]
            self.counts["disconnected"] += 1

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for count, client in enumerate(list(self._clients)):
                if not client.session.still_valid():
                    self.counts["closed_credential"] += 1
                    client.session.close()
                    if client.connection.paused:  # what waits for it must not reach it any more
                        client.connection.transport.abort()
                    else:
                        client.close(CLOSE_UNAUTHENTICATED, "the token expired or was revoked")
                else:
                    client.session.tell_cursors()
                if count % 500 == 499:
                    await asyncio.sleep(0)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Stop accepting, hand each client its cursors, and close with 1012; gives up on the stubborn after a while."""
        self._draining = True
        if self._server is None:
            return
        self._server.close(close_connections=False)
        clients = list(self._clients)
        for client in clients:
            client.write(
                notice(
                    "closing",
                    code="shutting_down",
                    retry=True,
                    message="the gateway restarts; reconnect and resume with these cursors",
                    cursors=client.session.cursors(),
                )
            )
            client.session.close()
            client.close(CLOSE_RESTARTING, "restarting")
        closings = [client.closing for client in clients if client.closing is not None]
        if closings:
            await asyncio.wait(closings, timeout=timeout)

    async def close(self) -> None:
        """Cut what is left."""
        if self._check is not None:
            self._check.cancel()
        for client in list(self._clients):
            client.connection.transport.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


def _wants_exact(connection: ServerConnection) -> bool:
    path = connection.request.path if connection.request is not None else ""
    return parse_qs(path.partition("?")[2]).get("numbers") == ["exact"]


def _choose_subprotocol(_connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Ours when it is offered; a client that offers none is served all the same; other offers get no subprotocol."""
    return cast(Subprotocol, SUBPROTOCOL) if SUBPROTOCOL in offered else None


def _deflate() -> list[ServerPerMessageDeflateFactory]:
    return [
        ServerPerMessageDeflateFactory(
            server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
        )
    ]


def _refuse(status: http.HTTPStatus, error: IotSphereError) -> Response:
    body = notice("error", ref=None, code=error.code, retry=error.retry, message=error.message)
    headers = Headers(
        {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cache-Control": "no-store",
        }
    )
    if status is http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(status.value, status.phrase, headers, body)
