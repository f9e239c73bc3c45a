"""The feed of changes: one change stream for all watched collections, which goes on after whatever interrupts it.

A failover, a dropped collection or database, and an event that is larger than the server can send do not end it. When
the server no longer knows what followed a token, that is said once, and never tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from enum import Enum
from typing import Final

from bson import Timestamp
from pymongo.errors import PyMongoError

from ...adapters.database.requests import changes_lost
from ...entities.errors import DatabaseUnavailable
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.database import Change
from .events import changes_of, pipeline
from .failures import is_lost, is_passing, is_too_large, name_of
from .link import Document, Link
from .schema import Store
from .stream import Stream
from .tokens import Place, place_after, place_behind, place_of

logger = logging.getLogger(__name__)

WAIT_S: Final = 1.0
MENDING_S: Final = 10.0
MEND_EVERY_S: Final = 0.2

Mend = Callable[[], Awaitable[Store]]


class Pace(Enum):
    """How events are fetched: many with their documents, one with its documents, one without them."""

    MANY = "many"
    ONE = "one"
    LEAN = "lean"


class Feed:
    """Changes of some collections. ``mend`` makes collections that went, and says what the store is now."""

    def __init__(self, link: Link, clock: Clock, names: Collection[str], mend: Mend) -> None:
        self._link = link
        self._clock = clock
        self._names = names
        self._mend = mend
        self._pace = Pace.MANY
        self._place = Place(Timestamp(0, 0), "")
        self._store = Store("", {})
        self._fetched = False

    async def follow(self, after: str, store: Store) -> AsyncGenerator[Change, None]:
        """Changes after a token, for ever. Raises ChangesLost, DatabaseUnavailable."""
        self._store = store
        self._place = place_of(after, store.epoch)
        failed_at = None
        while True:
            try:
                async with aclosing(self._read_lean() if self._pace is Pace.LEAN else self._read()) as changes:
                    async for change in changes:
                        yield change
            except DatabaseUnavailable as error:
                cause = error.__cause__
                if isinstance(cause, PyMongoError) and is_lost(cause):
                    raise changes_lost(self._token) from error
                if isinstance(cause, PyMongoError) and is_too_large(cause) and self._pace is not Pace.LEAN:
                    self._pace = Pace.ONE if self._pace is Pace.MANY else Pace.LEAN
                    continue
                # A new primary, most likely. Without any progress since the last time, whoever asked has to know.
                if failed_at == self._place or not (isinstance(cause, PyMongoError) and is_passing(cause)):
                    raise
                failed_at = self._place
                logger.info("the change stream is opened anew: %s", name_of(cause))

    async def _read(self) -> AsyncGenerator[Change, None]:
        """Changes of one cursor, until it ends or another pace is due."""
        one_by_one = self._pace is Pace.ONE
        size = 1 if one_by_one else self._link.options.batch
        quiet = self._link.options.quiet
        loop = asyncio.get_running_loop()
        stream = await self._open(lean=False)
        self._fetched = False
        try:
            quiet_at = loop.time() + quiet
            alive = True
            while alive:
                events, token, alive = await stream.more(size, min(WAIT_S, quiet))
                self._fetched = self._fetched or bool(events)
                for event in events:
                    if self._place.has_seen(event):
                        continue
                    for change in await self._tell(event):
                        yield change
                    quiet_at = loop.time() + quiet
                if len(events) < size:
                    self._place = max(self._place, place_after(token))
                if loop.time() >= quiet_at:
                    yield Change(self._token, self._clock.now(), "quiet")
                    quiet_at = loop.time() + quiet
                if one_by_one and not events:
                    self._pace = Pace.MANY
                    return
        finally:
            await stream.close()

    async def _read_lean(self) -> AsyncGenerator[Change, None]:
        """The changes at one time without their documents: among them is one that is too large to be sent with them.

        The server would come upon it again when asked for that time, so the place is then behind the whole time.
        """
        stream = await self._open(lean=True)
        told_at: Timestamp | None = None
        try:
            while True:
                events, token, _ = await stream.more(1, min(WAIT_S, self._link.options.quiet))
                if not events:
                    self._place = max(place_behind(self._place.time), place_after(token))
                    break
                (event,) = events
                if self._place.has_seen(event):
                    if (
                        not self._fetched
                    ):  # not even the first could be fetched whole: what is too large is of this time
                        told_at = event["clusterTime"]
                    continue
                if told_at is not None and event["clusterTime"] != told_at:
                    self._place = place_behind(told_at)
                    break
                told_at = event["clusterTime"]
                for change in await self._tell(event, lean=True):
                    yield change
        finally:
            await stream.close()
        logger.warning("a change in MongoDB was larger than the server can send; it is told without its documents")
        self._pace = Pace.MANY

    async def _open(self, lean: bool) -> Stream:
        return await Stream.open(self._link, pipeline(self._place.time, self._names, self._store.since, lean))

    @property
    def _token(self) -> str:
        return self._place.text(self._store.epoch)

    async def _tell(self, event: Document, lean: bool = False) -> list[Change]:
        before = self._token
        if event["operationType"] in ("drop", "rename"):
            logger.warning("a watched collection was dropped or renamed in MongoDB")
            await self._put_right()
        if event["operationType"] == "invalidate":  # opened again at this very time, the stream would end at once
            self._place = place_behind(event["clusterTime"])
            return []
        self._place = place_after(event["_id"])
        told = changes_of(event, self._token, self._names, lean)
        # Of two changes by one event, the first is told again when reading goes on after it.
        return [change._replace(token=before) for change in told[:-1]] + told[-1:]

    async def _put_right(self) -> None:
        """Make anew what went, so that it is watched with its documents; the server may still be at removing it."""
        deadline = asyncio.get_running_loop().time() + MENDING_S
        while True:
            try:
                self._store = await self._mend()
                return
            except DatabaseUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(MEND_EVERY_S)
