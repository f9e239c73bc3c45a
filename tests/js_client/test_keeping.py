"""What the client keeps: cursors across reloads, and what is published while there is no connection."""

from __future__ import annotations

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from tests.client.house import TOPIC, open_door, open_house
from tests.js_client.engines import Chromium, Engine, Node
from tests.js_client.scenes import CONNECT, LISTEN, PUBLISH, proxied
from tests.support.gateway import Gateway
from tests.use_cases.stage import DOMAIN, soon

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_outbox_keeps_what_is_published_offline_and_repeats_without_duplicates(
    engine: Engine, gateway: Gateway
) -> None:
    topic = f"iotsphere/devices/d1/telemetry/offline-{engine.name}"
    async with proxied(gateway) as (proxy, url):
        await engine.run(CONNECT, url=url, token=gateway.token)
        await engine.run("g.outbox = g.record(g.client, 'outbox').outbox")
        await engine.run(
            """
            g.direct = lib.connect(given.url, { token: given.token });
            const subscription = await g.direct.subscribe(given.topic).ready();
            g.told = g.record(subscription, "message");
            """,
            url=gateway.websocket,
            token=gateway.token,
            topic=topic,
        )
        # The gateway accepts these, and its answers are lost with the connection.
        proxy.swallow_answers = 1
        await engine.run("g.first = [0, 1, 2].map((n) => g.client.publish(given.topic, n))", topic=topic)
        await soon(lambda: proxy.swallowed == 1, "the answers are swallowed")
        proxy.refuse = True
        got = await engine.run(
            """
            const later = [3, 4, 5].map((n) => g.client.publish(given.topic, n));
            await g.until(() => g.client.outbox.messages >= 6); // once it has met the lost connection
            const waiting = g.client.outbox.messages;
            g.all = [...g.first, ...later];
            return waiting;
            """,
            topic=topic,
        )
        assert got == 6
        proxy.refuse = False
        got = await engine.run("""
            const answers = await Promise.all(g.all);
            await g.until(() => g.told.message.length >= 6);
            await g.sleep(100);
            const last = g.outbox.at(-1);
            await Promise.all([g.client.close(), g.direct.close()]);
            return { duplicates: answers.map(({ duplicate }) => duplicate), values: g.values(g.told.message), last };
        """)
    assert got["values"] == [0, 1, 2, 3, 4, 5]
    assert got["duplicates"][0] is True
    assert got["duplicates"][3:] == [False, False, False]
    assert got["last"] == {"messages": 0, "bytes": 0, "full": False}


async def test_full_outbox_says_so(engine: Engine) -> None:
    got = await engine.run("""
        const client = lib.connect("ws://127.0.0.1:9/", { token: "x", outbox: { messages: 2 } });
        const told = g.record(client, "outbox").outbox;
        const kept = [1, 2].map((n) => g.caught(client.publish("iotsphere/system/status", n)));
        const refused = await g.caught(client.publish("iotsphere/system/status", 3));
        const large = await g.caught(client.publish("iotsphere/system/status", "x".repeat(300_000)));
        await client.close();
        return { refused, large: large.code, told: told.map(({ full }) => full), kept: (await Promise.all(kept)).map(({ code }) => code) };
    """)
    assert (got["refused"]["code"], got["refused"]["retry"]) == ("outbox_full", True)
    assert got["large"] == "payload_too_large"
    assert got["told"][:2] == [False, True]
    assert got["kept"] == ["closed", "closed"]


async def test_page_goes_on_where_it_was_when_it_is_loaded_anew(page: Chromium, gateway: Gateway) -> None:
    topic = "iotsphere/devices/d1/telemetry/reload"
    connect = """
        g.client = lib.connect(given.url, { token: given.token });
        g.subscription = await g.client.subscribe(given.topic, { resume: "chart" }).ready();
        g.told = g.record(g.subscription, "message");
    """
    where = {"url": gateway.websocket, "token": gateway.token, "topic": topic}
    await page.run(connect, **where)
    await page.run(PUBLISH, **where, values=[0, 1, 2])
    await page.run("await g.until(() => g.told.message.length === 3)")
    await page.load()
    await page.run(PUBLISH, **where, values=[3, 4])
    await page.run(connect, **where)
    got = await page.run("await g.until(() => g.told.message.length === 2); return g.values(g.told.message)")
    assert got == [3, 4]
    assert page.errors == []


