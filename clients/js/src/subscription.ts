/** One subscription over as many connections as it takes: cursors, gaps, a bounded buffer, and the clock of a rewind. */

import type { Client } from "./client.js";
import { IotSphereError } from "./errors.js";
import { Events, type Listener } from "./events.js";
import { timeText } from "./ids.js";
import { lastCursor, Unread } from "./unread.js";
import type {
  Answer,
  Clock,
  ConnectOptions,
  Members,
  Message,
  Missed,
  Quality,
  SubscribeOptions,
  SubscriptionEvents,
  SubscriptionState,
} from "./types.js";

const PAUSE = 1_000;
const ignore = (): void => {};

const startText = (from: NonNullable<SubscribeOptions["from"]>): string =>
  typeof from === "number" || from instanceof Date ? timeText(from) : from;

export class Subscription extends Events<SubscriptionEvents> implements AsyncIterable<Message> {
  readonly filters: readonly string[];
  state: SubscriptionState = "pending";
  /** Resumes right after what was taken: after the last event, or what the iteration has finished with. */
  cursor: string | null = null;
  /** Of a rewind. */
  clock: Clock | null = null;

  #client: Client;
  #options: SubscribeOptions;
  #storage: ConnectOptions["storage"];
  #from: string;
  #speed: number | undefined;
  #tail: string | null = null; // the cursor of what came last, taken or not
  #name: string | null = null;
  #round = 0; // answers to earlier rounds are late
  #pauses = new Set<string>();
  #snapshot = false;
  #error: IotSphereError | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #life = new AbortController();
  #unread: Unread;
  #iterated = false;
  #pushed = false;

