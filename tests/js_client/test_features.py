"""What the client does on a connection that holds, in Node.js and in Chromium alike."""

from __future__ import annotations

import pytest

from tests.js_client.engines import Engine
from tests.js_client.scenes import connect
from tests.support.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_messages_come_through_an_iteration(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const subscription = await g.client.subscribe("iotsphere/devices/+/telemetry/iterated").ready();
        for (let n = 0; n < 5; n++) g.client.publish("iotsphere/devices/d1/telemetry/iterated", n);
        const found = [];
        for await (const { payload, metadata } of subscription) {
          found.push([payload.value, metadata.topic, metadata.messageType]);
          if (found.length === 5) break;
        }
        return [found, subscription.state];
    """)
    topic = "iotsphere/devices/d1/telemetry/iterated"
    assert got == [[[n, topic, "event"] for n in range(5)], "ended"]


async def test_messages_come_as_events_and_as_batches(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const filters = ["iotsphere/devices/d1/telemetry/a", "iotsphere/devices/d2/telemetry/a"];
        const pushed = g.client.subscribe(filters), pulled = g.client.subscribe(filters);
        const told = g.record(pushed, "message", "messages", "state");
        await Promise.all([pushed.ready(), pulled.ready()]);
        const topics = Array.from({ length: 40 }, (_, n) => filters[n % 2]);
        await Promise.all(topics.map((topic, n) => g.client.publish(topic, n)));
        const values = [];
        for await (const batch of pulled.batches()) {
          values.push(...g.values(batch));
          if (values.length === 40) break;
        }
        await g.until(() => told.message.length === 40);
        const each = g.values(told.message), frames = g.values(told.messages.flat());
        const cursor = pushed.cursor;
        await pushed.close();
        return { values, each, frames, cursor: typeof cursor, states: told.state.map(({ state }) => state) };
    """)
    for device in (0, 1):  # the order of each device is kept
        assert [n for n in got["values"] if n % 2 == device] == list(range(device, 40, 2))
    assert sorted(got["each"]) == list(range(40))
    assert got["each"] == got["frames"]
    assert (got["cursor"], got["states"]) == ("string", ["open", "ended"])


