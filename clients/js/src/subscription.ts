/** One subscription over as many connections as it takes: cursors, gaps, a bounded buffer, the clock of a rewind. */

import { Bookmark } from "./bookmark.js";
import type { Client } from "./client.js";
import { IotSphereError } from "./errors.js";
import { timeText } from "./ids.js";
import { HIDDEN, RESUMED, SLOW, SNAPSHOT, lagging } from "./quality.js";
import { Stream } from "./stream.js";
import type {
  Answer,
  Clock,
  ConnectOptions,
  Members,
  Message,
  Missed,
  Quality,
  SubscribeOptions,
  SubscriptionState,
} from "./types.js";

const PAUSE = 1_000;
const ignore = (): void => {};

export class Subscription extends Stream {
  readonly filters: readonly string[];
  state: SubscriptionState = "pending";
  /** Of a rewind. */
  clock: Clock | null = null;

  #client: Client;
  #options: SubscribeOptions;
  #bookmark: Bookmark;
  #from: string;
  #speed: number | undefined;
  #name: string | null = null;
  #round = 0; // answers to earlier rounds are late
  #asking = false;
  #pauses = new Set<string>();
  #paused = false; // and the page was told so
  #snapshot = false;
  #error: IotSphereError | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #life = new AbortController();

  /** @internal */
  constructor(client: Client, filters: string[], options: SubscribeOptions, storage: ConnectOptions["storage"]) {
    super(options.buffer ?? 1_000);
    this.#client = client;
    this.filters = filters;
    this.#options = options;
    this.#bookmark = new Bookmark(options.resume, storage);
    this.#from = timeText(options.from ?? "live");
    this.#speed = options.speed;
    const { signal } = options;
    if (signal?.aborted) this.#pauses.add("aborted");
    const abort = (): void => this._end(signal!.reason);
    if (signal?.aborted) queueMicrotask(abort);
    else signal?.addEventListener("abort", abort, { signal: this.#life.signal });
  }

  /** Resumes right after what was taken: after the last event, or what the iteration has finished with. */
  get cursor(): string | null {
    return this.#bookmark.taken;
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

  /** Play the past from a time on, at a multiple of its speed. It ends in the present by itself. */
  rewind({ from, speed = 1 }: { from: Date | number | string; speed?: number }): void {
    this.#restart(timeText(from), speed);
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

  /** @internal */
  _took(cursor: string | null): void {
    if (this._unread.isLow) this.#resume("slow");
    if (cursor) this.#bookmark.take(cursor, this.#speed === undefined);
  }

  // -- for the client ------------------------------------------------------------------------------------------------

  /** There is a connection: subscribe on it. @internal */
  _open(): void {
    if (this.#pauses.size || this.state === "ended" || this.#name || this.#client.state !== "open") return;
    if (this.#asking) return; // one at a time: whoever drags a clock to and fro asks for the last place only
    this.#asking = true;
    clearTimeout(this.#retry);
    const round = ++this.#round;
    const { policy, maxRate } = this.#options;
    const members: Members = { type: "subscribe", filters: this.filters, policy, maxRate };
    const cursor = this.#bookmark.tail;
    members.from = cursor ?? this.#from;
    if (this.#speed !== undefined) members.speed = this.#speed;
    else if (this.#snapshot && policy !== "latest") members.from = "latest";
    this.#become("pending");
    this.#client._ask(
      members,
      (answer) => {
        const name = answer.subscription as string;
        this.#asking = false;
        if (round !== this.#round) {
          this.#unsubscribe(name);
          return this._open();
        }
        this.#name = name;
        this.#client._named(name, this);
        const missed = answer.missed as Missed[];
        if (missed.length) this._emit("gap", { missed, resumed: cursor !== null });
        if (this.#paused) this._emit("quality", this.#snapshot ? SNAPSHOT : RESUMED);
        if (members.from === "latest") this.#bookmark.tail = null; // until its last values have come
        this.#paused = this.#snapshot = false;
        this._stands(answer.cursor as string | null);
        this.#become("open");
        if (this.#speed !== undefined && this.#speed !== members.speed) this.play(this.#speed);
      },
      (error) => {
        this.#asking = false;
        if (round === this.#round) this.#refused(error as IotSphereError, cursor);
        else this._open();
      },
    );
  }

  /** The connection is gone. @internal */
  _lost(): void {
    this.#round++;
    this.#name = null;
    this.#asking = false;
    if (this.state === "open") this.#become("pending");
  }

  /** A push of the gateway. @internal */
  _push(frame: Answer): void {
    const { type, cursor, messages, missed, code, message } = frame as Record<string, any>;
    if (type === "messages") this.#take(messages, cursor);
    else if (type === "gap") this._emit("gap", { missed, resumed: false });
    else if (type === "ended") this._end(new IotSphereError(code, message));
    else if (type === "clock") this.#tick(frame as Record<string, any>);
    else if (type === "lagging") this._emit("quality", lagging(frame));
  }

  /** The gateway tells where it stands. @internal */
  _stands(cursor: string | null): void {
    if (!cursor) return;
    this.#bookmark.tail = cursor;
    if (!this._unread.mark(cursor)) this._took(cursor);
  }

  /** @internal */
  _hide(): void {
    const mode = this.#hiddenMode();
    if (mode === "continue" || this.state === "ended") return;
    if (mode === "snapshot" && this.#name) this.#snapshot = true;
    this.#pause("hidden", HIDDEN);
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
    this.#leave();
    this.#client._forget(this);
    this.#become("ended", error);
    this._over(error);
  }

  // -- inside --------------------------------------------------------------------------------------------------------

  #hiddenMode(): NonNullable<SubscribeOptions["hidden"]> {
    if (this.#speed !== undefined) return "resume";
    return this.#options.hidden ?? (this.#options.policy === "latest" ? "snapshot" : "resume");
  }

  #become(state: SubscriptionState, error?: IotSphereError): void {
    if (state === this.state) return;
    this.state = state;
    this._emit("state", { state, error });
  }

  #leave(name = this.#name): void {
    this.#round++;
    this.#name = null;
    if (!name || this.#client.state !== "open") return;
    this.#client._named(name, null);
    this.#unsubscribe(name);
  }

  #unsubscribe(name: string): void {
    this.#client._ask({ type: "unsubscribe", subscription: name }, ignore, ignore);
  }

  #restart(from: string, speed: number | undefined): void {
    if (this.state === "ended") return;
    this.#leave();
    this.#from = from;
    this.#speed = speed;
    this.#bookmark.tail = null;
    this.#snapshot = false;
    this._unread.all();
    this.#pauses.delete("slow");
    this.#become(this.#pauses.size ? "paused" : "pending");
    this._open();
  }

  #refused(error: IotSphereError, cursor: string | null): void {
    if (error.code === "cursor_invalid" && cursor && cursor !== this.#from) {
      // Kept by another user, or for other filters: nobody can tell what came since.
      this.#bookmark.tail = null;
      const missed = [{ partition: "*", first: 0, last: 0, count: 0, reason: error.code }];
      this._emit("gap", { missed, resumed: false });
      this._open();
    } else if (error.retry) {
      this.#retry = setTimeout(() => this._open(), error.retryAfter ?? PAUSE);
    } else this._end(error);
  }

  #pause(why: string, quality: Quality): void {
    if (this.#pauses.has(why)) return;
    this.#pauses.add(why);
    this.#paused = true;
    this.#leave();
    this.#become("paused");
    this._emit("quality", quality);
  }

  #resume(why: string): void {
    if (this.#pauses.delete(why)) this._open();
  }

  #take(messages: Message[], cursor: string | null): void {
    if (!messages.length) return this._stands(cursor);
    this.#bookmark.tail = cursor ?? this.#bookmark.tail;
    this._receive(messages, cursor, this.#options.policy === "latest");
    if (this._unread.isFull) this.#pause("slow", SLOW);
  }

  #tick(frame: Record<string, any>): void {
    const { time, speed, state, skipped } = frame;
    this.clock = { time: new Date(time), speed, state, skipped };
    if (state === "live") this.#speed = undefined;
    this._emit("clock", this.clock);
  }
}
