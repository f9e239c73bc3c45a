"""What holds for every request before any route sees it: who asks, how much it may send, and what answers carry."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any, Final

from ...adapters.http.failures import body_of, headers_of, status_of
from ...entities.errors import IotSphereError, RequestInvalid, Unauthenticated
from ...use_cases.ports.tokens import NOT_BELIEVED
from .access import HttpUseCases, authenticate
from .connection import MAX_HEAD_BYTES, HttpLimits
from .metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class _Gone(Exception):
    """The client left before its request was complete."""


class BoundedRequests:
    """An ASGI application around another one.

    It authenticates, reads the body within its limit (never for a caller without a credential), and adds the security
    headers. ``Content-Encoding`` is refused, so that no body can grow after it was measured.
    """

    def __init__(self, app: Application, use_cases: HttpUseCases, limits: HttpLimits, metrics: Metrics) -> None:
        self._app = app
        self._use_cases = use_cases
        self._limits = limits
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        began = time.monotonic()
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = list(message.get("headers", ()))
                said = {name for name, _ in own}  # the console has a policy of its own, and is kept by browsers
                added = [header for header in SECURITY_HEADERS if header[0] not in said]
                message["headers"] = [*own, *added, (b"date", formatdate(usegmt=True).encode())]
            await send(message)

        try:
            scope["iotsphere.principal"] = authenticate(self._use_cases, scope["headers"])
            body = await self._body(scope, receive)
        except IotSphereError as error:
            await _fail(answer, error)
        except _Gone:
            return
        else:
            await self._app(scope, _replay(body, receive), answer)
        self._metrics.answered(scope["method"], scope.get("iotsphere.route"), status, time.monotonic() - began)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. Raises RequestInvalid and Unauthenticated as early as each can be known."""
        limits = self._limits
        sizes = [len(name) + len(value) for name, value in scope["headers"]]
        if len(sizes) > limits.headers or sum(sizes) > MAX_HEAD_BYTES:
            raise RequestInvalid(
                f"more than {limits.headers} headers or {MAX_HEAD_BYTES} bytes of them; send fewer",
                code="headers_too_large",
            )
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise RequestInvalid("a length and chunks contradict each other", code="bad_request")  # smuggling
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return b""
        if scope["iotsphere.principal"] is None:
            raise Unauthenticated(NOT_BELIEVED)
        if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
            raise RequestInvalid("bodies are taken uncompressed only", code="content_encoding_refused")
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise RequestInvalid("bodies must be declared as application/json", code="content_type_refused")
        if int(length) > limits.body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limits.body_bytes:
                raise self._too_large()
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_large(self) -> RequestInvalid:
        return RequestInvalid(f"a request may hold {self._limits.body_bytes} bytes; split it", code="body_too_large")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body once, and then what the server says."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _fail(send: Send, error: IotSphereError) -> None:
    """Answer and close: what is left of the request is not read."""
    body = body_of(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.encode(), value.encode()) for name, value in headers_of(error).items()),
    ]
    await send({"type": "http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
