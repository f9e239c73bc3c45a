"""One subscription of one client: its reader or its place in a work queue, and what the client was told about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...entities.errors import Unavailable
from ...entities.subscription import Subscription
from ...use_cases.reader import Reader
from ...use_cases.work import Handout, Member
from . import protocol
from .frames import FRAME_BYTES, SharedFrame

LAG_NOTICE_S: Final = 5.0
CURSOR_NOTICE_S: Final = 30.0
MAX_HANDOUT: Final = 100
RETRY_S: Final = 0.5
KEEP_EVERY: Final = 0.1  # of the visibility


class Outbox(Protocol):
    """The way to the client. ``write`` never blocks; ``full`` says that nothing more should be written now."""

    @property
    def full(self) -> bool:
        """True while the client has not taken what was written."""
        ...

    def write(self, frame: bytes) -> None:
        """Send one text frame."""
        ...

    def write_shared(self, frame: SharedFrame) -> None:
        """Send one text frame that others get as well."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the connection with a WebSocket close code."""
        ...


@dataclass(slots=True, eq=False)
class Listening:
    """A subscription by its ``name``.

    ``each``: the client wants a cursor with each message. ``held``: deliveries that it has not acknowledged, in the
    order in which they were handed out, ``credit`` at most; ``kept_at``: when they were last kept for longer.
    """

    name: str
    scope: str
    subscription: Subscription
    head: bytes
    credit: int
    each: bool = False
    reader: Reader | None = None
    member: Member | None = None
    task: asyncio.Task[None] | None = None
    held: dict[str, None] = field(default_factory=dict)
    kept_at: float = 0.0
    room: asyncio.Event | None = None
    told_lag_at: float = -LAG_NOTICE_S
    told_lag: bool = False
    told_cursor_at: float = 0.0
    knows_cursor: bool = False

    @property
    def is_rewinding(self) -> bool:
        """True while it plays the past."""
        return self.reader is not None and self.reader.playback is not None

    def resume(self) -> None:
        """The client has room again."""
        if self.reader is not None:
            self.reader.resume()
        if self.room is not None:
            self.room.set()

    def close(self) -> None:
        """End it. Nothing is delivered afterwards."""
        if self.reader is not None:
            self.reader.close()
        if self.task is not None:
            self.task.cancel()

    def told_cursor(self, now: float, known: bool = True) -> None:
        """Take note that the client was told where it stands, or (not ``known``) that it cannot know yet."""
        self.knows_cursor = known
        self.told_cursor_at = now

    def cursor_due(self, now: float) -> bool:
        """Whether to tell a client where it stands that has heard nothing for a while."""
        return not self.knows_cursor or now - self.told_cursor_at >= CURSOR_NOTICE_S

    def lag_notice(self, lag: int, now: float) -> bytes | None:
        """What to tell a client that is ``lag`` messages behind (0: no longer); at most every five seconds.

        ``now``: seconds of any clock that never goes back.
        """
        if lag and now - self.told_lag_at < LAG_NOTICE_S:
            return None
        if not lag and not self.told_lag:
            return None
        self.told_lag_at = now
        self.told_lag = lag > 0
        return protocol.notice(
            "lagging",
            subscription=self.name,
            policy=self.subscription.policy,
            behind=lag,
            superseded=self.reader.superseded if self.reader is not None else 0,
        )

    async def hand_out(
        self, member: Member, outbox: Outbox, encode: Callable[[list[Handout]], Iterator[bytes]]
    ) -> None:
        """Pass deliveries to the client for ever, as long as it has credit and room.

        What is handed out alone stays alone until it is answered for, or is no longer this client's.
        """
        limit = MAX_HANDOUT
        settings = member.settings
        while True:
            while len(self.held) >= self.credit or outbox.full:
                await self._until_room()
            try:
                handouts = await member.take(min(limit, self.credit - len(self.held)))
            except Unavailable:
                await asyncio.sleep(RETRY_S)  # the log is coming back; the publisher counts and reports its absence
                continue
            if not self.held:
                self.kept_at = asyncio.get_running_loop().time()
            for item in handouts:
                self.held.pop(item.token, None)
                self.held[item.token] = None
            size = 0
            for frame in encode(handouts):
                outbox.write(frame)
                size += len(frame)
            limit = max(1, min(MAX_HANDOUT, FRAME_BYTES * len(handouts) // size))
            if handouts[-1].attempt >= settings.alone:
                await self._until_answered(handouts[-1].token, settings.visibility / 1000)

    async def answered(self, member: Member, tokens: Sequence[str]) -> None:
        """Take note that deliveries are done or given back, and keep those that were handed out after them for longer.

        A client that goes on answering is slow, not dead: what waits in its buffer must neither go to others nor
        become poison meanwhile. What it has passed over comes again in its time.
        """
        done, behind = set(tokens), list[str]()
        for token in self.held:
            if token in done:
                behind.clear()
            else:
                behind.append(token)
        held_some = not done.isdisjoint(self.held)
        for token in done:
            self.held.pop(token, None)
        if self.room is not None:
            self.room.set()
        now = asyncio.get_running_loop().time()
        if held_some and behind and now - self.kept_at >= KEEP_EVERY * member.settings.visibility / 1000:
            self.kept_at = now
            await member.keep(behind)

    async def _until_answered(self, token: str, within: float) -> None:
        """Wait until a delivery is done or given back, but not for longer than it is the client's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while token in self.held:
                    await self._until_room()

    async def _until_room(self) -> None:
        room = self.room = self.room or asyncio.Event()
        room.clear()
        await room.wait()
