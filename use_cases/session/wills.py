"""Wills: what a client wants published when it goes without a goodbye, kept so that no crash of ours can lose it.

A will lies in a document from the welcome on, under its session's key and with the token of its connection. Whoever
finds that the connection has ended publishes it under an id that was given in the beginning, so twice is once; and only
while the document is still that connection's, so a will of an old connection never speaks after a newer one.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...entities.errors import Conflict, IotSphereError
from ...entities.message import Record
from ..ports.clock import Clock
from ..ports.documents import Document, Documents
from ..publish import MessagePublishUseCase

COLLECTION: Final = "wills"
PAGE: Final = 500
ADOPTED_AFTER_MS: Final = 60_000
PATIENCE_S: Final = 2.0


class Will(NamedTuple):
    """A will. ``token``: its connection. ``flags``: QoS and retain, ``properties``: as on the wire, for its adapter.

    ``delay`` and ``expiry``: seconds it is put off, and that its session outlives the connection. ``due_at``: ms, once
    the connection has ended.
    """

    token: str
    domain: str
    kind: str
    name: str
    topic: str
    payload: bytes
    flags: int
    properties: bytes
    message_id: str
    delay: int
    expiry: int
    due_at: int | None = None

    @property
    def waits_s(self) -> int:
        """How long it is put off: until its delay is over or its session ends (MQTT 5 section 3.1.3.2.2)."""
        return min(self.delay, self.expiry)


Compose = Callable[[Will, int], Sequence[Record]]


class Wills:
    """Keeps and publishes wills. ``compose`` (will, now) makes its records. ``node``: as for ``Sessions``.

    Methods raise LogUnavailable and LogFull; repeating them is safe. ``late``: wills that could not be published yet.
    ``carry_out``: may take a record as a request, which is then not appended.
    """

    def __init__(
        self,
        documents: Documents,
        publish: MessagePublishUseCase,
        compose: Compose,
        clock: Clock,
        node: str = "gateway",
    ) -> None:
        self._documents = documents
        self._publish = publish
        self._compose = compose
        self._clock = clock
        self._node = node
        self._tokens: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: list[tuple[int, str, str]] = []
        self.late = 0
        self.carry_out: Callable[[Will, Record], Awaitable[bool]] | None = None

    async def begin(self, key: str, will: Will | None, resumed: bool) -> None:
        """A connection begins, with a will or without. The one before it ended: if its session goes on, a delayed will is
        cancelled, and any other is published now.
        """
        while True:
            document = await self._documents.get(COLLECTION, key)
            if document is not None:
                old = _read(document)
                if not (resumed and old.waits_s):
                    await self._say(old)
            try:
                if will is not None:
                    await self._documents.put(COLLECTION, key, self._write(will), document.version if document else 0)
                    self._tokens[key] = will.token
                elif document is not None:
                    await self._documents.delete(COLLECTION, key)
            except Conflict:
                continue  # another process is beginning one as well
            return

    async def leave(self, key: str, token: str, expiry: int) -> None:
        """The connection ended without a goodbye; ``expiry``: seconds that its session lives on.

        A will that is not delayed is submitted before this returns, and in the log as well unless the log is slow.
        """
        self._forget(key, token)
        document, will = await self._mine(key, token)
        if document is None or will is None:
            return
        will = will._replace(expiry=expiry)
        if will.waits_s:
            await self._put_off(document, will)
        else:
            task = asyncio.get_running_loop().create_task(self._finish(key, will))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait((task,), timeout=PATIENCE_S)

    async def clear(self, key: str, token: str) -> None:
        """The client said goodbye."""
        self._forget(key, token)
        if (await self._mine(key, token))[0] is not None:
            await self._documents.delete(COLLECTION, key)

    async def publish_due(self) -> int:
        """Publish what is due now. Returns how many."""
        published = 0
        while self._due and self._due[0][0] <= self._clock.now():
            item = heapq.heappop(self._due)
            _, key, token = item
            try:
                document, will = await self._mine(key, token)
                if document is not None and will is not None:
                    await self._say(will)
                    await self._documents.delete(COLLECTION, key)
                    published += 1
            except IotSphereError:
                self.late += 1
                heapq.heappush(self._due, item)
                raise
        return published

    async def recover(self) -> int:
        """After a restart: take up the wills that this process had; their connections ended with it. Returns how many."""
        found = 0
        async for document, value in self._all():
            will = _read(document)
            if value["node"] == self._node and self._tokens.get(document.key) != will.token:
                found += 1
                if will.due_at is None:
                    await self._put_off(document, will)
                else:
                    heapq.heappush(self._due, (will.due_at, document.key, will.token))
        return found

    async def adopt(self) -> int:
        """Take up delayed wills of processes that do not publish them. Returns how many."""
        known = {(key, token) for _, key, token in self._due}
        found = 0
        async for document, value in self._all():
            will = _read(document)
            overdue = will.due_at is not None and will.due_at + ADOPTED_AFTER_MS <= self._clock.now()
            if overdue and value["node"] != self._node and (document.key, will.token) not in known:
                heapq.heappush(self._due, (will.due_at or 0, document.key, will.token))
                found += 1
        return found

    async def _put_off(self, document: Document, will: Will) -> None:
        will = will._replace(due_at=self._clock.now() + will.waits_s * 1000)
        try:
            await self._documents.put(COLLECTION, document.key, self._write(will), document.version)
        except Conflict:
            return  # a newer connection has begun, and decided over it
        heapq.heappush(self._due, (will.due_at or 0, document.key, will.token))

    async def _finish(self, key: str, will: Will) -> None:
        try:
            await self._say(will)
            await self._documents.delete(COLLECTION, key)
        except IotSphereError:
            self.late += 1
            heapq.heappush(self._due, (self._clock.now(), key, will.token))

    async def _say(self, will: Will) -> None:
        for record in self._compose(will, self._clock.now()):
            if self.carry_out is None or not await self.carry_out(will, record):
                await self._publish([record])

    async def _mine(self, key: str, token: str) -> tuple[Document | None, Will | None]:
        document = await self._documents.get(COLLECTION, key)
        will = _read(document) if document is not None else None
        return (document, will) if will is not None and will.token == token else (None, None)

    def _forget(self, key: str, token: str) -> None:
        if self._tokens.get(key) == token:
            del self._tokens[key]

    def _write(self, will: Will) -> bytes:
        value = will._asdict() | {
            "node": self._node,
            "payload": b64encode(will.payload).decode(),
            "properties": b64encode(will.properties).decode(),
        }
        return json.dumps(value).encode()

    async def _all(self) -> AsyncIterator[tuple[Document, Mapping[str, Any]]]:
        after = ""
        while page := await self._documents.scan(COLLECTION, after=after, limit=PAGE):
            for document in page:
                yield document, json.loads(document.value)
            after = page[-1].key


def _read(document: Document) -> Will:
    value: Mapping[str, Any] = json.loads(document.value)
    fields = {name: value[name] for name in Will._fields}
    return Will(**fields | {name: b64decode(value[name]) for name in ("payload", "properties")})
