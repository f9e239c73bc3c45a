"""A peer of the benchmark: `websockets.broadcast` to whoever is connected, so many frames at a time.

Prints {"event":"listening"} and, once told "go RATE BURST SECONDS" on standard input, {"event":"started","at":NS} and
then {"sent":N,"cpu_seconds":S}. Argument: the port. The frames are made before the clock that counts CPU time starts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from websockets.asyncio.server import ServerConnection, broadcast, serve

DEVICE = "bench0000"
clients: set[ServerConnection] = set()


async def join(client: ServerConnection) -> None:
    """A browser: it gets what is broadcast until it goes."""
    clients.add(client)
    try:
        await client.wait_closed()
    finally:
        clients.remove(client)


def envelope(seq: int, due: int) -> str:
    """A message as the gateway would send it."""
    metadata = {
        "messageId": f"0197f3c2-0000-4000-8000-{seq:012x}",
        "timestamp": "2026-01-31T12:00:00.000Z",
        "topic": f"iotsphere/devices/{DEVICE}/telemetry",
        "source": DEVICE,
        "correlationId": None,
        "messageType": "event",
        "version": "1.0",
    }
    payload = {"seq": seq, "t": due, "value": 21.5}
    return json.dumps({"metadata": metadata, "payload": payload}, separators=(",", ":"))


async def drained(client: ServerConnection) -> None:
    """Wait until the kernel has taken all that was written to a client: `broadcast()` itself never waits."""
    client.transport.set_write_buffer_limits(0)
    await client.ping()


async def send(rate: float, burst: int, seconds: float) -> None:
    """Broadcast, each burst when it falls due."""
    count, start = int(rate * seconds), time.monotonic_ns() + 200_000_000
    frames = [envelope(seq, start + int(seq // burst * burst / rate * 1e9)) for seq in range(count)]
    print(json.dumps({"event": "started", "at": start}), flush=True)
    before = time.process_time()
    for first in range(0, count, burst):
        due = start / 1e9 + first / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        for text in frames[first : first + burst]:
            broadcast(clients, text)
    for client in clients:
        await drained(client)
    print(json.dumps({"sent": count, "cpu_seconds": time.process_time() - before}), flush=True)


async def main(port: int) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with serve(join, "127.0.0.1", port, compression=None):
        print(json.dumps({"event": "listening"}), flush=True)
        while line := await commands.readline():
            _, rate, burst, seconds = line.split()
            await send(float(rate), int(burst), float(seconds))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
