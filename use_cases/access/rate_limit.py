"""Rate limits: how many messages and bytes a second one client, and one domain, may send."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from ...entities.errors import RateLimited
from ...entities.principal import Principal

REMEMBERED_CLIENTS: Final = 20_000
ROUNDING_S: Final = 1e-6
FORGOTTEN_AT_ONCE: Final = 2
NO_LIMIT: Final = 1e15


class Rate(NamedTuple):
    """What may flow in the long run, per second; ``burst`` seconds of it may come at once. 0 = no limit."""

    messages: float = 0.0
    bytes: float = 0.0
    burst: float = 2.0


CLIENT_RATE: Final = Rate(messages=2_000, bytes=4 * 1024 * 1024)
DOMAIN_RATE: Final = Rate(messages=100_000, bytes=200 * 1024 * 1024)


class _Bucket:
    """Two token buckets that fill up as time passes. A take needs one message and one byte in them and may leave them
    in debt, so a batch of any size passes, and is paid for afterwards.
    """

    __slots__ = ("_at", "_rate", "_room", "bytes", "messages")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = Rate(rate.messages or NO_LIMIT, rate.bytes or NO_LIMIT, rate.burst)
        self._room = max(1.0, self._rate.messages * rate.burst), max(1.0, self._rate.bytes * rate.burst)
        self.messages, self.bytes = self._room
        self._at = now

    def fill(self, now: float) -> bool:
        """Add what came with time; tells whether something may be taken."""
        passed = now - self._at
        if passed > 0:
            self._at = now
            most, largest = self._room
            messages, size, _ = self._rate
            self.messages = min(most, self.messages + passed * messages)
            self.bytes = min(largest, self.bytes + passed * size)
        return self.messages >= 1 and self.bytes >= 1

    def delay(self) -> float:
        """Seconds until something may be taken."""
        delay = max((1 - self.messages) / self._rate.messages, (1 - self.bytes) / self._rate.bytes)
        return delay if delay > ROUNDING_S else 0.0

    def is_full(self, now: float) -> bool:
        """Whether it is as good as a new one."""
        self.fill(now)
        return (self.messages, self.bytes) == self._room


class RateLimit:
    """Buckets per client and per domain; O(1) each time, and no more clients in memory than ``remembered``.

    Pure: ``now`` is given in seconds by any clock that never goes back.
    """

    def __init__(
        self, client: Rate = CLIENT_RATE, domain: Rate = DOMAIN_RATE, remembered: int = REMEMBERED_CLIENTS
    ) -> None:
        self._client = client
        self._domain = domain
        self._remembered = remembered
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()
        self._domains: dict[str, _Bucket] = {}
        self.refused = 0

    def take(self, principal: Principal, messages: int, size: int, now: float) -> float:
        """Let messages of ``size`` bytes in all pass (0.0), or tell how many seconds to wait before asking again."""
        client = self._of_client(principal.identity, now)
        domain = self._domains.get(principal.domain)
        if domain is None:
            domain = self._domains[principal.domain] = _Bucket(self._domain, now)
        # Both are filled, whatever the first one says.
        if not client.fill(now) & domain.fill(now) and (delay := max(client.delay(), domain.delay())) > 0:
            self.refused += messages
            return delay
        client.messages -= messages
        client.bytes -= size
        domain.messages -= messages
        domain.bytes -= size
        return 0.0

    def check(self, principal: Principal, messages: int, size: int, now: float) -> None:
        """As ``take``, but raises RateLimited (``retry_after``: seconds)."""
        delay = self.take(principal, messages, size, now)
        if delay > 0:
            raise RateLimited(f"more than is allowed; send again in {delay:.1f} s", retry_after=delay)

    def _forget(self, now: float) -> None:
        """Let a few go that have been quiet for long enough, for each one that comes: idle ones do not pile up."""
        for _ in range(FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._clients), None)
            if oldest is None or not self._clients[oldest].is_full(now):
                return
            del self._clients[oldest]

    def _of_client(self, identity: str, now: float) -> _Bucket:
        bucket = self._clients.get(identity)
        if bucket is None:
            self._forget(now)
            bucket = self._clients[identity] = _Bucket(self._client, now)
            if len(self._clients) > self._remembered:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(identity)
        return bucket
