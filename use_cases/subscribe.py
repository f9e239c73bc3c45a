"""Subscribing: whether the principal may listen, and where its reader begins."""

from __future__ import annotations

from collections.abc import Mapping

from ..entities.errors import RequestInvalid
from ..entities.position import Partition, Position
from ..entities.principal import Principal
from ..entities.subscription import Subscription
from .feed import Feed
from .flow_control import MessageFlowControlUseCase
from .playback import Playback, Timing
from .ports.message_log import MessageLog
from .reader import NOWHERE, Reader
from .sink import Sink


class MessageSubscriptionUseCase:
    """Open subscriptions: check the grants, find the start, hand over to the feed. ``timing``: of what plays the past."""

    def __init__(
        self, log: MessageLog, feed: Feed, flow: MessageFlowControlUseCase, timing: Timing | None = None
    ) -> None:
        self._log = log
        self._feed = feed
        self._flow = flow
        self._timing = timing or Timing()

    async def __call__(self, principal: Principal, subscription: Subscription, sink: Sink) -> Reader:
        """Open a subscription; the sink may be called before this returns. Raises Forbidden and LogUnavailable,
        and RequestInvalid for a speed without a start in the past.
        """
        principal.require("subscribe", subscription.filters)
        reader = Reader(subscription, sink, self._feed, self._log, self._flow)
        try:
            if subscription.speed is not None:
                await self._play(reader, subscription, subscription.speed)
                return reader
            match subscription.start.at:
                case "live":
                    reader.start_live()
                case "latest":
                    reader.start_latest()
                case _:
                    positions = await self._positions(subscription)
                    if subscription.policy == "latest":
                        reader.start_conflated(positions)
                    else:
                        await reader.start_after(positions)
        except BaseException:
            reader.close()
            raise
        return reader

    async def _play(self, reader: Reader, subscription: Subscription, speed: float) -> None:
        start = subscription.start
        if start.at in ("live", "latest"):
            raise RequestInvalid("speed: begin in the past, with `from` a time, a cursor or earliest")
        time = start.time if start.at == "time" else None
        reader.playback = Playback(self._log, self._feed.clock, self._timing, time, speed)
        await reader.start_after(await self._positions(subscription))

    async def _positions(self, subscription: Subscription) -> Mapping[Partition, Position]:
        start = subscription.start
        if start.at == "cursor" and start.cursor is not None:
            return start.cursor.positions
        partitions = [
            p for channel in subscription.channels for p in self._log.partitions(subscription.domain, channel)
        ]
        if start.at == "time":
            return {partition: await self._log.at(partition, start.time) for partition in partitions}
        return dict.fromkeys(partitions, NOWHERE)
