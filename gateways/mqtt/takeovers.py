"""Clients that take their session from one another in turns: two of them have one client id, and an operator must know."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Final

from ...adapters.alerts import alert
from ...adapters.edge import Edge
from ...entities.errors import IotSphereError
from ...entities.principal import Principal
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended
from ...use_cases.publish import MessagePublishUseCase

ALERT: Final = "duplicate_client_id"
PER_MINUTE: Final = 5
MINUTE_MS: Final = 60_000
KNOWN: Final = 10_000


class _Client:
    """When its last connections were taken over, and when that was last told."""

    __slots__ = ("times", "told")

    def __init__(self) -> None:
        self.times: deque[int] = deque(maxlen=PER_MINUTE + 1)
        self.told = -MINUTE_MS


class Takeovers:
    """Counts them per client, and raises the alert for a client that is taken over more than five times a minute.

    The alert comes once a minute for each client, as long as it goes on.
    """

    def __init__(self, edge: Edge, publish: MessagePublishUseCase, clock: Clock, counts: Counter[str]) -> None:
        self._edge = edge
        self._publish = publish
        self._clock = clock
        self._counts = counts
        self._clients: OrderedDict[tuple[str, str], _Client] = OrderedDict()

    def note(self, principal: Principal, client_id: str) -> None:
        """A connection of this client was taken over by another one, here or at another process."""
        self._counts["taken_over"] += 1
        now = self._clock.now()
        key = principal.identity, client_id
        client = self._clients.setdefault(key, _Client())
        self._clients.move_to_end(key)
        if len(self._clients) > KNOWN:
            self._clients.popitem(last=False)
        client.times.append(now)
        often = len(client.times) > PER_MINUTE and now - client.times[0] < MINUTE_MS
        if not often or now - client.told < MINUTE_MS:
            return
        client.told = now
        self._counts[ALERT] += 1
        facts = {"kind": principal.kind, "name": principal.name, "clientId": client_id, "perMinute": PER_MINUTE}
        self._publish.submit([alert(self._edge, principal.domain, ALERT, facts, now)], self._told)

    def _told(self, result: Appended | IotSphereError) -> None:
        if isinstance(result, IotSphereError):
            self._counts["notices_lost"] += 1
