"""One connection of a device, as far as care for it goes: what it was told, and which commands are on their way."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeAlias

from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.shadow import ShadowKey
from ..session.state import Carried, Pushed, Wanted

Push: TypeAlias = Callable[[Iterable[Record]], None]
REQUEST: Final = "/commands/request"
DELTA: Final = "/delta"
NOTHING: Final[dict[Any, Any]] = {}  # shared by all for whom there is nothing to remember, and never written to
NONE_WAITING: Final[list[tuple[str, bool]]] = []  # as NOTHING


class CareVisit:
    """One connection. ``carried``: what was pushed to earlier ones of its session and is under way, by its mark;
    ``session`` and ``let_go``: as ``Carried`` has them.

    ``sequences``: the deltas that it was greeted with. ``commands``: taken on here, and not yet known to be with the
    device; ``waiting``: those of them that are to be handed over; ``queued``: handed over, and not at the socket.
    ``behind``: there are more in the database. ``unsent``: handed over here for the first time, and not at the socket.
    ``others``: further connections of the device, once this one is over.
    ``carrier``: by what commands are marked as handed over here: the session, or this connection where it is not kept.
    """

    __slots__ = (
        "behind", "carried", "carrier", "commands", "greeted", "greeting", "handing", "let_go", "others", "over", "principal", "push",
        "queued", "room", "sequences", "session", "unsent", "waiting", "wanted",
    )  # fmt: skip

    def __init__(self, principal: Principal, push: Push, carried: Carried) -> None:
        self.principal = principal
        self.push = push
        self.session = carried.session
        self.carrier = carried.session or secrets.token_hex(8)
        self.let_go = carried.let_go
        self.carried: dict[str, Pushed] = {each.mark: each for each in carried.pushed if not each.fate} or NOTHING
        self.wanted: Collection[Wanted] = ()
        self.sequences: dict[ShadowKey, int] = NOTHING
        self.commands: dict[str, None] = NOTHING
        self.waiting = NONE_WAITING
        self.queued: dict[str, None] = NOTHING
        self.unsent: dict[str, None] = NOTHING
        self.room: asyncio.Event | None = None
        self.others: Callable[[], Iterable[CareVisit]] = tuple
        self.behind = False
        self.greeted = False
        self.over = False
        self.handing: asyncio.Task[None] | None = None
        self.greeting: asyncio.Task[None] | None = None

    def take_on(self, command_id: str, again: bool) -> None:
        """Let a command wait for its turn."""
        if self.commands is NOTHING:
            self.commands, self.waiting, self.queued, self.unsent = {}, [], {}, {}
        self.commands[command_id] = None
        self.waiting.append((command_id, again))

    def told(self, key: ShadowKey, sequence: int) -> None:
        """The device is sent this delta."""
        if self.sequences is NOTHING:
            self.sequences = {}
        self.sequences[key] = sequence

    def wants(self, topic: str) -> list[Wanted]:
        """The filters that select a topic."""
        return [each for each in self.wanted if each.filter.matches(topic)]

    @property
    def requests(self) -> str:
        """The topic of its commands."""
        return f"{self.principal.domain}/devices/{self.principal.name}{REQUEST}"

    @property
    def qos(self) -> int:
        """At which QoS commands go out."""
        return max((each.qos for each in self.wants(self.requests)), default=0)
