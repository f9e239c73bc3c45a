"""A TCP proxy that breaks connections at a chosen moment: between a request and its answer, or before the request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class FaultyProxy:
    """Passes bytes on to a port of this machine until it is told otherwise.

    ``swallow_answers``: so many times, the next bytes of the server are dropped and their connection is closed.
    ``hold``: while set, what clients send is kept back; ``release`` sends it on even when the client has gone.
    ``refuse``: while set, new connections are closed at once.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.swallow_answers = 0
        self.swallowed = 0
        self.hold = False
        self.refuse = False
        self._let_go = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: set[asyncio.StreamWriter] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        if self.refuse:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self._links |= {writer, far_writer}
        for work in (self._requests(reader, far_writer), self._answers(far_reader, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.hold:
                    await self._let_go.wait()
                server.write(data)
                await server.drain()
        server.close()

    async def _answers(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.swallow_answers:
                    self.swallow_answers -= 1
                    self.swallowed += 1
                    break
                client.write(data)
                await client.drain()
        client.close()

    def cut(self) -> None:
        """Break all client connections at once; what they had sent still reaches the server."""
        for link in self._links:
            if link.get_extra_info("sockname")[1] == self.port:
                link.transport.abort()

    def release(self) -> None:
        """Send on what was held back."""
        self.hold = False
        self._let_go.set()

    async def close(self) -> None:
        """Close everything."""
        for link in self._links:
            link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def faulty_proxy(target: int) -> AsyncIterator[FaultyProxy]:
    """A proxy on a free loopback port; its ``port`` says which."""
    proxy = FaultyProxy(target)
    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
