"""Whether a Redis server keeps what it acknowledges as well as the log promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...entities.errors import DurabilityTooWeak

# What each level asks of redis.conf: the accepted values, the recommended one first.
REQUIRED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "fsynced": {
        "appendonly": ("yes",),
        "appendfsync": ("always",),
        # With "yes" a restart silently drops a damaged tail of the append-only file, acknowledged or not.
        "aof-load-truncated": ("no",),
        # With "yes" nothing is fsynced while the append-only file is rewritten.
        "no-appendfsync-on-rewrite": ("no",),
        "maxmemory-policy": ("noeviction",),
    },
    "logged": {
        "appendonly": ("yes",),
        "appendfsync": ("everysec", "always"),
        "maxmemory-policy": ("noeviction",),
    },
    "memory": {},
}
OLDEST_VERSION: Final = (7, 0)


def check(durability: str, settings: Mapping[str, str], server: str) -> None:
    """Raise DurabilityTooWeak when the server's settings keep less than ``durability`` promises."""
    wrong = [
        f"{name} {accepted[0]} (it is {settings.get(name, 'unknown')})"
        for name, accepted in REQUIRED[durability].items()
        if settings.get(name) not in accepted
    ]
    if wrong:
        raise DurabilityTooWeak(
            f"Redis at {server} keeps less than durability {durability!a} promises: set {', '.join(wrong)} in its "
            f"redis.conf or with CONFIG SET and CONFIG REWRITE, or choose a weaker durability",
            durability=durability,
            settings={name: settings.get(name) for name in REQUIRED[durability]},
        )


def check_version(version: str, server: str) -> None:
    """Raise DurabilityTooWeak for a server that is too old to run the scripts."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VERSION:
        raise DurabilityTooWeak(f"Redis at {server} is version {version}: 7.0 or later, or Valkey, is needed")
