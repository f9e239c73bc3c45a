"""A client's filters: granted one by one, read by one reader for all of them, and kept with its session.

One reader for all filters means that a message which several of them select comes once, that a client which comes back
reads its part of the log once, and that its place is one cursor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.reasons import Reason
from ...entities.cursor import Cursor
from ...entities.errors import FilterInvalid
from ...entities.position import Partition, Position
from ...entities.principal import Principal
from ...entities.share import PREFIX, split_share
from ...entities.subscription import Start, Subscription
from ...entities.topic import TopicFilter, parse_filter
from ...use_cases.session.state import Hold, Kept, Wanted
from .door import MqttDoor
from .outbox import MqttOutbox


class MqttFilters:
    """The subscriptions of one connection. Its methods are awaited one after the other.

    They raise Conflict when another connection has the session now, and LogUnavailable.
    """

    __slots__ = ("_door", "_hold", "_outbox", "_principal")

    def __init__(self, door: MqttDoor, principal: Principal, hold: Hold, outbox: MqttOutbox) -> None:
        self._door = door
        self._principal = principal
        self._hold = hold
        self._outbox = outbox

    async def restore(self, kept: Kept) -> None:
        """Go on where the client left; filters that its grants no longer cover are gone."""
        may = [each for each in kept.wanted if self._may(each.filter)]
        wanted = {each.filter.text: each for each in may if not each.share}
        self._door.counts["filters_withdrawn"] += len(kept.wanted) - len(may)
        self._outbox.standing.resume(kept)
        if wanted:
            await self._read(wanted, kept.positions)
        for shared in (each for each in may if each.share):
            await self._outbox.shares.subscribe(shared)
        if len(may) < len(kept.wanted):
            await self._keep()

    async def subscribe(self, packet: p.Subscribe) -> tuple[Sequence[Reason], str]:
        """Grant what may be granted; returns a reason per filter, and the first refusal in words.

        Retained values are with the outbox afterwards; pump it once the answer is written.
        """
        wanted = dict(self._outbox.plans.wanted)
        shares = self._outbox.shares
        shared_before = dict(shares.wanted)
        identifier = (packet.properties.subscription_identifiers or (0,))[0]
        reasons: list[Reason] = []
        refusal = ""
        retained: list[Wanted] = []
        for request in packet.requests:
            known = wanted.get(request.filter)
            reason, text, chosen = self._grant(request.filter, len(wanted) + len(shares.wanted))
            if chosen is not None and request.filter.startswith(PREFIX):
                group, _ = split_share(request.filter)
                each = Wanted(chosen, min(request.qos, 1), False, request.retain_as_published, identifier, share=group)
                reason, text = await shares.subscribe(each)
                if reason < Reason.UNSPECIFIED_ERROR:
                    reasons.append(reason)
                    continue
                chosen = None
            if chosen is None:
                self._door.counts["filters_refused"] += 1
                reasons.append(reason)
                refusal = refusal or text
                continue
            qos = request.qos
            reasons.append(Reason(qos))
            since = known.since if known is not None else {}
            each = Wanted(chosen, qos, request.no_local, request.retain_as_published, identifier, since)
            wanted[request.filter] = each
            if request.retain_handling == 0 or (request.retain_handling == 1 and known is None):
                retained.append(each)
        await self._change(wanted, retained, shares.wanted != shared_before)
        return reasons, refusal

    async def unsubscribe(self, packet: p.Unsubscribe) -> Sequence[Reason]:
        """End filters; returns a reason for each."""
        wanted = dict(self._outbox.plans.wanted)
        reasons = [
            Reason.SUCCESS
            if self._outbox.shares.unsubscribe(text) or wanted.pop(text, None) is not None
            else Reason.NO_SUBSCRIPTION_EXISTED
            for text in packet.filters
        ]
        await self._change(wanted, [], any(text.startswith(PREFIX) for text in packet.filters))
        return reasons

    # -- granting -----------------------------------------------------------------------------------------------------

    def _may(self, wanted: TopicFilter) -> bool:
        return self._principal.may_all("subscribe", wanted)

    def _grant(self, text: str, count: int) -> tuple[Reason, str, TopicFilter | None]:
        inner = text
        if text.startswith(PREFIX):
            try:
                _, inner = split_share(text)
            except FilterInvalid as error:
                return Reason.TOPIC_FILTER_INVALID, error.message, None
        if not _is_mqtt_filter(inner):
            return Reason.TOPIC_FILTER_INVALID, f"{text[:80]!a} is no filter", None
        try:
            wanted = parse_filter(inner)
        except FilterInvalid as error:  # sound MQTT, but beyond one domain or the space: nobody may
            return Reason.NOT_AUTHORIZED, error.message, None
        if not self._may(wanted):
            text = f"{text[:80]!a} is not open to {self._principal.name!a}; ask for a filter inside your grants"
            guest = self._door.use.playground is not None  # has no grants to ask for, so it is told no reason
            return Reason.UNSPECIFIED_ERROR if guest else Reason.NOT_AUTHORIZED, text, None
        known = text in self._outbox.plans.wanted or text in self._outbox.shares.wanted
        if count >= self._door.limits.filters and not known:
            return Reason.QUOTA_EXCEEDED, f"a client has at most {self._door.limits.filters} filters", None
        return Reason.SUCCESS, "", wanted

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _change(self, wanted: dict[str, Wanted], retained: Sequence[Wanted], shared: bool) -> None:
        outbox = self._outbox
        reader = outbox.standing.reader
        before = outbox.plans.wanted
        if wanted.keys() == before.keys():
            outbox.plans.want(wanted)
        elif wanted:
            positions = dict(reader.positions() or {}) if reader is not None and not reader.is_live else {}
            await self._read(wanted, positions)
        elif reader is not None:
            reader.close()
            outbox.standing.reader = None
            outbox.plans.want({})
        for each in retained:
            outbox.send_retained(list(self._door.use.last_values.retained([each.filter])), each)
        if shared or wanted != before:
            await self._keep()

    async def _read(self, wanted: dict[str, Wanted], positions: Mapping[Partition, Position]) -> None:
        """Read all filters from ``positions`` on, and from now on where none is given.

        A filter that is new counts only from now on, also in a partition where the reader is still behind.
        """
        outbox = self._outbox
        before = outbox.plans.wanted
        filters = tuple(each.filter for each in wanted.values())
        subscribe = self._door.use.subscribe
        # Nothing is awaited inside while it begins live, so no message lies between the old reader and this one.
        reader = await subscribe(self._principal, Subscription(filters), outbox)
        if outbox.standing.reader is not None:
            outbox.standing.reader.close()
        outbox.standing.reader = reader
        reader.passed = outbox.passed
        here = dict(reader.positions() or {})
        apart = {p: at for p, at in positions.items() if p in here and at != here[p]}
        if before:
            since = {partition: here[partition] for partition, at in apart.items() if at < here[partition]}
            for text in wanted.keys() - before.keys():
                wanted[text] = wanted[text]._replace(since=since)
        outbox.plans.want(wanted)
        if apart:
            reader.close()
            outbox.standing.held = {**here, **apart}
            start = Start("cursor", Cursor("", outbox.standing.held))
            outbox.standing.reader = await subscribe(self._principal, Subscription(filters, start), outbox)
            outbox.standing.reader.passed = outbox.passed
            outbox.standing.held = None
            for gap in outbox.standing.reader.missed_at_start:
                outbox.missed(outbox.standing.reader, gap)

    async def _keep(self) -> None:
        """Let the session know its filters, and the log its reader, before the client is answered."""
        if self._hold.expiry:
            kept = self._outbox.kept()
            await self._door.use.sessions.subscribe(self._hold, kept.wanted, kept.positions)


def _is_mqtt_filter(text: str) -> bool:
    """MQTT 5 section 4.7.1: wildcards stand alone in their level, and # comes last."""
    levels = text.split("/")
    return (
        bool(text)
        and all(level in ("+", "#") or ("+" not in level and "#" not in level) for level in levels)
        and "#" not in levels[:-1]
    )