async def test_iteration_resumes_after_what_was_finished_with(engine: Engine, gateway: Gateway) -> None:
    topic = f"iotsphere/devices/d1/telemetry/finished-{engine.name}"
    await engine.run(CONNECT, url=gateway.websocket, token=gateway.token)
    got = await engine.run(
        """
        const open = () => g.client.subscribe(given.topic, { resume: "finished" }).ready();
        const first = await open(), seen = [];
        const publish = (...values) => Promise.all(values.map((n) => g.client.publish(given.topic, n)));
        await publish(0);
        for await (const { payload } of first) {
          if (payload.value === 2) break; // not finished with
          seen.push(payload.value);
          await publish(...(payload.value === 0 ? [1] : [2, 3])); // a frame of its own: one goes on after whole frames
        }
        const second = await open();
        for await (const { payload } of second) {
          seen.push(payload.value);
          if (payload.value === 3) break;
        }
        await g.client.close();
        return seen;
        """,
        topic=topic,
    )
    assert got == [0, 1, 2, 3]


async def test_cursor_of_somebody_else_is_told_as_a_gap(engine: Engine, gateway: Gateway) -> None:
    await engine.run(CONNECT, url=gateway.websocket, token=gateway.token)
    got = await engine.run("""
        const elsewhere = await g.client.subscribe("iotsphere/system/#").ready();
        g.storage.setItem("iotsphere.cursor.mixed", elsewhere.cursor);
        const subscription = g.client.subscribe("iotsphere/devices/d1/telemetry/mixed", { resume: "mixed" });
        const { gap } = g.record(subscription, "gap");
        await subscription.ready();
        await g.client.publish("iotsphere/devices/d1/telemetry/mixed", 1);
        await g.until(() => subscription.cursor);
        await g.client.close();
        return gap;
    """)
    assert got == [
        {
            "missed": [{"partition": "*", "first": 0, "last": 0, "count": 0, "reason": "cursor_invalid"}],
            "resumed": False,
        }
    ]


async def test_outbox_outlives_the_page(engine: Engine, gateway: Gateway) -> None:
    topic = f"iotsphere/devices/d1/telemetry/kept-{engine.name}"
    got = await engine.run(
        """
        const outbox = { storage: g.storage, key: "ada" };
        const away = lib.connect("ws://127.0.0.1:9/", { token: "x", outbox });
        for (let n = 0; n < 3; n++) away.publish(given.topic, n).catch(() => {});
        away.publish("iotsphere/nowhere", 1).catch(() => {});
        await away.close();
        const kept = g.storage.length;
        const client = lib.connect(given.url, { token: given.token, outbox });
        const told = g.record(client, "outbox").outbox;
        const subscription = await client.subscribe(given.topic, { from: "earliest" }).ready();
        const { message } = g.record(subscription, "message");
        await g.until(() => message.length === 3 && client.outbox.messages === 0);
        await client.close();
        const refused = told.find(({ refused }) => refused)?.refused;
        return { kept, left: g.storage.length, values: g.values(message), refused: refused.error.code };
        """,
        url=gateway.websocket,
        token=gateway.token,
        topic=topic,
    )
    assert got == {"kept": 4, "left": 0, "values": [0, 1, 2], "refused": "topic_invalid"}


async def test_b10_what_cannot_be_had_is_told_with_its_range(node: Node) -> None:
    clock = ManualClock()
    async with open_house(partitions=1, clock=clock) as house, open_door(house) as door:
        await node.run(CONNECT, url=door.url, token=house.token())
        await node.run(LISTEN, topic=TOPIC)
        await node.run(
            "await g.client.publish(given.topic, 0); await g.until(() => g.told.message.length === 1)", topic=TOPIC
        )
        await node.run("g.kept = g.subscription.cursor; await g.subscription.close()")
        await node.run(
            "await Promise.all([1, 2, 3, 4, 5, 6, 7].map((n) => g.client.publish(given.topic, n)))", topic=TOPIC
        )
        shelf = house.log.shelf(house.log.partitions(DOMAIN, "telemetry")[0])
        shelf.trim(3)
        got = await node.run(
            """
            const late = g.client.subscribe(given.topic, { from: g.kept });
            const told = g.record(late, "message", "gap");
            await g.until(() => told.message.length === 5);
            g.kept = late.cursor;
            await g.client.close();
            return [g.values(told.message), told.gap];
            """,
            topic=TOPIC,
        )
        missed = {"partition": "telemetry/0", "first": 2, "last": 3, "count": 2, "reason": "retention"}
        assert got == [[3, 4, 5, 6, 7], [{"missed": [missed], "resumed": False}]]
    clock.advance(5_000)
    async with open_house(partitions=1, clock=clock, log=MemoryLog(clock)) as rebuilt, open_door(rebuilt) as door:
        await node.run(CONNECT, url=door.url, token=rebuilt.token())
        got = await node.run(
            """
            await g.client.publish(given.topic, 8);
            const late = g.client.subscribe(given.topic, { from: g.kept });
            const told = g.record(late, "message", "gap");
            await g.until(() => told.message.length === 1);
            await g.client.close();
            return [g.values(told.message), told.gap[0].missed.map(({ reason }) => reason)];
            """,
            topic=TOPIC,
        )
    assert got[0] == [8]
    assert set(got[1]) == {"rebuilt"}
