// When the client comes back, when it does not, and how it notices that nobody is there: with a socket that is made up,
// and with time that stands still unless it is told.

import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import { connect } from "../../../clients/js/lib/iotsphere.min.js";

let sockets;

class Socket {
  constructor(url, protocol) {
    Object.assign(this, { url, protocol, sent: [], closed: null });
    sockets.push(this);
  }
  send(frame) {
    this.sent.push(JSON.parse(frame));
  }
  close(code) {
    this.closed = code;
  }
  say(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }
  async let(expiresAt = null) {
    await this.onopen();
    this.say({ type: "ok", ref: "auth", expiresAt });
    await turns();
  }
}

const turns = async () => {
  for (let n = 0; n < 20; n++) await Promise.resolve();
};
const tick = async (ms) => {
  mock.timers.tick(ms);
  await turns();
};

beforeEach(() => {
  sockets = [];
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  mock.method(Math, "random", () => 0.5);
});

async function open(options = {}) {
  const client = connect("ws://gateway/", { token: "t", WebSocket: Socket, ...options });
  const states = [];
  client.addEventListener("state", ({ detail }) => states.push(detail));
  await turns();
  sockets[0].onopen();
  await turns();
  sockets[0].say({ type: "ok", ref: "auth", expiresAt: null });
  await turns();
  assert.equal(client.state, "open");
  return { client, states };
}

test("a platform without WebSocket is told what to do", async () => {
  const { WebSocket } = globalThis;
  delete globalThis.WebSocket;
  const client = connect("ws://gateway/", { token: "t" });
  await assert.rejects(client.opened(), { code: "no_websocket", retry: false, message: /Node\.js 22.*--experimental-websocket.*option WebSocket/ });
  assert.equal(client.state, "closed");
  if (WebSocket) globalThis.WebSocket = WebSocket;
});

for (const code of [1002, 1003, 1007, 1008, 1009, 1010, 4400, 4401, 4403, 4499]) {
  test(`${code} is the end`, async () => {
    const { client, states } = await open();
    const pending = assert.rejects(client.ping());
    sockets[0].onclose({ code, reason: "why" });
    await turns();
    assert.equal(client.state, "closed");
    assert.match(states.at(-1).error.message, new RegExp(`${code}: why`));
    await pending;
    await tick(3_600_000);
    assert.equal(sockets.length, 1);
  });
}

for (const code of [1000, 1001, 1005, 1006, 1011, 1012, 1013, 4408, 4429, 4500]) {
  test(`after ${code} it comes back`, async () => {
    const { client, states } = await open();
    sockets[0].onclose({ code, reason: "" });
    await turns();
    assert.equal(client.state, "waiting");
    assert.equal(states.at(-1).retryIn, 125 + (code === 4429 ? 5_000 : 0));
    await tick(states.at(-1).retryIn);
    assert.equal(sockets.length, 2);
    await client.close();
  });
}

test("pauses double up to the largest, and begin anew after a steady connection", async () => {
  const { client, states } = await open({ backoff: { min: 100, max: 500 } });
  const pauses = [];
  for (let n = 0; n < 5; n++) {
    sockets.at(-1).onclose({ code: 1006, reason: "" });
    await turns();
    pauses.push(states.at(-1).retryIn);
    await tick(states.at(-1).retryIn);
  }
  assert.deepEqual(pauses, [50, 100, 200, 250, 250]);
  sockets.at(-1).onopen();
  await turns();
  sockets.at(-1).say({ type: "ok", ref: "auth", expiresAt: null });
  await turns();
  await tick(5_000);
  sockets.at(-1).onclose({ code: 1006, reason: "" });
  await turns();
  assert.equal(states.at(-1).retryIn, 50);
  await client.close();
});

test("a connection that tells only an error is lost, too", async () => {
  const client = connect("ws://gateway/", { token: "t", WebSocket: Socket });
  await turns();
  sockets[0].onerror({});
  await tick(1);
  assert.equal(client.state, "waiting");
  await client.close();
});

test("a connection that does not open in time is given up", async () => {
  const client = connect("ws://gateway/", { token: "t", WebSocket: Socket });
  await turns();
  await tick(15_000);
  assert.equal(client.state, "waiting");
  assert.equal(sockets[0].closed, 1000);
  await client.close();
});

test("silence is answered with a question, and silence after that with a new connection", async () => {
  const { client } = await open();
  const asked = () => sockets[0].sent.filter(({ type }) => type === "ping").length;
  for (let n = 0; n < 3; n++) await tick(10_000);
  assert.equal(asked(), 1);
  sockets[0].say({ type: "ok", ref: "pulse", time: "" });
  for (let n = 0; n < 3; n++) await tick(10_000);
  assert.equal(asked(), 2);
  assert.equal(client.state, "open");
  await tick(10_000);
  assert.equal(client.state, "waiting");
  await client.close();
});

