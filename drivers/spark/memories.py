"""What a fold remembers of each of many things, as bytes by name: only those that are touched are ever decoded."""

from __future__ import annotations

from typing import Final, Self

import pyarrow as pa

FORMAT: Final = b"\x01"
DAY_US: Final = 86_400_000_000
FORGOTTEN_US: Final = 36 * DAY_US  # no reading is older than 30 days when it is received
_SCHEMA: Final = pa.schema([("name", pa.string()), ("heard", pa.int64()), ("memory", pa.binary())])
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class Memories(dict[str, tuple[int, bytes]]):
    """By name, when it was last heard of (µs) and its bytes."""

    def forget(self, now: int) -> None:
        """Drop those that were silent for so long that nothing can come that they would have to know of."""
        for name in [name for name, (heard, _) in self.items() if heard < now - FORGOTTEN_US]:
            del self[name]

    def dump(self) -> bytes:
        """Turn all into bytes."""
        heard, memory = zip(*self.values(), strict=True) if self else ((), ())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA, options=_OPTIONS) as writer:
            writer.write_table(
                pa.table(
                    [pa.array(self, pa.string()), pa.array(heard, pa.int64()), pa.array(memory, pa.binary())],
                    schema=_SCHEMA,
                )
            )
        return FORMAT + bytes(sink.getvalue())

    @classmethod
    def load(cls, stored: bytes | None) -> Self:
        """Turn the bytes back; None is nothing. Raises ValueError for another format."""
        if not stored:
            return cls()
        if stored[:1] != FORMAT:
            raise ValueError(f"the state has format {stored[0]}, not {FORMAT[0]}: start a new checkpoint")
        table = pa.ipc.open_stream(pa.py_buffer(stored)[1:]).read_all()
        columns = (table[name].to_pylist() for name in ("name", "heard", "memory"))
        return cls((name, (heard, memory)) for name, heard, memory in zip(*columns, strict=True))
