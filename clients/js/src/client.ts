/** A client of one gateway: requests that are answered once, and subscriptions that outlive connections. */

import { Connection } from "./connection.js";
import { within } from "./deadline.js";
import { IotSphereError, closed, errorOf } from "./errors.js";
import { Events } from "./events.js";
import { timeText, uuid } from "./ids.js";
import { Outbox } from "./outbox.js";
import { Subscription } from "./subscription.js";
import type {
  Answer,
  ClientEvents,
  ClientState,
  ConnectOptions,
  Members,
  Notification,
  PublishOptions,
  Published,
  RequestOptions,
  SubscribeOptions,
} from "./types.js";

const MAX_REQUEST = 256 * 1024 + 16 * 1024 - 64; // bytes; a larger frame would end the connection

interface Call {
  readonly body: string;
  readonly repeat: boolean;
  sent: boolean;
  done(answer: Answer): void;
  fail(error: unknown): void;
}

/** Begin to connect. The client is there at once; await `opened()` to know that it is connected. */
export function connect(url: string | URL, options: ConnectOptions = {}): Client {
  return new Client(url, options);
}

export class Client extends Events<ClientEvents> {
  /** The first level of topics. */
  readonly domain: string;

  #connection: Connection;
  #options: ConnectOptions;
  #calls = new Map<number, Call>();
  #outbox: Outbox;
  #subscriptions = new Set<Subscription>();
  #names = new Map<string, Subscription>();
  #refs = 0;
  #life = new AbortController();
  #hiding: ReturnType<typeof setTimeout> | undefined;