async def test_what_came_before_anybody_listened_is_told(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const early = await g.client.subscribe("iotsphere/devices/d1/telemetry/early").ready();
        await Promise.all([1, 2, 3].map((n) => g.client.publish("iotsphere/devices/d1/telemetry/early", n)));
        await g.client.ping();
        await g.sleep(50);
        const told = g.record(early, "message");
        await g.until(() => told.message.length === 3);
        return g.values(told.message);
    """)
    assert got == [1, 2, 3]


async def test_publications_are_answered_once_however_often_they_are_sent(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    first, again, refused = await engine.run("""
        const messageId = "0190a1b2-3c4d-7e5f-8a6b-" + Date.now().toString(16).padStart(12, "0"), topic = "iotsphere/devices/d1/telemetry/once";
        const first = await g.client.publish(topic, 1, { messageId, expiresAt: new Date(Date.now() + 60_000) });
        const again = await g.client.publish(topic, 1, { messageId });
        return [first, again, await g.caught(g.client.publish("iotsphere/nowhere", 1))];
    """)
    assert first["position"] == again["position"]
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert (refused["name"], refused["code"], refused["retry"]) == ("IotSphereError", "topic_invalid", False)


async def test_shadow_changes_notice_who_was_faster(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run(
        """
        const shadow = lib.shadow(g.client, "d1", given.name);
        const changed = await shadow.update({ interval: 5, mode: "eco" }, { expiresAt: new Date(Date.now() + 60_000) });
        await shadow.update({ interval: 7 });
        const lost = await g.caught(shadow.update({ interval: 6 }, { version: changed.version }));
        const { desired, version, delta } = await shadow.get();
        const before = await shadow.get({ version: 1 });
        const { changed: gone } = await shadow.delete({ version });
        return { changed, lost, desired, version, delta, before: before.desired, gone };
    """,
        name=f"settings-{engine.name}",
    )
    assert got["changed"]["changed"] is True
    lost = got["lost"]
    assert (lost["name"], lost["code"], lost["version"]) == ("ConflictError", "version_conflict", 2)
    assert lost["current"]["desired"] == {"interval": 7, "mode": "eco"}
    assert (got["desired"], got["version"]) == ({"interval": 7, "mode": "eco"}, 2)
    assert (got["before"], got["gone"]) == ({"interval": 5, "mode": "eco"}, True)


async def test_commands_are_followed_to_their_end(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const answer = (correlationId, payload) =>
          g.client.publish("iotsphere/devices/d1/commands/response", payload, { correlationId });
        const opening = lib.command(g.client, "d1", { action: "open" });
        const states = [];
        for await (const { state, progress, steps } of opening) {
          states.push([state, progress ?? null]);
          if (state === "queued") await answer(opening.id, { status: "running", progress: 40 });
          if (progress === 40) await answer(opening.id, { status: "succeeded", result: { flow: 3 } });
        }
        const end = await opening;
        const key = "order-" + crypto.getRandomValues(new Uint32Array(1));
        const one = lib.command(g.client, "d2", { action: "open" }, { idempotencyKey: key });
        const other = lib.command(g.client, "d2", { action: "open" }, { idempotencyKey: key });
        const same = (await one.accepted).commandId === (await other.accepted).commandId;
        const cancelled = await one.cancel();
        const late = await g.caught(one.cancel());
        return { states, end: [end.state, end.result, end.final], same, cancelled: cancelled.state, late: late.code ?? late.value.state,
                 awaited: (await other).state, known: opening.facts.state,
                 refused: await g.caught(lib.command(g.client, "nobody", {})) };
    """)
    assert got["states"][0] == ["queued", None]
    assert ["running", 40] in got["states"]
    assert got["states"][-1][0] == "succeeded"
    assert got["end"] == ["succeeded", {"flow": 3}, True]
    assert (got["same"], got["cancelled"], got["awaited"]) == (True, "cancelled", "cancelled")
    assert (got["known"], got["refused"]["code"]) == ("succeeded", "not_found")


