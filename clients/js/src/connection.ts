/** One connection after another to a gateway: tokens, back-off, signs of life, and which end is the last one. */

import { IotSphereError, closed, errorOf } from "./errors.js";
import type { Answer, ClientEvents, ClientState, ConnectOptions, TokenRequest } from "./types.js";

const SUBPROTOCOL = "iotsphere.v1.json";
const OPEN_WITHIN = 15_000;
const QUIET = 25_000; // then a sign of life is asked for
const ANSWER_WITHIN = 10_000;
const STEADY = 5_000; // open for so long, the next attempts begin with short pauses again
const TOO_FAST_PAUSE = 5_000;
const SOONEST_RENEWAL = 250; // a source that gives the same token again is not asked without pause
const MAX_TIMER = 2 ** 31 - 1;
const NO_WEBSOCKET =
  "no WebSocket here: use Node.js 22, start Node.js 20 with --experimental-websocket, or give the option WebSocket";

/** What a connection tells its client. */
export interface Hooks {
  opened(): void;
  frame(frame: Answer): void;
  lost(): void;
  told(detail: ClientEvents["state"]): void;
}

/** 1002 … 1010 and 44xx say that the same would happen again, but for a token and for those that are to slow down. */
const isFinal = (code: number): boolean =>
  (code > 1001 && code < 1011 && code !== 1005 && code !== 1006) ||
  (code >= 4400 && code < 4500 && ![4401, 4408, 4429].includes(code));

export class Connection {
  state: ClientState = "connecting";
  expiresAt: Date | null = null;
  error: IotSphereError | undefined;

  #url: string;
  #options: ConnectOptions;
  #hooks: Hooks;
  #life = new AbortController();
  #socket: WebSocket | undefined;
  #timers = new Map<string, ReturnType<typeof setTimeout>>();
  #reason: TokenRequest["reason"] = "connect";
  #attempt = 0;
  #openedAt = 0;
  #heard = 0;
  #asked = 0;
  #authenticating: ((answer: Answer | null) => void)[] = []; // answered in order

