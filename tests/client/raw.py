"""A WebSocket client of bytes: for frames that no library would send."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Self

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA


class RawClient:
    """One socket to the door; frames are written exactly as they are asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect, and say nothing."""
        return cls(*await asyncio.open_connection(host, port))

    async def upgrade(self, token: str | None, *headers: str) -> None:
        """Finish the handshake. Raises AssertionError with the answer when it is refused."""
        authorization = () if token is None else (f"Authorization: Bearer {token}",)
        await self.send_lines(*self.handshake(), *authorization, *headers, "")
        answer = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        assert b" 101 " in answer.split(b"\r\n")[0], answer

    def handshake(self) -> tuple[str, ...]:
        """The lines of a good request, without the empty one that ends it."""
        return (
            "GET / HTTP/1.1",
            "Host: localhost",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        )

    async def send_lines(self, *lines: str) -> None:
        """Write header lines."""
        await self.send_bytes("".join(f"{line}\r\n" for line in lines).encode("latin-1"))

    async def send_bytes(self, data: bytes) -> None:
        """Write bytes; whether the other side still listens shows when reading."""
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            return

    async def send_frame(
        self,
        opcode: int,
        payload: bytes = b"",
        *,
        fin: bool = True,
        rsv: int = 0,
        masked: bool = True,
        declared: int = -1,
    ) -> None:
        """Write one frame. ``rsv``: 4 for RSV1. ``declared``: the length to lie about."""
        length = len(payload) if declared < 0 else declared
        head = bytes((opcode | (0x80 if fin else 0) | rsv << 4,))
        mask_bit = 0x80 if masked else 0
        if length < 126:
            head += bytes((mask_bit | length,))
        elif length < 65_536:
            head += bytes((mask_bit | 126,)) + length.to_bytes(2, "big")
        else:
            head += bytes((mask_bit | 127,)) + length.to_bytes(8, "big")
        if masked:
            mask = os.urandom(4)
            repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
            mixed = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
            payload = mixed.to_bytes(len(payload), "big")
            head += mask
        await self.send_bytes(head + payload)

    async def read_frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload. Raises IncompleteReadError at the end of the stream."""
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(2)
            length = head[1] & 0x7F
            if length == 126:
                length = int.from_bytes(await self.reader.readexactly(2), "big")
            elif length == 127:
                length = int.from_bytes(await self.reader.readexactly(8), "big")
            return head[0] & 0x0F, await self.reader.readexactly(length)

    async def close_code(self) -> int | None:
        """Read on up to the close frame; None when the connection ends without one."""
        try:
            while True:
                opcode, payload = await self.read_frame()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def ended(self) -> bytes:
        """Read up to the end of the stream, whatever comes; returns its beginning."""
        data = b""
        try:
            async with asyncio.timeout(60):
                while piece := await self.reader.read(65_536):
                    data += piece[: 4_096 - len(data)]
        except ConnectionError:
            return data
        return data

    async def close(self) -> None:
        """Cut it."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
