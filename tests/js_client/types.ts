// How a program in TypeScript uses the client; the compiler holds it to the types that are shipped.
import { ConflictError, IotSphereError, LastValues, command, connect, shadow } from "@iotsphere/client";
import type { Client, Clock, Message, Missed, Quality, Subscription } from "@iotsphere/client";

export async function use(signal: AbortSignal): Promise<void> {
  const client: Client = connect(new URL("wss://example.org"), {
    token: async ({ reason, signal }) => (signal.aborted ? "" : reason),
    outbox: { messages: 10, storage: localStorage, key: "ada" },
    backoff: { max: 5_000 },
    signal,
  });
  client.addEventListener("state", ({ detail }) => {
    const next: number | undefined = detail.retryIn;
    void next;
  });
  await client.opened({ timeout: 1_000 });
  const subscription: Subscription = client.subscribe(["a/#", "b/+"], { from: new Date(), speed: 10, policy: "latest" });
  subscription.addEventListener("gap", ({ detail }) => void (detail.missed satisfies readonly Missed[]));
  subscription.addEventListener("quality", ({ detail }) => void (detail satisfies Quality));
  subscription.addEventListener("clock", ({ detail }) => void (detail satisfies Clock), { once: true, signal });
  subscription.addEventListener("messages", ({ detail }) => void (detail satisfies Message[]));
  for await (const { metadata, payload } of subscription) void [metadata.topic.length, payload["value"]];
  for await (const messages of (await subscription.ready()).batches()) void messages.length;
  const last: ReadonlyMap<string, Message> = new LastValues(subscription);
  void last.get("a")?.payload;

  const published = await client.publish("a", { value: 1 }, { retain: true, expiresAt: new Date() });
  void published.messageId.length;
  try {
    const { version } = await shadow(client, "d1", "network").get();
    await shadow(client, "d1").update({ interval: 5 }, { version, expires: { "/interval": new Date() } });
  } catch (error) {
    if (error instanceof ConflictError) void (error.current satisfies Record<string, unknown>);
    else if (error instanceof IotSphereError) void (error.code.length + (error.retryAfter ?? 0));
  }
  const opening = command(client, "d1", { action: "open" }, { timeout: 30 });
  for await (const { state, progress } of opening) void (state === "running" ? progress : 0);
  const { final }: { final: boolean } = await opening;
  void final;

  // @ts-expect-error: a policy is one of two
  client.subscribe("a", { policy: "newest" });
  // @ts-expect-error: what the parts share is not for callers
  subscription._open();
  // @ts-expect-error: a command is an object
  command(client, "d1", "open");
}
