"""What one client asks of shadows, commands and its notifications: each answered by itself, without holding up the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ...entities.errors import IotSphereError, RateLimited, RequestInvalid
from ...entities.principal import Principal
from ..requests import ASK_A_GATEWAY
from . import protocol
from .listening import Outbox
from .publishing import expiry
from .state import Ask, ClientState
from .use_cases import ClientUseCases

MAX_ASKING: Final = 256
READS_AT_ONCE: Final = 4
SMALL_BYTES: Final = 4 * 1024
MAX_HELD_BYTES: Final = 2 << 20


class ClientAsking:
    """The asking side of one client. ``exact``: integers beyond 2^53 are sent as they are.

    A client that does not read its answers is asked nothing of the database for; what it has begun all the same is held
    for it up to MAX_HELD_BYTES, and beyond them refused as rate_limited, so that it may ask again.
    """

    __slots__ = ("_exact", "_held", "_outbox", "_rates", "_reads", "_room", "_state", "_tasks")

    def __init__(self, use_cases: ClientUseCases, outbox: Outbox, exact: bool = False) -> None:
        self._state = use_cases.state
        self._rates = use_cases.rates
        self._outbox = outbox
        self._exact = exact
        # Most clients never ask: what an idle one does not need is made with the first request.
        self._tasks: set[asyncio.Task[None]] | None = None
        self._reads: asyncio.Semaphore | None = None
        self._room: asyncio.Event | None = None
        self._held = 0

    def __call__(self, request: protocol.StateRequest, principal: Principal) -> None:
        """Begin to carry a request out; its answer comes when it is done. Raises RateLimited and RequestInvalid."""
        if self._state is None:
            raise RequestInvalid(f"here is no database for shadows, commands and what users have: {ASK_A_GATEWAY}")
        if self._tasks is None:
            self._tasks, self._reads = set(), asyncio.Semaphore(READS_AT_ONCE)
        if len(self._tasks) >= MAX_ASKING:
            raise RateLimited(f"{MAX_ASKING} requests of yours are under way: wait for an answer", retry_after=1.0)
        loop = asyncio.get_running_loop()
        self._rates.check(principal, 1, len(orjson.dumps(request.model_dump())), loop.time())
        task = loop.create_task(self._carry_out(self._state, request, principal))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nobody waits for the answers any more. What was begun is in the database, or repeated by who asks again."""
        for task in self._tasks or ():
            task.cancel()

    def has_room(self) -> None:
        """The client has taken what was written."""
        if self._room is not None:
            self._room.set()

    async def _carry_out(self, state: ClientState, request: protocol.StateRequest, who: Principal) -> None:
        if not _only_reads(request):
            await self._answer(request.ref, await self._decided(state, request, who))
            return
        assert self._reads is not None
        async with self._reads:
            await self._until_room()
            await self._answer(request.ref, await self._decided(state, request, who))

    async def _decided(self, state: ClientState, request: protocol.StateRequest, who: Principal) -> bytes:
        try:
            return protocol.decided(request.ref, await _carried_out(state, request, who), self._exact)
        except IotSphereError as error:
            return protocol.failed(request.ref, error, self._exact)

    async def _answer(self, ref: int | str, frame: bytes) -> None:
        size = len(frame)
        if size > SMALL_BYTES and self._outbox.full:
            if self._held + size > MAX_HELD_BYTES:
                why = f"the answer has {size} bytes, and you have not read those before it: read them, then ask again"
                frame = protocol.failed(ref, RateLimited(why, retry_after=1.0), self._exact)
            else:
                self._held += size
                try:
                    await self._until_room()
                finally:
                    self._held -= size
        self._outbox.write(frame)

    async def _until_room(self) -> None:
        while self._outbox.full:
            room = self._room = self._room or asyncio.Event()
            room.clear()
            await room.wait()


def _only_reads(request: protocol.StateRequest) -> bool:
    return isinstance(request, protocol.Shadow) and not request.delete and request.desired is None


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
    if _only_reads(request):
        as_of = expiry(request.as_of) if request.as_of is not None else None
        return {"shadow": await state.shadow(who, request.device, request.name, as_of=as_of, version=request.version)}
    if request.delete and request.desired is not None:
        raise RequestInvalid("a shadow is changed or deleted, not both at once")
    change: dict[str, Any] = {"delete": True} if request.delete else {"desired": request.desired}
    optional = {"version": request.version, "expires": request.expires, "expiresAt": request.expires_at}
    change.update((name, value) for name, value in optional.items() if value is not None)
    return await state.change_shadow(who, request.device, request.name, change, request.message_id)
