"""The stay of a client that is known: its session taken over or begun, its requests carried out, its place saved.

A visit begins when the credential is believed, and ends once its will is published, its session is saved and, if it
was a device's, its presence is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.inflow import Inflow
from ...adapters.mqtt.life import CLOSED, CONNECTING, Ended, Event, Resumed
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.session import Session
from ...adapters.mqtt.wills import check_will, will_of
from ...adapters.notices import missed_record
from ...entities.errors import Conflict, Forbidden, IotSphereError, Unavailable
from ...entities.position import Gap
from ...entities.principal import Principal
from ...use_cases.ports.message_log import Appended
from ...use_cases.session.state import Hold, Kept
from ...use_cases.session.wills import Will
from .door import MqttDoor
from .filters import MqttFilters
from .ingress import MqttIngress
from .outbox import MqttOutbox
from .record import MqttRecord
from .ties import Ties

log = structlog.get_logger("iotsphere.mqtt")

RETRIES: Final = 30
RETRY_S: Final = 1.0
IDLE_COMMIT_S: Final = 60.0
TAKEN_OVER: Final = "another connection of this client has taken over"

# Why a device is offline, in its presence.
_OFFLINE: Final = {
    Reason.SUCCESS: "disconnected",
    Reason.DISCONNECT_WITH_WILL: "disconnected",
    Reason.KEEP_ALIVE_TIMEOUT: "keep_alive_timeout",
    Reason.SESSION_TAKEN_OVER: "taken_over",
    Reason.SERVER_SHUTTING_DOWN: "gateway_stopped",
    Reason.NOT_AUTHORIZED: "credential_ended",
    Reason.ADMINISTRATIVE_ACTION: "credential_ended",
    Reason.UNSPECIFIED_ERROR: "connection_lost",
}


class MqttVisit:
    """``ingress``: the client's way in, once it has published. What an idle client does not need is not made for it."""

    __slots__ = (
        "_answering", "_committed_at", "_door", "_epoch", "_filters", "_heirs", "_hold", "_kept", "_requests", "_saved",
        "_session", "_ties", "_welcome", "_will", "ingress", "key", "outbox", "principal", "record",
    )  # fmt: skip

    def __init__(self, door: MqttDoor, session: Session, principal: Principal, ties: Ties) -> None:
        self.principal = principal
        self.key = f"{principal.identity}/{session.client_id}"
        self.ingress: MqttIngress | None = None
        self.outbox = MqttOutbox(door, session, principal, ties)
        self.record = MqttRecord(door, session, principal, self.outbox, ties)
        self._door = door
        self._session = session
        self._ties = ties
        self._hold: Hold | None = None
        self._kept: Kept | None = None  # as it was found, until it is restored
        self._filters: MqttFilters | None = None
        self._will: Will | None = None
        self._welcome = False
        self._epoch: asyncio.Task[int] | int | None = None
        self._requests: list[p.Subscribe | p.Unsubscribe] = []
        self._saved = False
        self._heirs: asyncio.Event | None = None
        self._answering: asyncio.Task[None] | None = None
        self._committed_at = asyncio.get_running_loop().time()

    # -- coming -------------------------------------------------------------------------------------------------------

    async def begin(self, connect: p.Connect) -> list[Event]:
        """Take the session over and welcome the client; returns what it has sent meanwhile.

        Raises Forbidden, TopicInvalid and MessageRefused for its will, Conflict and LogUnavailable.
        """
        door, session = self._door, self._session
        if connect.will is not None:
            door.use.edge.route(self.principal, connect.will.topic)
            check_will(connect.will)
        if self.principal.kind == "device":
            presence = door.use.presence.online(self.principal.domain, self.principal.name)
            self._epoch = asyncio.get_running_loop().create_task(presence)
            self._epoch.add_done_callback(self._is_online)
            await asyncio.sleep(0)  # so that it comes before the goodbye of the connection that is taken over
        previous = door.online.get(self.key)
        door.online[self.key] = self
        if previous is not None:
            door.takeovers.note(self.principal, session.client_id)
            previous.make_way()
            await previous.saved()
        sessions = door.use.sessions
        hold, kept = await sessions.open(self.principal, session.client_id, connect.clean_start, session.expiry)
        hold.key = self.key  # the same text, once
        self._hold, self._kept = hold, kept or Kept()
        if connect.will is not None:
            self._will = will_of(self.principal, connect.will, session.expiry, door.use.clock.now())
        await door.use.wills.begin(self.key, self._will, resumed=kept is not None)
        self._filters = MqttFilters(door, self.principal, hold, self.outbox)
        self.outbox.told = self._tell_missed
        self.outbox.full = True  # nothing goes out before the welcome
        if kept is not None and session.state == CONNECTING:
            await self._filters.restore(kept)
        self.outbox.begin(hold.salt if hold.expiry else "", self._kept.pushed)
        if kept is not None and session.state == CONNECTING:
            await self.outbox.greet()
        if session.state != CONNECTING:
            return []
        known = self._kept
        reserved = [*(each.packet_id for each in known.under_way), *(each.packet_id for each in known.pushed)]
        self._kept, self._welcome = None, True
        door.counts["connected"] += 1
        inflow = Inflow(hold.salt, hold.inbound) if hold.version else None
        if hold.expiry:
            self.record.hold = hold
        resumed = Resumed(reserved, known.released, inflow, bool(hold.expiry))
        now = asyncio.get_running_loop().time()
        return session.accept(now, session_present=kept is not None, resumed=resumed)

    def make_way(self) -> None:
        """End for a newer connection of the same client."""
        self._ties.close(Reason.SESSION_TAKEN_OVER, TAKEN_OVER)

    async def saved(self) -> None:
        """Wait until the session is free for the next connection of the client."""
        if not self._saved:
            if self._heirs is None:
                self._heirs = asyncio.Event()
            await self._heirs.wait()

    def _is_online(self, task: asyncio.Task[int]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._epoch = task.result()

    # -- staying ------------------------------------------------------------------------------------------------------

    def take(self, messages: Sequence[p.Burst | p.Publish | p.Oversized]) -> None:
        """Let messages go into the log."""
        self.way_in().take(messages)

    def way_in(self) -> MqttIngress:
        """The client's way in, made for its first message."""
        if self.ingress is None:
            self.ingress = MqttIngress(self._door, self._session, self.principal, self._ties)
            self.ingress.own = self.outbox.sender.published
        return self.ingress

    async def settle(self) -> None:
        """Wait until nothing is on its way into the log any more."""
        if self.ingress is not None:
            await self.ingress.settle()

    def request(self, packet: p.Subscribe | p.Unsubscribe) -> None:
        """Carry out a request, after those that came before it."""
        self._requests.append(packet)
        if len(self._requests) >= self._door.limits.waiting_requests:
            self._ties.pause("requests")
        if self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        filters, session = self._filters, self._session
        assert filters is not None
        try:
            while self._requests and session.state != CLOSED:
                packet = self._requests.pop(0)
                if isinstance(packet, p.Subscribe):
                    reasons, text = await filters.subscribe(packet)
                    session.suback(packet.packet_id, reasons, text)
                    await self.outbox.greet()
                else:
                    session.unsuback(packet.packet_id, await filters.unsubscribe(packet))
                self._ties.flush()
                self.outbox.pump()
                self._ties.resume("requests")
        except Conflict:
            self._door.takeovers.note(self.principal, session.client_id)
            self._ties.close(Reason.SESSION_TAKEN_OVER, TAKEN_OVER)
        except (Unavailable, Forbidden) as error:
            self._ties.close(Reason.SERVER_BUSY, f"{error.message}; connect again and repeat it")
        finally:
            self._answering = None

    @property
    def keeps_place(self) -> bool:
        """Whether its session outlives the connection, so that its place in the log is to be committed."""
        return self._hold is not None and self._hold.expiry > 0

    async def checkpoint(self) -> None:
        """Commit how far the client is, if that has changed; seldom where it got nothing itself."""
        hold, outbox = self._hold, self.outbox
        now = asyncio.get_running_loop().time()
        if hold is None or not hold.expiry or self._kept is not None or self._answering is not None:
            return
        if outbox.sender.moved or now - self._committed_at >= IDLE_COMMIT_S:
            outbox.sender.moved = False
            self._committed_at = now
            positions = outbox.kept().positions
            await self._door.use.sessions.commit(hold, positions, outbox.standing.tallies(positions))

    def _tell_missed(self, gap: Gap) -> None:
        """Tell a device on its errors topic what it can no longer get."""
        if self.principal.kind == "device":
            use = self._door.use
            record = missed_record(use.edge, self.principal.name, gap, use.clock.now())
            use.publish.submit([record], self._told)

    def _told(self, result: Appended | IotSphereError) -> None:
        if isinstance(result, IotSphereError):
            self._door.counts["notices_lost"] += 1

    # -- going --------------------------------------------------------------------------------------------------------

    async def end(self, ended: Ended) -> None:
        """Publish the will, save the session, let the device be offline."""
        self.outbox.left()
        try:
            if self._answering is not None:
                await asyncio.wait((self._answering,))
            await self._end_will(ended)
            await self._save(ended.expiry)
        finally:
            if self.outbox.standing.reader is not None:
                self.outbox.standing.reader.close()
            if self._door.online.get(self.key) is self:
                del self._door.online[self.key]
            self._saved = True
            if self._heirs is not None:
                self._heirs.set()
        await self._be_offline(_OFFLINE.get(ended.reason, "protocol_error"))

    async def _end_will(self, ended: Ended) -> None:
        will, wills = self._will, self._door.use.wills
        if will is None:
            return
        for _ in range(RETRIES):
            try:
                if ended.will and self._welcome:
                    await wills.leave(self.key, will.token, ended.expiry)
                else:
                    await wills.clear(self.key, will.token)
            except Unavailable as error:
                log.warning("will_not_published_yet", code=error.code)
                await asyncio.sleep(RETRY_S)
            else:
                return
        self._door.counts["wills_left_to_recovery"] += 1

    async def _save(self, expiry: int) -> None:
        hold = self._hold
        if hold is None:
            return
        hold.expiry = expiry
        await self.record.settle()
        sessions = self._door.use.sessions
        for _ in range(RETRIES):
            try:
                kept = self._kept
                if kept is None:
                    kept = self.outbox.kept()
                    if expiry:
                        await sessions.commit(hold, kept.positions, self.outbox.standing.tallies(kept.positions))
                await sessions.leave(hold, kept, self._session.incoming.inflow.state() if self._kept is None else None)
            except Conflict:
                return  # a connection to another process has it, and what is under way is that one's now
            except Unavailable as error:
                log.warning("session_not_saved_yet", code=error.code)
                await asyncio.sleep(RETRY_S)
            else:
                return
        self._door.counts["sessions_not_saved"] += 1

    async def _be_offline(self, why: str) -> None:
        if self._epoch is None:
            return
        try:
            epoch = self._epoch if isinstance(self._epoch, int) else await self._epoch
            await self._door.use.presence.offline(self.principal.domain, self.principal.name, epoch, why)
        except Unavailable as error:
            self._door.counts["presence_not_told"] += 1
            log.warning("presence_not_told", code=error.code)
