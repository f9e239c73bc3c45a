"""The network between a browser and a gateway: it can be lost for a while, and it can stop carrying answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.servers import free_port

SMALL_BUFFER = 32 * 1024


class Network:
    """A TCP proxy on one port that is taken away and comes back. ``carries``: cleared, answers stay in the gateway."""

    def __init__(self) -> None:
        self.target = 0
        self.port = free_port()  # one that nobody is given while it is away
        self.carries = asyncio.Event()
        self.carries.set()
        self.links = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def restore(self) -> None:
        """Be there (again), on the same port."""
        self._server = await asyncio.start_server(self._link, "127.0.0.1", self.port)

    async def lose(self) -> None:
        """Cut everything, and let nobody connect."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        """End it."""
        await self.lose()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links += 1
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        end.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.target))
        except OSError:  # the gateway is down
            end.close()
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(sock=end, limit=SMALL_BUFFER)
        self._writers |= {writer, far_writer}
        for work in (self._pass(reader, far_writer, False), self._pass(far_reader, writer, True)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if answers:
                    await self.carries.wait()
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """A network whose port is known before there is a gateway behind it: set ``target`` then."""
    opened = Network()
    await opened.restore()
    try:
        yield opened
    finally:
        await opened.close()
