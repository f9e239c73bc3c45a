"""One HTTP connection: admitted within limits, cut when its request does not arrive or its answer is not taken."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from ...adapters.http.failures import body_of, status_of
from ...entities.certificate import Certificate
from ...entities.errors import RequestInvalid, TooManyConnections
from ..tls import peer_certificate

MAX_HEAD_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of the door; times in seconds.

    ``request``: until a request has arrived, head and body. ``stalled``: until a client takes what it was sent.
    ``per_address`` does not bind loopback addresses unless ``limit_loopback``.
    """

    body_bytes: int = 1024 * 1024
    headers: int = 100
    connections: int = 10_000
    per_address: int = 200
    limit_loopback: bool = False
    request: float = 5.0
    idle: float = 5.0
    stalled: float = 30.0


class Admission:
    """Counts connections, in all and per address. New ones are refused at a limit; old ones are kept.

    ``empty`` is set while there is none. ``trusts``: whether a client certificate has not been revoked meanwhile.
    """

    def __init__(self, limits: HttpLimits, trusts: Callable[[str], bool] = lambda _: True) -> None:
        self.limits = limits
        self.trusts = trusts
        self.open = 0
        self.refused = 0
        self.empty = asyncio.Event()
        self.empty.set()
        self._addresses: Counter[str] = Counter()

    def enter(self, address: str) -> TooManyConnections | None:
        """Count a connection in, or say why not."""
        limits = self.limits
        if self.open >= limits.connections:
            self.refused += 1
            return TooManyConnections(f"the gateway holds {limits.connections} connections; try again later")
        bound = limits.limit_loopback or not _is_loopback(address)
        if bound and self._addresses[address] >= limits.per_address:
            self.refused += 1
            return TooManyConnections(f"your address holds {limits.per_address} connections; close some")
        self.open += 1
        self.empty.clear()
        self._addresses[address] += 1
        return None

    def leave(self, address: str) -> None:
        """Count a connection out."""
        self.open -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        if not self.open:
            self.empty.set()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class HttpConnection(H11Protocol):
    """uvicorn's connection with an admission and two deadlines."""

    def __init__(self, admission: Admission, **given: Any) -> None:
        super().__init__(**given)
        self._admission = admission
        self._address: str | None = None
        self._certificate: Certificate | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Admit the connection, or say why not and close it."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        self._certificate = peer_certificate(transport)
        refusal = self._admission.enter(address)
        if refusal is not None:
            self._refuse(status_of(refusal), body_of(refusal))
            return
        self._address = address
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what was held for it."""
        self._disarm()
        self._unset_keepalive_if_required()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._address is not None:
            self._admission.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first one of a request starts its clock."""
        if self.transport.is_closing():
            return
        if self._certificate is not None and not self._admission.trusts(self._certificate.id):
            self._admission.refused += 1
            self.transport.abort()
            return
        self._arm()
        super().data_received(data)

    def handle_events(self) -> None:
        """Act on what has arrived; the clock stops once the request is complete."""
        super().handle_events()
        if self.conn.their_state is h11.SEND_BODY:
            self._arm()
        elif self.conn.their_state is not h11.IDLE:
            self._disarm()

    def pause_writing(self) -> None:
        """The client does not take its answer: it gets a while."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._admission.limits.stalled, self.transport.abort)

    def resume_writing(self) -> None:
        """The client takes its answer again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, or whose head is too large. Called where the parser's error is handled.

        ``msg`` says the same for each; the error itself tells them apart.
        """
        error = sys.exception()
        self.logger.debug(msg)
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if hint == 431:
            failure = RequestInvalid(
                f"the headers are longer than {MAX_HEAD_BYTES} bytes; send fewer", code="headers_too_large"
            )
        else:
            failure = RequestInvalid("this is no HTTP/1.1 request", code="bad_request")
        self._refuse(status_of(failure), body_of(failure))

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._admission.limits.request, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        failure = RequestInvalid(
            f"the request did not arrive within {self._admission.limits.request:g} s; send it in one go",
            code="request_timeout",
        )
        self._refuse(status_of(failure), body_of(failure))

    def _refuse(self, status: int, body: bytes) -> None:
        """Answer without the application, where an answer is still possible, and close."""
        self._disarm()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application's answer, if one is under way, is not wanted any more
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"cache-control", b"no-store"),
                (b"connection", b"close"),
            ]
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            parts = [self.conn.send(response), self.conn.send(h11.Data(data=body)), self.conn.send(h11.EndOfMessage())]
            self.transport.write(b"".join(part for part in parts if part is not None))
        self.transport.close()
        # What the client does not read must not keep the socket.
        self.loop.call_later(1.0, self.transport.abort)