  /** @internal */
  constructor(url: string | URL, options: ConnectOptions) {
    super();
    this.#options = options;
    this.domain = options.domain ?? "iotsphere";
    this.#connection = new Connection(String(url), options, {
      opened: () => this.#opened(),
      frame: (frame) => this.#frame(frame),
      lost: () => this.#lost(),
      told: (detail) => this.#told(detail),
    });
    this.#outbox = new Outbox(
      {
        isOpen: () => this.state === "open",
        send: (frame) => this.#connection.send(frame),
        nextRef: () => ++this.#refs,
        told: (detail) => this._emit("outbox", detail),
      },
      options.outbox,
    );
    const { signal } = options;
    if (signal?.aborted) this.close();
    signal?.addEventListener("abort", () => this.close(), { signal: this.#life.signal });
    globalThis.document?.addEventListener("visibilitychange", () => this.#visibility(), { signal: this.#life.signal });
    this.#visibility();
  }

  get state(): ClientState {
    return this.#connection.state;
  }

  /** When the token in use expires. */
  get expiresAt(): Date | null {
    return this.#connection.expiresAt;
  }

  /** What waits to be sent or answered. */
  get outbox(): { readonly messages: number; readonly bytes: number; readonly full: boolean } {
    const { messages, bytes, full } = this.#outbox;
    return { messages, bytes, full };
  }

  /** Resolves once connected and let in; rejects when that will never be. */
  opened(options: RequestOptions = {}): Promise<void> {
    return within<void>(options, Infinity, (resolve, reject) => {
      const look = (): void => {
        if (this.state === "open") resolve();
        if (this.state === "closed") reject(this.#connection.error ?? closed());
      };
      this.addEventListener("state", look);
      look();
      return () => this.removeEventListener("state", look);
    });
  }

  /** Listen to one filter or several. */
  subscribe(filters: string | readonly string[], options: SubscribeOptions = {}): Subscription {
    const wanted = typeof filters === "string" ? [filters] : [...filters];
    const subscription = new Subscription(this, wanted, options, this.#storage());
    this.#subscriptions.add(subscription);
    if (this.state === "closed") subscription._end(this.#connection.error ?? closed());
    else if (this.#isHidden()) subscription._hide();
    else subscription._open();
    return subscription;
  }

  /** Publish once: waits in the outbox while there is no connection. Rejects with `outbox_full` when that is full. */
  publish(topic: string, payload: unknown, options: PublishOptions = {}): Promise<Published> {
    const { messageId = uuid(), correlationId, expiresAt, retain } = options;
    const members: Members = { type: "publish", topic, payload: payload ?? null, messageId, correlationId, retain };
    if (expiresAt !== undefined) members.expiresAt = timeText(expiresAt);
    return within<Published>(options, Infinity, (resolve, reject) => {
      const body = encode(members);
      if (this.state === "closed") throw this.#connection.error ?? closed();
      return this.#outbox.put(messageId, body, (error, answer) => (error ? reject(error) : resolve(answer!)));
    });
  }

  /** Mark a notification as read. */
  async read(notification: string, options: RequestOptions & { user?: string } = {}): Promise<Notification> {
    const answer = await this.request("read", { notification, user: options.user }, options);
    return answer.notification as Notification;
  }

  /** The gateway's time. */
  async ping(options: RequestOptions = {}): Promise<Date> {
    return new Date((await this.request("ping", {}, options)).time as string);
  }

  /** Show a fresh token now; without one, the token source is asked. */
  renew(token?: string): Promise<void> {
    return this.#connection.renew(token);
  }

  /**
   * Send any request of the protocol (docs/reference/asyncapi.yaml). While its answer is outstanding it is repeated on
   * each new connection, so give requests that change something an id; with `repeat: false` it fails with
   * `connection_lost` instead.
   */
  request(type: string, members: Members, options: RequestOptions & { repeat?: boolean } = {}): Promise<Answer> {
    return within<Answer>(options, this.#options.timeout ?? 30_000, (resolve, reject) =>
      this._ask({ ...members, type }, resolve, reject, options.repeat ?? true),
    );
  }

  /** End everything. What was published and not answered rejects with `closed`. */
  async close(): Promise<void> {
    this.#connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  // -- what subscriptions need ---------------------------------------------------------------------------------------

  /** Call back with the answer, in the same turn in which it comes. @internal */
  _ask(members: Members, done: Call["done"], fail: Call["fail"], repeat = false): () => void {
    if (this.state === "closed") throw this.#connection.error ?? closed();
    const ref = ++this.#refs;
    const call = { body: encode({ ref, ...members }), repeat, sent: false, done, fail };
    this.#calls.set(ref, call);
    this.#send(call);
    return () => this.#calls.delete(ref);
  }

  /** @internal */
  _named(name: string, subscription: Subscription | null): void {
    if (subscription) this.#names.set(name, subscription);
    else this.#names.delete(name);
  }

  /** @internal */
  _forget(subscription: Subscription): void {
    this.#subscriptions.delete(subscription);
  }

  // -- what the connection tells -------------------------------------------------------------------------------------

  #opened(): void {
    for (const subscription of this.#subscriptions) subscription._open();
    for (const call of this.#calls.values()) this.#send(call);
    this.#outbox.flush();
  }

  #send(call: Call): void {
    if (this.state !== "open" || call.sent) return;
    call.sent = true;
    this.#connection.send(call.body);
  }

  #frame(frame: Answer): void {
    const { type, ref } = frame;
    if (type === "ok" || type === "error") {
      const call = this.#calls.get(ref as number);
      this.#calls.delete(ref as number);
      if (!call) this.#outbox.answered(frame);
      else if (type === "ok") call.done(frame);
      else call.fail(errorOf(frame));
    } else if (type === "closing") {
      for (const [name, cursor] of Object.entries(frame.cursors as Record<string, string | null>))
        this.#names.get(name)?._stands(cursor);
    } else {
      this.#names.get(frame.subscription as string)?._push(frame);
    }
  }

  #lost(): void {
    if (this.state === "closed") return; // `#told` ends everything
    this.#names.clear();
    for (const subscription of this.#subscriptions) subscription._lost();
    this.#outbox.lost();
    for (const [ref, call] of [...this.#calls]) {
      if (call.repeat || !call.sent) {
        call.sent = false;
        continue;
      }
      this.#calls.delete(ref);
      call.fail(new IotSphereError("connection_lost", "the connection was lost before the answer came", true));
    }
  }

  #told(detail: ClientEvents["state"]): void {
    if (detail.state === "closed") {
      const error = detail.error ?? closed();
      this.#life.abort();
      clearTimeout(this.#hiding);
      for (const subscription of this.#subscriptions) subscription._end(detail.error);
      for (const call of this.#calls.values()) call.fail(error);
      this.#calls.clear();
      this.#outbox.close(error);
    }
    this._emit("state", detail);
  }

  // -- pages that nobody sees ----------------------------------------------------------------------------------------

  #isHidden(): boolean {
    return globalThis.document?.visibilityState === "hidden" && !this.#hiding;
  }

  #visibility(): void {
    clearTimeout(this.#hiding);
    this.#hiding = undefined;
    if (globalThis.document?.visibilityState === "hidden") {
      this.#hiding = setTimeout(() => {
        this.#hiding = undefined;
        for (const subscription of this.#subscriptions) subscription._hide();
      }, this.#options.hiddenAfter ?? 10_000);
    } else {
      this.#connection.hurry();
      for (const subscription of this.#subscriptions) subscription._show();
    }
  }

  // -- helpers -------------------------------------------------------------------------------------------------------

  #storage(): ConnectOptions["storage"] {
    if (this.#options.storage !== undefined) return this.#options.storage;
    try {
      return globalThis.sessionStorage;
    } catch {
      return null; // the browser forbids it to this page
    }
  }
}

function encode(members: Members): string {
  const body = JSON.stringify(members);
  if (body.length * 3 > MAX_REQUEST && new TextEncoder().encode(body).length > MAX_REQUEST)
    throw new IotSphereError("payload_too_large", "a request may hold 272 KiB, a payload 256 KiB: send less at once");
  return body;
}
