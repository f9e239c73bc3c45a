"""Requests from a broker, such as commands and desired state: decided one after the other, beside the messages that are facts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from ...adapters.bridge.messages import undecided
from ...adapters.requests import Requests
from ...entities.errors import Fenced, IotSphereError, Limited, Unavailable
from ...entities.message import Record
from ...entities.principal import Principal

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0

log = structlog.get_logger("iotsphere.bridge")


class Asked(Protocol):
    """A message on its way that asks for something. ``record`` None: it is done with."""

    record: Record | None


class Decisions:
    """Has requests decided in their order. ``settled`` is called with each, and with the error that spoke against it.

    A database that is away is waited for: until then the request is not acknowledged.
    """

    def __init__(
        self,
        requests: Requests,
        principal: Principal,
        counts: Counter[str],
        settled: Callable[[Asked, IotSphereError | None], None],
    ) -> None:
        self._requests = requests
        self._principal = principal
        self._counts = counts
        self._settled = settled
        self._waiting: deque[Asked] = deque()
        self._some = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether any request is undecided."""
        return bool(self._waiting)

    def put(self, asked: Asked) -> None:
        """Add one; bounded by who counts what waits."""
        self._waiting.append(asked)
        self._some.set()

    async def run(self) -> None:
        """Decide until cancelled."""
        while True:
            await self._some.wait()
            while self._waiting:
                asked = self._waiting[0]
                error = None if asked.record is None else await self._decide(asked.record)
                self._waiting.popleft()
                self._settled(asked, error)
            self._some.clear()

    async def _decide(self, record: Record) -> IotSphereError | None:
        delay = FIRST_RETRY_S
        while True:
            try:
                await self._requests(self._principal, record)
            except (Unavailable, Limited) as error:
                if isinstance(error, Fenced) or not error.retry:
                    return undecided(error)
                self._counts["decisions_postponed"] += 1
                log.warning("bridge_request_waits", topic=record.topic, code=error.code, message=error.message)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, LAST_RETRY_S)
            except IotSphereError as error:
                return undecided(error)
            else:
                self._counts["decided"] += 1
                return None
