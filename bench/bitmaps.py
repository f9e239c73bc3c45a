"""Which messages were acknowledged and which were received, as bit sets that the two programs leave behind."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_LENGTH = struct.Struct("<Q")


class Missing(NamedTuple):
    """Over all devices: acknowledged but not received; received but never sent; sent but not acknowledged."""

    lost: int
    phantom: int
    unacknowledged: int


def _read_set(data: bytes, at: int) -> tuple[int, int]:
    (size,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return int.from_bytes(data[at : at + size], "little"), at + size


def compare(acked_file: Path, received_file: Path) -> Missing:
    """Compare the load generator's file with the listener's: both hold one set per device, in the same order."""
    acked_data, received_data = acked_file.read_bytes(), received_file.read_bytes()
    at = other = lost = phantom = unacknowledged = 0
    while at < len(acked_data):
        (sent,) = _LENGTH.unpack_from(acked_data, at)
        acked, at = _read_set(acked_data, at + _LENGTH.size)
        received, other = _read_set(received_data, other)
        lost += (acked & ~received).bit_count()
        phantom += (received >> sent).bit_count()
        unacknowledged += sent - acked.bit_count()
    if other != len(received_data):
        raise ValueError("the two files are of different sets of devices")
    return Missing(lost, phantom, unacknowledged)
