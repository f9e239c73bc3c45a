"""Requests of the adapter API that wait for their answers, across lost connections where repeating is safe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from ...entities.errors import IotSphereError, RequestInvalid, Unavailable, error_of
from ..client.protocol import MAX_REQUEST_BYTES

Answer = Mapping[str, Any]
Done = Callable[[Answer | IotSphereError], None]
_LOST: Final = "the connection was lost before the answer came; send it again"


class _Waiting(NamedTuple):
    frame: bytes
    done: Done
    repeat: bool


class PendingRequests:
    """Unanswered requests by ``ref``. ``send`` puts a frame on the wire."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._refs = 0
        self._waiting: dict[int, _Waiting] = {}
        self._failure: IotSphereError | None = None
        self.connected = False

    def __len__(self) -> int:
        return len(self._waiting)

    def call(self, kind: str, body: bytes, done: Done, *, repeat: bool = False) -> None:
        """Send a request; ``body``: its JSON members after ``type`` and ``ref``, each with a comma before it.

        ``done`` is called once, while the answer is taken from the wire, before any later frame. ``repeat``: send it
        again on a new connection; without that it is done with Unavailable when there is none.
        """
        if self._failure is not None:
            done(self._failure)
        elif not self.connected and not repeat:
            done(Unavailable(_LOST))
        elif len(body) > MAX_REQUEST_BYTES - 64:
            done(RequestInvalid(f"a request may hold {MAX_REQUEST_BYTES} bytes; this one has {len(body)}: split it"))
        else:
            self._refs += 1
            frame = b'{"type":"%b","ref":%d%b}' % (kind.encode(), self._refs, body)
            self._waiting[self._refs] = _Waiting(frame, done, repeat)
            self._send(frame)

    async def ask(self, kind: str, body: bytes, *, repeat: bool = False) -> Answer:
        """Send a request and wait for its answer. Raises what the answer says, and as ``call`` does."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(result: Answer | IotSphereError) -> None:
            if future.done():  # the caller was cancelled
                return
            if isinstance(result, IotSphereError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.call(kind, body, done, repeat=repeat)
        return await future

    def tell(self, kind: str, body: bytes) -> None:
        """Send a request whose answer does not matter."""
        if self.connected:
            self._refs += 1
            self._send(b'{"type":"%b","ref":%d%b}' % (kind.encode(), self._refs, body))

    def answered(self, answer: Answer) -> None:
        """Take an `ok` or `error` frame."""
        waiting = self._waiting.pop(answer["ref"], None) if isinstance(answer["ref"], int) else None
        if waiting is not None:
            waiting.done(answer if answer["type"] == "ok" else failure_of(answer))

    def again(self) -> None:
        """Send what must be repeated once more, in its order."""
        for waiting in list(self._waiting.values()):
            if waiting.repeat:
                self._send(waiting.frame)

    def lost(self, error: IotSphereError | None) -> None:
        """There is none: give up what must not be repeated; with an ``error``, everything, for good."""
        self.connected = False
        if error is not None:
            self._failure = error
        for ref, waiting in list(self._waiting.items()):
            if error is not None or not waiting.repeat:
                del self._waiting[ref]
                waiting.done(error or Unavailable(_LOST))


def failure_of(frame: Answer) -> IotSphereError:
    """The error that an `error` or `ended` frame tells of. ``retry_after``: seconds, where the gateway knows it."""
    facts: dict[str, object] = {"retry_after": frame["retryAfter"] / 1000} if "retryAfter" in frame else {}
    facts.update(frame.get("current", {}))
    return error_of(str(frame["code"]), str(frame["message"]), **facts)


def json_text(value: object) -> bytes:
    """The JSON text of a value. Raises RequestInvalid for what JSON cannot hold."""
    try:
        text = orjson.dumps(value)
        if b"null" in text:  # which is also what it makes of NaN, without a word
            json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestInvalid(f"the payload cannot be written as JSON: {error}; pass plain finite values") from error
    return text
