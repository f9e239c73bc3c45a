"""One change stream of a database, batch by batch, as commands: every token and every failure stays in sight.

The library's own streams open anew by themselves, and hand over one event at a time, each through a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ...entities.errors import IotSphereError
from .failures import FAILURES, name_of
from .link import Document, Link, Session

logger = logging.getLogger(__name__)

CLOSING_S: Final = 2.0
_NAMESPACE: Final = "$cmd.aggregate"


class Batch(NamedTuple):
    """Events in their order, and the token after which reading may go on. ``alive``: whether more can come."""

    events: Sequence[Document]
    token: dict[str, Any]
    alive: bool


class Stream:
    """An open cursor; close it with ``close``. What is raised has the library's error as its cause."""

    def __init__(self, link: Link, session: Session, cursor: Document) -> None:
        self._link = link
        self._session = session
        self._cursor: int = cursor["id"]
        self._asking: asyncio.Future[Document] | None = None
        self.token: dict[str, Any] = cursor["postBatchResumeToken"]

    @classmethod
    async def open(cls, link: Link, pipeline: Sequence[Document]) -> Stream:
        """Open it; ``token`` then says where it begins. Raises DatabaseUnavailable."""
        session = await link.run(lambda: link.client.start_session(causal_consistency=False))
        try:
            command = {"aggregate": 1, "pipeline": list(pipeline), "cursor": {"batchSize": 0}}
            reply = await link.command(command, session)
        except BaseException:
            await session.end_session()
            raise
        return cls(link, session, reply["cursor"])

    async def more(self, size: int, wait: float) -> Batch:
        """The next events, up to ``size``; none when nothing happens for ``wait`` seconds. Raises DatabaseUnavailable."""
        command = {
            "getMore": self._cursor,
            "collection": _NAMESPACE,
            "batchSize": size,
            "maxTimeMS": max(1, int(wait * 1000)),
        }
        # It runs in a thread: whoever gives up waiting leaves it to close() to end it.
        asking = self._asking = asyncio.ensure_future(self._link.raw_command(command, self._session))
        reply = await self._link.patiently(lambda: asyncio.shield(asking), self._link.options.timeout + wait)
        self._asking = None
        cursor = reply["cursor"]
        self._cursor, self.token = cursor["id"], cursor["postBatchResumeToken"]
        return Batch(cursor["nextBatch"], self.token, self._cursor != 0)

    async def close(self) -> None:
        """Let the server forget the cursor, which also ends a request under way."""
        try:
            async with asyncio.timeout(CLOSING_S):
                if self._cursor:
                    await self._link.raw_command({"killCursors": _NAMESPACE, "cursors": [self._cursor]})
                if self._asking is not None:
                    await asyncio.wait((self._asking,))
        except (*FAILURES, IotSphereError, TimeoutError) as error:
            logger.debug("a change stream lapses by itself: %s", name_of(error))
        if self._asking is not None:
            self._asking.add_done_callback(_looked_at)
        await self._session.end_session()


def _looked_at(asking: asyncio.Future[Document]) -> None:
    if not asking.cancelled():
        asking.exception()
