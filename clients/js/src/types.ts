/** The shapes that callers meet. */

import type { IotSphereError } from "./errors.js";

/** One message as docs/reference/message.md describes it. */
export interface Message<P = Record<string, unknown>> {
  readonly metadata: {
    readonly messageId: string;
    readonly timestamp: string;
    readonly topic: string;
    readonly source: string;
    readonly correlationId: string | null;
    readonly messageType: "event" | "command" | "response" | "notification";
    readonly version: string;
    readonly receivedAt?: string;
    readonly contentType?: string;
    readonly expiresAt?: string;
    readonly traceparent?: string;
    readonly quality?: string;
    readonly responseTopic?: string;
    readonly correlationData?: string;
    readonly properties?: readonly (readonly [string, string])[];
  };
  readonly payload: P;
}

/** A range of one partition of the log that cannot be had any more. `count` is 0 where nobody knows. */
export interface Missed {
  readonly partition: string;
  readonly first: number;
  readonly last: number;
  readonly count: number;
  readonly reason: string;
}

/** An answer or a push as it came. */
export type Answer = { readonly type: string; readonly [member: string]: unknown };

/** Members of one request. */
export type Members = Record<string, unknown>;

/** `timeout`: milliseconds until the request fails with `timeout`. Aborting rejects with the signal's reason. */
export interface RequestOptions {
  signal?: AbortSignal | undefined;
  timeout?: number | undefined;
}

/** Where keys and texts are kept: `localStorage`, `sessionStorage`, or anything like them. */
export type KeyStorage = Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">;

/** Why a token is wanted. `refused`: the last one was not believed; throw an error with `retry: false` to give up. */
export interface TokenRequest {
  readonly reason: "connect" | "expiring" | "refused";
  readonly signal: AbortSignal;
}

export type TokenSource = string | ((request: TokenRequest) => string | Promise<string>);

/** How to connect. Times in milliseconds. */
export interface ConnectOptions {
  token?: TokenSource;
  /** Aborting it closes the client. */
  signal?: AbortSignal;
  /** For an answer, milliseconds; 30 000. The `timeout` of a command is another thing: seconds that the device has. */
  timeout?: number;
  /** Between two attempts: a random time up to `min`, twice that, … up to `max`; 250 and 30 000. */
  backoff?: { min?: number; max?: number };
  /** Where cursors of `resume` are kept; `sessionStorage` where there is one. */
  storage?: Pick<Storage, "getItem" | "setItem" | "removeItem"> | null;
  /** What may wait: 1 000 messages and 4 MiB; kept across reloads with a `storage`, under a `key` for each user. */
  outbox?: { messages?: number; bytes?: number; storage?: KeyStorage | null; key?: string };
  /** How long a page is hidden before subscriptions pause; 10 000. */
  hiddenAfter?: number;
  /** The first level of topics, for commands; `iotsphere`. */
  domain?: string;
  /** Where the platform has none, such as the `WebSocket` of the package `ws`. */
  WebSocket?: typeof WebSocket;
}

export type ClientState = "connecting" | "open" | "waiting" | "closed";

export interface ClientEvents {
  state: {
    readonly state: ClientState;
    /** The WebSocket close code of the connection that was lost. */
    readonly code?: number | undefined;
    readonly reason?: string | undefined;
    readonly error?: IotSphereError | undefined;
    /** Milliseconds until the next attempt. */
    readonly retryIn?: number | undefined;
  };
  outbox: {
    readonly messages: number;
    readonly bytes: number;
    /** The next message is refused. */
    readonly full: boolean;
    /** A message from before a reload was refused for good, and nobody waits for its answer. */
    readonly refused?: { readonly messageId: string; readonly error: IotSphereError };
  };
}

export interface PublishOptions extends RequestOptions {
  messageId?: string | undefined;
  correlationId?: string | undefined;
  expiresAt?: Date | string | undefined;
  retain?: boolean | undefined;
}

/** Where it is in the log, or what was decided of a request. */
export interface Published {
  readonly messageId: string;
  readonly position?: string;
  readonly duplicate?: boolean;
  readonly [member: string]: unknown;
}

export interface Notification {
  readonly id: string;
  readonly at: string;
  readonly source: string | null;
  readonly content: Record<string, unknown> | null;
  readonly read: boolean;
}

export interface SubscribeOptions {
  /** `live` (default), `latest`, `earliest`, a time, or a cursor. */
  from?: "live" | "latest" | "earliest" | Date | number | (string & {});
  /** What a slow reader gets: everything, later (`complete`), or the newest value of each topic (`latest`). */
  policy?: "complete" | "latest";
  /** Messages a second. */
  maxRate?: number;
  /** Rewind: play from a time at this multiple of its speed, up to 1 000; 0 stands still. */
  speed?: number;
  /** Keep the cursor in the storage under this name, and go on there after a reload. */
  resume?: string;
  /** What a hidden page does: pause and get only last values (`snapshot`), pause and get all (`resume`), or nothing. */
  hidden?: "snapshot" | "resume" | "continue";
  /** Messages that a slow `for await` may leave unread; 1 000. */
  buffer?: number;
  signal?: AbortSignal;
}

export type SubscriptionState = "pending" | "open" | "paused" | "ended";

/** How the messages of a subscription come. */
export interface Quality {
  /** `live`; `behind`: all of them, later; `latest`: newest values only; `paused`; `snapshot`: some were left out. */
  readonly mode: "live" | "behind" | "latest" | "paused" | "snapshot";
  readonly reason: string;
  /** About how many messages it is behind. */
  readonly behind: number;
  /** Values that newer ones replaced before they were sent. */
  readonly superseded: number;
}

/** The clock of a rewind. `skipped`: milliseconds of silence that were left out before this moment. */
export interface Clock {
  readonly time: Date;
  readonly speed: number;
  readonly state: "playing" | "paused" | "live";
  readonly skipped: number;
}

export interface SubscriptionEvents {
  message: Message;
  messages: Message[];
  gap: { readonly missed: readonly Missed[]; readonly resumed: boolean };
  quality: Quality;
  clock: Clock;
  state: { readonly state: SubscriptionState; readonly error?: IotSphereError | undefined };
}
