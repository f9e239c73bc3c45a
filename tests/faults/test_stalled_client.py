"""One client that stops reading beside fifty that read: they notice nothing, memory stays bounded, and it loses nothing."""

from __future__ import annotations

from pathlib import Path

from tests.support.device import Device
from tests.support.gateway import Gateway
from tests.support.history import check

from .fleet import Fleet, resuming

MIB = 1024 * 1024
HEALTHY = 50
SMALL = 5
SMALL_EACH = 200
LARGE = 4
LARGE_EACH = 200
PADDING = 150_000
BACKLOG = LARGE * LARGE_EACH * PADDING
ALLOWED_GROWTH = 64 * MIB


async def test_a_stalled_client_harms_nobody_and_loses_nothing(tmp_path: Path) -> None:
    assert BACKLOG > 1.5 * ALLOWED_GROWTH  # so that holding the backlog in memory cannot pass
    async with Gateway(tmp_path / "data") as gateway:
        small = await gateway.add_devices([f"small{number}" for number in range(SMALL)])
        large = await gateway.add_devices([f"large{number}" for number in range(LARGE)])
        healthy = [
            resuming(f"healthy{number}", gateway, ["iotsphere/devices/+/telemetry/temperature"])
            for number in range(HEALTHY)
        ]
        stalled = resuming("stalled", gateway)
        async with Fleet(gateway, [*healthy, stalled]) as fleet:
            stalled.awake.clear()
            before = gateway.resident_bytes
            peak = before
            fleet.publish([Device(who, lambda: gateway.mqtt, count=SMALL_EACH, window=5) for who in small])
            fleet.publish(
                [
                    Device(
                        who, lambda: gateway.mqtt, count=LARGE_EACH, window=5, topic="telemetry/image", padding=PADDING
                    )
                    for who in large
                ]
            )
            total = SMALL * SMALL_EACH + LARGE * LARGE_EACH
            for step in range(1, 11):
                await fleet.acked_at_least(total * step // 10)
                peak = max(peak, gateway.resident_bytes)
            await fleet.all_acked()
            for subscriber in healthy:
                await fleet.all_delivered(subscriber, SMALL * SMALL_EACH)
            peak = max(peak, gateway.resident_bytes)

            published = [message for device in fleet.devices for message in device.history()]
            report = check(published, [subscriber.consumer for subscriber in healthy])
            assert report.faults == {}, str(report)
            assert all(subscriber.connections == 1 for subscriber in healthy)
            assert stalled.delivered < total
            growth = (peak - before) / MIB
            assert growth < ALLOWED_GROWTH / MIB, f"the gateway grew by {growth:.0f} MiB"

            stalled.awake.set()
            await fleet.all_delivered(stalled, total)
            report = fleet.verdict()
            assert report.faults == {}, str(report)
            assert stalled.delivered == total
