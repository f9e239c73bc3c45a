"""Key names: everything that one script touches carries one hash tag, so that it lies in one slot of a cluster.

{domain/channel/number}  one partition: its stream, what is known of it, its dedupe index, its work-queue groups
{domain}                 the channels, readers, leases and losses of a domain
{documents/collection}   one collection of documents
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ...entities.position import Partition

DEDUPE_SLICE_MS: Final = 5 * 60 * 1000
DEDUPE_SLICES: Final = 3


class PartitionKeys(NamedTuple):
    """The keys of one partition.

    ``log``: the stream. ``meta``: hash of run, epoch, last, bytes, time, largest, lineage, marked, marked_bytes.
    ``marks``: sorted set by offset of ``epoch-offset:bytes before:newest time before``, every 256 entries or 1 MiB.
    ``readers``: set of the readers that retention asks.
    """

    tag: str
    log: str
    meta: str
    marks: str
    readers: str

    def call(self, producer: str) -> str:
        """Hash: the results of the last calls of one driver object."""
        return f"{self.tag}:call:{producer}"

    def ids(self, server_ms: float) -> tuple[str, ...]:
        """Hashes of message id digest -> offset, by five minutes, newest first; together ten minutes at least."""
        newest = int(server_ms // DEDUPE_SLICE_MS)
        return tuple(f"{self.tag}:ids:{newest - back}" for back in range(DEDUPE_SLICES))

    def group(self, name: str) -> str:
        """Hash of a work-queue group: the last offset handed out, acknowledged, lost."""
        return f"{self.tag}:group:{name}"

    def due(self, name: str) -> str:
        """Sorted set of a work-queue group: when each entry that was handed out comes back (ms)."""
        return f"{self.tag}:due:{name}"


class Keys:
    """Key names below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.domains = f"{prefix}:domains"
        self.news = f"{prefix}:news"

    def partition(self, partition: Partition) -> PartitionKeys:
        """The keys of a partition."""
        tag = f"{self.prefix}:{{{partition}}}"
        return PartitionKeys(tag, f"{tag}:log", f"{tag}:meta", f"{tag}:marks", f"{tag}:readers")

    def channels(self, domain: str) -> str:
        """Hash: channel -> partition count."""
        return f"{self.prefix}:{{{domain}}}:channels"

    def readers(self, domain: str) -> str:
        """Set: the registered readers' names."""
        return f"{self.prefix}:{{{domain}}}:readers"

    def reader(self, reader: str) -> str:
        """Hash: partition -> start, position and tally of a reader."""
        return f"{self.prefix}:{{{domain_of(reader)}}}:reader:{reader}"

    def leases(self, reader: str) -> str:
        """Hash: partition -> fence, end (ms) and owner."""
        return f"{self.prefix}:{{{domain_of(reader)}}}:leases:{reader}"

    def losses(self, domain: str) -> str:
        """List: the announced losses of the domain's partitions, oldest first."""
        return f"{self.prefix}:{{{domain}}}:losses"

    def lost(self, domain: str) -> str:
        """Hash: reader and partition -> up to which offset a loss was announced."""
        return f"{self.prefix}:{{{domain}}}:lost"

    def groups(self, domain: str) -> str:
        """Set: the work-queue groups' names."""
        return f"{self.prefix}:{{{domain}}}:groups"

    def lanes(self, group: str) -> str:
        """Set: the partitions of a work-queue group."""
        return f"{self.prefix}:{{{domain_of(group)}}}:lanes:{group}"

    def documents(self, collection: str) -> tuple[str, str, str]:
        """Hash key -> document, hash key -> last version of a deleted one, sorted set of the keys."""
        tag = f"{self.prefix}:{{documents/{collection}}}"
        return f"{tag}:values", f"{tag}:graves", f"{tag}:keys"


def domain_of(name: str) -> str:
    """The domain that a reader's or group's name begins with."""
    return name.partition("/")[0]


def parse_partition(text: str) -> Partition:
    """Read ``domain/channel/number``."""
    domain, channel, number = text.rsplit("/", 2)
    return Partition(domain, channel, int(number))
