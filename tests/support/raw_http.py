"""HTTP by hand, for requests that no client library would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any


class RawConnection:
    """One TCP connection to an HTTP door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer; raises IncompleteReadError when the door hangs up instead."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split(" ")[1]), headers, body

    async def error(self) -> tuple[int, str]:
        """Status and error code of the next answer."""
        status, _, body = await self.answer()
        told: dict[str, Any] = json.loads(body)
        return status, str(told["error"]["code"])

    async def ends(self) -> bool:
        """Wait until the door hangs up; False when it sends something instead."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def open_raw(host: str, port: int, limit: int = 2**20) -> AsyncIterator[RawConnection]:
    """A connection that is closed at the end."""
    connection = RawConnection(*await asyncio.open_connection(host, port, limit=limit))
    try:
        yield connection
    finally:
        connection.writer.close()
        with suppress(ConnectionError):  # the door may have reset it
            await connection.writer.wait_closed()
