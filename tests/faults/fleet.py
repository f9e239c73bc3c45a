"""Twenty devices and a resuming subscriber around one gateway, and the verdict on what they saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tests.support.device import Device
from tests.support.gateway import Gateway
from tests.support.history import Report, check
from tests.support.subscriber import Subscriber
from tests.support.waiting import until

EVERYTHING = "iotsphere/devices/+/telemetry/#"


class Fleet:
    """Devices that publish until all is acknowledged, beside subscribers that come back with their cursors."""

    def __init__(self, gateway: Gateway, subscribers: Sequence[Subscriber]) -> None:
        self.gateway = gateway
        self.devices: list[Device] = []
        self.subscribers = subscribers
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for subscriber in self.subscribers:
            self._tasks.append(asyncio.create_task(subscriber.run()))
        for subscriber in self.subscribers:
            await self._while_running(subscriber.ready.is_set, f"{subscriber.consumer.name} is subscribed", 120)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*self._tasks, *self._publishing):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def publish(self, devices: Sequence[Device]) -> None:
        """Let the devices begin."""
        self.devices += devices
        self._publishing += [asyncio.create_task(device.run()) for device in devices]

    @property
    def acked(self) -> int:
        """How many messages were acknowledged so far."""
        return sum(len(device.acked) for device in self.devices)

    async def acked_at_least(self, count: int) -> None:
        """Wait for the fleet's progress."""
        await self._while_running(lambda: self.acked >= count, f"{count} messages are acknowledged", 120)

    async def each_acked(self, count: int, connections: int) -> None:
        """Wait until each device has had so many acknowledged, and each subscriber so many connections."""

        def met() -> bool:
            return all(len(device.acked) >= count for device in self.devices) and all(
                subscriber.connections == connections for subscriber in self.subscribers
            )

        await self._while_running(met, f"{count} messages of each device are acknowledged", 120)

    async def all_acked(self) -> None:
        """Wait until every device has done its part."""
        await self._while_running(
            lambda: all(task.done() for task in self._publishing), "every message is acknowledged", 120
        )

    async def all_delivered(self, subscriber: Subscriber, count: int) -> None:
        """Wait until the subscriber had ``count`` deliveries; the judge says what they were."""
        await self._while_running(
            lambda: subscriber.delivered >= count, f"{subscriber.consumer.name} was delivered {count} messages", 120
        )

    async def _while_running(self, condition: Any, what: str, within: float) -> None:
        """Wait, but not when a device or a subscriber gave up."""

        def met() -> bool:
            for task in (*self._tasks, *self._publishing):
                if task.done() and not task.cancelled():
                    task.result()
            return bool(condition())

        try:
            await until(met, what, within)
        except AssertionError as error:
            seen = ", ".join(f"{each.consumer.name} {each.delivered}" for each in self.subscribers)
            found = f"acknowledged {self.acked}; delivered: {seen}\n{self.verdict()}\n{self.gateway.tail()}"
            raise AssertionError(f"{error}; {found}") from None

    def verdict(self) -> Report:
        """What the judge says of the whole history."""
        published = [message for device in self.devices for message in device.history()]
        return check(published, [subscriber.consumer for subscriber in self.subscribers])


def resuming(name: str, gateway: Gateway, filters: Sequence[str] = (EVERYTHING,)) -> Subscriber:
    """A subscriber that finds the gateway again wherever it is restarted."""
    return Subscriber(name, filters, lambda: gateway.websocket, lambda: gateway.token)


async def ledger_balances(gateway: Gateway, published: int) -> None:
    """The ledger must account for exactly ``published`` telemetry messages, and every reader catch up with them."""
    settled = ("applied", "superseded", "expired", "dead_lettered", "lost")
    deadline = asyncio.get_running_loop().time() + 60
    async with gateway.api() as api:
        while True:
            response = await api.get("/api/v1/ledger")
            assert response.status_code == 200, response.text
            ledger = response.json()
            accepted = {channel["channel"]: channel["accepted"] for channel in ledger["channels"]}
            assert accepted["telemetry"] == published, ledger
            assert ledger["imbalance"] == 0, ledger
            readers = ledger["readers"]
            for reader in readers:
                assert reader["accepted"] == sum(reader[name] for name in settled) + reader["pending"], reader
                assert reader["lost"] == 0, reader
            assert any(reader["channel"] == "telemetry" for reader in readers), ledger
            if all(reader["pending"] == 0 for reader in readers):
                return
            assert asyncio.get_running_loop().time() < deadline, ledger
            await asyncio.sleep(0.1)
