"""A page that takes less than comes: bounded here, nothing lost, and told why."""

from __future__ import annotations

import pytest

from tests.js_client.engines import Engine
from tests.js_client.scenes import connect
from tests.support.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_slow_iteration_is_bounded_and_misses_nothing(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const topic = "iotsphere/devices/d1/telemetry/slow-" + Math.random().toString(36).slice(2, 8);
        const slow = await g.client.subscribe(topic, { buffer: 20 }).ready();
        const told = g.record(slow, "quality", "state");
        const iterator = slow[Symbol.asyncIterator]();
        const first = iterator.next();
        for (let n = 0; n < 500; n++) g.client.publish(topic, n);
        const values = [(await first).value.payload.value];
        await g.until(() => slow.state === "paused");
        await g.client.publish(topic, 500);
        while (values.length < 501) {
          values.push((await iterator.next()).value.payload.value);
          if (values.length % 50 === 0) await g.sleep(1);
        }
        const cursor = slow.cursor;
        await iterator.return();
        return { values, modes: told.quality.map(({ mode }) => mode), state: slow.state, cursor: typeof cursor };
    """)
    assert got["values"] == list(range(501))
    assert "behind" in got["modes"]
    assert (got["state"], got["cursor"]) == ("ended", "string")


async def test_slow_iteration_of_latest_gets_the_newest_of_each_topic(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const base = "iotsphere/devices/d1/telemetry/newest" + Math.random().toString(36).slice(2, 8);
        const slow = await g.client.subscribe([base + "-a", base + "-b"], { buffer: 10, policy: "latest" }).ready();
        const told = g.record(slow, "quality");
        await Promise.all(Array.from({ length: 400 }, (_, n) => g.client.publish(base + (n % 2 ? "-b" : "-a"), n)));
        // All has come when no more than the buffer holds is left.
        await g.until(() => told.quality.reduce((sum, { superseded }) => sum + superseded, 0) > 390);
        const values = [];
        for await (const { payload } of slow) {
          values.push(payload.value);
          if (payload.value >= 398 && values.includes(398) && values.includes(399)) break;
        }
        return { values, told: told.quality.map(({ mode, superseded }) => [mode, superseded]) };
    """)
    assert sorted(got["values"])[-2:] == [398, 399]
    assert len(got["values"]) <= 20
    assert {mode for mode, _ in got["told"]} == {"latest"}
    assert sum(superseded for _, superseded in got["told"]) + len(got["values"]) == 400


async def test_page_is_told_that_it_gets_newest_values_only_and_why(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const topic = "iotsphere/devices/d1/telemetry/limited";
        const slow = await g.client.subscribe(topic, { policy: "latest", maxRate: 1 }).ready();
        const told = g.record(slow, "quality", "message");
        for (let n = 0; n < 50; n++) await g.client.publish(topic, n); // in batches of their own
        await g.until(() => told.message.at(-1)?.payload.value === 49);
        await g.until(() => told.quality.at(-1)?.mode === "live");
        return told.quality;
    """)
    modes = [each["mode"] for each in got]
    assert (modes[:2], modes[-1]) == (["latest", "live"], "live")
    assert "only the newest of each topic" in got[0]["reason"]
    assert got[0]["behind"] >= 1
    assert sum(each["superseded"] for each in got) >= 1
