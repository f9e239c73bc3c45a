"""One client of the client protocol: its requests become use cases, its subscriptions become frames. No socket here.

The WebSocket door feeds it from a socket; the adapter API feeds the same session in the same process, so both behave
alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ...entities.errors import Forbidden, IotSphereError, MessageRefused, RequestInvalid, Unauthenticated
from ...entities.position import Gap
from ...entities.principal import Principal
from ...use_cases.feed import Batch
from ...use_cases.playback import PlaybackTime
from ...use_cases.reader import Reader
from ...use_cases.round import Round
from ...use_cases.work import Member
from ..timestamps import iso
from . import protocol
from .asking import ClientAsking
from .listening import Listening, Outbox
from .opening import open_listening
from .publishing import ClientPublishing
from .use_cases import ClientUseCases

CLOSE_NOT_UTF8: Final = 1007  # RFC 6455 section 8.1
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_FORBIDDEN: Final = 4403
CLOSE_TOO_FAST: Final = 4429


class ClientSession:
    """The state of one client: who it is, what it listens to, what it waits for."""

    def __init__(
        self, use_cases: ClientUseCases, outbox: Outbox, principal: Principal | None = None, exact: bool = False
    ) -> None:
        self._use = use_cases
        self._outbox = outbox
        self._answer = outbox.write
        self._exact = exact
        self.principal = principal
        self._publish = ClientPublishing(use_cases, outbox.write, exact)
        self._ask = ClientAsking(use_cases, outbox, exact)
        self._listening: dict[str, Listening] = {}
        self._by_reader: dict[Reader, Listening] = {}
        self._names = 0
        self._turn = 0
        self._closed = False
        self.delivered = 0
        self.refused = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    async def receive(self, raw: bytes) -> None:
        """Carry out one request and answer it. Never raises for what a client can do wrong."""
        ref: int | str | None = None
        try:
            request = protocol.parse_request(raw)
            ref = request.ref
            match request:
                case protocol.Auth():
                    self._renew(request)
                case _ if self.principal is None:
                    raise Unauthenticated('send {"type":"auth","ref":1,"token":"…"} first')
                case protocol.Publish():
                    await self._publish(request, self.principal)
                case protocol.Command() | protocol.Cancel() | protocol.Shadow() | protocol.Read():
                    self._ask(request, self.principal)
                case protocol.Subscribe() if request.group is not None:
                    await self._join(request, self.principal, request.group)
                case protocol.Subscribe():
                    await self._subscribe(request, self.principal)
                case protocol.Unsubscribe():
                    self._unsubscribe(request)
                case protocol.Play():
                    self._play(request)
                case protocol.Acknowledge():
                    await self._acknowledge(request)
                case protocol.Ping():
                    self._answer(protocol.ok(ref, time=iso(self._use.clock.now())))
        except IotSphereError as error:
            await self._refuse(ref, raw, error)

    async def _refuse(self, ref: int | str | None, raw: bytes, error: IotSphereError) -> None:
        self.refused += 1
        if ref is None:
            found = error.facts.get("ref")
            ref = found if isinstance(found, int | str) else None
        if isinstance(error, MessageRefused) and "topic" in error.facts and self.principal is not None:
            try:
                await self._publish.refuse(ref, self.principal, raw, error)
            except IotSphereError as worse:
                self._answer(protocol.failed(ref, worse))
        else:
            self._answer(protocol.failed(ref, error))
        if isinstance(error, Unauthenticated):
            self._outbox.close(CLOSE_UNAUTHENTICATED, "authenticate")
        elif error.code == "payload_not_utf8":
            self._outbox.close(CLOSE_NOT_UTF8, "a text frame holds UTF-8")
        elif self._publish.flooding:
            self._outbox.close(CLOSE_TOO_FAST, "too fast")

    def _renew(self, request: protocol.Auth) -> None:
        principal = self._use.authenticate.token(request.token)
        if self.principal is not None and principal.identity != self.principal.identity:
            self._outbox.write(
                protocol.failed(
                    request.ref,
                    Forbidden("a renewed token must be of the same subject; open another connection for another one"),
                )
            )
            self._outbox.close(CLOSE_FORBIDDEN, "another subject")
            return
        self.principal = principal
        self._answer(protocol.authenticated(request.ref, principal.expires_at, self._use.clock.now()))
        for listening in list(self._listening.values()):
            if not all(principal.may_all("subscribe", wanted) for wanted in listening.subscription.filters):
                self._end(listening)
                self._answer(
                    protocol.notice("ended", subscription=listening.name, code="forbidden", message="no longer granted")
                )

    def still_valid(self) -> bool:
        """Tell whether the principal still holds; the door asks every two seconds and closes with 4401 if not."""
        return self.principal is None or self._use.authenticate.still_valid(self.principal)

    # -- subscribing --------------------------------------------------------------------------------------------------

    def _open(self, request: protocol.Subscribe, principal: Principal) -> Listening:
        self._names += 1
        read_cursor = self._use.delivery.read_cursor
        return open_listening(request, principal, f"s{self._names}", read_cursor, self._listening.values())

    async def _subscribe(self, request: protocol.Subscribe, principal: Principal) -> None:
        listening = self._open(request, principal)
        reader = await self._use.subscribe(principal, listening.subscription, self)
        if self._closed:  # while the start was looked up
            reader.close()
            return
        listening.reader = reader
        listening.told_cursor(asyncio.get_running_loop().time(), not reader.stale)
        if reader.playback is not None:
            reader.playback.told = lambda time: self._ticked(listening, time)
        self._listening[listening.name] = listening
        self._by_reader[reader] = listening
        if not listening.each:  # who wants a cursor with each message shares none
            reader.in_rounds(self._deliver_round)
        self._answer(
            protocol.ok(
                request.ref,
                subscription=listening.name,
                cursor=self._use.delivery.cursor(reader, listening.scope),
                missed=[protocol.gap_facts(gap) for gap in reader.missed_at_start],
            )
        )

    async def _join(self, request: protocol.Subscribe, principal: Principal, group: str) -> None:
        listening = self._open(request, principal)
        listening.member = await self._use.work(principal, group, listening.subscription)
        if self._closed:
            return
        self._listening[listening.name] = listening
        self._answer(protocol.ok(request.ref, subscription=listening.name, cursor=None, missed=[]))
        listening.task = asyncio.get_running_loop().create_task(self._hand_out(listening, listening.member))

    async def _hand_out(self, listening: Listening, member: Member) -> None:
        delivery, exact = self._use.delivery, self._exact
        try:
            await listening.hand_out(
                member, self._outbox, lambda handouts: delivery.handouts(listening.name, handouts, exact)
            )
        except IotSphereError as error:
            self._end(listening)
            self._answer(protocol.notice("ended", subscription=listening.name, code=error.code, message=error.message))

    async def _acknowledge(self, request: protocol.Acknowledge) -> None:
        listening = self._listening.get(request.subscription)
        if listening is None or listening.member is None:
            raise RequestInvalid(f"{request.subscription[:40]!a} is no group subscription of this connection")
        # Also what an earlier connection was handed: a member that had to reconnect has done the work all the same.
        deliveries = list(dict.fromkeys(request.deliveries))
        count = await listening.member.acknowledge(deliveries, request.retry_in, request.counted)
        await listening.answered(listening.member, deliveries)
        self._answer(protocol.ok(request.ref, acknowledged=count))

    def _unsubscribe(self, request: protocol.Unsubscribe) -> None:
        listening = self._listening.get(request.subscription)
        if listening is None:
            raise RequestInvalid(f"{request.subscription[:40]!a} is no subscription of this connection")
        cursor = None
        if listening.reader is not None:
            cursor = self._use.delivery.cursor(listening.reader, listening.scope)
        self._end(listening)
        self._answer(protocol.ok(request.ref, cursor=cursor))

    def _play(self, request: protocol.Play) -> None:
        listening = self._listening.get(request.subscription)
        if listening is None or listening.reader is None or listening.reader.playback is None:
            raise RequestInvalid(f"{request.subscription[:40]!a} plays nothing here: subscribe with speed, from a time")
        self._answer(protocol.ok(request.ref))
        listening.reader.playback.play(request.speed)

    def _ticked(self, listening: Listening, time: PlaybackTime) -> None:
        """Tell the time of a rewind, unless the client is busy with earlier frames; the next is a second away."""
        if not self._outbox.full or time.state != "playing":
            self._answer(
                protocol.notice("clock", subscription=listening.name, **{**time._asdict(), "time": iso(time.time)})
            )

    def _end(self, listening: Listening) -> None:
        self._listening.pop(listening.name, None)
        if listening.reader is not None:
            self._by_reader.pop(listening.reader, None)
        listening.close()

    # -- what readers call (use_cases.reader.Sink) -----------------------------------------------------------------

    def deliver(self, reader: Reader, batch: Batch) -> bool:
        """Write the batch as frames, unless the client has not taken the earlier ones."""
        listening = self._by_reader.get(reader)
        if listening is None or self._outbox.full:
            return False
        for frame in self._use.delivery.frames(batch, reader, listening, self._exact):
            self._outbox.write(frame)
        listening.told_cursor(asyncio.get_running_loop().time(), not reader.stale)
        self.delivered += len(batch.entries)
        return True

    def _deliver_round(self, reader: Reader, whole: Round) -> bool:
        """Write a round as frames that all who get the same share, unless the client has not taken the earlier ones."""
        listening, outbox = self._by_reader.get(reader), self._outbox
        if listening is None or outbox.full:
            return False
        for frame in self._use.delivery.shared(whole, reader, listening, self._exact):
            outbox.write_shared(frame)
        listening.told_cursor(whole.at)
        self.delivered += whole.count
        return True

    def missed(self, reader: Reader, gap: Gap) -> None:
        """Tell the client what it cannot get."""
        listening = self._by_reader.get(reader)
        if listening is not None:
            # Ahead of what waits: its cursor already says that this was passed.
            self._outbox.write(protocol.notice("gap", subscription=listening.name, missed=[protocol.gap_facts(gap)]))

    def lagging(self, reader: Reader, lag: int) -> None:
        """Tell the client that it is behind, at most every five seconds, and that it has caught up, if it was told."""
        listening = self._by_reader.get(reader)
        if listening is not None:
            notice = listening.lag_notice(lag, asyncio.get_running_loop().time())
            if notice is not None:
                self._answer(notice)

    # -- the door's side ----------------------------------------------------------------------------------------------

    def has_room(self) -> None:
        """The client has taken what was written: everybody who waited may go on, each time another one first."""
        self._ask.has_room()
        names = list(self._listening)
        self._turn += 1
        turn = self._turn % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            self._listening[name].resume()

    def tell_cursors(self) -> None:
        """Send each quiet subscription where it stands, as a frame without messages; the door calls it now and then.

        A client whose filters seldom match would otherwise come back with a cursor that retention has passed by, and
        one that has just got its last values would have none.
        """
        if not self._listening or self._outbox.full:
            return
        now = asyncio.get_running_loop().time()
        for listening in self._listening.values():
            if listening.reader is None or not listening.cursor_due(now):
                continue
            cursor = self._use.delivery.cursor(listening.reader, listening.scope)
            if cursor is not None:
                listening.told_cursor(now)
                self._answer(listening.head + b'"' + cursor.encode() + b'","messages":[]}')

    def cursors(self) -> Mapping[str, str | None]:
        """Where each subscription stands, for a client that has to come back."""
        return {
            listening.name: self._use.delivery.cursor(listening.reader, listening.scope)
            for listening in self._listening.values()
            if listening.reader is not None
        }

    def close(self) -> None:
        """End everything. What a group member held goes to others once its visibility has passed."""
        self._closed = True
        self._ask.close()
        for listening in list(self._listening.values()):
            self._end(listening)
