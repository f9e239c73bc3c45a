"""Dead letters: what was refused can be listed, inspected, sent again once its cause is mended, or discarded."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ..entities.dead_letter import DeadLetter
from ..entities.errors import Conflict, MessageRefused, NotFound, RequestInvalid
from ..entities.message import Entry, Record
from ..entities.position import Partition, Position, partition_index
from ..entities.principal import OPERATOR, Principal
from .ports.clock import Clock
from .ports.documents import Documents
from .ports.message_log import MessageLog
from .publish import MessagePublishUseCase

COLLECTION: Final = "dead-letters"
STATES: Final = ("open", "redriven", "discarded")
WINDOW: Final = 500
MAX_SCANNED: Final = 20_000


class LetterFormat(Protocol):
    """How dead letters are written in the log, and how their message becomes a record again."""

    def read(self, entry: Entry) -> DeadLetter:
        """The dead letter of an entry. Raises MessageRefused when it is none."""
        ...

    def readmit(self, principal: Principal, letter: DeadLetter, fallback_id: str) -> Record:
        """Send the message through the edge again. It keeps the id that it states, else it gets ``fallback_id``.

        Raises whatever the edge refuses it for.
        """
        ...

    def message_id(self, digest: bytes) -> str:
        """The message id that follows from 16 bytes of a hash."""
        ...


class Letter(NamedTuple):
    """A dead letter in its place. ``state``: open, redriven or discarded; ``decided_at``: ms, 0 while open.

    ``redriven_as``: the message id that it was sent again with.
    """

    letter_id: str
    position: Position
    letter: DeadLetter
    state: str
    decided_at: int
    redriven_as: str | None


class LetterPage(NamedTuple):
    """Letters, newest first. ``before``: the offset to go on before, None at the end."""

    letters: Sequence[Letter]
    before: int | None


class Redriven(NamedTuple):
    """Where a message went when it was sent again. ``duplicate``: it was in the log already."""

    message_id: str
    partition: Partition
    position: Position
    duplicate: bool


class DeadLetters:
    """The dead letters of the caller's domain, for principals with the role ``operator`` (NotFound otherwise)."""

    def __init__(
        self,
        log: MessageLog,
        documents: Documents,
        publish: MessagePublishUseCase,
        letters: LetterFormat,
        clock: Clock,
    ) -> None:
        self._log = log
        self._documents = documents
        self._publish = publish
        self._letters = letters
        self._clock = clock
        self._counted: dict[str, tuple[Position, Counter[str]]] = {}

    async def page(
        self,
        principal: Principal,
        *,
        reason: str | None = None,
        device: str | None = None,
        state: str | None = "open",
        before: int | None = None,
        limit: int = 50,
    ) -> LetterPage:
        """Letters, newest first; ``device``: those that it sent, or that were sent to one of its topics."""
        principal.require_role(OPERATOR)
        place = self._place(principal.domain)
        bounds = await self._log.bounds(place)
        high = bounds.last.offset if before is None else min(before - 1, bounds.last.offset)
        found: list[Letter] = []
        scanned = 0
        while high >= bounds.first.offset and scanned < MAX_SCANNED:
            low = max(bounds.first.offset, high - WINDOW + 1)
            for entry in reversed(await self._between(place, bounds.last.epoch, low, high)):
                letter = await self._open(entry)
                if letter is not None and _selected(letter, reason, device, state):
                    found.append(letter)
                    if len(found) == limit:
                        return LetterPage(found, entry.position.offset)
            scanned += high - low + 1
            high = low - 1
        return LetterPage(found, high + 1 if high >= bounds.first.offset else None)

    async def get(self, principal: Principal, letter_id: str) -> Letter:
        """One letter by its id. Raises NotFound."""
        principal.require_role(OPERATOR)
        entry = await self._log.find(principal.domain, letter_id)
        letter = await self._open(entry) if entry is not None else None
        if letter is None:
            raise NotFound
        return letter

    async def redrive(self, principal: Principal, letter_id: str) -> Redriven:
        """Publish the message again, to the same topic. Repeating it changes nothing.

        Raises Conflict when the letter was discarded, RequestInvalid when only a part of the message was kept, and
        what the edge still refuses it for.
        """
        letter = await self.get(principal, letter_id)
        content = letter.letter
        if letter.state == "discarded":
            raise Conflict("the letter was discarded; a discarded message is not sent again")
        if len(content.raw) != content.size or hashlib.sha256(content.raw).hexdigest() != content.sha256:
            raise RequestInvalid(
                f"only the first {len(content.raw)} of {content.size} bytes were kept, so the message cannot be redriven; "
                "send it again from its source",
                code="dead_letter_truncated",
            )
        digest = hashlib.sha256(f"redrive\n{principal.domain}\n{letter_id}".encode()).digest()
        record = self._letters.readmit(principal, content, self._letters.message_id(digest[:16]))
        known = await self._log.find(principal.domain, record.message_id)
        if known is not None:
            where, duplicate = known.position, True
        else:
            appended = await self._publish([record])
            where, duplicate = appended.positions[0], bool(appended.duplicates)
        if letter.state == "open":
            await self._decide(principal.domain, letter_id, "redriven", record.message_id)
        return Redriven(record.message_id, record.partition, where, duplicate)

    async def discard(self, principal: Principal, letter_id: str) -> None:
        """Give a letter up. Repeating it changes nothing. Raises Conflict when it was redriven."""
        letter = await self.get(principal, letter_id)
        if letter.state == "redriven":
            raise Conflict("the letter was redriven already; there is nothing to discard")
        if letter.state == "open":
            await self._decide(principal.domain, letter_id, "discarded", None)

    async def counts(self, domain: str) -> Mapping[str, int]:
        """How many dead letters there were per reason, of those in the log when this process first counted."""
        place = self._place(domain)
        position, counter = self._counted.get(domain, (Position(0, 0), Counter()))
        while True:
            part = await self._log.read(place, position)
            counter.update(letter.reason for letter in map(self._read, part.entries) if letter is not None)
            if part.end == position:
                break
            position = part.end
        self._counted[domain] = (position, counter)
        return dict(sorted(counter.items()))

    async def about(self, domain: str, message_id: str) -> Letter | None:
        """The newest letter that has this id, or is about the message with this id. Looks at the newest 20,000."""
        place = self._place(domain)
        bounds = await self._log.bounds(place)
        high = bounds.last.offset
        while high >= bounds.first.offset and bounds.last.offset - high < MAX_SCANNED:
            low = max(bounds.first.offset, high - WINDOW + 1)
            for entry in reversed(await self._between(place, bounds.last.epoch, low, high)):
                letter = self._read(entry)
                if letter is not None and message_id in (entry.record.message_id, letter.message_id):
                    return await self._open(entry)
            high = low - 1
        return None

    def _place(self, domain: str) -> Partition:
        partitions = self._log.partitions(domain, "system")
        return partitions[partition_index(topic_of(domain), len(partitions))]

    async def _between(self, place: Partition, epoch: int, low: int, high: int) -> list[Entry]:
        """The entries with offsets ``low`` to ``high`` that are retained."""
        entries: list[Entry] = []
        after = Position(epoch, low - 1)
        while after.offset < high:
            part = await self._log.read(place, after, high - after.offset)
            if part.end == after:
                break
            entries.extend(entry for entry in part.entries if entry.position.offset <= high)
            after = part.end
        return entries

    def _read(self, entry: Entry) -> DeadLetter | None:
        record = entry.record
        if not record.body or record.topic != topic_of(record.partition.domain):
            return None
        try:
            return self._letters.read(entry)
        except MessageRefused:  # published to this topic by an operator's hand, not by the edge
            return None

    async def _open(self, entry: Entry) -> Letter | None:
        content = self._read(entry)
        if content is None:
            return None
        letter_id = entry.record.message_id
        state, decided_at, redriven_as = await self._state(entry.record.partition.domain, letter_id)
        return Letter(letter_id, entry.position, content, state, decided_at, redriven_as)

    async def _state(self, domain: str, letter_id: str) -> tuple[str, int, str | None]:
        stored = await self._documents.get(COLLECTION, f"{domain}/{letter_id}")
        if stored is None:
            return "open", 0, None
        value = json.loads(stored.value)
        return value["state"], value["at"], value["as"]

    async def _decide(self, domain: str, letter_id: str, state: str, redriven_as: str | None) -> None:
        value = json.dumps({"state": state, "at": self._clock.now(), "as": redriven_as}).encode()
        try:
            await self._documents.put(COLLECTION, f"{domain}/{letter_id}", value, expected=0)
        except Conflict:
            decided = (await self._state(domain, letter_id))[0]
            if decided != state:
                raise Conflict(f"somebody else has {decided} the letter in this moment; look at it again") from None


def topic_of(domain: str) -> str:
    """The topic that holds the dead letters of a domain."""
    return f"{domain}/system/dead-letters"


def _selected(letter: Letter, reason: str | None, device: str | None, state: str | None) -> bool:
    content = letter.letter
    return (
        (reason is None or content.reason == reason)
        and (state is None or letter.state == state)
        and (device is None or content.source == device or content.topic.split("/")[1:3] == ["devices", device])
    )