async def test_last_values_go_by_the_time_of_the_message(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run(
        """
        const topic = (name) => "iotsphere/devices/d1/telemetry/" + given.engine + "-" + name;
        const say = (name, value, ago) => g.client.request("publish", { topic: topic(name), message: {
          metadata: { timestamp: new Date(Date.now() - ago).toISOString() }, payload: { value } } });
        await say("x", 1, 0);
        const subscription = g.client.subscribe(["x", "y", "p", "q", "r"].map(topic), { from: "latest" });
        const last = new lib.LastValues(subscription, { limit: 3 });
        const told = g.record(last, "change");
        await g.until(() => last.get(topic("x"))?.payload.value === 1);
        await say("x", 2, 60_000);
        await say("y", 3, 0);
        await g.until(() => last.has(topic("y")));
        const x = last.get(topic("x")).payload.value;
        for (const name of ["p", "q", "r"]) await say(name, 4, 0);
        await g.until(() => last.has(topic("r")));
        return { x, size: last.size, keys: [...last.keys()], named: told.change.flat().includes(topic("y")) };
        """,
        engine=engine.name,
    )
    assert (got["x"], got["size"], got["named"]) == (1, 3, True)
    assert got["keys"] == [f"iotsphere/devices/d1/telemetry/{engine.name}-{name}" for name in "pqr"]


async def test_c06_no_key_reaches_a_prototype(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const payload = JSON.parse('{"reported":{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}}}}');
        const refused = await g.caught(g.client.publish("iotsphere/devices/d1/shadow/reported", payload));
        const wished = JSON.parse('{"__proto__":{"isAdmin":true}}');
        const wish = await g.caught(lib.shadow(g.client, "d1").update(wished));
        const frame = { type: "messages", messages: [JSON.parse(
          '{"metadata":{"topic":"__proto__","timestamp":"2026-01-01T00:00:00.000Z"},"payload":{"__proto__":{"isAdmin":true}}}')] };
        const target = new EventTarget(), last = new lib.LastValues(target);
        target.dispatchEvent(new CustomEvent("messages", { detail: frame.messages }));
        return { codes: [refused.code, wish.code], admin: ({}).isAdmin ?? null, x: ({}).x ?? null,
                 kept: last.has("__proto__"), inherited: last.get("constructor") ?? null };
    """)
    assert got["codes"] == ["key_not_allowed", "key_not_allowed"]
    assert (got["admin"], got["x"], got["kept"], got["inherited"]) == (None, None, True, None)


async def test_everything_can_be_aborted(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run(
        """
        const aborted = AbortSignal.abort(new Error("enough"));
        const caught = [
          await g.caught(g.client.publish("iotsphere/devices/d1/telemetry/a", 1, { signal: aborted })),
          await g.caught(g.client.ping({ signal: aborted })),
          await g.caught(lib.shadow(g.client, "d1").get({ signal: aborted })),
          await g.caught(lib.command(g.client, "d1", {}, { signal: aborted })),
          await g.caught(g.client.subscribe("iotsphere/#", { signal: aborted }).ready()),
        ];
        const stop = new AbortController();
        const subscription = await g.client.subscribe("iotsphere/devices/d1/telemetry/quiet", { signal: stop.signal }).ready();
        const iteration = g.caught((async () => { for await (const _ of subscription); })());
        stop.abort(new Error("enough"));
        caught.push(await iteration);
        const all = new AbortController();
        const other = lib.connect(given.url, { token: given.token, signal: all.signal });
        await other.opened();
        const pending = g.caught(other.request("command", { device: "d2", payload: {}, wait: 60 }));
        all.abort();
        caught.push(await pending, await g.caught(other.ping()));
        return { caught: caught.map(({ message, code }) => code ?? message), state: other.state };
    """,
        url=gateway.websocket,
        token=gateway.token,
    )
    assert got["caught"] == ["enough"] * 6 + ["closed", "closed"]
    assert got["state"] == "closed"


async def test_requests_have_deadlines(engine: Engine, gateway: Gateway) -> None:
    await connect(engine, gateway)
    got = await engine.run("""
        const late = await g.caught(g.client.request("command", { device: "d2", payload: {}, wait: 60 }, { timeout: 20 }));
        const away = lib.connect("ws://127.0.0.1:9/", { token: "x", timeout: 20 });
        const never = await g.caught(away.opened({ timeout: 20 }));
        const asked = await g.caught(away.ping());
        const said = await g.caught(away.publish("iotsphere/system/status", 1, { timeout: 20 }));
        const { outbox } = away;
        await away.close();
        return { codes: [late, never, asked, said].map(({ code }) => code), outbox };
    """)
    assert got["codes"] == ["timeout"] * 4
    assert got["outbox"] == {"messages": 0, "bytes": 0, "full": False}


async def test_subscription_ends_when_the_token_no_longer_grants_it(engine: Engine, gateway: Gateway) -> None:
    async with gateway.api() as api:
        response = await api.post(
            "/api/v1/tokens",
            json={"subject": "user:ada", "grants": ["subscribe:iotsphere/devices/d1/#"], "lifetime": 3600},
        )
        wide = response.json()["token"]
        grants = ["subscribe:iotsphere/devices/d1/presence"]
        response = await api.post("/api/v1/tokens", json={"subject": "user:ada", "grants": grants, "lifetime": 3600})
        narrow = response.json()["token"]
    got = await engine.run(
        """
        const client = lib.connect(given.url, { token: given.wide });
        await client.opened();
        const subscription = await client.subscribe("iotsphere/devices/d1/telemetry/#").ready();
        const refused = await g.caught(client.subscribe("iotsphere/#").ready());
        const iteration = g.caught((async () => { for await (const _ of subscription); })());
        await client.renew(given.narrow);
        return [refused.code, (await iteration).code, subscription.state, client.state];
    """,
        url=gateway.websocket,
        wide=wide,
        narrow=narrow,
    )
    assert got == ["forbidden", "forbidden", "ended", "open"]
