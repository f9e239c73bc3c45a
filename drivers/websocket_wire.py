"""The client protocol to a running gateway over a WebSocket, which is opened again whenever it is lost."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Literal
from urllib.parse import urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
from websockets.typing import Subprotocol

from ..adapters.broker.session_wire import CLOSE_ERRORS
from ..adapters.broker.wire import WireUser
from ..adapters.client.protocol import SUBPROTOCOL
from ..entities.errors import (
    Forbidden,
    IotSphereError,
    RateLimited,
    RequestInvalid,
    TooManyConnections,
    Unauthenticated,
    Unavailable,
    error_of,
)

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
OPEN_TIMEOUT_S: Final = 10.0


class WebSocketWire:
    """One connection at a time. Lost ones are opened again with growing, random pauses.

    Close codes 4401 and 4403, and HTTP 401 and 403, are final: the token is not believed any more. 4429 is followed by
    a longer pause.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise RequestInvalid(f"{url!a} is no WebSocket address; write ws://HOST:PORT or wss://HOST:PORT")
        self._shown = f"{parts.scheme}://{parts.netloc}"
        self._url = urlunsplit(parts._replace(path=parts.path or "/", query=urlencode({"numbers": "exact"})))
        self._proxy: Literal[True] | None = None if _is_local(parts.hostname) else True
        self._token = token
        self._outgoing: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, user: WireUser) -> None:
        """Connect for the first time. Raises Unauthenticated, Forbidden, Limited, Unavailable; does not try again."""
        connection = await self._connect()
        self._connection = connection
        user.opened()
        self._task = asyncio.get_running_loop().create_task(self._run(connection, user))

    def send(self, frame: bytes) -> None:
        """Put a request on its way."""
        if self._connection is not None:
            self._outgoing.append(frame)
            self._filled.set()

    def use_token(self, token: str) -> None:
        """Show this token from the next connection on."""
        self._token = token

    async def close(self) -> None:
        """Send what waits, and end the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ConnectionClosed):
                await self._write(connection)
            await connection.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _connect(self) -> ClientConnection:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            return await connect(
                self._url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=headers,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                max_queue=4,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=2,
                proxy=self._proxy,
            )
        except InvalidStatus as error:
            raise _refused(self._shown, error) from error
        except InvalidURI as error:
            raise RequestInvalid(f"{self._shown!a} is no WebSocket address; write ws://HOST:PORT") from error
        except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
            raise Unavailable(f"no gateway answers at {self._shown} ({error}); is it running?") from error

    async def _run(self, connection: ClientConnection, user: WireUser) -> None:
        while True:
            end = await self._talk(connection, user)
            self._connection = None
            self._outgoing.clear()
            final = end is not None and not isinstance(end, RateLimited)
            user.lost(end if final else None)
            if final:
                return
            try:
                connection = await self._reconnect(LAST_RETRY_S if end is not None else FIRST_RETRY_S)
            except IotSphereError as error:
                user.lost(error)
                return
            self._connection = connection
            user.opened()

    async def _talk(self, connection: ClientConnection, user: WireUser) -> IotSphereError | None:
        """Speak until the connection ends; returns why, if the gateway ended it for a reason of the protocol."""
        writer = asyncio.get_running_loop().create_task(self._keep_writing(connection))
        try:
            while True:
                await user.received(await connection.recv(decode=False))
        except ConnectionClosed:
            kind = CLOSE_ERRORS.get(connection.close_code or 0)
            reason = connection.close_reason or "no reason given"
            return None if kind is None else error_of(kind, f"the gateway closed the connection: {reason}")
        finally:
            writer.cancel()
            await asyncio.wait((writer,))

    async def _keep_writing(self, connection: ClientConnection) -> None:
        try:
            while True:
                await self._write(connection)
                self._filled.clear()
                await self._filled.wait()
        except ConnectionClosed:
            return  # the reader finds out, too

    async def _write(self, connection: ClientConnection) -> None:
        while self._outgoing:
            await connection.send(self._outgoing.popleft(), text=True)

    async def _reconnect(self, pause: float) -> ClientConnection:
        """Try until there is a connection. Raises Unauthenticated and Forbidden."""
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            try:
                return await self._connect()
            except (Unavailable, TooManyConnections):
                pause = min(pause * 2, LAST_RETRY_S)


def _refused(shown: str, error: InvalidStatus) -> IotSphereError:
    match error.response.status_code:
        case 401:
            return Unauthenticated(f"{shown} does not accept the token; ask the operator for a new one")
        case 403:
            return Forbidden(f"{shown} does not let this client in")
        case 429 | 503:
            return TooManyConnections(f"{shown} takes no more connections now; try again later")
        case status:
            return Unavailable(f"{shown} answered with HTTP status {status}; is it the WebSocket door?")


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
