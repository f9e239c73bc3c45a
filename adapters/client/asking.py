"""What one client asks of shadows, commands and its notifications: each answered by itself, without holding up the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from ...entities.errors import IotSphereError, RateLimited, RequestInvalid
from ...entities.principal import Principal
from ..requests import ASK_A_GATEWAY
from . import protocol
from .publishing import expiry
from .state import Ask, ClientState
from .use_cases import ClientUseCases

MAX_ASKING: Final = 256


class ClientAsking:
    """The asking side of one client. ``answer`` sends a frame. ``exact``: integers beyond 2^53 are sent as they are."""

    def __init__(self, use_cases: ClientUseCases, answer: Callable[[bytes], None], exact: bool = False) -> None:
        self._state = use_cases.state
        self._rates = use_cases.rates
        self._answer = answer
        self._exact = exact
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, request: protocol.StateRequest, principal: Principal) -> None:
        """Begin to carry a request out; its answer comes when it is done. Raises RateLimited and RequestInvalid."""
        if self._state is None:
            raise RequestInvalid(f"here is no database for shadows, commands and what users have: {ASK_A_GATEWAY}")
        if len(self._tasks) >= MAX_ASKING:
            raise RateLimited(f"{MAX_ASKING} requests of yours are under way: wait for an answer", retry_after=1.0)
        loop = asyncio.get_running_loop()
        self._rates.check(principal, 1, len(orjson.dumps(request.model_dump())), loop.time())
        task = loop.create_task(self._carry_out(self._state, request, principal))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nobody waits for the answers any more. What was begun is in the database, or repeated by who asks again."""
        for task in self._tasks:
            task.cancel()

    async def _carry_out(self, state: ClientState, request: protocol.StateRequest, who: Principal) -> None:
        try:
            facts = await _carried_out(state, request, who)
        except IotSphereError as error:
            self._answer(protocol.failed(request.ref, error, self._exact))
        else:
            self._answer(protocol.decided(request.ref, facts, self._exact))


async def _carried_out(state: ClientState, request: protocol.StateRequest, who: Principal) -> Mapping[str, Any]:
    match request:
        case protocol.Command():
            ask = Ask(
                device=request.device,
                payload=request.payload,
                id=request.message_id,
                idempotency_key=request.idempotency_key,
                expires_at=expiry(request.expires_at),
                timeout=request.timeout,
                wait=request.wait,
            )
            return {"command": await state.command(who, ask)}
        case protocol.Cancel():
            return {"command": await state.cancel(who, request.command)}
        case protocol.Read():
            user = request.user or who.name
            return {"notification": await state.read_notification(who, user, request.notification)}
        case protocol.Shadow():
            return await _shadow(state, request, who)


async def _shadow(state: ClientState, request: protocol.Shadow, who: Principal) -> Mapping[str, Any]:
    if not request.delete and request.desired is None:
        as_of = expiry(request.as_of) if request.as_of is not None else None
        return {"shadow": await state.shadow(who, request.device, request.name, as_of=as_of, version=request.version)}
    if request.delete and request.desired is not None:
        raise RequestInvalid("a shadow is changed or deleted, not both at once")
    change: dict[str, Any] = {"delete": True} if request.delete else {"desired": request.desired}
    optional = {"version": request.version, "expires": request.expires, "expiresAt": request.expires_at}
    change.update((name, value) for name, value in optional.items() if value is not None)
    return await state.change_shadow(who, request.device, request.name, change, request.message_id)
