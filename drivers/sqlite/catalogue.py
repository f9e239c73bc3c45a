"""What the file says it holds: partitions, their epochs, and where each of them ends."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from ...entities.channel import ChannelSpec
from ...entities.errors import UnknownDomain
from ...entities.position import Partition
from ..lineage import Lineage
from . import chunks
from .chunks import Shelf

KEPT_EPOCHS: Final = 1_000
PROBE_BYTES: Final = 32 << 10
Connection = sqlite3.Connection


def begin_epoch(connection: Connection, durability: str, now: int, least: int) -> int:
    """Open a new epoch where one is due, in a transaction of its own, and return the epoch that is now written.

    It is due in a new file, and after a run that was only ``logged``, whose last messages a power loss may have taken.
    ``now``: ms; ``least``: the last epoch that this folder is known to have seen. Whoever held a lease is no more, since
    one process alone may write here: leases are free at once, and their fences are remembered.
    """
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE leases SET owner = '', expires_at = 0 WHERE owner <> ''")
    epoch = _meta(connection, "epoch")
    if not isinstance(epoch, int) or _meta(connection, "durability") == "logged":
        epoch = max(now // 1_000, least + 1, (epoch if isinstance(epoch, int) else 0) + 1)
        for shelf in _shelves(connection).values():
            connection.execute("INSERT INTO epochs VALUES (?, ?, ?)", (shelf.number, epoch, shelf.last + 1))
            connection.execute(
                "DELETE FROM epochs WHERE part = ?1 AND epoch <="
                " (SELECT epoch FROM epochs WHERE part = ?1 ORDER BY epoch DESC LIMIT 1 OFFSET ?2)",
                (shelf.number, KEPT_EPOCHS),
            )
        _set_meta(connection, "epoch", epoch)
    if _meta(connection, "secret") is None:
        _set_meta(connection, "secret", secrets.token_bytes(16))
    _set_meta(connection, "durability", durability)
    connection.execute("COMMIT")
    return epoch


def _meta(connection: Connection, key: str) -> int | str | bytes | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def _set_meta(connection: Connection, key: str, value: int | str | bytes) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def probe(connection: Connection) -> None:
    """Write a few pages that do not matter, to learn whether there is room for messages."""
    _set_meta(connection, "probe", secrets.token_bytes(PROBE_BYTES))


def _shelves(connection: Connection) -> dict[Partition, Shelf]:
    """All partitions as they are stored."""
    starts: dict[int, list[tuple[int, int]]] = {}
    for number, epoch, first in connection.execute("SELECT part, epoch, first FROM epochs ORDER BY part, epoch"):
        starts.setdefault(number, []).append((epoch, first))
    shelves = {}
    rows = connection.execute("SELECT id, domain, channel, number FROM partitions ORDER BY domain, channel, number")
    for number, domain, channel, index in rows.fetchall():
        partition = Partition(domain, channel, index)
        shelf = shelves[partition] = Shelf(number, partition, Lineage(starts[number]))
        head = chunks.newest(connection, shelf)
        if head is not None:
            shelf.last, shelf.total, shelf.touched_at = head.end, head.total, head.appended_at
    return shelves


class Catalogue:
    """The partitions that a driver object knows. ``secret``: the key of the hashes that lie beside the records."""

    def __init__(self) -> None:
        self.shelves: dict[Partition, Shelf] = {}
        self.secret = b""
        self._channels: dict[tuple[str, str], tuple[Partition, ...]] = {}
        self._epoch = 0

    def load(self, connection: Connection) -> None:
        """Read everything anew; shelves that are known already stay the same objects."""
        secret, epoch = _meta(connection, "secret"), _meta(connection, "epoch")
        self.secret = secret if isinstance(secret, bytes) else b""
        self._epoch = epoch if isinstance(epoch, int) else 0
        self.add(list(_shelves(connection).values()))

    def follow_epoch(self, connection: Connection) -> None:
        """Read everything anew when another process has begun a new epoch."""
        if _meta(connection, "epoch") != self._epoch:
            self.load(connection)

    def clear(self) -> None:
        """Forget everything: the file was found damaged."""
        self.shelves.clear()
        self._channels.clear()

    def add(self, found: Sequence[Shelf]) -> None:
        """Take up shelves of whole channels."""
        channels: dict[tuple[str, str], list[Partition]] = {}
        for shelf in found:
            known = self.shelves.setdefault(shelf.partition, shelf)
            known.lineage = shelf.lineage
            channels.setdefault(shelf.partition[:2], []).append(shelf.partition)
        self._channels.update((name, tuple(sorted(partitions))) for name, partitions in channels.items())

    def make(self, connection: Connection, domain: str, channels: Mapping[str, ChannelSpec]) -> Sequence[Shelf]:
        """Make the channels that are not stored, and return the shelves of all that were asked for."""
        stored = _shelves(connection)
        for channel, spec in channels.items():
            if any(partition[:2] == (domain, channel) for partition in stored):
                continue
            for index in range(spec.partitions):
                partition = Partition(domain, channel, index)
                number = connection.execute(
                    "INSERT INTO partitions(domain, channel, number, first) VALUES (?, ?, ?, 1)", partition
                ).lastrowid
                assert number is not None
                connection.execute("INSERT INTO epochs VALUES (?, ?, 1)", (number, self._epoch))
                stored[partition] = Shelf(number, partition, Lineage([(self._epoch, 1)]))
                chunks.create(connection, stored[partition])
        return [shelf for partition, shelf in stored.items() if partition.domain == domain]

    def has(self, domain: str, channels: Mapping[str, ChannelSpec]) -> bool:
        """Tell whether all these channels are known."""
        return all((domain, channel) in self._channels for channel in channels)

    def domains(self) -> Sequence[str]:
        """All domains, sorted."""
        return sorted({domain for domain, _ in self._channels})

    def partitions(self, domain: str, channel: str) -> Sequence[Partition]:
        """The channel's partitions. Raises UnknownDomain."""
        try:
            return self._channels[domain, channel]
        except KeyError as error:
            raise UnknownDomain(f"there is no channel {channel!a} in a domain {domain!a}: make it first") from error