  /** @internal */
  constructor(client: Client, filters: string[], options: SubscribeOptions, storage: ConnectOptions["storage"]) {
    super();
    this.#client = client;
    this.filters = filters;
    this.#options = options;
    this.#storage = storage;
    this.#from = startText(options.from ?? "live");
    this.#speed = options.speed;
    this.#unread = new Unread(options.buffer ?? 1_000);
    this.#tail = this.cursor = (this.#key && this.#storage?.getItem(this.#key)) || null;
    const { signal } = options;
    if (signal?.aborted) this.#pauses.add("aborted");
    const abort = (): void => this._end(signal!.reason);
    if (signal?.aborted) queueMicrotask(abort);
    else signal?.addEventListener("abort", abort, { signal: this.#life.signal });
  }

  // -- for the page --------------------------------------------------------------------------------------------------

  /** Resolves once the gateway has accepted it; rejects when it was refused. */
  ready(): Promise<this> {
    return new Promise((resolve, reject) => {
      const look = (): void => {
        if (this.state === "open") resolve(this);
        else if (this.state === "ended") reject(this.#error ?? new IotSphereError("closed", "it was closed"));
        else return;
        this.removeEventListener("state", look);
      };
      this.addEventListener("state", look);
      look();
    });
  }

  override addEventListener<K extends keyof SubscriptionEvents>(
    type: K,
    listener: Listener<SubscriptionEvents[K]>,
    options?: boolean | AddEventListenerOptions,
  ): void;
  override addEventListener(type: string, listener: any, options?: boolean | AddEventListenerOptions): void {
    super.addEventListener(type, listener, options);
    if (type !== "message" && type !== "messages") return;
    this.#pushed = true; // what came before anybody listened is told now
    const early = this.#iterated ? [] : this.#unread.all();
    if (early.length)
      queueMicrotask(() => {
        this.#tellMessages(early.map((item) => item.message));
        this.#took(lastCursor(early));
      });
  }

  /** One message after the other. Leaving the loop closes the subscription. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Message, void, undefined> {
    try {
      while (await this.#more()) {
        const item = this.#unread.next()!;
        yield item.message;
        this.#took(item.cursor);
      }
    } finally {
      await this.close();
    }
  }

  /** All that is there, at once. Leaving the loop closes the subscription. */
  async *batches(): AsyncGenerator<Message[], void, undefined> {
    try {
      while (await this.#more()) {
        const items = this.#unread.all();
        yield items.map((item) => item.message);
        this.#took(lastCursor(items));
      }
    } finally {
      await this.close();
    }
  }

  /** Play the past from a time on, at a multiple of its speed. It ends in the present by itself. */
  rewind({ from, speed = 1 }: { from: Date | number | string; speed?: number }): void {
    this.#restart(startText(from), speed);
  }

  /** Go on at another speed; 0 stands still. */
  play(speed: number): void {
    if (this.#speed === undefined) return;
    this.#speed = speed;
    if (!this.#name) return;
    // Refused: the present was reached at this moment, and a clock that says so is on its way.
    this.#client._ask({ type: "play", subscription: this.#name, speed }, ignore, ignore);
  }

  /** Back to now: the last values, then what comes. */
  live(): void {
    this.#restart("latest", undefined);
    this.clock = null;
  }

  /** Unsubscribe; iterations end. The cursor stays in the storage if `resume` was asked for. */
  async close(): Promise<void> {
    this._end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  // -- for the client ------------------------------------------------------------------------------------------------

  /** There is a connection: subscribe on it. @internal */
  _open(): void {
    if (this.#pauses.size || this.state === "ended" || this.#name || this.#client.state !== "open") return;
    clearTimeout(this.#retry);
    const round = ++this.#round;
    const { policy, maxRate } = this.#options;
    const members: Members = { type: "subscribe", filters: this.filters, policy, maxRate };
    const cursor = this.#tail;
    members.from = cursor ?? this.#from;
    if (this.#speed !== undefined) members.speed = this.#speed;
    else if (this.#snapshot && policy !== "latest") members.from = "latest";
    this.#become("pending");
    this.#client._ask(
      members,
      (answer) => {
        const name = answer.subscription as string;
        if (round !== this.#round) return this.#leave(name);
        this.#name = name;
        this.#client._named(name, this);
        const missed = answer.missed as Missed[];
        if (missed.length) this._emit("gap", { missed, resumed: cursor !== null });
        if (this.#snapshot) this.#tellQuality("snapshot", "what came while the page was hidden is left out", 0, 0);
        this.#snapshot = false;
        this._stands(answer.cursor as string | null);
        this.#become("open");
      },
      (error) => round === this.#round && this.#refused(error as IotSphereError, cursor),
    );
  }

  /** The connection is gone. @internal */
  _lost(): void {
    this.#round++;
    this.#name = null;
    if (this.state === "open") this.#become("pending");
  }

  /** A push of the gateway. @internal */
  _push(frame: Answer): void {
    const { type, cursor, messages, missed, code, message, policy, behind, superseded } = frame as Record<string, any>;
    if (type === "messages") this.#take(messages, cursor);
    else if (type === "gap") this._emit("gap", { missed, resumed: false });
    else if (type === "ended") this._end(new IotSphereError(code, message));
    else if (type === "clock") this.#tick(frame as Record<string, any>);
    else if (type === "lagging")
      this.#tellQuality(
        behind === 0 ? "live" : policy === "latest" ? "latest" : "behind",
        behind === 0
          ? "caught up"
          : policy === "latest"
            ? "messages come faster than they are taken: only the newest of each topic is sent"
            : "messages come faster than they are taken: the gateway keeps the rest in its log",
        behind,
        superseded,
      );
  }

  /** The gateway tells where it stands. @internal */
  _stands(cursor: string | null): void {
    if (!cursor) return;
    this.#tail = cursor;
    if (!this.#unread.mark(cursor)) this.#took(cursor);
  }

  /** @internal */
  _hide(): void {
    const mode = this.#hiddenMode();
    if (mode === "continue" || this.state === "ended") return;
    if (mode === "snapshot" && this.#name) this.#snapshot = true;
    this.#pause("hidden", "paused", "nobody sees the page");
  }

  /** @internal */
  _show(): void {
    this.#resume("hidden");
  }

  /** It is over. @internal */
  _end(error?: IotSphereError): void {
    if (this.state === "ended") return;
    this.#error = error;
    clearTimeout(this.#retry);
    this.#life.abort();
    this.#leave(this.#name);
    this.#client._forget(this);
    this.#become("ended", error);
    this.#unread.end();
  }

  // -- inside --------------------------------------------------------------------------------------------------------

  get #key(): string | undefined {
    return this.#options.resume && `iotsphere.cursor.${this.#options.resume}`;
  }

  #hiddenMode(): NonNullable<SubscribeOptions["hidden"]> {
    if (this.#speed !== undefined) return "resume";
    return this.#options.hidden ?? (this.#options.policy === "latest" ? "snapshot" : "resume");
  }

  #become(state: SubscriptionState, error?: IotSphereError): void {
    if (state === this.state) return;
    this.state = state;
    this._emit("state", { state, error });
  }

  #tellQuality(mode: Quality["mode"], reason: string, behind: number, superseded: number): void {
    this._emit("quality", { mode, reason, behind, superseded });
  }

  #leave(name: string | null): void {
    this.#round++;
    this.#name = null;
    if (!name || this.#client.state !== "open") return;
    this.#client._named(name, null);
    this.#client._ask({ type: "unsubscribe", subscription: name }, ignore, ignore);
  }

  #restart(from: string, speed: number | undefined, tail: string | null = null): void {
    if (this.state === "ended") return;
    this.#leave(this.#name);
    this.#from = from;
    this.#speed = speed;
    this.#tail = tail;
    this.#snapshot = false;
    if (!tail) this.#unread.all();
    this.#become("pending");
    this.#pauses.delete("slow");
    this._open();
  }

  #refused(error: IotSphereError, cursor: string | null): void {
    if (error.code === "cursor_invalid" && cursor && cursor !== this.#from) {
      // Kept by another user, or for other filters: nobody can tell what came since.
      this.#tail = null;
      const missed = [{ partition: "*", first: 0, last: 0, count: 0, reason: error.code }];
      this._emit("gap", { missed, resumed: false });
      this._open();
    } else if (error.retry) {
      this.#retry = setTimeout(() => this._open(), error.retryAfter ?? PAUSE);
    } else this._end(error);
  }

  #pause(why: string, mode: Quality["mode"], reason: string): void {
    if (this.#pauses.has(why)) return;
    this.#pauses.add(why);
    this.#leave(this.#name);
    this.#become("paused");
    this.#tellQuality(mode, reason, 0, 0);
  }

  #resume(why: string): void {
    if (this.#pauses.delete(why)) this._open();
  }

  #take(messages: Message[], cursor: string | null): void {
    if (!messages.length) return this._stands(cursor);
    this.#tail = cursor ?? this.#tail;
    if (this.#iterated || !this.#pushed) {
      const latest = this.#options.policy === "latest";
      const superseded = this.#unread.put(messages, cursor, latest);
      if (superseded) this.#tellQuality("latest", "this page takes less than comes", 0, superseded);
      if (this.#unread.isFull)
        this.#pause("slow", "behind", "this page takes less than comes: the rest is in the gateway's log");
    }
    if (this.#pushed) this.#tellMessages(messages);
    if (!this.#iterated && this.#pushed) this.#took(cursor);
  }

  #tellMessages(messages: Message[]): void {
    this._emit("messages", messages);
    for (const message of messages) this._emit("message", message);
  }

  #tick(frame: Record<string, any>): void {
    const { time, speed, state, skipped } = frame;
    this.clock = { time: new Date(time), speed, state, skipped };
    if (state === "live") this.#speed = undefined;
    this._emit("clock", this.clock);
  }

  /** Wait for something unread; false at the end. Throws what ended it. */
  async #more(): Promise<boolean> {
    this.#iterated = true;
    if (!this.#unread.length && this.#error) throw this.#error;
    if (!this.#unread.length && this.state !== "ended") await this.#unread.arrival();
    if (this.#unread.length) return true;
    if (this.#error) throw this.#error;
    return false;
  }

  #took(cursor: string | null): void {
    if (this.#unread.isLow) this.#resume("slow");
    if (!cursor) return;
    this.cursor = cursor;
    if (this.#key && this.#speed === undefined) this.#storage?.setItem(this.#key, cursor);
  }
}
