"""What can be set about the Redis driver beside the server's address and the durability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Settings with defaults that suit production.

    ``prefix`` begins every key. ``timeout``: seconds for a connection or an answer. ``replicas`` must confirm each
    write (WAIT) within the timeout. ``trust_server``: go without the look at the server's durability settings, for
    servers that forbid CONFIG GET. ``follower_bytes``: bodies that a follower may leave untaken in memory before it
    reads them back from the log instead.
    """

    prefix: str = "iot"
    timeout: float = 5.0
    replicas: int = 0
    trust_server: bool = False
    follower_bytes: int = 4 << 20


DEFAULTS: Final = RedisOptions()
