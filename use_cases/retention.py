"""Retention: trims what is old or too much, waits for lagging readers up to the cap, and announces what they lose."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from ..entities.channel import ChannelSpec, Retention
from ..entities.errors import Unavailable
from ..entities.position import Gap
from .ports.clock import Clock
from .ports.message_log import MessageLog

EVERY_S: Final = 30.0


class RetentionUseCase:
    """Applies each channel's retention to its partitions. ``announce`` tells the domain's alerts of a loss."""

    def __init__(
        self,
        log: MessageLog,
        clock: Clock,
        channels: Mapping[str, ChannelSpec],
        announce: Callable[[Gap], Awaitable[None]],
    ) -> None:
        self._log = log
        self._clock = clock
        self._channels = channels
        self._announce = announce
        self.lost = 0

    async def __call__(self) -> list[Gap]:
        """Trim every partition once; returns what registered readers lost."""
        gaps = []
        for domain in self._log.domains():
            for channel, spec in self._channels.items():
                for partition in self._log.partitions(domain, channel):
                    gap = await self._log.retain(partition, spec.retention, self._clock.now())
                    if gap is not None:
                        self.lost += gap.missing
                        gaps.append(gap)
                        await self._announce(gap)
        return gaps

    async def keep(self) -> None:
        """Trim every half minute until cancelled. A log that is away is tried again the next time."""
        logger = structlog.get_logger("iotsphere.retention")
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self()
            except Unavailable as error:
                logger.warning("retention_postponed", code=error.code, message=error.message)


def channels_with(retention: Retention, channels: Mapping[str, ChannelSpec]) -> Mapping[str, ChannelSpec]:
    """The same channels with another retention."""
    return {name: ChannelSpec(spec.partitions, retention) for name, spec in channels.items()}
