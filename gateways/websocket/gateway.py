"""The WebSocket door: browsers and services listen and publish through the client protocol.

On the `websockets` library. What the library's ``send`` and ``broadcast`` leave open is decided here: a frame is
written only while the client takes what it is sent, so memory per client is bounded and nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import http
import ssl as tls
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, cast
from urllib.parse import parse_qs

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers, MultipleValuesError
from websockets.exceptions import InvalidHeaderFormat
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.headers import parse_subprotocol
from websockets.http11 import Request, Response
from websockets.typing import Origin, Subprotocol

from ...adapters.client.protocol import MAX_REQUEST_BYTES, SUBPROTOCOL, notice
from ...adapters.client.session import CLOSE_UNAUTHENTICATED
from ...adapters.client.use_cases import ClientUseCases
from ...entities.errors import IotSphereError, Limited, RequestInvalid, TooManyConnections, Unauthenticated
from ..tls import HANDSHAKE_S
from .admission import Admission
from .client import Client
from .connection import Connection, FrameUser
from .limits import CLOSE_TIMEOUT_S, WebSocketLimits

__all__ = ("WebSocketGateway", "WebSocketLimits")

CHECK_EVERY_S: Final = 2.0
CHECKED_AT_ONCE: Final = 100
CLOSE_RESTARTING: Final = 1012


FrameUserOf: TypeAlias = Callable[[ServerConnection, str], FrameUser | None]


class WebSocketGateway:
    """Listens for WebSocket clients of the protocol ``iotsphere.v1.json``.

    ``guests``: further subprotocols, and who takes their connections (None: there is no room).
    """

    def __init__(
        self,
        use_cases: ClientUseCases,
        limits: WebSocketLimits | None = None,
        guests: Mapping[str, FrameUserOf] | None = None,
    ) -> None:
        self._use = use_cases
        self._limits = limits = limits or WebSocketLimits()
        self._guests = guests or {}
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
            ssl_handshake_timeout=HANDSHAKE_S if ssl is not None else None,
            subprotocols=[cast(Subprotocol, name) for name in (SUBPROTOCOL, *self._guests)],
            select_subprotocol=self._choose,
            process_request=self._admit,
            process_response=self._hand_over,
            compression=None,
            extensions=_deflate() if limits.compression else None,
            origins=[*(cast(Origin, origin) for origin in limits.origins), None] if limits.origins else None,
            max_size=MAX_REQUEST_BYTES,
            max_queue=4,
            open_timeout=limits.handshake,
            ping_interval=None,  # _keep_checking asks
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
            if not self._use.authenticate.trusts(connection.certificate.id if connection.certificate else ""):
                raise Unauthenticated("the client certificate was revoked; connect with a new one")
            offered = offered_by(request)
            chosen = self._choose(connection, offered)
            if offered and chosen is None:
                known = " or ".join((SUBPROTOCOL, *self._guests))
                raise RequestInvalid(f"none of the offered subprotocols is spoken here; offer {known}, or none")
            if chosen in self._guests:
                return None  # it has limits and credentials of its own
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
        except RequestInvalid as error:
            self.counts["refused_subprotocol"] += 1
            return _refuse(http.HTTPStatus.BAD_REQUEST, error)
        except MultipleValuesError:
            self.counts["refused_unauthenticated"] += 1
            return _refuse(http.HTTPStatus.UNAUTHORIZED, Unauthenticated("send one Authorization header"))
        return None

    def _choose(self, _: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """The first one that we know; a client that offers none is served all the same."""
        return next((name for name in offered if name == SUBPROTOCOL or name in self._guests), None)

    def _hand_over(self, connection: ServerConnection, _: Request, response: Response) -> Response | None:
        """Let a guest have the connection before its first frame can be read."""
        assert isinstance(connection, Connection)
        guest = self._guests.get(response.headers.get("Sec-WebSocket-Protocol", ""))
        if response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS and guest is not None:
            self._admission.knows(connection)
            connection.user = guest(connection, connection.address)
            if connection.user is None:
                connection.transport.abort()
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        if connection.user is not None:
            await connection.wait_closed()
            return
        client = Client(connection, self._use, self._limits, _wants_exact(connection))
        self._clients[client] = None
        self.counts["connected"] += 1
        try:
            connection.begin(client)
            await client.run()
        finally:
            del self._clients[client]
            self.counts["disconnected"] += 1

    async def _keep_checking(self) -> None:
        """Look after each client every two seconds, a few at a time, so that nobody else waits for that."""
        while True:
            clients = list(self._clients)
            pause = CHECK_EVERY_S / max(1, -(-len(clients) // CHECKED_AT_ONCE))
            for start in range(0, max(1, len(clients)), CHECKED_AT_ONCE):
                await asyncio.sleep(pause)
                now = asyncio.get_running_loop().time()
                for client in clients[start : start + CHECKED_AT_ONCE]:
                    self._look_after(client, now)

    def _look_after(self, client: Client, now: float) -> None:
        if client not in self._clients:
            return
        if self._still_valid(client):
            client.session.tell_cursors()
            client.connection.look_after(now, self._limits)
            return
        self.counts["closed_credential"] += 1
        client.session.close()
        if client.connection.paused:  # what waits for it must not reach it any more
            client.connection.transport.abort()
        else:
            client.close(CLOSE_UNAUTHENTICATED, "the token or certificate expired or was revoked")

    def _still_valid(self, client: Client) -> bool:
        certificate = client.connection.certificate
        if certificate is not None and not self._use.authenticate.trusts(certificate.id):
            return False
        return client.session.still_valid()

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
            for connection in self._server.connections:  # those of guests
                connection.transport.abort()
            self._server.close()
            await self._server.wait_closed()


def _wants_exact(connection: ServerConnection) -> bool:
    path = connection.request.path if connection.request is not None else ""
    return parse_qs(path.partition("?")[2]).get("numbers") == ["exact"]


def offered_by(request: Request) -> Sequence[Subprotocol]:
    """The subprotocols that a client offers; none of them when the header is not what RFC 6455 asks for."""
    lines = request.headers.get_all("Sec-WebSocket-Protocol")
    try:
        return [name for line in lines for name in parse_subprotocol(line)]
    except InvalidHeaderFormat:
        return []  # the library refuses it in its own words


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