  constructor(url: string, options: ConnectOptions, hooks: Hooks) {
    this.#url = url;
    this.#options = options;
    this.#hooks = hooks;
    const signal = this.#life.signal;
    globalThis.addEventListener?.("online", () => this.hurry(), { signal });
    queueMicrotask(() => this.#connect());
  }

  /** Write one frame. */
  send(frame: string): void {
    this.#socket?.send(frame);
  }

  /** The network or the page is back: connect now, or find out whether the connection still lives. */
  hurry(): void {
    if (this.state === "waiting") this.#connect();
    else if (this.state === "open") this.#ask();
  }

  /** Show a fresh token on the open connection. */
  async renew(token?: string): Promise<void> {
    if (token !== undefined && typeof this.#options.token !== "function") this.#options = { ...this.#options, token };
    const fresh = token ?? (await this.#token("expiring"));
    if (fresh === undefined || this.state !== "open") return; // the next connection asks for one
    const answer = await this.#authenticate(fresh);
    if (answer?.type === "error") throw errorOf(answer);
  }

  /** No more connections. */
  close(error?: IotSphereError): void {
    if (this.state === "closed") return;
    this.error = error;
    this.state = "closed";
    this.#drop();
    this.#life.abort(error ?? closed());
    this.#become("closed", { error });
  }

  #become(state: ClientState, detail: Partial<ClientEvents["state"]> = {}): void {
    this.state = state;
    this.#hooks.told({ state, ...detail });
  }

  #after(name: string, ms: number, then: () => void): void {
    clearTimeout(this.#timers.get(name));
    this.#timers.set(name, setTimeout(then, Math.min(ms, MAX_TIMER)));
  }

  async #token(reason: TokenRequest["reason"]): Promise<string | undefined> {
    const source = this.#options.token;
    return typeof source === "function" ? source({ reason, signal: this.#life.signal }) : source;
  }

  async #connect(): Promise<void> {
    if (this.state === "closed") return;
    clearTimeout(this.#timers.get("wait"));
    this.#become("connecting");
    let token: string | undefined;
    try {
      token = await this.#token(this.#reason);
    } catch (cause) {
      const error = new IotSphereError("unauthenticated", `no token: ${cause}`, true);
      error.cause = cause;
      return (cause as IotSphereError | undefined)?.retry === false ? this.close(error) : this.#wait({ error });
    }
    if (this.#life.signal.aborted) return;
    try {
      this.#open(token);
    } catch (cause) {
      this.close(new IotSphereError("request_invalid", String(cause))); // the address is none
    }
  }

  #open(token: string | undefined): void {
    const { WebSocket = globalThis.WebSocket } = this.#options;
    if (!WebSocket) return this.close(new IotSphereError("no_websocket", NO_WEBSOCKET));
    const socket = new WebSocket(this.#url, SUBPROTOCOL);
    this.#socket = socket;
    this.#after("open", OPEN_WITHIN, () => this.#lost(1006, "no answer in time"));
    socket.onopen = async () => {
      this.#heard = Date.now();
      this.#asked = 0;
      if (token !== undefined) {
        const answer = await this.#authenticate(token);
        if (socket !== this.#socket) return;
        if (answer?.type !== "ok") return; // the close code follows, and says what to do
      }
      clearTimeout(this.#timers.get("open"));
      this.#openedAt = Date.now();
      this.#reason = "connect";
      this.error = undefined;
      this.#pulse();
      this.#become("open");
      this.#hooks.opened();
    };
    socket.onmessage = ({ data }) => {
      this.#heard = Date.now();
      this.#asked = 0;
      const frame: Answer = JSON.parse(data as string);
      if (frame.ref === "auth") this.#authenticating.shift()?.(frame);
      else if (frame.ref !== "pulse") this.#hooks.frame(frame);
    };
    socket.onclose = ({ code, reason }) => this.#lost(code, reason);
    // Some engines tell no close of a connection that was never opened.
    socket.onerror = () => setTimeout(() => socket === this.#socket && this.#lost(1006, "no connection"), 0);
  }

  /** Show a token; null when the connection is lost meanwhile. */
  #authenticate(token: string): Promise<Answer | null> {
    return new Promise((resolve) => {
      this.#authenticating.push((answer) => {
        if (answer?.type === "error") this.error = errorOf(answer);
        else if (answer) this.#plan(answer.expiresAt as string | null, answer.expiresIn as number | undefined);
        resolve(answer);
      });
      this.send(JSON.stringify({ type: "auth", ref: "auth", token }));
    });
  }

  /** Renew a token before it expires. Its life (ms) is what counts, since the clock of this machine may be wrong. */
  #plan(expiresAt: string | null, life?: number): void {
    this.expiresAt = expiresAt ? new Date(expiresAt) : null;
    clearTimeout(this.#timers.get("renew"));
    if (!this.expiresAt || typeof this.#options.token !== "function") return;
    const left = life ?? this.expiresAt.getTime() - Date.now(); // older gateways do not tell it
    this.#after("renew", Math.max(left - Math.min(60_000, left / 5), SOONEST_RENEWAL), () => {
      this.renew().catch(() => this.#after("renew", TOO_FAST_PAUSE, () => this.renew().catch(() => {})));
    });
  }

  /** Look now and then whether the gateway still answers: a browser does not tell of a connection that has died. */
  #pulse(): void {
    this.#after("pulse", ANSWER_WITHIN, () => {
      const now = Date.now();
      if (this.#asked && now - this.#asked >= ANSWER_WITHIN - 100) return this.#lost(1006, "no sign of life");
      if (now - this.#heard >= QUIET) this.#ask();
      this.#pulse();
    });
  }

  #ask(): void {
    if (this.#asked) return;
    this.#asked = Date.now();
    this.send('{"type":"ping","ref":"pulse"}');
    this.#pulse();
  }

  #drop(): void {
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
    const socket = this.#socket;
    this.#socket = undefined;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    socket.close(1000);
    for (const lost of this.#authenticating.splice(0)) lost(null);
    this.#hooks.lost();
  }

  #lost(code: number, reason: string): void {
    this.#drop();
    const refused = code === 4401;
    if (isFinal(code) || (refused && typeof this.#options.token !== "function")) {
      const text = reason || "the gateway ended the connection for good";
      const error = this.error ?? new IotSphereError(refused ? "unauthenticated" : "closed", `${code}: ${text}`);
      return this.close(error);
    }
    if (refused) this.#reason = "refused";
    if (this.#openedAt && Date.now() - this.#openedAt >= STEADY) this.#attempt = 0;
    this.#openedAt = 0;
    this.#wait({ code, reason, error: this.error }, code === 4429 ? TOO_FAST_PAUSE : 0);
  }

  #wait(detail: Partial<ClientEvents["state"]>, least = 0): void {
    const { min = 250, max = 30_000 } = this.#options.backoff ?? {};
    const retryIn = least + Math.random() * Math.min(max, min * 2 ** this.#attempt++);
    this.#become("waiting", { ...detail, retryIn });
    if (this.state === "waiting") this.#after("wait", retryIn, () => this.#connect());
  }
}
