"""A TCP proxy that can cut its connections, hold back what the server answers, or refuse newcomers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cutter:
    """Between a client and ``target``. ``answers``: while cleared, nothing comes back from the server."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.refusing = False
        self.answers = asyncio.Event()
        self.answers.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address for a WebSocket client."""
        return f"ws://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every connection, with all that was under way."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one client."""
        if self.refusing:
            writer.transport.abort()
            return
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        self._writers |= {writer, far_writer}
        loop = asyncio.get_running_loop()
        for task in (
            loop.create_task(self._pump(reader, far_writer, None)),
            loop.create_task(self._pump(far_reader, writer, self.answers)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event | None
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if gate is not None:
                    await gate.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
        except ConnectionError:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def close(self) -> None:
        """Cut and forget everything."""
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def open_cutter(target: tuple[str, int]) -> AsyncIterator[Cutter]:
    """A proxy on a free port."""
    cutter = Cutter(target)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    cutter.port = server.sockets[0].getsockname()[1]
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
        await server.wait_closed()
