"""Which messages were acknowledged and which were received, as bit sets that the two programs leave behind."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_LENGTH = struct.Struct("<Q")


class Missing(NamedTuple):
    """Over all devices: acknowledged but not received; received but never sent; sent but not acknowledged."""

    lost: int
    phantom: int
    unacknowledged: int


def write_acked(path: Path, sent: Sequence[int]) -> None:
    """Write what the load generator would when every message is acknowledged. ``sent``: messages by device."""
    data = b""
    for count in sent:
        bits = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        data += _LENGTH.pack(count) + _LENGTH.pack(len(bits)) + bits
    path.write_bytes(data)


def _read_set(data: bytes, at: int) -> tuple[int, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return int.from_bytes(data[at : at + size], "little"), at + size


def compare(acked_files: Path | Sequence[Path], received_file: Path, connections: int = 1) -> Missing:
    """Compare what load generators wrote with what a listener wrote.

    Each holds one set per device, in the same order; the listener's once per connection. What one connection of a
    hundred lacks is one message lost.
    """
    files = [acked_files] if isinstance(acked_files, Path) else acked_files
    acked_data, received_data = b"".join(path.read_bytes() for path in files), received_file.read_bytes()
    sets: list[tuple[int, int]] = []
    at = other = lost = phantom = 0
    while at < len(acked_data):
        (sent,) = _LENGTH.unpack_from(acked_data, at)
        acked, at = _read_set(acked_data, at + _LENGTH.size)
        sets.append((sent, acked))
    for _ in range(connections):
        for sent, acked in sets:
            if other >= len(received_data):
                raise ValueError("the two files are of different sets of devices")
            received, other = _read_set(received_data, other)
            lost += (acked & ~received).bit_count()
            phantom += (received >> sent).bit_count()
    if other != len(received_data):
        raise ValueError("the two files are of different sets of devices")
    return Missing(lost, phantom, sum(sent - acked.bit_count() for sent, acked in sets))
