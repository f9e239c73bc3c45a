"""The HTTP door: publish, read back, and look after a gateway, with FastAPI on uvicorn inside our own event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl as tls
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import structlog
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ...adapters.http.failures import body_of, headers_of, status_of
from ...adapters.http.models import FailureBody
from ...entities.errors import IotSphereError, NotFound, RequestInvalid
from ..tls import HANDSHAKE_S
from . import commands, dead_letters, fleet, identity, messages, session, shadows, static, status, users
from .access import HttpUseCases, answers, rule_of
from .connection import MAX_HEAD_BYTES, Admission, HttpConnection, HttpLimits
from .limits import BoundedRequests
from .metrics import Metrics

log = structlog.get_logger("iotsphere.http")
BACKLOG: Final = 2_048
ROUTERS: Final = (
    messages.router,
    shadows.router,
    commands.router,
    users.router,
    fleet.router,
    dead_letters.router,
    identity.router,
    session.router,
    status.router,
    static.router,
)


def make_app(use_cases: HttpUseCases, metrics: Metrics) -> FastAPI:
    """The application with all its routes, each behind its rule."""
    app = FastAPI(
        title="IoTSphere",
        summary="Publish, read back, and look after a gateway",
        version="1",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.use_cases = use_cases
    app.state.metrics = metrics
    app.state.draining = False
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                _document(route)
            app.router.routes.append(route)
    describe = app.openapi
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    app.openapi = lambda: _completed(describe(), routes)  # type: ignore[method-assign]  # the framework's way to extend it
    app.add_exception_handler(IotSphereError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unmatched)
    app.add_exception_handler(Exception, _broken)
    return app


def _document(route: APIRoute) -> None:
    """Say in the OpenAPI document what every route with a rule can answer."""
    rule = rule_of(route.endpoint)
    if rule.public:
        return
    route.openapi_extra = {**(route.openapi_extra or {}), "security": [{"bearer": []}], "x-rule": rule.name}
    route.responses.setdefault(
        401, {"model": FailureBody, **answers(FailureBody.example, "No credential, or none that is accepted")}
    )


def _completed(document: dict[str, Any], routes: Sequence[APIRoute]) -> dict[str, Any]:
    """The OpenAPI document with the way to authenticate, and with whole examples: the framework drops nulls."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["bearer"] = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    for route in routes:
        for method in route.methods or ():
            told = document["paths"][route.path][method.lower()]["responses"]
            for code, answer in route.responses.items():
                for kind, content in answer.get("content", {}).items():
                    told[str(code)]["content"][kind]["example"] = content["example"]
    return document


async def _refused(_: Request, error: Exception) -> Response:
    failure = cast(IotSphereError, error)
    return Response(body_of(failure), status_of(failure), headers_of(failure), "application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    """A query or body that does not fit its model: tell where and why, never what it held."""
    first = cast(RequestValidationError, error).errors()[0]
    where = ".".join(str(part) for part in first["loc"])[:120]
    return await _refused(request, RequestInvalid(f"{where}: {first['msg']}; see /openapi.json"))


async def _unmatched(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    told = cast(HTTPException, error)
    if told.status_code != 405:
        return await _refused(request, NotFound())
    answer = await _refused(request, RequestInvalid("this path has no such method", code="method_not_allowed"))
    answer.headers.update(told.headers or {})
    return answer


async def _broken(request: Request, error: Exception) -> Response:
    log.error("request_failed", route=request.scope.get("iotsphere.route"), error=type(error).__name__)
    return await _refused(request, IotSphereError("the gateway failed; its log says why"))


class HttpGateway:
    """Listens, serves, and stops without cutting what is under way."""

    def __init__(self, use_cases: HttpUseCases, limits: HttpLimits) -> None:
        self.metrics = Metrics()
        self.app = make_app(use_cases, self.metrics)
        self.admission = Admission(limits, use_cases.authenticate.trusts)
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # clients must not be able to fill the log
        self._config = uvicorn.Config(
            cast(Any, BoundedRequests(cast(Any, self.app), use_cases, limits, self.metrics)),
            http=cast(Any, partial(HttpConnection, self.admission)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=cast(int, limits.idle),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )

    async def start(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> tuple[str, int]:
        """Listen; port 0 = any free one. Returns the address. Raises OSError when it cannot."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        listening.setblocking(False)
        self._config.load()
        server = uvicorn.Server(self._config)
        server.lifespan = self._config.lifespan_class(self._config)
        make = partial(
            cast(Any, self._config.http_protocol_class),
            config=self._config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        # As uvicorn's own startup does it, which knows no limit for the handshake.
        server.servers = [
            await loop.create_server(
                make,
                sock=listening,
                ssl=ssl,
                backlog=BACKLOG,
                ssl_handshake_timeout=HANDSHAKE_S if ssl is not None else None,
            )
        ]
        self._server, self._socket = server, listening
        bound = listening.getsockname()
        return bound[0], bound[1]

    async def drain(self, timeout: float) -> None:
        """Accept nobody any more, finish what is under way within ``timeout`` seconds, then cut the rest."""
        self.app.state.draining = True
        if self._server is None or self._socket is None:
            return
        server, self._server = self._server, None
        state = server.server_state
        for listener in server.servers:
            listener.close()
        self._socket.close()
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.admission.empty.wait()
        for connection in list(state.connections):
            connection.transport.abort()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stop at once."""
        await self.drain(0.1)
