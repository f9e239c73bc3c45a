"""What the client does in a page that nobody sees, and in one that plays the past."""

from __future__ import annotations

import pytest

from tests.js_client.engines import Chromium, Engine
from tests.js_client.scenes import proxied
from tests.support.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A headless browser never hides a page, so the page is made to believe it.
CONNECT = """
const document = globalThis.document;
g.show = (state) => {
  Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
};
g.client = lib.connect(given.url, { token: given.token, hiddenAfter: 10 });
g.publisher = lib.connect(given.url, { token: given.token });
await Promise.all([g.client.opened(), g.publisher.opened()]);
"""


async def test_b11_page_that_was_hidden_gets_one_snapshot(page: Chromium, gateway: Gateway) -> None:
    await page.run(CONNECT, url=gateway.websocket, token=gateway.token)
    got = await page.run("""
        const topics = Array.from({ length: 20 }, (_, n) => "iotsphere/devices/d1/telemetry/b11-" + n);
        const snapshot = await g.client.subscribe(topics, { policy: "latest" }).ready();
        const whole = await g.client.subscribe(topics.slice(0, 2)).ready();
        const always = await g.client.subscribe(topics.slice(0, 2), { hidden: "continue" }).ready();
        const told = { snapshot: g.record(snapshot, "message", "quality"), whole: g.record(whole, "message", "quality"),
                       always: g.record(always, "message") };
        await Promise.all(topics.map((topic) => g.publisher.publish(topic, -1)));
        await g.until(() => told.snapshot.message.length === 20 && told.whole.message.length === 2);
        g.show("hidden");
        await g.until(() => snapshot.state === "paused" && whole.state === "paused");
        for (let n = 0; n < 2000; n += 100)
          await Promise.all(Array.from({ length: 100 }, (_, k) => g.publisher.publish(topics[(n + k) % 20], n + k)));
        await g.client.ping();
        const hidden = [told.snapshot.message.length, told.whole.message.length];
        const late = g.client.subscribe(topics[0], { policy: "latest" });
        const meanwhile = late.state;
        g.show("visible");
        await g.until(() => told.whole.message.length === 202);
        await g.until(() => told.snapshot.message.length === 40);
        await g.until(() => told.always.message.length >= 202);
        await g.until(() => told.snapshot.quality.length >= 2 && told.whole.quality.length >= 2);
        await Promise.all([late.ready(), g.sleep(50)]);
        return { hidden, meanwhile, always: told.always.message.length,
                 values: g.values(told.snapshot.message.slice(20)).sort((a, b) => a - b),
                 whole: g.values(told.whole.message.slice(2)).sort((a, b) => a - b),
                 modes: told.snapshot.quality.map(({ mode }) => mode), wholeModes: told.whole.quality.map(({ mode }) => mode) };
    """)
    assert got["hidden"] == [20, 2]
    assert got["values"] == list(range(1980, 2000))
    assert got["whole"] == [n for n in range(2000) if n % 20 < 2]
    assert (got["modes"], got["wholeModes"]) == (["paused", "snapshot"], ["paused", "live"])
    assert (got["meanwhile"], got["always"]) == ("paused", 202)
    assert page.errors == []


async def test_short_look_away_changes_nothing(page: Chromium, gateway: Gateway) -> None:
    await page.run(CONNECT, url=gateway.websocket, token=gateway.token)
    got = await page.run(
        """
        const away = lib.connect(given.url, { token: given.token, hiddenAfter: 60_000 });
        const subscription = await away.subscribe("iotsphere/devices/d1/telemetry/glance").ready();
        const { state, message } = g.record(subscription, "state", "message");
        g.show("hidden");
        await g.publisher.publish("iotsphere/devices/d1/telemetry/glance", 1);
        await g.until(() => message.length === 1);
        g.show("visible");
        await away.ping();
        await away.close();
        return state.map(({ state }) => state);
    """,
        url=gateway.websocket,
        token=gateway.token,
    )
    assert got == ["ended"]


