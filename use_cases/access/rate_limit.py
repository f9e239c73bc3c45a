"""Rate limits: how many messages and bytes a second one client, and one domain, may send."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from ...entities.errors import RateLimited
from ...entities.principal import Principal

REMEMBERED_CLIENTS: Final = 20_000
ROUNDING_S: Final = 1e-6


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

    __slots__ = ("_at", "_bytes", "_messages", "_rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._messages = _capacity(rate.messages, rate.burst)
        self._bytes = _capacity(rate.bytes, rate.burst)
        self._at = now

    def delay(self, now: float) -> float:
        """Seconds until something may be taken."""
        rate = self._rate
        passed = max(0.0, now - self._at)
        self._at = max(now, self._at)
        delay = 0.0
        if rate.messages:
            self._messages = min(_capacity(rate.messages, rate.burst), self._messages + passed * rate.messages)
            delay = (1 - self._messages) / rate.messages
        if rate.bytes:
            self._bytes = min(_capacity(rate.bytes, rate.burst), self._bytes + passed * rate.bytes)
            delay = max(delay, (1 - self._bytes) / rate.bytes)
        return delay if delay > ROUNDING_S else 0.0

    def take(self, messages: int, size: int) -> None:
        """Use up, into debt if need be."""
        self._messages -= messages
        self._bytes -= size


def _capacity(rate: float, burst: float) -> float:
    return max(1.0, rate * burst)


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
        delay = max(client.delay(now), domain.delay(now))
        if delay > 0:
            self.refused += messages
            return delay
        client.take(messages, size)
        domain.take(messages, size)
        return 0.0

    def check(self, principal: Principal, messages: int, size: int, now: float) -> None:
        """As ``take``, but raises RateLimited (``retry_after``: seconds)."""
        delay = self.take(principal, messages, size, now)
        if delay > 0:
            raise RateLimited(f"more than is allowed; send again in {delay:.1f} s", retry_after=delay)

    def _of_client(self, identity: str, now: float) -> _Bucket:
        bucket = self._clients.get(identity)
        if bucket is None:
            bucket = self._clients[identity] = _Bucket(self._client, now)
            if len(self._clients) > self._remembered:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(identity)
        return bucket
