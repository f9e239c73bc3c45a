"""Where the change listener stands: a token of the database, and the ends of the log at that time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from ...entities.message import Record
from ...entities.position import Partition, Position
from ..ports.clock import Clock
from ..ports.documents import Documents
from ..ports.message_log import Appended, MessageLog

CHECKPOINTS: Final = "changes"
PLACE: Final = "listener"
READ_ENTRIES: Final = 2_000
READ_BYTES: Final = 1 << 22
LOOK_EVERY_MS: Final = 10_000


class Place(NamedTuple):
    """``positions``: the log's ends when the place was saved. ``at``: ms since 1970."""

    token: str
    at: int
    positions: Mapping[Partition, Position]


class Heard(NamedTuple):
    """What the listener has appended: the ids of messages, and by topic the retained message that was its last."""

    ids: set[str]
    states: dict[str, Record]


class Checkpoint:
    """Saves the place together with what was told last of each document. ``channels``: where messages are appended.

    ``at``: ms of the last save, 0 before. ``names``: the collections that the place stands for.
    """

    def __init__(self, documents: Documents, log: MessageLog, clock: Clock, channels: Collection[str]) -> None:
        self._documents = documents
        self._log = log
        self._clock = clock
        self._channels = channels
        self._looked_at = 0
        self._positions: dict[Partition, Position] = {}
        self.at = 0
        self.names: frozenset[str] = frozenset()

    async def load(self) -> str | None:
        """The token of the last save; None before the first one."""
        document = await self._documents.get(CHECKPOINTS, PLACE)
        if document is None:
            await self._to_the_ends()
            return None
        value = json.loads(document.value)
        self._positions = {Partition(d, c, n): Position(e, o) for d, c, n, e, o in value["positions"]}
        self.at = value["at"]
        self.names = frozenset(value["names"])
        token: str = value["token"]
        return token

    async def appended_since(self, may_be_own: Callable[[str], bool]) -> Heard:
        """Messages since the place was saved: among them those of what was told and not saved any more."""
        heard = Heard(set(), {})
        for partition, position in self._positions.items():
            at = position
            while True:
                part = await self._log.read(partition, at, limit=READ_ENTRIES, max_bytes=READ_BYTES)
                for record in (entry.record for entry in part.entries if may_be_own(entry.record.message_id)):
                    heard.ids.add(record.message_id)
                    if record.retain:
                        heard.states[record.topic] = record
                if part.end == at:
                    break
                at = part.end
        return heard

    def passed(self, records: list[Record], appended: Appended) -> None:
        """Take note of where messages were appended."""
        for record, position in zip(records, appended.positions, strict=True):
            known = self._positions.get(record.partition)
            if known is None or position > known:
                self._positions[record.partition] = position

    async def save(self, token: str, told: Mapping[str, bytes | None]) -> None:
        """Save the place, and what was told last, in one step; nothing may be appended for later changes yet."""
        self.at = self._clock.now()
        if self.at - self._looked_at >= LOOK_EVERY_MS:
            await self._to_the_ends()  # or a restart would read what others have appended since the first start
        places = [[*partition, *position] for partition, position in self._positions.items()]
        value = {"token": token, "at": self.at, "names": sorted(self.names), "positions": places}
        await self._documents.put_many(CHECKPOINTS, {PLACE: json.dumps(value).encode(), **told})

    async def _to_the_ends(self) -> None:
        self._looked_at = self._clock.now()
        self._positions = {}
        for domain in self._log.domains():
            for channel in sorted(self._channels):
                for partition in self._log.partitions(domain, channel):
                    self._positions[partition] = (await self._log.bounds(partition)).last
