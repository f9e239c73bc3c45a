"""One MQTT connection from its first byte to its last: what the protocol session says is carried out here.

It knows no socket, only a ``Wire``, so that the same client can sit behind TCP, TLS or a WebSocket.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.life import CLOSED, ONLINE, Ended, Event
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.refusals import connect_reason
from ...adapters.mqtt.session import Session
from ...entities.certificate import Certificate
from ...entities.errors import IotSphereError, ShuttingDown, Unauthenticated
from ...entities.principal import Principal
from .door import MqttDoor
from .identify import identify
from .ties import Wire
from .visit import MqttVisit

log = structlog.get_logger("iotsphere.mqtt")

CONGESTION_CHECK_S: Final = 0.05
CUT_AFTER_S: Final = 5.0
# A client's rate is looked at when it owes so much, or after a while: each look costs as much as parsing a message.
PAY_MESSAGES: Final = 32
PAY_BYTES: Final = 64 * 1024
PAY_EVERY_S: Final = 0.05
# What isinstance knows at once: to join types anew for each packet costs more than most of what is done with it.
_MESSAGES: Final = (p.Burst, p.Publish, p.Oversized)
_REQUESTS: Final = (p.Subscribe, p.Unsubscribe)


class MqttClient:
    """A connection. ``visit``: what it does here, once its credential is believed. ``ended``: why it is over.

    ``due``: ``tick`` has nothing to do before this time.
    """

    __slots__ = (
        "_bytes_owed", "_certificate", "_closing_since", "_door", "_login", "_loop", "_lost", "_over", "_paid_at",
        "_paused", "_wire", "address", "due", "ended", "farewell", "session", "since", "visit",
    )  # fmt: skip

    def __init__(self, door: MqttDoor, wire: Wire, address: str, certificate: Certificate | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.address = address
        self.since = self._loop.time()
        self.due = 0.0
        self.session = Session(self.since, door.limits.offer)
        self.visit: MqttVisit | None = None
        self.farewell: asyncio.Task[None] | None = None
        self.ended: Ended | None = None
        self._certificate = certificate
        self._door = door
        self._wire = wire
        self._paused: tuple[str, ...] = ()
        self._login: asyncio.Task[None] | None = None
        self._bytes_owed = 0
        self._paid_at = 0.0
        self._closing_since = 0.0
        self._lost = False
        self._over = False

    # -- from the wire ------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes from the socket."""
        now = self._loop.time()
        found, size, visit = self.session.read(data, now), len(data), self.visit
        if not isinstance(found, p.Burst):
            self._handle(found, size, now)
        elif visit is not None and visit.way_in().gather(found, size):
            self._charge(visit.principal, size, now)
        else:
            self._handle([found], size, now)

    def has_room(self, room: bool) -> None:
        """The socket takes more, or no more for now: a client that does not read is not read either."""
        visit = self.visit
        if visit is not None and self.session.state == ONLINE:
            visit.outbox.full = not room
        if not room:
            self.pause("write")
            return
        self.resume("write")
        if visit is not None:
            visit.outbox.pump()

    def lost(self, why: str) -> None:
        """The socket is gone."""
        self._handle(self.session.lost(why))
        self._door.admission.lost(self)
        self._lost = True
        self._leave_if_over()

    # -- from the gateway ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look at the clock: the keep alive, a CONNECT that does not come, a goodbye that is not read."""
        session = self.session
        if self._closing_since:
            if now - self._closing_since >= CUT_AFTER_S:
                self._wire.abort()
        elif now < session.deadline:
            self.due = session.deadline  # what is heard meanwhile only puts it off
        elif session.state != ONLINE or not any(why != "write" for why in self._paused):
            self._handle(session.tick(now))  # unless it is not read: who is not heard may be alive

    def close(self, reason: Reason, text: str) -> None:
        """End the connection from this side."""
        self._handle(self.session.close(reason, text))
        if self.session.state != CLOSED:
            self.cut()

    def cut(self) -> None:
        """End the connection without a word."""
        self._wire.abort()

    def revalidate(self) -> None:
        """End the connection if its credential no longer counts."""
        visit, use = self.visit, self._door.use
        if visit is None or self.session.state != ONLINE or use.authenticate.still_valid(visit.principal):
            return
        self._door.counts["credential_ended"] += 1
        if 0 < visit.principal.expires_at <= use.clock.now():
            self.close(Reason.NOT_AUTHORIZED, "the credential has expired; connect again with a new one")
        else:
            self.close(Reason.ADMINISTRATIVE_ACTION, "the credential was withdrawn")

    async def leave(self) -> None:
        """End for a restart: what is on its way into the log is still acknowledged."""
        if self.visit is not None and self.session.state == ONLINE:
            self.pause("leaving")
            await self.visit.settle()
        self.close(Reason.SERVER_SHUTTING_DOWN, "the gateway is restarting; connect again in a moment")
        if self.farewell is not None:
            await asyncio.wait((self.farewell,))

    # -- events -------------------------------------------------------------------------------------------------------

    def _handle(self, events: list[Event], size: int = 0, now: float = 0.0) -> None:
        messages: list[p.Burst | p.Publish | p.Oversized] = []
        ended: Ended | None = None
        visit = self.visit
        if visit is not None and visit.ingress is not None:
            visit.ingress.submit()
        if self._door.use.playground is not None:
            events = self._door.use.playground.received(events)
        for event in events:
            if isinstance(event, _MESSAGES):
                messages.append(event)
            elif isinstance(event, p.Connect):
                self.pause("login")
                self._login = self._loop.create_task(self._log_in(event))
            elif isinstance(event, Ended):
                ended = event
            elif visit is None:
                continue
            elif isinstance(event, _REQUESTS):
                visit.request(event)
            else:
                visit.outbox.settled(event)
                visit.outbox.pump()
        if messages and visit is not None:
            visit.take(messages)
        if size and visit is not None:
            self._charge(visit.principal, size, now)
        if ended is None:
            self.moved()
        else:
            self._end(ended)

    def moved(self) -> None:
        """Answers may be due, and the socket may be read again, or no more."""
        self.flush()
        ingress = self.visit.ingress if self.visit is not None and self.session.state == ONLINE else None
        if ingress is None:
            return
        if ingress.failed is not None:
            self.close(*ingress.failed)
        elif not ingress.blocked:
            self.resume("log")
        else:
            self.pause("log")
            if not ingress.busy:  # others fill the queue to the log, and none of their answers comes here
                self._loop.call_later(CONGESTION_CHECK_S, self.moved)

    def answered(self) -> None:
        """Answers are due, and less is under way: that matters to a socket that is not read."""
        if self._paused:
            self.moved()
        else:
            self.flush()

    def flush(self) -> None:
        """Send what the session has to say."""
        speech = self.session.speech
        data = speech.take()
        if data:
            self._wire.write(data)
        if speech.durable and speech.unkept and self.visit is not None:
            self.visit.record.check()

    def pause(self, why: str) -> None:
        """Read no further, for one more cause."""
        if why not in self._paused and self.session.state != CLOSED:
            if not self._paused:
                self._wire.pause_reading()
            self._paused += (why,)
            self._door.counts[f"paused_for_{why}"] += 1

    def resume(self, why: str) -> None:
        """A cause is gone."""
        if why in self._paused:
            self._paused = tuple(other for other in self._paused if other != why)
            if not self._paused and self.session.state != CLOSED:
                self.session.heard(self._loop.time())
                self._wire.resume_reading()

    def _charge(self, principal: Principal, size: int, now: float) -> None:
        """Put what the client has sent on its account."""
        self._bytes_owed += size
        much = self.session.demands >= PAY_MESSAGES or self._bytes_owed >= PAY_BYTES
        if much or now - self._paid_at >= PAY_EVERY_S:
            self._paid_at = 0.0 if much else now  # who may be in debt is looked at again with the next read
            self._pay(principal)

    def _pay(self, principal: Principal) -> None:
        """Take what the client demanded from its rate; read no further while it is in debt."""
        rates = self._door.use.rates
        delay = rates.take(principal, self.session.demands, self._bytes_owed, self._loop.time())
        if delay <= 0:
            self.session.demands = self._bytes_owed = 0
            self.resume("rate")
        elif self.session.state != CLOSED:
            self.pause("rate")
            self._loop.call_later(delay, self._pay, principal)

    # -- coming and going ---------------------------------------------------------------------------------------------

    async def _log_in(self, connect: p.Connect) -> None:
        door = self._door
        try:
            if door.draining:
                raise ShuttingDown("the gateway is restarting; connect again in a moment")
            principal = await identify(door.use, connect, self._certificate, self.address)
            if self.session.state == CLOSED:
                return
            door.admission.admit(self)
            self.visit = MqttVisit(door, self.session, principal, self)
            events = await self.visit.begin(connect)
        except IotSphereError as error:
            reason = connect_reason(error)
            if isinstance(error, Unauthenticated) and connect.username is None and connect.password is None:
                reason = Reason.NOT_AUTHORIZED
            door.counts[f"connect_refused_{error.code}"] += 1
            log.info("connect_refused", code=error.code, address=self.address)
            self._handle(self.session.refuse(reason, error.message))
            return
        if self.session.state == ONLINE:
            self.due = 0.0
            self.flush()
            self.visit.outbox.full = "write" in self._paused
            self.resume("login")
        self._login = None
        self._handle(events)
        self.visit.outbox.pump()

    def _end(self, ended: Ended) -> None:
        if self.farewell is not None:
            return
        self.ended = ended
        self._door.counts[f"closed_{ended.reason.name.lower()}"] += 1
        self.flush()
        if self.visit is not None:
            self.visit.outbox.full = True
        self._wire.close()
        self._closing_since = self._loop.time()
        self.due = 0.0
        self.farewell = self._loop.create_task(self._say_farewell(ended))

    async def _say_farewell(self, ended: Ended) -> None:
        try:
            if self._login is not None:
                await asyncio.wait((self._login,))
            if self.visit is not None:
                await self.visit.end(ended)
        finally:
            self._over = True
            self._leave_if_over()

    def _leave_if_over(self) -> None:
        if self._lost and (self._over or self.farewell is None):
            self._door.forget(self)
