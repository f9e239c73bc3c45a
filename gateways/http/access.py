"""Who may use a route: each has exactly one rule, and the rule is asked before anything of the request is looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from ...adapters import strict_json
from ...adapters.client.fleet import ClientFleet
from ...adapters.client.state import ClientState
from ...adapters.http.publishing import HttpPublishing
from ...entities.errors import Forbidden, MessageRefused, NotFound, RequestInvalid, Unauthenticated
from ...entities.principal import OPERATOR, Principal
from ...use_cases.access.authenticate import Authenticate
from ...use_cases.access.devices import Devices
from ...use_cases.access.sign_in import SignIn
from ...use_cases.access.tokens import Tokens
from ...use_cases.dead_letters import DeadLetters
from ...use_cases.history import History
from ...use_cases.ledger import Ledger
from ...use_cases.overview import Overview
from ...use_cases.ports.message_log import MessageLog
from ...use_cases.ports.tokens import NOT_BELIEVED
from ...use_cases.trace import Trace
from .console_place import ConsolePlace

Endpoint = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure for ``/metrics`` that is read when it is asked for. ``kind``: ``counter`` or ``gauge``.

    With a ``label``, ``read`` gives a figure for each of its values, which come from a fixed set.
    """

    name: str
    meaning: str
    read: Callable[[], float | Mapping[str, float]]
    kind: str = "counter"
    label: str = ""


@dataclass(frozen=True, slots=True)
class HttpUseCases:
    """What the HTTP door can reach. ``cursor_key``: the secret that signs cursors, the same as over WebSocket.

    ``checks``: what must not raise, beside the log, for the process to be ready.
    """

    authenticate: Authenticate
    publishing: HttpPublishing
    history: History
    dead_letters: DeadLetters
    devices: Devices
    tokens: Tokens
    ledger: Ledger
    trace: Trace
    log: MessageLog
    cursor_key: bytes
    state: ClientState | None = None
    fleet: ClientFleet | None = None
    overview: Overview | None = None
    sign_in: SignIn | None = None
    console: ConsolePlace | None = None
    measures: Sequence[Measure] = field(default=())
    checks: Sequence[Callable[[], Awaitable[None]]] = field(default=())


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route asks of the caller: nothing (``public``), a role, or some grant for one of the actions.

    Which topics the grant is for is the use case's to check.
    """

    name: str
    public: bool = False
    role: str | None = None
    actions: frozenset[str] = frozenset()

    def check(self, principal: Principal | None) -> None:
        """Raise Unauthenticated, NotFound (a role is missing) or Forbidden (there is no such grant at all)."""
        if self.public:
            return
        if principal is None:
            raise Unauthenticated(NOT_BELIEVED)
        if self.role is not None:
            principal.require_role(self.role)
        if self.actions and not any(grant.action in self.actions for grant in principal.grants):
            raise Forbidden(f"{principal.name!a} holds no grant to {' or '.join(sorted(self.actions))}; ask for one")


PUBLIC: Final = Rule("public", public=True)
OPERATORS: Final = Rule("operator", role=OPERATOR)
PUBLISHERS: Final = Rule("publish", actions=frozenset(("publish", "command")))
SIGNED_IN: Final = Rule("signed in")
SUBSCRIBERS: Final = Rule("subscribe", actions=frozenset(("subscribe",)))

_RULES: Final[dict[Endpoint, Rule]] = {}


def allow(rule: Rule) -> Callable[[Endpoint], Endpoint]:
    """Give an endpoint its rule. Without one its route cannot be made."""

    def note(endpoint: Endpoint) -> Endpoint:
        _RULES[endpoint] = rule
        return endpoint

    return note


def rule_of(endpoint: Endpoint) -> Rule:
    """The rule of an endpoint. Raises LookupError for an endpoint without one."""
    try:
        return _RULES[endpoint]
    except KeyError as error:
        raise LookupError(f"{endpoint.__qualname__} has no rule; say with @allow who may use it") from error


class RuledRoute(APIRoute):
    """A route that asks its rule first, and reads JSON strictly (no key twice, no NaN, members 32 deep at most)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler behind the two checks."""
        rule = rule_of(self.endpoint)
        parses = self.body_field is not None
        handle = super().get_route_handler()

        async def ruled(request: Request) -> Response:
            request.scope["iotsphere.route"] = self.path
            rule.check(request.scope.get("iotsphere.principal"))
            if parses:
                strict(await request.body())
            return await handle(request)

        return ruled


def strict(raw: bytes) -> None:
    """Raise RequestInvalid for a body that is no strict JSON."""
    try:
        value = strict_json.parse(strict_json.decode(raw))
        # A payload may nest as deep as it may elsewhere, so it is its members that are looked at.
        if any(strict_json.survey(member)[0] for member in (value.values() if isinstance(value, dict) else (value,))):
            raise strict_json.too_deep()
    except MessageRefused as error:
        raise RequestInvalid(error.message.replace("the payload", "the body"), code=error.code) from error


async def _use_cases(request: Request) -> HttpUseCases:
    found: HttpUseCases = request.app.state.use_cases
    return found


async def _caller(request: Request) -> Principal:
    principal: Principal | None = request.scope.get("iotsphere.principal")
    if principal is None:
        raise Unauthenticated(NOT_BELIEVED)
    return principal


async def _state(request: Request) -> ClientState:
    state: ClientState | None = request.app.state.use_cases.state
    if state is None:
        raise NotFound
    return state


State = Annotated[ClientState, Depends(_state)]
Use = Annotated[HttpUseCases, Depends(_use_cases)]
Caller = Annotated[Principal, Depends(_caller)]


def authenticate(use_cases: HttpUseCases, headers: Sequence[tuple[bytes, bytes]]) -> Principal | None:
    """The principal of the Authorization header, which must stand there once and be ``Bearer TOKEN``; else None."""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, token = found[0].partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    try:
        return use_cases.authenticate.token(token.decode("latin-1"))
    except Unauthenticated:
        return None  # the route's rule tells the caller so, with one and the same text


def answers(example: Mapping[str, Any], description: str) -> dict[str, Any]:
    """The part of an OpenAPI response that shows an example."""
    return {"description": description, "content": {"application/json": {"example": dict(example)}}}


def asks(example: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an OpenAPI operation that shows an example of its request."""
    return {"requestBody": {"content": {"application/json": {"example": dict(example)}}}}
