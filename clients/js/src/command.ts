/** Commands: a promise of the end, and an iteration over the states on the way. */

import type { Client } from "./client.js";
import { IotSphereError } from "./errors.js";
import { timeText, uuid } from "./ids.js";
import type { Answer, RequestOptions } from "./types.js";

const WAIT = 25; // seconds; then the gateway is asked again

/** docs/reference/commands.md describes the members. */
export interface CommandFacts {
  readonly commandId: string;
  readonly device: string;
  readonly state:
    | "accepted"
    | "queued"
    | "sent"
    | "acknowledged"
    | "running"
    | "succeeded"
    | "failed"
    | "rejected"
    | "expired"
    | "timed_out"
    | "cancelled";
  readonly final: boolean;
  readonly payload: Record<string, unknown>;
  readonly steps: readonly { readonly state: string; readonly at: string }[];
  readonly progress?: number;
  readonly result?: unknown;
  readonly reason?: string;
  readonly [member: string]: unknown;
}

export interface CommandOptions {
  /** A UUID; one is made without it. */
  id?: string;
  /** Stands for one command of this caller, however often and wherever it is sent. */
  idempotencyKey?: string;
  /** Not handed to the device after this time: it ends as `expired` then. In 24 hours by default, 30 days at most. */
  expiresAt?: Date | string;
  /**
   * Seconds that the device has, from being handed the command and from each report of progress; 60 by default. Not the
   * `timeout` of requests, which is milliseconds that you wait: to wait less, give a `signal`, or `expiresAt` for a
   * device that may be away.
   */
  timeout?: number;
  /** Stops waiting: rejects with its reason. The command goes on, unless you `cancel` it. */
  signal?: AbortSignal;
}

/** Await it for its end, or iterate over its states; `succeeded` and `failed` are ends alike. */
export interface Command extends PromiseLike<CommandFacts>, AsyncIterable<CommandFacts> {
  /** What is known now. */
  readonly facts: CommandFacts | null;
  readonly id: string | null;
  /** The gateway has it, and will see it to its end. */
  readonly accepted: Promise<CommandFacts>;
  /** Take it back; rejects with `conflict` once the device was sent it. */
  cancel(options?: RequestOptions): Promise<CommandFacts>;
}

const isNewer = (told: CommandFacts, known: CommandFacts): boolean =>
  told.steps.length > known.steps.length ||
  (told.steps.length === known.steps.length && (told.progress ?? 0) > (known.progress ?? 0));

/** Ask a device to do something. The promise rejects only when the gateway refuses it or the signal aborts. */
export function command(
  client: Client,
  device: string,
  payload: Record<string, unknown>,
  options: CommandOptions = {},
): Command {
  const { id, idempotencyKey, expiresAt, timeout, signal } = options;
  const identity = idempotencyKey === undefined ? { messageId: id ?? uuid() } : { idempotencyKey };
  const until = expiresAt && timeText(expiresAt);
  let facts: CommandFacts | null = null;
  let end: Promise<CommandFacts> | undefined;

  const note = (answer: Answer): CommandFacts => (facts = answer.command as CommandFacts);
  // Asking again under the same identity does nothing again, and is answered with the state of then.
  const ask = async (wait: number, more: object = {}): Promise<CommandFacts> =>
    note(
      await client.request("command", { device, payload, timeout, wait, ...identity, ...more }, {
        signal,
        timeout: wait ? wait * 1_000 + 20_000 : undefined,
      }),
    );

  const accepted = ask(0, { expiresAt: until });
  accepted.catch(() => {}); // whoever awaits it, or the end, is told

  async function follow(): Promise<CommandFacts> {
    let now = await accepted;
    while (!now.final) {
      try {
        now = await ask(WAIT);
      } catch (error) {
        if (!(error instanceof IotSphereError && error.retry)) throw error;
        await new Promise((resolve) => setTimeout(resolve, error.retryAfter ?? 1_000));
      }
    }
    return now;
  }

  async function* states(): AsyncGenerator<CommandFacts, void, undefined> {
    const status = client.subscribe(`${client.domain}/devices/${device}/commands/status`, {
      hidden: "continue",
      ...(signal && { signal }),
    });
    try {
      let known = await accepted;
      yield known;
      if (known.final) return;
      await status.ready();
      const now = await ask(0); // what happened before the subscription began
      if (isNewer(now, known)) yield (known = now);
      if (now.final) return;
      for await (const { payload } of status) {
        const told = payload as unknown as CommandFacts;
        if (told.commandId !== known.commandId || !isNewer(told, known)) continue;
        yield (facts = known = told);
        if (told.final) return;
      }
    } finally {
      await status.close();
    }
  }

  return {
    accepted,
    get facts() {
      return facts;
    },
    get id() {
      return facts?.commandId ?? identity.messageId ?? null;
    },
    then: (done, failed) => (end ??= follow()).then(done, failed),
    [Symbol.asyncIterator]: states,
    cancel: async (given = {}) =>
      note(await client.request("cancel", { command: (await accepted).commandId }, { ...given, repeat: false })),
  };
}
