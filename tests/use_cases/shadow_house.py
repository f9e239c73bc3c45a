"""Shadows over each database that a test machine has by itself, on a clock that tests turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iotsphere.adapters.shadow.body import ShadowDocument, versions
from iotsphere.adapters.shadow.keeping import ShadowKeeping
from iotsphere.drivers.clock import ManualClock, SystemClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.sqlite.database import SqliteDatabase
from iotsphere.entities.shadow import Shadow, ShadowKey
from iotsphere.entities.shadow_changes import Wanted
from iotsphere.entities.shadow_reports import Place, Report
from iotsphere.use_cases.fleet import DEVICES, Fleet
from iotsphere.use_cases.ports.database import Change, Database, Write
from iotsphere.use_cases.shadow.history import HISTORY, ShadowHistory
from iotsphere.use_cases.shadow.shadows import Shadows
from iotsphere.use_cases.shadow.writer import SHADOWS

DOMAIN = "iotsphere"
KEY = ShadowKey(DOMAIN, "dev-s")
KINDS = ("memory", "sqlite", "mongodb")
END = f"{DOMAIN}/~end"


def wanted(patch: dict[str, Any], **facts: Any) -> Wanted:
    return Wanted(patch=patch, author=facts.pop("author", "ui"), **facts)


def said(patch: dict[str, Any], at: int = 1_800_000_000_000, **facts: Any) -> Report:
    return Report(patch=patch, at=at, author="dev-s", **facts)


def at_offset(offset: int, epoch: int = 1) -> Place:
    return Place("shadow/0", epoch, offset)


async def no_log(_: ShadowKey) -> dict[str, tuple[int, int]]:
    """Nothing was sent yet."""
    return {}


async def unexpected(change: Change, reason: str) -> None:
    raise AssertionError(f"{change.key}: {reason}")


class House:
    """A process's shadows. ``neighbour`` is another process on the same database."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.database = database
        self.clock = clock
        self.form = ShadowDocument()
        self.ends: dict[str, tuple[int, int]] = {}
        self.shadows = Shadows(database, self.form, clock, self._ends)
        self.history = ShadowHistory(database, self.form, clock)
        self.fleet = Fleet(database, self.shadows)
        self.told: list[Change] = []
        self._token = ""

    async def _ends(self, _: ShadowKey) -> dict[str, tuple[int, int]]:
        return self.ends

    def neighbour(self) -> House:
        return House(self.database, self.clock)

    async def begin(self) -> None:
        await self.database.ensure((SHADOWS, HISTORY, DEVICES))
        self._token = await self.database.now()

    async def catch_up(self, *, keep: bool = True) -> list[dict[str, Any]]:
        """Read the new changes as the listener does, and return the versions in them; ``keep``: do what follows too."""
        found: list[dict[str, Any]] = []
        seen = len(self.told)
        end = await self.database.put("shadows", Write(END, None, {"end": True}))
        changes = self.database.changes(self._token)
        async for change in changes:
            self._token = change.token
            if change.key == END and change.kind == "insert":
                break
            if change.key != END and change.kind != "quiet":
                self.told.append(change)
                if change.after is not None:
                    found += versions(change.before, change.after)
        await changes.aclose()
        await self.database.put("shadows", Write(END, end, None))
        if keep:
            await ShadowKeeping(self.database, self.shadows, self.clock, unexpected)(self.told[seen:])
        return found

    async def register(self, device: str, **labels: str) -> None:
        body = {"schema": 1, "domain": DOMAIN, "device": device, "labels": labels, "createdAt": 1}
        await self.database.put("devices", Write(f"{DOMAIN}/{device}", None, body))

    async def by_hand(self, key: ShadowKey, **fields: Any) -> None:
        """Write as somebody with the tools of the database does."""
        before = await self.database.get("shadows", key.text)
        body = {**({} if before is None else before.body), **fields}
        await self.database.put("shadows", Write(key.text, before, body))

    async def shadow(self, key: ShadowKey = KEY) -> Shadow:
        return await self.shadows.get(key)


def place_of(request: pytest.FixtureRequest) -> str | Path:
    """Where the database of a kind is, for ``open_house``."""
    if request.param == "memory":
        return "memory"
    found: str | Path = request.getfixturevalue({"sqlite": "tmp_path", "mongodb": "mongo_url"}[request.param])
    return found


@asynccontextmanager
async def open_house(place: str | Path) -> AsyncIterator[House]:
    """``place``: ``memory``, the address of a MongoDB, or the folder of an SQLite file."""
    clock = ManualClock(SystemClock().now())  # MongoDB removes by its own clock what has expired
    async with AsyncExitStack() as stack:
        database: Database
        if isinstance(place, Path):
            database = await stack.enter_async_context(SqliteDatabase(place / "state.db", clock))
        elif place == "memory":
            database = MemoryDatabase(clock)
        else:
            database = await stack.enter_async_context(MongoDatabase(place, clock))
        house = House(database, clock)
        await house.begin()
        yield house