test("a token is renewed before the end of its life, and again after a failure", async () => {
  const reasons = [];
  const client = connect("ws://gateway/", {
    WebSocket: Socket,
    token: ({ reason }) => {
      reasons.push(reason);
      if (reasons.length === 2) throw new Error("the issuer is away");
      return `token ${reasons.length}`;
    },
  });
  await turns();
  sockets[0].onopen();
  await turns();
  sockets[0].say({ type: "ok", ref: "auth", expiresAt: new Date(Date.now() + 100_000).toISOString() });
  await turns();
  for (let n = 0; n < 79; n++) {
    sockets[0].say({ type: "clock" }); // anything is a sign of life
    await tick(1_000);
  }
  assert.deepEqual(reasons, ["connect"]);
  sockets[0].say({ type: "clock" });
  await tick(1_000);
  await tick(5_000);
  assert.deepEqual(reasons, ["connect", "expiring", "expiring"]);
  assert.deepEqual(
    sockets[0].sent.filter(({ type }) => type === "auth").map(({ token }) => token),
    ["token 1", "token 3"],
  );
  await client.close();
});

test("a clock of the client that is wrong renews no token sooner or later", async () => {
  for (const wrong of [-7_200_000, 7_200_000]) {
    const reasons = [];
    const client = connect("ws://gateway/", {
      WebSocket: Socket,
      token: ({ reason }) => {
        reasons.push(reason);
        return "token";
      },
    });
    await turns();
    const socket = sockets.at(-1);
    socket.onopen();
    await turns();
    const expiresAt = new Date(Date.now() + wrong + 10_000).toISOString();
    socket.say({ type: "ok", ref: "auth", expiresAt, expiresIn: 10_000 });
    await turns();
    await tick(7_999);
    assert.deepEqual(reasons, ["connect"]);
    await tick(1);
    assert.deepEqual(reasons, ["connect", "expiring"]);
    await client.close();
  }
});

test("what the gateway wants later is sent later, in order", async () => {
  const { client } = await open();
  const settled = [];
  for (let n = 0; n < 3; n++) client.publish("iotsphere/system/status", n).then(() => settled.push(n));
  await turns();
  const published = () => sockets[0].sent.filter(({ type }) => type === "publish");
  const [first, second, third] = published();
  sockets[0].say({ type: "error", ref: first.ref, code: "rate_limited", retry: true, message: "", retryAfter: 200 });
  sockets[0].say({ type: "error", ref: second.ref, code: "rate_limited", retry: true, message: "", retryAfter: 200 });
  sockets[0].say({ type: "ok", ref: third.ref, messageId: third.messageId });
  await turns();
  await tick(199);
  assert.equal(published().length, 3);
  await tick(1);
  assert.deepEqual(published().slice(3).map(({ payload }) => payload), [0, 1]);
  for (const { ref, messageId } of published().slice(3)) sockets[0].say({ type: "ok", ref, messageId });
  await turns();
  assert.deepEqual(settled, [2, 0, 1]);
  assert.deepEqual(client.outbox, { messages: 0, bytes: 0, full: false });
  await client.close();
});

test("no more are on their way at once than the gateway reads", async () => {
  const { client } = await open();
  for (let n = 0; n < 300; n++) client.publish("iotsphere/system/status", n).catch(() => {});
  await turns();
  const published = () => sockets[0].sent.filter(({ type }) => type === "publish");
  assert.equal(published().length, 128);
  for (const { ref, messageId } of published().slice(0, 10)) sockets[0].say({ type: "ok", ref, messageId });
  assert.equal(published().length, 138);
  await client.close();
});

test("renewals at the same time are answered each, and a fixed token is replaced for good", async () => {
  const { client } = await open();
  const renewed = [client.renew("second"), client.renew("third")];
  await turns();
  sockets[0].say({ type: "ok", ref: "auth", expiresAt: null });
  sockets[0].say({ type: "error", ref: "auth", code: "forbidden", retry: false, message: "no" });
  await renewed[0];
  await assert.rejects(renewed[1], { code: "forbidden" });
  sockets[0].onclose({ code: 1006, reason: "" });
  await turns();
  await tick(125);
  sockets[1].onopen();
  await turns();
  assert.equal(sockets[1].sent[0].token, "third");
  await client.close();
});

test("a storage that is full is told once, and messages go on", async () => {
  const told = [];
  const storage = {
    getItem: () => null,
    setItem() {
      throw new Error("full");
    },
  };
  const { client } = await open({ storage });
  // The runner would take what nothing catches for a failure of the test.
  const uncaught = mock.method(globalThis, "queueMicrotask", (later) => {
    try {
      later();
    } catch (error) {
      told.push(error.message);
    }
  });
  const subscription = client.subscribe("iotsphere/#", { resume: "chart" });
  const messages = [];
  subscription.addEventListener("message", ({ detail }) => messages.push(detail.payload));
  sockets[0].say({ type: "ok", ref: sockets[0].sent.at(-1).ref, subscription: "s1", cursor: "a", missed: [] });
  for (const cursor of ["b", "c"])
    sockets[0].say({ type: "messages", subscription: "s1", cursor, messages: [{ metadata: {}, payload: cursor }] });
  uncaught.mock.restore();
  assert.deepEqual([messages, told, subscription.cursor], [["b", "c"], ["full"], "c"]);
  await client.close();
});
