"""What the client does when connections are lost, gateways restart, tokens expire and pages are loaded anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from tests.client.house import TOPIC, open_door, open_house
from tests.js_client.engines import Chromium, Engine, Node
from tests.support.gateway import Gateway
from tests.support.proxy import FaultyProxy, faulty_proxy
from tests.use_cases.stage import DOMAIN, soon

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONNECT = """
g.client = lib.connect(given.url, { token: given.token, backoff: { min: 20, max: 200 }, storage: g.storage });
g.states = g.record(g.client, "state").state;
await g.client.opened();
"""
LISTEN = """
g.subscription = await g.client.subscribe(given.topic).ready();
g.told = g.record(g.subscription, "message", "gap");
"""
PUBLISH = """
const client = lib.connect(given.url, { token: given.token });
await Promise.all(given.values.map((value) => client.publish(given.topic, value)));
await client.close();
"""


@asynccontextmanager
async def proxied(gateway: Gateway) -> AsyncIterator[tuple[FaultyProxy, str]]:
    """A proxy in front of the gateway, and its address."""
    port = urlsplit(gateway.websocket).port
    assert port is not None
    async with faulty_proxy(port) as proxy:
        yield proxy, f"ws://127.0.0.1:{proxy.port}/"


async def test_b10_lost_connection_leaves_no_gap_and_no_repetition(engine: Engine, gateway: Gateway) -> None:
    topic = f"iotsphere/devices/d1/telemetry/b10-{engine.name}"
    async with proxied(gateway) as (proxy, url):
        await engine.run(CONNECT, url=url, token=gateway.token)
        await engine.run(LISTEN, topic=topic)
        sent = 0
        for _ in range(4):
            await engine.run(PUBLISH, url=gateway.websocket, token=gateway.token, topic=topic, values=[sent, sent + 1])
            proxy.refuse = True
            proxy.cut()
            missed = list(range(sent + 2, sent + 9))
            await engine.run(PUBLISH, url=gateway.websocket, token=gateway.token, topic=topic, values=missed)
            sent += 9
            proxy.refuse = False
            await engine.run("await g.until(() => g.told.message.length >= given.sent)", sent=sent)
        got = await engine.run("""
            await g.sleep(100);
            await g.client.close();
            return { values: g.values(g.told.message), gaps: g.told.gap, states: g.states.map(({ state }) => state) };
        """)
    assert got["values"] == list(range(sent))
    assert got["gaps"] == []
    assert got["states"].count("open") == 5
    assert got["states"][-1] == "closed"


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
            await g.sleep(50);
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


async def test_requests_are_repeated_until_they_are_answered(engine: Engine, gateway: Gateway) -> None:
    async with proxied(gateway) as (proxy, url):
        await engine.run(CONNECT, url=url, token=gateway.token)
        proxy.swallow_answers = 1
        got = await engine.run(
            """
            const shadow = lib.shadow(g.client, "d2", given.name);
            const changed = await shadow.update({ interval: 5 });
            const { version } = await shadow.get();
            return { changed, version, opened: g.states.filter(({ state }) => state === "open").length };
            """,
            name=f"repeated-{engine.name}",
        )
        proxy.swallow_answers = 1
        lost = await engine.run("return g.caught(g.client.request('cancel', { command: 'x' }, { repeat: false }))")
        await engine.run("await g.client.close()")
    assert (got["changed"]["version"], got["version"], got["opened"]) == (1, 1, 2)
    assert (lost["code"], lost["retry"]) == ("connection_lost", True)


async def test_gateway_that_is_killed_and_started_again(node: Node, tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        await gateway.add_devices(["d1"])
        topic = "iotsphere/devices/d1/telemetry/restart"
        await node.run(CONNECT, url=gateway.websocket, token=gateway.token)
        await node.run(LISTEN, topic=topic)
        await node.run("for (let n = 0; n < 20; n++) await g.client.publish(given.topic, n)", topic=topic)
        await gateway.kill()
        await node.run("g.later = [20, 21, 22].map((n) => g.client.publish(given.topic, n))", topic=topic)
        await gateway.start()
        killed = await node.run("""
            await Promise.all(g.later);
            await g.until(() => g.told.message.length >= 23);
            return g.values(g.told.message);
        """)
        assert killed == list(range(23))
        await node.run("g.states.length = 0")
        await gateway.terminate()
        await node.run("g.later = [23, 24].map((n) => g.client.publish(given.topic, n))", topic=topic)
        await gateway.start()
        got = await node.run("""
            await Promise.all(g.later);
            await g.until(() => g.told.message.length >= 25);
            const lost = g.states.find(({ state }) => state === "waiting");
            await g.client.close();
            return { values: g.values(g.told.message), gaps: g.told.gap, code: lost.code };
        """)
    assert got == {"values": list(range(25)), "gaps": [], "code": 1012}


async def test_token_is_renewed_in_place_before_it_expires(engine: Engine, gateway: Gateway) -> None:
    async with gateway.api() as api:
        tokens = [
            (
                await api.post(
                    "/api/v1/tokens", json={"subject": "user:ada", "grants": ["subscribe:iotsphere/#"], "lifetime": 4}
                )
            ).json()["token"]
            for _ in range(2)
        ] + [gateway.token]
        lasting = {"subject": "user:ada", "grants": ["subscribe:iotsphere/#"], "lifetime": 3600}
        tokens[1] = (await api.post("/api/v1/tokens", json=lasting)).json()["token"]
    got = await engine.run(
        """
        const reasons = [];
        const client = lib.connect(given.url, { token: ({ reason }) => {
          reasons.push(reason);
          return given.tokens[reasons.length - 1];
        } });
        const { state } = g.record(client, "state");
        await client.opened();
        const first = client.expiresAt.getTime();
        await g.until(() => client.expiresAt.getTime() > first);
        await client.ping();
        await client.close();
        return { reasons, states: state.map(({ state }) => state) };
        """,
        url=gateway.websocket,
        tokens=tokens,
    )
    assert got == {"reasons": ["connect", "expiring"], "states": ["connecting", "open", "closed"]}


async def test_token_that_is_not_believed(engine: Engine, gateway: Gateway) -> None:
    got = await engine.run(
        """
        const fixed = lib.connect(given.url, { token: "nonsense" });
        const refused = await g.caught(fixed.opened());
        const reasons = [];
        const asking = lib.connect(given.url, { backoff: { min: 10 }, token: async ({ reason }) => {
          reasons.push(reason);
          return reason === "refused" ? given.token : "nonsense";
        } });
        await asking.opened();
        const giving = lib.connect(given.url, { token: () => Promise.reject(Object.assign(new Error("signed out"), { retry: false })) });
        const out = await g.caught(giving.opened());
        const later = g.caught(fixed.publish("iotsphere/system/status", 1));
        await asking.close();
        return { refused, reasons, out, later: (await later).code, states: [fixed.state, giving.state] };
        """,
        url=gateway.websocket,
        token=gateway.token,
    )
    assert (got["refused"]["code"], got["later"]) == ("unauthenticated", "unauthenticated")
    assert got["reasons"] == ["connect", "refused"]
    assert "signed out" in got["out"]["message"]
    assert got["states"] == ["closed", "closed"]


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
        for (let n = 0; n < 4; n++) {
          await g.client.publish(given.topic, n);
          await g.sleep(5);
        }
        for await (const { payload } of first) {
          if (payload.value === 2) break; // not finished with
          seen.push(payload.value);
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


async def test_b10_thousand_subscriptions_race_publications_and_none_misses_the_last_value(
    node: Node, gateway: Gateway
) -> None:
    await node.run(CONNECT, url=gateway.websocket, token=gateway.token)
    got = await node.run(
        """
        const publisher = lib.connect(given.url, { token: given.token });
        await publisher.opened();
        let right = 0;
        const race = async (n) => {
          const topic = "iotsphere/devices/d1/telemetry/race-" + n;
          await publisher.publish(topic, 0);
          const published = publisher.publish(topic, 1);
          const subscription = g.client.subscribe(topic, { from: "latest" });
          for await (const { payload } of subscription) if (payload.value === 1) break;
          await published;
          right++;
        };
        const numbers = Array.from({ length: 1000 }, (_, n) => n);
        const worker = async () => { for (let n; (n = numbers.pop()) !== undefined; ) await race(n); };
        await Promise.all(Array.from({ length: 100 }, worker));
        await Promise.all([publisher.close(), g.client.close()]);
        return right;
        """,
        url=gateway.websocket,
        token=gateway.token,
    )
    assert got == 1000
