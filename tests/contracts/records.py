"""Records for contract tests: short to write, with every field different from its default somewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from itertools import count

from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.ports.message_log import MessageLog, Slice

from .times import take

DOMAIN = "iotsphere"
CHANNELS = {"telemetry": ChannelSpec(partitions=2), "commands": ChannelSpec(partitions=1)}
P0 = Partition(DOMAIN, "telemetry", 0)
P1 = Partition(DOMAIN, "telemetry", 1)
COMMANDS = Partition(DOMAIN, "commands", 0)
BEGINNING = Position(0, 0)

_serial = count(1)


def record(
    partition: Partition = P0,
    message_id: str | None = None,
    *,
    body: bytes | None = None,
    minted: bool = False,
    retain: bool = False,
    expires_at: int = 0,
) -> Record:
    """A record with a message id, topic and body of its own."""
    number = next(_serial)
    return Record(
        partition,
        f"{partition.domain}/devices/d{number % 7}/telemetry/température",
        message_id if message_id is not None else f"00000000-0000-7000-8000-{number:012d}",
        body if body is not None else b'{"metadata":{},"payload":%d}' % number,
        1_767_225_600_000 + number,
        expires_at,
        retain,
        minted,
        number % 3,
    )


def records(count: int, partition: Partition = P0, *, size: int | None = None, minted: bool = False) -> list[Record]:
    """Several records of one partition, with bodies of ``size`` bytes."""
    body = None if size is None else b"x" * size
    return [record(partition, body=body, minted=minted) for _ in range(count)]


def offsets(positions: Sequence[Position]) -> list[int]:
    """The offsets of positions."""
    return [position.offset for position in positions]


def ids(entries: Sequence[Entry]) -> list[str]:
    """The message ids of entries."""
    return [entry.record.message_id for entry in entries]


async def read_all(log: MessageLog, partition: Partition = P0, after: Position = BEGINNING) -> list[Entry]:
    """Everything that is retained after a position; no gap is expected."""
    entries: list[Entry] = []
    while (piece := await log.read(partition, after)).end != after:
        assert piece.gap is None, piece.gap
        entries += piece.entries
        after = piece.end
    return entries


async def collect(follower: AsyncGenerator[Slice, None], count: int) -> list[Entry]:
    """The next ``count`` entries of a follower; no gap is expected."""
    entries: list[Entry] = []
    while len(entries) < count:
        piece = await take(follower)
        assert piece.gap is None, piece.gap
        entries += piece.entries
    return entries
