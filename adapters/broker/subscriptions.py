"""The subscriptions of the adapter API: opened again when a connection is lost, left while their consumer is slow."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson

from ...entities.errors import IotSphereError, RequestInvalid, Unavailable
from .requests import Answer, PendingRequests, failure_of
from .stream import Stream

PATIENCE_S: Final = 10.0
RETRY_S: Final = 0.5


class Subscriptions:
    """The open streams of one broker, and which frame is for whom."""

    def __init__(self, requests: PendingRequests) -> None:
        self._requests = requests
        self._streams: set[Stream[Any]] = set()
        self._by_name: dict[str, Stream[Any]] = {}
        self._moved = asyncio.Event()
        self._failure: IotSphereError | None = None

    def add(self, stream: Stream[Any]) -> None:
        """Open a new one."""
        if self._failure is not None:
            stream.fail(self._failure)
            return
        self._streams.add(stream)
        self.reopen(stream)

    # -- what streams call --------------------------------------------------------------------------------------------

    def moved(self) -> None:
        """Somebody took something, waits, or asks."""
        self._moved.set()

    def reopen(self, stream: Stream[Any]) -> None:
        """Subscribe, or subscribe again from where the stream's buffer ends."""
        stream.parked = False
        if self._requests.connected:
            body = b"," + stream.request + b',"from":' + orjson.dumps(stream.start)
            self._requests.call("subscribe", body, lambda result: self._subscribed(stream, result))
            self._moved.set()

    def _subscribed(self, stream: Stream[Any], result: Answer | IotSphereError) -> None:
        if isinstance(result, Unavailable):
            if self._requests.connected:
                asyncio.get_running_loop().call_later(RETRY_S, self._reopen_if_wanted, stream)
        elif isinstance(result, IotSphereError):
            self._streams.discard(stream)
            stream.fail(result)
        else:
            stream.confirmed(result)
            if stream in self._streams:
                self._by_name[result["subscription"]] = stream
            else:
                self._leave(stream)  # it was closed meanwhile

    def _reopen_if_wanted(self, stream: Stream[Any]) -> None:
        if stream in self._streams and stream.name is None and not stream.parked:
            self.reopen(stream)

    def end(self, stream: Stream[Any]) -> None:
        """Unsubscribe."""
        self._streams.discard(stream)
        self._leave(stream)

    def _leave(self, stream: Stream[Any]) -> None:
        if stream.name is not None:
            self._by_name.pop(stream.name, None)
            self._requests.tell("unsubscribe", b',"subscription":"%b"' % stream.name.encode())
            stream.name = None

    async def acknowledge(
        self, stream: Stream[Any], token: str, retry_in: int | None = None, counted: bool = True
    ) -> None:
        """Acknowledge a delivery, on a later connection if this one is lost."""
        members: dict[str, object] = {"deliveries": [token]}
        if retry_in is not None:
            members |= {"retryIn": retry_in, "counted": counted}
        while True:
            await stream.opened()
            name = stream.name
            if name is None:
                raise RequestInvalid("the subscription is closed; acknowledge before closing it")
            members["subscription"] = name
            try:
                await self._requests.ask("ack", b"," + orjson.dumps(members)[1:-1])
            except (Unavailable, RequestInvalid) as error:
                if self._failure is not None or (stream.name == name and isinstance(error, RequestInvalid)):
                    raise
                await asyncio.sleep(0)
            else:
                return

    # -- what the broker calls ----------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Subscribe again on a new connection."""
        for stream in self._streams:
            if not stream.parked:
                self.reopen(stream)

    def lost(self, error: IotSphereError | None) -> None:
        """Forget the names of a lost connection; with an error, end every stream with it."""
        self._by_name.clear()
        for stream in self._streams:
            stream.lost()
            if error is not None:
                stream.fail(error)
        if error is not None:
            self._failure = error
            self._streams.clear()
        self._moved.set()

    def finish(self) -> None:
        """Let every iteration end."""
        for stream in self._streams:
            stream.finish()
        self._streams.clear()

    async def received(self, document: Answer, size: int) -> None:
        """Take a frame of ``size`` bytes that is no answer."""
        match document["type"]:
            case "messages" | "deliveries":
                stream = self._by_name.get(document["subscription"])
                if stream is not None and await self._has_room(stream):
                    stream.take(document, size)
            case "closing":
                for name, cursor in document["cursors"].items():
                    if name in self._by_name:
                        self._by_name[name].miss((), cursor)
            case _:
                self._noticed(document)

    def _noticed(self, document: Answer) -> None:
        stream = self._by_name.get(document.get("subscription", ""))
        if stream is None:
            return
        match document["type"]:
            case "gap":
                stream.miss(document["missed"])
            case "lagging":
                stream.lagging(document["behind"])
            case "ended":
                del self._by_name[document["subscription"]]
                stream.name = None
                self._streams.discard(stream)
                stream.fail(failure_of(document))

    async def _has_room(self, stream: Stream[Any]) -> bool:
        """Wait for the stream's consumer, unless that would keep somebody else waiting; then leave the subscription."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while stream.full:
            if len(self._requests) or any(other.starving for other in self._streams):
                self._park(stream)
                return False
            self._moved.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._moved.wait()
            except TimeoutError:
                self._park(stream)
                return False
        return stream.name is not None

    def _park(self, stream: Stream[Any]) -> None:
        """Leave the subscription until the consumer has taken most of the buffer; the log keeps the rest."""
        self._leave(stream)
        stream.parked = True
