"""The WebSocket door: browsers and services listen and publish through the client protocol.

On the `websockets` library. What the library's ``send`` and ``broadcast`` leave open is decided here: a frame is
written only while the client takes what it is sent, so memory per client is bounded and nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import http
import ipaddress
import ssl as tls
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import structlog
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol

from ..adapters.client_protocol import MAX_REQUEST_BYTES, SUBPROTOCOL, notice
from ..adapters.client_session import CLOSE_TOO_FAST, CLOSE_UNAUTHENTICATED, ClientSession, ClientUseCases
from ..entities.errors import IotSphereError, Limited, TooManyConnections, Unauthenticated
from ..entities.principal import Principal

log = structlog.get_logger("iotsphere.websocket")

CHECK_EVERY_S: Final = 2.0
CLOSE_RESTARTING: Final = 1012


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Bounds of the door. ``outbox_bytes``: what may wait for one client; times in seconds.

    ``per_address`` does not bind loopback addresses unless ``limit_loopback``; ``unauthenticated_per_address`` always
    does: past it the oldest connection that has not shown a token yet is cut.
    """

    outbox_bytes: int = 1024 * 1024
    connections: int = 10_000
    per_address: int = 200
    limit_loopback: bool = False
    unauthenticated_per_address: int = 100
    handshake: float = 5.0
    authentication: float = 5.0
    ping_interval: float = 20.0
    ping_timeout: float = 60.0
    requests_per_second: float = 2_000.0
    compression: bool = False
    origins: tuple[str, ...] = ()


class _Connection(ServerConnection):
    """A connection that tells its session when the client has taken what was written."""

    client: _Client | None = None
    principal: Principal | None = None
    address: str = ""
    handshake_timer: asyncio.TimerHandle | None = None

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.client is not None:
            self.client.session.has_room()


class _Client:
    """One connected client: the session's outbox, and the loop that reads its requests."""

    def __init__(
        self, connection: _Connection, use_cases: ClientUseCases, limits: WebSocketLimits, exact: bool
    ) -> None:
        self.connection = connection
        self.session = ClientSession(use_cases, self, connection.principal, exact)
        self.closing: asyncio.Task[None] | None = None
        self._limits = limits
        self.bytes_out = 0

    @property
    def full(self) -> bool:
        return self.connection.paused or self.closing is not None

    def write(self, frame: bytes) -> None:
        connection = self.connection
        if connection.protocol.state is not State.OPEN or self.closing is not None:
            return
        connection.protocol.send_text(frame)
        self.bytes_out += len(frame)
        connection.transport.write(b"".join(connection.protocol.data_to_send()))

    def close(self, code: int, reason: str) -> None:
        if self.closing is None:
            self.closing = asyncio.get_running_loop().create_task(self.connection.close(code, reason))

    async def run(self) -> None:
        """Read requests until the client is gone."""
        loop = asyncio.get_running_loop()
        connection = self.connection
        connection.transport.set_write_buffer_limits(self._limits.outbox_bytes, self._limits.outbox_bytes // 4)
        timer = None
        if self.session.principal is None:
            timer = loop.call_later(self._limits.authentication, self._demand_token)
        tokens, at = self._limits.requests_per_second, loop.time()
        try:
            while True:
                raw = await connection.recv(decode=False)
                now = loop.time()
                tokens = (
                    min(self._limits.requests_per_second, tokens + (now - at) * self._limits.requests_per_second) - 1
                )
                at = now
                if tokens < -self._limits.requests_per_second * 4:
                    self.close(CLOSE_TOO_FAST, "too fast")
                    return
                if tokens < 0:
                    await asyncio.sleep(-tokens / self._limits.requests_per_second)
                while connection.paused:
                    await connection.drain()
                await self.session.receive(raw)
        except ConnectionClosed:
            return
        finally:
            if timer is not None:
                timer.cancel()
            self.session.close()

    def _demand_token(self) -> None:
        if self.session.principal is None:
            self.close(CLOSE_UNAUTHENTICATED, "authenticate")


class WebSocketGateway:
    """Listens for WebSocket clients of the protocol ``iotsphere.v1.json``."""

    def __init__(self, use_cases: ClientUseCases, limits: WebSocketLimits = WebSocketLimits()) -> None:
        self._use = use_cases
        self._limits = limits
        self._server: Server | None = None
        self._clients: dict[_Client, None] = {}
        self._addresses: Counter[str] = Counter()
        self._pending: dict[str, dict[_Connection, None]] = {}
        self._check: asyncio.Task[None] | None = None
        self._draining = False
        self.counts: Counter[str] = Counter()

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
            close_timeout=5,
            server_header=None,
            create_connection=_Connection,
            backlog=4096,
        )
        self._check = asyncio.get_running_loop().create_task(self._keep_checking())
        address: Sequence[object] = next(iter(self._server.sockets)).getsockname()
        return str(address[0]), int(str(address[1]))

    # -- connections --------------------------------------------------------------------------------------------------

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        assert isinstance(connection, _Connection)
        peer = connection.remote_address
        connection.address = str(peer[0]) if peer else "?"
        try:
            if self._draining:
                raise TooManyConnections("the gateway is restarting; try again in a moment")
            self._count(connection)
            header = request.headers.get("Authorization")
            if header is not None:
                scheme, _, token = header.partition(" ")
                if scheme.lower() != "bearer":
                    raise Unauthenticated("send Authorization: Bearer TOKEN, or an auth request as the first message")
                connection.principal = self._use.authenticate.token(token.strip())
        except Unauthenticated as error:
            self.counts["refused_unauthenticated"] += 1
            return _refuse(http.HTTPStatus.UNAUTHORIZED, error)
        except Limited as error:
            self.counts[f"refused_{error.code}"] += 1
            return _refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, error)
        return None

    def _count(self, connection: _Connection) -> None:
        if len(self._clients) >= self._limits.connections:
            raise TooManyConnections(f"the gateway holds {self._limits.connections} connections; try again later")
        address = connection.address
        bound = self._limits.limit_loopback or not _is_loopback(address)
        if bound and self._addresses[address] >= self._limits.per_address:
            raise TooManyConnections(f"your address holds {self._limits.per_address} connections; close some")

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, _Connection)
        exact = connection.request is not None and connection.request.path.endswith("numbers=exact")
        client = connection.client = _Client(connection, self._use, self._limits, exact)
        address = connection.address
        self._clients[client] = None
        self._addresses[address] += 1
        self.counts["connected"] += 1
        if connection.principal is None:
            self._wait_for_token(connection, address)
        try:
            await client.run()
        finally:
            self._clients.pop(client, None)
            self._pending.get(address, {}).pop(connection, None)
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
                self._pending.pop(address, None)
            self.counts["disconnected"] += 1

    def _wait_for_token(self, connection: _Connection, address: str) -> None:
        waiting = self._pending.setdefault(address, {})
        for known in [c for c in waiting if c.client is not None and c.client.session.principal is not None]:
            del waiting[known]
        if len(waiting) >= self._limits.unauthenticated_per_address:
            oldest = next(iter(waiting))
            del waiting[oldest]
            self.counts["evicted_unauthenticated"] += 1
            if oldest.client is not None:
                oldest.client.close(CLOSE_UNAUTHENTICATED, "authenticate")
        waiting[connection] = None

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for count, client in enumerate(list(self._clients)):
                if not client.session.still_valid():
                    self.counts["closed_credential"] += 1
                    client.session.close()
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


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


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
