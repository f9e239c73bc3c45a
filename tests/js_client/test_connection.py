"""What the client does when connections are lost, gateways restart, tokens expire and pages are loaded anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.js_client.engines import Engine, Node
from tests.js_client.scenes import CONNECT, LISTEN, PUBLISH, proxied
from tests.support.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
        wanted = {"subject": "user:ada", "grants": ["subscribe:iotsphere/#"]}
        tokens = [
            (await api.post("/api/v1/tokens", json={**wanted, "lifetime": lifetime})).json()["token"]
            for lifetime in (60, 3_600)
        ] + [gateway.token]
    got = await engine.run(
        """
        // The first token lives long enough for any machine, and the client is told that it ends in two seconds.
        class Hasty extends WebSocket {
          set onmessage(told) {
            const hasten = (text) => text.replace(/"expiresIn":(\\d+)/, (all, life) => life > 60_000 ? all : '"expiresIn":2000');
            super.onmessage = told && (({ data }) => told({ data: hasten(data) }));
          }
        }
        const reasons = [];
        const client = lib.connect(given.url, { WebSocket: Hasty, token: ({ reason }) => {
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