async def test_past_is_played_up_to_a_present_without_a_gap(engine: Engine, gateway: Gateway) -> None:
    topic = f"iotsphere/devices/d2/telemetry/rewind-{engine.name}"
    got = await engine.run(
        """
        const client = g.client = lib.connect(given.url, { token: given.token });
        await client.opened();
        const from = await client.ping();
        for (let n = 0; n < 30; n++) {
          await client.publish(given.topic, n);
          await g.sleep(100);
        }
        const subscription = client.subscribe(given.topic, { from, speed: 1 });
        const told = g.record(subscription, "message", "clock", "gap");
        await g.until(() => told.message.length >= 5);
        for (let n = 30; n < 40; n++) await client.publish(given.topic, n);
        subscription.play(0);
        await g.until(() => subscription.clock.state === "paused");
        const standing = told.message.length;
        await client.ping();
        const stood = told.message.length - standing;
        subscription.play(1000);
        await g.until(() => subscription.clock.state === "live");
        await client.publish(given.topic, 40);
        await g.until(() => told.message.length >= 41);
        const states = told.clock.map(({ state }) => state), times = told.clock.map(({ time }) => time.getTime());
        subscription.rewind({ from, speed: 0 });
        await g.until(() => subscription.clock.state === "paused");
        subscription.play(1);
        await g.until(() => told.message.length >= 42 && subscription.clock.state === "playing");
        subscription.live();
        await g.until(() => told.message.at(-1).payload.value === 40);
        await client.publish(given.topic, 41);
        await g.until(() => told.message.at(-1).payload.value === 41);
        return { values: g.values(told.message.slice(0, 41)), gaps: told.gap, states, stood,
                 ordered: times.every((time, n) => n === 0 || time >= times[n - 1]),
                 begin: Math.abs(times[0] - from) < 5000, clock: subscription.clock };
        """,
        url=gateway.websocket,
        token=gateway.token,
        topic=topic,
    )
    assert got["values"] == list(range(41))
    assert (got["gaps"], got["ordered"], got["stood"], got["clock"]) == ([], True, 0, None)
    assert [state for n, state in enumerate(got["states"]) if state not in got["states"][:n]] == [
        "playing",
        "paused",
        "live",
    ]


async def test_last_of_many_turns_counts(engine: Engine, gateway: Gateway) -> None:
    topic = f"iotsphere/devices/d2/telemetry/turns-{engine.name}"
    got = await engine.run(
        """
        const client = lib.connect(given.url, { token: given.token });
        await client.opened();
        const from = Date.now() - 60_000;
        const subscription = client.subscribe(given.topic);
        const { message, clock } = g.record(subscription, "message", "clock");
        for (let n = 0; n < 5; n++) {
          subscription.rewind({ from, speed: 1 });
          subscription.play(0);
          subscription.live();
          subscription.rewind({ from, speed: 3 });
          subscription.play(0);
        }
        await subscription.ready();
        await g.until(() => subscription.clock?.state === "paused");
        subscription.live();
        await subscription.ready();
        await client.publish(given.topic, 1);
        await g.until(() => message.length === 1);
        await client.close();
        return g.values(message);
        """,
        url=gateway.websocket,
        token=gateway.token,
        topic=topic,
    )
    assert got == [1]


async def test_rewind_goes_on_after_a_lost_connection(engine: Engine, gateway: Gateway) -> None:
    topic = f"iotsphere/devices/d2/telemetry/lost-{engine.name}"
    async with proxied(gateway) as (proxy, url):
        kept = await engine.run(
            """
            const client = g.client = lib.connect(given.url, { token: given.token, backoff: { min: 10, max: 20 } });
            await client.opened();
            const from = await client.ping();
            for (let n = 0; n < 20; n++) {
              await client.publish(given.topic, n);
              await g.sleep(50);
            }
            g.subscription = client.subscribe(given.topic, { from, speed: 0.1, resume: "not-while-rewinding" });
            g.told = g.record(g.subscription, "message", "clock");
            await g.until(() => g.told.message.length >= 3);
            return g.storage.getItem("iotsphere.cursor.not-while-rewinding");
            """,
            url=url,
            token=gateway.token,
            topic=topic,
        )
        proxy.cut()
        got = await engine.run("""
            const played = g.told.message.length;
            await g.client.opened();
            g.subscription.play(2);
            await g.until(() => g.told.message.length >= 20);
            g.subscription.play(1000);
            await g.until(() => g.subscription.clock?.state === "live");
            await g.client.close();
            return { values: g.values(g.told.message), played };
        """)
    assert got["values"] == list(range(20))
    assert got["played"] < 20
    assert kept is None
