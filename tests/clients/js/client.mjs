// One MQTT.js client, driven by JSON lines: each line on stdin is a command with an `id`, each answer on stdout has the
// same `id`; lines without an `id` are events (a message came, the connection was lost, the client is back).

import { createInterface } from "node:readline";
import mqtt from "mqtt";

let client;

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const failure = (error) => ({
  // MQTT.js gives the reason of a refusal as `code`, and that of a refused filter in the SUBACK that it adds.
  code: typeof error.code === "number" ? error.code : (error.packet?.granted?.[0] ?? null),
  text: String(error.message ?? error),
});

function connect({ url, options }) {
  return new Promise((resolve, reject) => {
    client = mqtt.connect(url, { reconnectPeriod: 50, connectTimeout: 60_000, ...options });
    client.on("message", (topic, payload, packet) =>
      say({
        event: "message",
        topic,
        payload: payload.toString("base64"),
        qos: packet.qos,
        retain: packet.retain,
        dup: packet.dup,
      }),
    );
    client.on("disconnect", (packet) => say({ event: "disconnect", code: packet.reasonCode ?? 0 }));
    client.on("close", () => say({ event: "close" }));
    client.on("connect", (connack) => {
      say({ event: "connect", present: connack.sessionPresent });
      resolve({ present: connack.sessionPresent });
    });
    client.on("error", (error) => {
      if (typeof error.code === "number") client.end(true); // refused: the same answer would come for ever
      reject(error);
    });
  });
}

const commands = {
  connect,
  subscribe: async ({ filter, qos }) => {
    const granted = await client.subscribeAsync(filter, { qos });
    return { granted: granted.map((each) => each.qos) };
  },
  unsubscribe: async ({ filter }) => void (await client.unsubscribeAsync(filter)),
  publish: async ({ topic, payload, options }) => {
    const answer = await client.publishAsync(topic, Buffer.from(payload, "base64"), options);
    return { code: answer?.reasonCode ?? 0 };
  },
  // Gone without a goodbye, and not coming back.
  cut: async () => {
    client.options.reconnectPeriod = 0;
    client.stream.destroy();
  },
  end: async () => void (await client.endAsync()),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, op, ...given } = JSON.parse(line);
  commands[op](given).then(
    (answer) => say({ id, ok: answer ?? {} }),
    (error) => say({ id, error: failure(error) }),
  );
}
process.exit(0);
