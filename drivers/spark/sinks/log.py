"""Results that go back into the log: each is one message with an id of its own, however often it is told.

The id is made of the job, its version, the topic and the result's key. The gateway knows ids for ten minutes; what is
told again later than that is looked up in the log itself, once when the sink is first used.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import TimeoutError as WaitedTooLong
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from hashlib import blake2b
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import orjson

from ....adapters.message_id import derived
from ....adapters.timestamps import iso
from ....entities.errors import BrokerUnavailable, Unavailable
from ....entities.message import Message, Metadata
from ..jobs import Announcement

T = TypeVar("T")
WAIT_S: Final = 60.0
PAUSE_S: Final = 1.0
AT_ONCE: Final = 100
NewsOf = Callable[[], set[str]]

logger = logging.getLogger(__name__)


class Publisher(Protocol):
    """A client of a gateway."""

    async def publish(self, topic: str, payload: Message | bytes, *, message_id: str | None = None) -> Any:
        """Publish a message and return what the gateway says, once it is durable; ``duplicate`` if it was known."""
        ...


Connecting = Callable[[], AbstractAsyncContextManager[Publisher]]


class LogSink:
    """Publishes announcements; a context manager, to be called from any thread.

    ``connecting`` opens a client, ``job``: name and version, ``told``: the message ids that the log holds already.
    """

    def __init__(self, connecting: Connecting, job: tuple[str, int], told: NewsOf = set) -> None:
        self._connecting = connecting
        self._job = job
        self._told_before = told
        self._told: set[str] | None = None
        self._publisher: Publisher | None = None
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="results to the log", daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Start; the connection is made when there is something to tell."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        try:
            self._wait(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()

    def ready(self) -> None:
        """Connect now, so that a wrong address or token is told before the work begins.

        Raises Unavailable, Unauthenticated, Forbidden.
        """
        self._wait(self._connected(patient=False))

    def __call__(self, announcements: Iterable[Announcement]) -> int:
        """Publish what the log does not hold, in order per topic; returns how many messages were new.

        Raises Forbidden, MessageRefused, and Unavailable when the gateway stays away for a minute: some may be in the
        log then, and all can be told again.
        """
        with self._lock:
            if self._told is None:
                self._told = self._told_before()
            fresh: dict[str, Announcement] = {}
            for one in announcements:
                message_id = id_of(self._job, one)
                if message_id not in self._told:
                    fresh.setdefault(message_id, one)
            return self._wait(self._publish(fresh)) if fresh else 0

    async def _publish(self, fresh: Mapping[str, Announcement]) -> int:
        publisher = await self._connected()
        lanes: dict[str, list[tuple[str, Announcement]]] = {}
        for message_id, one in fresh.items():
            lanes.setdefault(topic_of(one), []).append((message_id, one))
        new = 0
        for topic, lane in lanes.items():
            for start in range(0, len(lane), AT_ONCE):
                # Sent one behind the other on one connection, so they keep their order; only the answers are awaited
                # together.
                receipts = await asyncio.gather(
                    *(
                        publisher.publish(topic, _payload(message_id, topic, self._job[0], one), message_id=message_id)
                        for message_id, one in lane[start : start + AT_ONCE]
                    )
                )
                new += sum(not receipt.duplicate for receipt in receipts)
        return new

    async def _connected(self, *, patient: bool = True) -> Publisher:
        while self._publisher is None:
            try:
                self._publisher = await self._stack.enter_async_context(self._connecting())
            except Unavailable as error:
                if not error.retry or not patient:
                    raise
                logger.warning("%s; trying again", error)
                await asyncio.sleep(PAUSE_S)
        return self._publisher

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(WAIT_S)
        except WaitedTooLong as error:
            future.cancel()
            raise BrokerUnavailable(
                f"the gateway did not take the results within {WAIT_S:.0f} s: start it, then run this again"
            ) from error


def topic_of(one: Announcement) -> str:
    """Where an announcement is published."""
    return f"{one.domain}/devices/batch/{one.topic}"


def id_of(job: tuple[str, int], one: Announcement) -> str:
    """The message id of an announcement: the same result always has the same one."""
    name, version = job
    text = "\n".join((name, str(version), topic_of(one), one.key))
    return derived(blake2b(text.encode(), digest_size=16).digest())


def _payload(message_id: str, topic: str, source: str, one: Announcement) -> Message | bytes:
    payload = orjson.dumps(dict(one.payload))
    if one.at is None:
        return payload
    return Message(Metadata(message_id=message_id, timestamp=iso(one.at), topic=topic, source=source), payload)
