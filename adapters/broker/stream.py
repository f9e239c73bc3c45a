"""What `subscribe` of the adapter API returns: messages, or deliveries of a group, to iterate over."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import orjson

from ...entities.errors import IotSphereError, MessagesMissed
from ...entities.message import Message, Metadata
from ...entities.position import Gap, Partition
from ..envelope import WIRE_NAMES, pairs_of
from .requests import Answer

T = TypeVar("T")
OnGap = Callable[[Gap], None]
MAX_BUFFERED: Final = 2_000
MAX_BUFFERED_BYTES: Final = 4 * 1024 * 1024


class Source(Protocol):
    """What a stream needs of the broker."""

    def moved(self) -> None:
        """The consumer took something, or waits."""
        ...

    def reopen(self, stream: Stream[Any]) -> None:
        """Subscribe again, from where the stream's buffer ends."""
        ...

    def end(self, stream: Stream[Any]) -> None:
        """Unsubscribe."""
        ...

    async def acknowledge(
        self, stream: Stream[Any], token: str, retry_in: int | None = None, counted: bool = True
    ) -> None:
        """Answer for a delivery. Raises RequestInvalid once the stream is closed."""
        ...


class _Item(NamedTuple):
    value: Any
    cursor: str | None
    size: int


class Stream(ABC, Generic[T]):
    """An asynchronous iterator over a subscription, which may also be used as a context manager.

    ``cursor``: resumes right after what was returned last; None where that is not possible yet. ``missed``: every gap
    so far. ``request``: the members of the subscribe request other than ``from``.
    """

    def __init__(self, source: Source, domain: str, request: bytes, start: str, on_gap: OnGap | None) -> None:
        self._source = source
        self._domain = domain
        self._on_gap = on_gap
        self._buffer: deque[_Item] = deque()
        self._size = 0
        self._arrived = asyncio.Event()
        self._error: IotSphereError | None = None
        self._tail: str | None = None
        self._start = start
        self.request = request
        self.name: str | None = None
        self.parked = False
        self.closed = False
        self.starving = False
        self.cursor: str | None = None
        self.missed: list[Gap] = []
        self.behind = 0

    # -- the consumer's side ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            if self._buffer:
                item = self._buffer.popleft()
                self._size -= item.size
                if self.parked and len(self._buffer) <= MAX_BUFFERED // 4:
                    self._source.reopen(self)
                self._source.moved()
                self.cursor = item.cursor or self.cursor
                if not isinstance(item.value, Missed):
                    value: T = item.value
                    return value
                self._tell(item.value.gaps)
            elif self._error is not None:
                raise self._error
            elif self.closed:
                raise StopAsyncIteration
            else:
                await self._wait()

    async def _wait(self) -> None:
        self._arrived.clear()
        self.starving = True
        self._source.moved()
        try:
            await self._arrived.wait()
        finally:
            self.starving = False

    def _tell(self, gaps: Sequence[Gap]) -> None:
        self.missed += gaps
        if self._on_gap is None:
            count = sum(gap.missing for gap in gaps)
            raise MessagesMissed(f"{count or 'some'} messages are gone: read on, or load a snapshot", gaps=tuple(gaps))
        for gap in gaps:
            self._on_gap(gap)

    async def opened(self) -> Self:
        """Wait until the gateway has confirmed the subscription. Raises what it answered instead."""
        while self.name is None and not self.parked and self._error is None and not self.closed:
            await self._wait()
        if self._error is not None:
            raise self._error
        return self

    async def __aenter__(self) -> Self:
        return await self.opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Unsubscribe; the iteration ends."""
        if not self.closed:
            self._source.end(self)
            self.finish()

    # -- the broker's side --------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True while nothing more should be put into the buffer."""
        return len(self._buffer) >= MAX_BUFFERED or self._size >= MAX_BUFFERED_BYTES

    @property
    def start(self) -> str:
        """Where to subscribe from now: after what the buffer holds, or where the consumer wanted to begin."""
        return self._tail or self._start

    def confirmed(self, answer: Answer) -> None:
        """The gateway has opened the subscription."""
        self.name = str(answer["subscription"])
        self.parked = False
        self.miss(answer["missed"], answer["cursor"])
        self._arrived.set()

    @abstractmethod
    def read(self, frame: Answer) -> Iterator[tuple[T, str | None]]:
        """The values of a frame, each with the cursor after it."""

    def take(self, frame: Answer, size: int) -> None:
        """Put what a frame of ``size`` bytes holds into the buffer."""
        items = list(self.read(frame))
        for value, cursor in items:
            self._put(value, cursor, size // len(items))
        if not items:
            self._stands(frame.get("cursor"))

    def miss(self, gaps: Sequence[Answer], cursor: str | None = None) -> None:
        """Put a gap into the buffer, or only a cursor."""
        if gaps:
            self._put(Missed(tuple(gap_of(self._domain, gap) for gap in gaps)), cursor, 0)
        else:
            self._stands(cursor)

    def lagging(self, behind: int) -> None:
        """About how many messages this subscription is behind the log."""
        self.behind = behind

    def fail(self, error: IotSphereError) -> None:
        """Let the consumer get this error once it has taken everything else."""
        self._error = error
        self._arrived.set()

    def lost(self) -> None:
        """The connection is gone, and the subscription with it."""
        self.name = None

    def finish(self) -> None:
        """Let the iteration end."""
        self.closed = True
        self._drop()
        self._arrived.set()

    def _put(self, value: object, cursor: str | None, size: int) -> None:
        self._buffer.append(_Item(value, cursor, size))
        self._size += size
        self._tail = cursor or self._tail
        self._arrived.set()

    def _stands(self, cursor: str | None) -> None:
        if cursor is None:
            return
        self._tail = cursor
        if self._buffer:
            self._buffer[-1] = self._buffer[-1]._replace(cursor=cursor)
        else:
            self.cursor = cursor

    def _drop(self) -> None:
        self._buffer.clear()
        self._size = 0


class Missed(NamedTuple):
    """Gaps in their place between the messages."""

    gaps: tuple[Gap, ...]


class MessageStream(Stream[Message]):
    """The messages of a subscription, in their order."""

    def read(self, frame: Answer) -> Iterator[tuple[Message, str | None]]:
        """The messages of a `messages` frame."""
        for document, cursor in zip(frame["messages"], frame.get("cursors", ()), strict=True):
            yield message_of(document), cursor


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was handed to this member of a group. ``attempt`` counts from 1."""

    message: Message
    attempt: int
    token: str
    stream: DeliveryStream

    async def ack(self) -> None:
        """Say that it is done; nobody gets it again. Safe to repeat, also after a lost connection."""
        await self.stream.acknowledge(self.token)

    async def retry(self, in_: float = 0.0) -> None:
        """Give it back, to be handed out again to any member after ``in_`` seconds; too many tries make it poison."""
        await self.stream.acknowledge(self.token, round(in_ * 1000))

    async def release(self, in_: float = 0.0) -> None:
        """As ``retry``, but the try does not count: the fault is not the message's (a database that is away, say)."""
        await self.stream.acknowledge(self.token, round(in_ * 1000), False)


class DeliveryStream(Stream[Delivery]):
    """The deliveries of a group to this member; at most ``credit`` of them are not acknowledged."""

    def read(self, frame: Answer) -> Iterator[tuple[Delivery, str | None]]:
        """The deliveries of a `deliveries` frame."""
        for item in frame["deliveries"]:
            yield Delivery(message_of(item["message"]), item["attempt"], item["delivery"], self), None

    @property
    def full(self) -> bool:
        """Never: ``credit`` bounds what is handed out."""
        return False

    async def acknowledge(self, token: str, retry_in: int | None = None, counted: bool = True) -> None:
        """Answer for one delivery; ``retry_in``: ms, None when it is done; ``counted``: whether the try counts."""
        await self._source.acknowledge(self, token, retry_in, counted)

    def lost(self) -> None:
        """Nobody knows any more that these were handed out to us: they come again after their visibility."""
        super().lost()
        self._drop()


def message_of(document: Answer) -> Message:
    """The message of a parsed envelope."""
    fields = {WIRE_NAMES[key]: value for key, value in document["metadata"].items() if key in WIRE_NAMES}
    if "properties" in fields:
        fields["properties"] = pairs_of(fields["properties"])
    return Message(Metadata(**fields), orjson.dumps(document["payload"]))


def gap_of(domain: str, facts: Answer) -> Gap:
    """The gap of its JSON form."""
    channel, _, number = str(facts["partition"]).rpartition("/")
    return Gap(Partition(domain, channel, int(number)), facts["first"], facts["last"], facts["reason"])
