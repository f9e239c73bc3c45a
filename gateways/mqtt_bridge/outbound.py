"""The way out: entries of the log become messages at the broker, in order; they count as handed over with its PUBACK."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from ...adapters.bridge.messages import Outgoing, Outward, broker_refusal
from ...entities.errors import MessageRefused
from ...entities.message import Entry
from ...use_cases.forward import Handed
from ...use_cases.ports.message_log import Tally
from .link import NO_ANSWER, BrokerLink
from .options import BridgeOptions, BridgeUseCases

QUOTA_EXCEEDED: Final = 0x97
FIRST_FAILURE: Final = 0x80
QUOTA_PAUSE_S: Final = 1.0
REMEMBERED_DEVICES: Final = 4_096

log = structlog.get_logger("iotsphere.bridge")


class Current:
    """The connection that stands now, or the one to come."""

    def __init__(self) -> None:
        self._there = asyncio.Event()
        self.link: BrokerLink | None = None

    def set(self, link: BrokerLink | None) -> None:
        """Name it; None while there is none."""
        self.link = link
        if link is None:
            self._there.clear()
        else:
            self._there.set()

    async def get(self) -> BrokerLink:
        """Wait for it."""
        while self.link is None:
            await self._there.wait()
        return self.link


class Pace:
    """Messages a second to each device. Past the limit something goes round in circles: it is slowed down and told.

    Bounded: the devices that were quiet longest are forgotten first.
    """

    def __init__(self, limit: int, looping: Callable[[str], None]) -> None:
        self._limit = limit
        self._looping = looping
        self._seconds: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def pause(self, key: str, now: float) -> float:
        """Seconds to wait before one more message to this device. ``now``: of a clock that never goes back."""
        second = int(now)
        began, count = self._seconds.pop(key, (second, 0))
        if began != second:
            began, count = second, 0
        self._seconds[key] = began, count + 1
        if len(self._seconds) > REMEMBERED_DEVICES:
            self._seconds.popitem(last=False)
        if count < self._limit:
            return 0.0
        self._looping(key)
        return second + 1 - now


class _Item(NamedTuple):
    entry: Entry
    outgoing: Outgoing


class Outbound:
    """Hands entries to whichever connection stands. ``looping`` is told of devices that get suspiciously much."""

    def __init__(
        self,
        use: BridgeUseCases,
        options: BridgeOptions,
        outward: Outward,
        counts: Counter[str],
        looping: Callable[[str], None],
    ) -> None:
        self._use = use
        self._options = options
        self._outward = outward
        self._counts = counts
        self._pace = Pace(options.per_device, looping)
        self.current = Current()
        self.origin = ""

    async def send(self, entries: Sequence[Entry]) -> Handed:
        """Hand over what the rules select; returns once the broker has acknowledged, or refused, each."""
        now = self._use.clock.now()
        items: list[_Item] = []
        expired = refused = 0
        for entry in entries:
            try:
                outgoing = self._outward(entry, now)
            except MessageRefused as error:
                await self._bury(entry, error)
                refused += 1
                continue
            if outgoing is None:
                continue
            if entry.record.expires_at and entry.record.expires_at <= now:
                expired += 1
            else:
                items.append(_Item(entry, outgoing))
        refused += await self._deliver(items)
        self._counts["expired"] += expired
        self._counts["published"] += len(items)
        tally = Tally(applied=len(entries) - expired - refused, expired=expired, dead_lettered=refused)
        return Handed(tally, len(items))

    async def _deliver(self, items: list[_Item]) -> int:
        """Publish in order with several on the way; after a lost connection again from the oldest unanswered one on."""
        todo = deque(items)
        refused = 0
        while todo:
            link = await self.current.get()
            under_way: deque[tuple[_Item, asyncio.Future[int]]] = deque()
            while todo or under_way:
                while todo and len(under_way) < link.window:
                    item = todo.popleft()
                    if not link.fits(item.outgoing):
                        await self._bury(item.entry, broker_refusal(0x95, item.outgoing.topic))
                        refused += 1
                        continue
                    pause = self._pace.pause(item.outgoing.key, asyncio.get_running_loop().time())
                    if pause:
                        await asyncio.sleep(pause)
                    under_way.append((item, link.publish(item.outgoing, self.origin)))
                if not under_way:
                    break
                item, answer = under_way[0]
                code = await self._answered(link, answer)
                if code in (NO_ANSWER, QUOTA_EXCEEDED):
                    self._counts["published_again"] += len(under_way)
                    todo.extendleft(again for again, _ in reversed(under_way))
                    await self._recover(link, code)
                    break
                under_way.popleft()
                if code >= FIRST_FAILURE:
                    await self._bury(item.entry, broker_refusal(code, item.outgoing.topic))
                    refused += 1
        return refused

    async def _answered(self, link: BrokerLink, answer: asyncio.Future[int]) -> int:
        done, _ = await asyncio.wait((answer,), timeout=self._options.answer)
        if not done:
            link.drop(f"the broker did not acknowledge a message within {self._options.answer:g} s")
        return await answer

    async def _recover(self, link: BrokerLink, code: int) -> None:
        """Before the rest is sent again: the others of this connection, if it stands, come to their ends first."""
        if code == QUOTA_EXCEEDED:
            self._counts["broker_full"] += 1
            link.drop("the broker's quota is exceeded; trying again from the first message that it refused")
            await asyncio.sleep(QUOTA_PAUSE_S)
        if self.current.link is link:
            self.current.set(None)

    async def _bury(self, entry: Entry, error: MessageRefused) -> None:
        self._counts["publish_refused"] += 1
        log.warning("bridge_message_refused", topic=entry.record.topic, code=error.code, message=error.message)
        await self._use.publish([self._outward.dead_letter(entry, self._use.clock.now(), error)])
