/* IoTSphere client, Apache-2.0 */

// src/errors.ts
var IotSphereError = class extends Error {
  name = "IotSphereError";
  // minifying shortens the names of classes
  code;
  retry;
  retryAfter;
  constructor(code, message, retry = false, retryAfter) {
    super(message);
    this.code = code;
    this.retry = retry;
    this.retryAfter = retryAfter;
  }
};
var ConflictError = class extends IotSphereError {
  name = "ConflictError";
  version;
  current;
  constructor(message, version, current) {
    super("version_conflict", message);
    this.version = version;
    this.current = current;
  }
};
function errorOf(answer) {
  const { code, message, retry, retryAfter, current } = answer;
  return current ? new ConflictError(message, current.version, current.state) : new IotSphereError(code, message, retry, retryAfter);
}
var closed = (why = "the client was closed") => new IotSphereError("closed", why);

// src/connection.ts
var SUBPROTOCOL = "iotsphere.v1.json";
var OPEN_WITHIN = 15e3;
var QUIET = 25e3;
var ANSWER_WITHIN = 1e4;
var STEADY = 5e3;
var TOO_FAST_PAUSE = 5e3;
var SOONEST_RENEWAL = 250;
var MAX_TIMER = 2 ** 31 - 1;
var NO_WEBSOCKET = "no WebSocket here: use Node.js 22, start Node.js 20 with --experimental-websocket, or give the option WebSocket";
var isFinal = (code) => code > 1001 && code < 1011 && code !== 1005 && code !== 1006 || code >= 4400 && code < 4500 && ![4401, 4408, 4429].includes(code);
var Connection = class {
  state = "connecting";
  expiresAt = null;
  error;
  #url;
  #options;
  #hooks;
  #life = new AbortController();
  #socket;
  #timers = /* @__PURE__ */ new Map();
  #reason = "connect";
  #attempt = 0;
  #openedAt = 0;
  #heard = 0;
  #asked = 0;
  #authenticating = [];
  // answered in order
  constructor(url, options, hooks) {
    this.#url = url;
    this.#options = options;
    this.#hooks = hooks;
    const signal = this.#life.signal;
    globalThis.addEventListener?.("online", () => this.hurry(), { signal });
    queueMicrotask(() => this.#connect());
  }
  /** Write one frame. */
  send(frame) {
    this.#socket?.send(frame);
  }
  /** The network or the page is back: connect now, or find out whether the connection still lives. */
  hurry() {
    if (this.state === "waiting") this.#connect();
    else if (this.state === "open") this.#ask();
  }
  /** Show a fresh token on the open connection. */
  async renew(token) {
    if (token !== void 0 && typeof this.#options.token !== "function") this.#options = { ...this.#options, token };
    const fresh = token ?? await this.#token("expiring");
    if (fresh === void 0 || this.state !== "open") return;
    const answer = await this.#authenticate(fresh);
    if (answer?.type === "error") throw errorOf(answer);
  }
  /** No more connections. */
  close(error) {
    if (this.state === "closed") return;
    this.error = error;
    this.state = "closed";
    this.#drop();
    this.#life.abort(error ?? closed());
    this.#become("closed", { error });
  }
  #become(state, detail = {}) {
    this.state = state;
    this.#hooks.told({ state, ...detail });
  }
  #after(name, ms, then) {
    clearTimeout(this.#timers.get(name));
    this.#timers.set(name, setTimeout(then, Math.min(ms, MAX_TIMER)));
  }
  async #token(reason) {
    const source = this.#options.token;
    return typeof source === "function" ? source({ reason, signal: this.#life.signal }) : source;
  }
  async #connect() {
    if (this.state === "closed") return;
    clearTimeout(this.#timers.get("wait"));
    this.#become("connecting");
    let token;
    try {
      token = await this.#token(this.#reason);
    } catch (cause) {
      const error = new IotSphereError("unauthenticated", `no token: ${cause}`, true);
      error.cause = cause;
      return cause?.retry === false ? this.close(error) : this.#wait({ error });
    }
    if (this.#life.signal.aborted) return;
    try {
      this.#open(token);
    } catch (cause) {
      this.close(new IotSphereError("request_invalid", String(cause)));
    }
  }
  #open(token) {
    const { WebSocket = globalThis.WebSocket } = this.#options;
    if (!WebSocket) return this.close(new IotSphereError("no_websocket", NO_WEBSOCKET));
    const socket = new WebSocket(this.#url, SUBPROTOCOL);
    this.#socket = socket;
    this.#after("open", OPEN_WITHIN, () => this.#lost(1006, "no answer in time"));
    socket.onopen = async () => {
      this.#heard = Date.now();
      this.#asked = 0;
      if (token !== void 0) {
        const answer = await this.#authenticate(token);
        if (socket !== this.#socket) return;
        if (answer?.type !== "ok") return;
      }
      clearTimeout(this.#timers.get("open"));
      this.#openedAt = Date.now();
      this.#reason = "connect";
      this.error = void 0;
      this.#pulse();
      this.#become("open");
      this.#hooks.opened();
    };
    socket.onmessage = ({ data }) => {
      this.#heard = Date.now();
      this.#asked = 0;
      const frame = JSON.parse(data);
      if (frame.ref === "auth") this.#authenticating.shift()?.(frame);
      else if (frame.ref !== "pulse") this.#hooks.frame(frame);
    };
    socket.onclose = ({ code, reason }) => this.#lost(code, reason);
    socket.onerror = () => setTimeout(() => socket === this.#socket && this.#lost(1006, "no connection"), 0);
  }
  /** Show a token; null when the connection is lost meanwhile. */
  #authenticate(token) {
    return new Promise((resolve) => {
      this.#authenticating.push((answer) => {
        if (answer?.type === "error") this.error = errorOf(answer);
        else if (answer) this.#plan(answer.expiresAt, answer.expiresIn);
        resolve(answer);
      });
      this.send(JSON.stringify({ type: "auth", ref: "auth", token }));
    });
  }
  /** Renew a token before it expires. Its life (ms) is what counts, since the clock of this machine may be wrong. */
  #plan(expiresAt, life) {
    this.expiresAt = expiresAt ? new Date(expiresAt) : null;
    clearTimeout(this.#timers.get("renew"));
    if (!this.expiresAt || typeof this.#options.token !== "function") return;
    const left = life ?? this.expiresAt.getTime() - Date.now();
    this.#after("renew", Math.max(left - Math.min(6e4, left / 5), SOONEST_RENEWAL), () => {
      this.renew().catch(() => this.#after("renew", TOO_FAST_PAUSE, () => this.renew().catch(() => {
      })));
    });
  }
  /** Look now and then whether the gateway still answers: a browser does not tell of a connection that has died. */
  #pulse() {
    this.#after("pulse", ANSWER_WITHIN, () => {
      const now = Date.now();
      if (this.#asked && now - this.#asked >= ANSWER_WITHIN - 100) return this.#lost(1006, "no sign of life");
      if (now - this.#heard >= QUIET) this.#ask();
      this.#pulse();
    });
  }
  #ask() {
    if (this.#asked) return;
    this.#asked = Date.now();
    this.send('{"type":"ping","ref":"pulse"}');
    this.#pulse();
  }
  #drop() {
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
    const socket = this.#socket;
    this.#socket = void 0;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    socket.close(1e3);
    for (const lost of this.#authenticating.splice(0)) lost(null);
    this.#hooks.lost();
  }
  #lost(code, reason) {
    this.#drop();
    const refused = code === 4401;
    if (isFinal(code) || refused && typeof this.#options.token !== "function") {
      const text = reason || "the gateway ended the connection for good";
      const error = this.error ?? new IotSphereError(refused ? "unauthenticated" : "closed", `${code}: ${text}`);
      return this.close(error);
    }
    if (refused) this.#reason = "refused";
    if (this.#openedAt && Date.now() - this.#openedAt >= STEADY) this.#attempt = 0;
    this.#openedAt = 0;
    this.#wait({ code, reason, error: this.error }, code === 4429 ? TOO_FAST_PAUSE : 0);
  }
  #wait(detail, least = 0) {
    const { min = 250, max = 3e4 } = this.#options.backoff ?? {};
    const retryIn = least + Math.random() * Math.min(max, min * 2 ** this.#attempt++);
    this.#become("waiting", { ...detail, retryIn });
    if (this.state === "waiting") this.#after("wait", retryIn, () => this.#connect());
  }
};

// src/deadline.ts
function within({ signal, timeout }, usual, begin) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const ms = timeout ?? usual;
    let withdraw;
    let timer;
    let settled = false;
    const over = () => {
      settled = true;
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
      withdraw?.();
    };
    const give = (value) => (over(), resolve(value));
    const fail = (error) => (over(), reject(error));
    const aborted = () => fail(signal.reason);
    signal?.addEventListener("abort", aborted);
    if (ms !== Infinity)
      timer = setTimeout(() => fail(new IotSphereError("timeout", `no answer within ${ms} ms`, true)), ms);
    try {
      withdraw = begin(give, fail);
      if (settled) withdraw();
    } catch (error) {
      fail(error);
    }
  });
}

// src/events.ts
var Events = class extends EventTarget {
  /** @internal */
  _emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
};

// src/ids.ts
function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = bytes[6] & 15 | 64;
  bytes[8] = bytes[8] & 63 | 128;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
var timeText = (time) => typeof time === "string" ? time : new Date(time).toISOString();

// src/outbox.ts
var IN_FLIGHT = 128;
var PAUSE = 1e3;
var Outbox = class {
  bytes = 0;
  #letters = /* @__PURE__ */ new Map();
  #post;
  #maxMessages;
  #maxBytes;
  #storage;
  #prefix;
  #flying = 0;
  #holding;
  constructor(post, options = {}) {
    this.#post = post;
    this.#maxMessages = options.messages ?? 1e3;
    this.#maxBytes = options.bytes ?? 4 * 1024 * 1024;
    this.#storage = options.key !== void 0 && options.storage || null;
    this.#prefix = `iotsphere.outbox.${options.key}.`;
    this.#restore();
  }
  get messages() {
    return this.#letters.size;
  }
  get full() {
    return this.messages >= this.#maxMessages || this.bytes >= this.#maxBytes;
  }
  /** Put a message in; `settle` is called once, when it is answered. Throws `outbox_full`. */
  put(id, body, settle) {
    const ref = this.#post.nextRef();
    let key;
    if (this.full || this.bytes + body.length > this.#maxBytes) throw full("wait for answers, or for the connection");
    if (this.#storage) {
      key = this.#prefix + Date.now().toString(36) + ref.toString(36).padStart(8, "0") + id;
      try {
        this.#storage.setItem(key, body);
      } catch (cause) {
        throw full(`the storage takes no more: ${cause}`);
      }
    }
    this.#add({ ref, id, body, key, sent: false, settle });
    this.flush();
    return () => this.#remove(ref);
  }
  /** Send what was not sent yet, as far as the gateway takes it. */
  flush() {
    if (!this.#post.isOpen() || this.#holding) return;
    for (const letter of this.#letters.values()) {
      if (this.#flying >= IN_FLIGHT) return;
      if (letter.sent) continue;
      letter.sent = true;
      this.#flying++;
      this.#post.send(`{"ref":${letter.ref},${letter.body.slice(1)}`);
    }
  }
  /** Take an answer; false when it is none to a message of here. */
  answered(answer) {
    const letter = this.#letters.get(answer.ref);
    if (!letter) return false;
    const error = answer.type === "error" ? errorOf(answer) : null;
    if (error?.retry) {
      letter.sent = false;
      this.#flying--;
      this.#holding ??= setTimeout(() => {
        this.#holding = void 0;
        this.flush();
      }, error.retryAfter ?? PAUSE);
      return true;
    }
    this.#remove(letter.ref);
    const { type: _, ref: __, ...published } = answer;
    letter.settle(error, published);
    this.flush();
    return true;
  }
  /** The connection is gone: whether the gateway has what was not answered, only it knows, so all is sent again. */
  lost() {
    for (const letter of this.#letters.values()) letter.sent = false;
    this.#flying = 0;
  }
  /** Nobody sends any more. What is kept in a storage stays there for the next page. */
  close(error) {
    clearTimeout(this.#holding);
    for (const letter of [...this.#letters.values()]) {
      this.#letters.delete(letter.ref);
      letter.settle(error);
    }
    this.bytes = 0;
  }
  #add(letter) {
    this.#letters.set(letter.ref, letter);
    this.bytes += letter.body.length;
    this.#tell();
  }
  #remove(ref) {
    const letter = this.#letters.get(ref);
    if (!letter) return;
    this.#letters.delete(ref);
    this.bytes -= letter.body.length;
    if (letter.sent) this.#flying--;
    if (letter.key) this.#storage?.removeItem(letter.key);
    this.#tell();
  }
  #tell(refused) {
    this.#post.told({ messages: this.messages, bytes: this.bytes, full: this.full, ...refused && { refused } });
  }
  #restore() {
    const storage = this.#storage;
    if (!storage) return;
    const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index));
    for (const key of keys.filter((key2) => key2?.startsWith(this.#prefix)).sort()) {
      const body = storage.getItem(key);
      const id = key.slice(-36);
      const settle = (error) => {
        if (error instanceof IotSphereError && error.code !== "closed") this.#tell({ messageId: id, error });
      };
      this.#add({ ref: this.#post.nextRef(), id, body, key, sent: false, settle });
    }
  }
};
var full = (why) => new IotSphereError("outbox_full", `the outbox is full: ${why}`, true);

// src/bookmark.ts
var Bookmark = class {
  tail;
  taken;
  #storage;
  #key;
  constructor(name, storage) {
    this.#storage = storage;
    this.#key = name && `iotsphere.cursor.${name}`;
    this.tail = this.taken = this.#key && storage?.getItem(this.#key) || null;
  }
  /** The page has finished with what this cursor stands after. */
  take(cursor, keep) {
    this.taken = cursor;
    if (!keep || !this.#key) return;
    try {
      this.#storage?.setItem(this.#key, cursor);
    } catch (error) {
      this.#key = void 0;
      queueMicrotask(() => {
        throw error;
      });
    }
  }
};

// src/quality.ts
var HIDDEN = quality("paused", "nobody sees the page");
var SNAPSHOT = quality("snapshot", "what came while the page was hidden is left out");
var SLOW = quality("behind", "this page takes less than comes: the rest is in the gateway's log");
var RESUMED = quality("live", "messages are fetched again, from where they were left");
var replaced = (count) => quality("latest", "this page takes less than comes", 0, count);
function lagging({ policy, behind, superseded }) {
  const [lag, gone] = [behind, superseded];
  if (lag === 0) return quality("live", "caught up", 0, gone);
  const why = "messages come faster than they are taken: ";
  return policy === "latest" ? quality("latest", `${why}only the newest of each topic is sent`, lag, gone) : quality("behind", `${why}the gateway keeps the rest in its log`, lag, gone);
}
function quality(mode, reason, behind = 0, superseded = 0) {
  return { mode, reason, behind, superseded };
}

// src/unread.ts
var Unread = class {
  #items = [];
  #head = 0;
  #limit;
  #ended = false;
  #arrived;
  constructor(limit) {
    this.#limit = limit;
  }
  get length() {
    return this.#items.length - this.#head;
  }
  /** No more should come: a frame was taken beyond the limit. */
  get isFull() {
    return this.length >= this.#limit;
  }
  /** Enough was taken that more may come. */
  get isLow() {
    return this.length <= this.#limit >> 2;
  }
  /** Put a frame in. With `latest`, past the limit only the newest of each topic stays; returns how many went. */
  put(messages, cursor, latest) {
    for (const message of messages) this.#items.push({ message, cursor: null });
    this.#items.at(-1).cursor = cursor;
    const before = this.length;
    if (latest && this.isFull) {
      const newest = /* @__PURE__ */ new Map();
      for (const item of this.all()) {
        newest.delete(item.message.metadata.topic);
        newest.set(item.message.metadata.topic, item);
      }
      this.#items = [...newest.values()];
    }
    this.#wake();
    return before - this.length;
  }
  /** Note a cursor after what is there; false when nothing is. */
  mark(cursor) {
    if (!this.length) return false;
    this.#items.at(-1).cursor = cursor;
    return true;
  }
  next() {
    const item = this.#items[this.#head++];
    if (this.#head * 2 > this.#items.length) {
      this.#items.splice(0, this.#head);
      this.#head = 0;
    }
    return item;
  }
  all() {
    const items = this.#items.slice(this.#head);
    this.#items = [];
    this.#head = 0;
    return items;
  }
  /** Resolves when something is there, or at the end. */
  async arrival() {
    if (!this.length && !this.#ended) await new Promise((resolve) => this.#arrived = resolve);
  }
  end() {
    this.#ended = true;
    this.#wake();
  }
  #wake() {
    this.#arrived?.();
    this.#arrived = void 0;
  }
};

// src/stream.ts
var lastCursor = (items) => items.findLast((item) => item.cursor)?.cursor ?? null;
var Stream = class extends Events {
  /** @internal */
  _unread;
  #iterated = false;
  #listened = false;
  #over = false;
  #error;
  /** @internal */
  constructor(buffer) {
    super();
    this._unread = new Unread(buffer);
  }
  addEventListener(type, listener, options) {
    super.addEventListener(type, listener, options);
    if (type !== "message" && type !== "messages") return;
    this.#listened = true;
    const early = this.#iterated ? [] : this._unread.all();
    if (early.length)
      queueMicrotask(() => {
        this.#tell(early.map((item) => item.message));
        this._took(lastCursor(early));
      });
  }
  /** One message after the other. Leaving the loop closes the subscription. */
  async *[Symbol.asyncIterator]() {
    try {
      while (await this.#more()) {
        const item = this._unread.next();
        yield item.message;
        this._took(item.cursor);
      }
    } finally {
      await this.close();
    }
  }
  /** All that is there, at once. Leaving the loop closes the subscription. */
  async *batches() {
    try {
      while (await this.#more()) {
        const items = this._unread.all();
        yield items.map((item) => item.message);
        this._took(lastCursor(items));
      }
    } finally {
      await this.close();
    }
  }
  /** Messages came. With `latest`, a buffer that is full keeps the newest of each topic. @internal */
  _receive(messages, cursor, latest) {
    if (this.#iterated || !this.#listened) {
      const superseded = this._unread.put(messages, cursor, latest);
      if (superseded) this._emit("quality", replaced(superseded));
    }
    if (!this.#listened) return;
    this.#tell(messages);
    if (!this.#iterated) this._took(cursor);
  }
  /** Nothing more comes. @internal */
  _over(error) {
    this.#over = true;
    this.#error = error;
    this._unread.end();
  }
  #tell(messages) {
    this._emit("messages", messages);
    for (const message of messages) this._emit("message", message);
  }
  /** Wait for something unread; false at the end. Throws what ended it. */
  async #more() {
    this.#iterated = true;
    if (!this._unread.length && !this.#over) await this._unread.arrival();
    if (this._unread.length) return true;
    if (this.#error) throw this.#error;
    return false;
  }
};

// src/subscription.ts
var PAUSE2 = 1e3;
var ignore = () => {
};
var Subscription = class extends Stream {
  filters;
  state = "pending";
  /** Of a rewind. */
  clock = null;
  #client;
  #options;
  #bookmark;
  #from;
  #speed;
  #name = null;
  #round = 0;
  // answers to earlier rounds are late
  #asking = false;
  #pauses = /* @__PURE__ */ new Set();
  #paused = false;
  // and the page was told so
  #snapshot = false;
  #error;
  #retry;
  #life = new AbortController();
  /** @internal */
  constructor(client, filters, options, storage) {
    super(options.buffer ?? 1e3);
    this.#client = client;
    this.filters = filters;
    this.#options = options;
    this.#bookmark = new Bookmark(options.resume, storage);
    this.#from = timeText(options.from ?? "live");
    this.#speed = options.speed;
    const { signal } = options;
    if (signal?.aborted) this.#pauses.add("aborted");
    const abort = () => this._end(signal.reason);
    if (signal?.aborted) queueMicrotask(abort);
    else signal?.addEventListener("abort", abort, { signal: this.#life.signal });
  }
  /** Resumes right after what was taken: after the last event, or what the iteration has finished with. */
  get cursor() {
    return this.#bookmark.taken;
  }
  // -- for the page --------------------------------------------------------------------------------------------------
  /** Resolves once the gateway has accepted it; rejects when it was refused. */
  ready() {
    return new Promise((resolve, reject) => {
      const look = () => {
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
  rewind({ from, speed = 1 }) {
    this.#restart(timeText(from), speed);
  }
  /** Go on at another speed; 0 stands still. */
  play(speed) {
    if (this.#speed === void 0) return;
    this.#speed = speed;
    if (!this.#name) return;
    this.#client._ask({ type: "play", subscription: this.#name, speed }, ignore, ignore);
  }
  /** Back to now: the last values, then what comes. */
  live() {
    this.#restart("latest", void 0);
    this.clock = null;
  }
  /** Unsubscribe; iterations end. The cursor stays in the storage if `resume` was asked for. */
  async close() {
    this._end();
  }
  async [Symbol.asyncDispose]() {
    await this.close();
  }
  /** @internal */
  _took(cursor) {
    if (this._unread.isLow) this.#resume("slow");
    if (cursor) this.#bookmark.take(cursor, this.#speed === void 0);
  }
  // -- for the client ------------------------------------------------------------------------------------------------
  /** There is a connection: subscribe on it. @internal */
  _open() {
    if (this.#pauses.size || this.state === "ended" || this.#name || this.#client.state !== "open") return;
    if (this.#asking) return;
    this.#asking = true;
    clearTimeout(this.#retry);
    const round = ++this.#round;
    const { policy, maxRate } = this.#options;
    const members = { type: "subscribe", filters: this.filters, policy, maxRate };
    const cursor = this.#bookmark.tail;
    members.from = cursor ?? this.#from;
    if (this.#speed !== void 0) members.speed = this.#speed;
    else if (this.#snapshot && policy !== "latest") members.from = "latest";
    this.#become("pending");
    this.#client._ask(
      members,
      (answer) => {
        const name = answer.subscription;
        this.#asking = false;
        if (round !== this.#round) {
          this.#unsubscribe(name);
          return this._open();
        }
        this.#name = name;
        this.#client._named(name, this);
        const missed = answer.missed;
        if (missed.length) this._emit("gap", { missed, resumed: cursor !== null });
        if (this.#paused) this._emit("quality", this.#snapshot ? SNAPSHOT : RESUMED);
        if (members.from === "latest") this.#bookmark.tail = null;
        this.#paused = this.#snapshot = false;
        this._stands(answer.cursor);
        this.#become("open");
        if (this.#speed !== void 0 && this.#speed !== members.speed) this.play(this.#speed);
      },
      (error) => {
        this.#asking = false;
        if (round === this.#round) this.#refused(error, cursor);
        else this._open();
      }
    );
  }
  /** The connection is gone. @internal */
  _lost() {
    this.#round++;
    this.#name = null;
    this.#asking = false;
    if (this.state === "open") this.#become("pending");
  }
  /** A push of the gateway. @internal */
  _push(frame) {
    const { type, cursor, messages, missed, code, message } = frame;
    if (type === "messages") this.#take(messages, cursor);
    else if (type === "gap") this._emit("gap", { missed, resumed: false });
    else if (type === "ended") this._end(new IotSphereError(code, message));
    else if (type === "clock") this.#tick(frame);
    else if (type === "lagging") this._emit("quality", lagging(frame));
  }
  /** The gateway tells where it stands. @internal */
  _stands(cursor) {
    if (!cursor) return;
    this.#bookmark.tail = cursor;
    if (!this._unread.mark(cursor)) this._took(cursor);
  }
  /** @internal */
  _hide() {
    const mode = this.#hiddenMode();
    if (mode === "continue" || this.state === "ended") return;
    if (mode === "snapshot" && this.#name) this.#snapshot = true;
    this.#pause("hidden", HIDDEN);
  }
  /** @internal */
  _show() {
    this.#resume("hidden");
  }
  /** It is over. @internal */
  _end(error) {
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
  #hiddenMode() {
    if (this.#speed !== void 0) return "resume";
    return this.#options.hidden ?? (this.#options.policy === "latest" ? "snapshot" : "resume");
  }
  #become(state, error) {
    if (state === this.state) return;
    this.state = state;
    this._emit("state", { state, error });
  }
  #leave(name = this.#name) {
    this.#round++;
    this.#name = null;
    if (!name || this.#client.state !== "open") return;
    this.#client._named(name, null);
    this.#unsubscribe(name);
  }
  #unsubscribe(name) {
    this.#client._ask({ type: "unsubscribe", subscription: name }, ignore, ignore);
  }
  #restart(from, speed) {
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
  #refused(error, cursor) {
    if (error.code === "cursor_invalid" && cursor && cursor !== this.#from) {
      this.#bookmark.tail = null;
      const missed = [{ partition: "*", first: 0, last: 0, count: 0, reason: error.code }];
      this._emit("gap", { missed, resumed: false });
      this._open();
    } else if (error.retry) {
      this.#retry = setTimeout(() => this._open(), error.retryAfter ?? PAUSE2);
    } else this._end(error);
  }
  #pause(why, quality2) {
    if (this.#pauses.has(why)) return;
    this.#pauses.add(why);
    this.#paused = true;
    this.#leave();
    this.#become("paused");
    this._emit("quality", quality2);
  }
  #resume(why) {
    if (this.#pauses.delete(why)) this._open();
  }
  #take(messages, cursor) {
    if (!messages.length) return this._stands(cursor);
    this.#bookmark.tail = cursor ?? this.#bookmark.tail;
    this._receive(messages, cursor, this.#options.policy === "latest");
    if (this._unread.isFull) this.#pause("slow", SLOW);
  }
  #tick(frame) {
    const { time, speed, state, skipped } = frame;
    this.clock = { time: new Date(time), speed, state, skipped };
    if (state === "live") this.#speed = void 0;
    this._emit("clock", this.clock);
  }
};

// src/client.ts
var MAX_REQUEST = 256 * 1024 + 16 * 1024 - 64;
function connect(url, options = {}) {
  return new Client(url, options);
}
var Client = class extends Events {
  /** The first level of topics. */
  domain;
  #connection;
  #options;
  #calls = /* @__PURE__ */ new Map();
  #outbox;
  #subscriptions = /* @__PURE__ */ new Set();
  #names = /* @__PURE__ */ new Map();
  #refs = 0;
  #life = new AbortController();
  #hiding;
  /** @internal */
  constructor(url, options) {
    super();
    this.#options = options;
    this.domain = options.domain ?? "iotsphere";
    this.#connection = new Connection(String(url), options, {
      opened: () => this.#opened(),
      frame: (frame) => this.#frame(frame),
      lost: () => this.#lost(),
      told: (detail) => this.#told(detail)
    });
    this.#outbox = new Outbox(
      {
        isOpen: () => this.state === "open",
        send: (frame) => this.#connection.send(frame),
        nextRef: () => ++this.#refs,
        told: (detail) => this._emit("outbox", detail)
      },
      options.outbox
    );
    const { signal } = options;
    if (signal?.aborted) this.close();
    signal?.addEventListener("abort", () => this.close(), { signal: this.#life.signal });
    globalThis.document?.addEventListener("visibilitychange", () => this.#visibility(), { signal: this.#life.signal });
    this.#visibility();
  }
  get state() {
    return this.#connection.state;
  }
  /** When the token in use expires. */
  get expiresAt() {
    return this.#connection.expiresAt;
  }
  /** What waits to be sent or answered. */
  get outbox() {
    const { messages, bytes, full: full2 } = this.#outbox;
    return { messages, bytes, full: full2 };
  }
  /** Resolves once connected and let in; rejects when that will never be. */
  opened(options = {}) {
    return within(options, Infinity, (resolve, reject) => {
      const look = () => {
        if (this.state === "open") resolve();
        if (this.state === "closed") reject(this.#connection.error ?? closed());
      };
      this.addEventListener("state", look);
      look();
      return () => this.removeEventListener("state", look);
    });
  }
  /** Listen to one filter or several. */
  subscribe(filters, options = {}) {
    const wanted = typeof filters === "string" ? [filters] : [...filters];
    const subscription = new Subscription(this, wanted, options, this.#storage());
    this.#subscriptions.add(subscription);
    if (this.state === "closed") subscription._end(this.#connection.error ?? closed());
    else if (this.#isHidden()) subscription._hide();
    else subscription._open();
    return subscription;
  }
  /** Publish once: waits in the outbox while there is no connection. Rejects with `outbox_full` when that is full. */
  publish(topic, payload, options = {}) {
    const { messageId = uuid(), correlationId, expiresAt, retain } = options;
    const members = { type: "publish", topic, payload: payload ?? null, messageId, correlationId, retain };
    if (expiresAt !== void 0) members.expiresAt = timeText(expiresAt);
    return within(options, Infinity, (resolve, reject) => {
      const body = encode(members);
      if (this.state === "closed") throw this.#connection.error ?? closed();
      return this.#outbox.put(messageId, body, (error, answer) => error ? reject(error) : resolve(answer));
    });
  }
  /** Mark a notification as read. */
  async read(notification, options = {}) {
    const answer = await this.request("read", { notification, user: options.user }, options);
    return answer.notification;
  }
  /** The gateway's time. */
  async ping(options = {}) {
    return new Date((await this.request("ping", {}, options)).time);
  }
  /** Show a fresh token now; without one, the token source is asked. */
  renew(token) {
    return this.#connection.renew(token);
  }
  /**
   * Send any request of the protocol (docs/reference/asyncapi.yaml). While its answer is outstanding it is repeated on
   * each new connection, so give requests that change something an id; with `repeat: false` it fails with
   * `connection_lost` instead.
   */
  request(type, members, options = {}) {
    return within(
      options,
      this.#options.timeout ?? 3e4,
      (resolve, reject) => this._ask({ ...members, type }, resolve, reject, options.repeat ?? true)
    );
  }
  /** End everything. What was published and not answered rejects with `closed`. */
  async close() {
    this.#connection.close();
  }
  async [Symbol.asyncDispose]() {
    await this.close();
  }
  // -- what subscriptions need ---------------------------------------------------------------------------------------
  /** Call back with the answer, in the same turn in which it comes. @internal */
  _ask(members, done, fail, repeat = false) {
    if (this.state === "closed") throw this.#connection.error ?? closed();
    const ref = ++this.#refs;
    const call = { body: encode({ ref, ...members }), repeat, sent: false, done, fail };
    this.#calls.set(ref, call);
    this.#send(call);
    return () => this.#calls.delete(ref);
  }
  /** @internal */
  _named(name, subscription) {
    if (subscription) this.#names.set(name, subscription);
    else this.#names.delete(name);
  }
  /** @internal */
  _forget(subscription) {
    this.#subscriptions.delete(subscription);
  }
  // -- what the connection tells -------------------------------------------------------------------------------------
  #opened() {
    for (const subscription of this.#subscriptions) subscription._open();
    for (const call of this.#calls.values()) this.#send(call);
    this.#outbox.flush();
  }
  #send(call) {
    if (this.state !== "open" || call.sent) return;
    call.sent = true;
    this.#connection.send(call.body);
  }
  #frame(frame) {
    const { type, ref } = frame;
    if (type === "ok" || type === "error") {
      const call = this.#calls.get(ref);
      this.#calls.delete(ref);
      if (!call) this.#outbox.answered(frame);
      else if (type === "ok") call.done(frame);
      else call.fail(errorOf(frame));
    } else if (type === "closing") {
      for (const [name, cursor] of Object.entries(frame.cursors))
        this.#names.get(name)?._stands(cursor);
    } else {
      this.#names.get(frame.subscription)?._push(frame);
    }
  }
  #lost() {
    if (this.state === "closed") return;
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
  #told(detail) {
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
  #isHidden() {
    return globalThis.document?.visibilityState === "hidden" && !this.#hiding;
  }
  #visibility() {
    clearTimeout(this.#hiding);
    this.#hiding = void 0;
    if (globalThis.document?.visibilityState === "hidden") {
      this.#hiding = setTimeout(() => {
        this.#hiding = void 0;
        for (const subscription of this.#subscriptions) subscription._hide();
      }, this.#options.hiddenAfter ?? 1e4);
    } else {
      this.#connection.hurry();
      for (const subscription of this.#subscriptions) subscription._show();
    }
  }
  // -- helpers -------------------------------------------------------------------------------------------------------
  #storage() {
    if (this.#options.storage !== void 0) return this.#options.storage;
    try {
      return globalThis.sessionStorage;
    } catch {
      return null;
    }
  }
};
function encode(members) {
  const body = JSON.stringify(members);
  if (body.length * 3 > MAX_REQUEST && new TextEncoder().encode(body).length > MAX_REQUEST)
    throw new IotSphereError("payload_too_large", "a request may hold 272 KiB, a payload 256 KiB: send less at once");
  return body;
}

// src/command.ts
var WAIT = 25;
var isNewer = (told, known) => told.steps.length > known.steps.length || told.steps.length === known.steps.length && (told.progress ?? 0) > (known.progress ?? 0);
function command(client, device, payload, options = {}) {
  const { id, idempotencyKey, expiresAt, timeout, signal } = options;
  const identity = idempotencyKey === void 0 ? { messageId: id ?? uuid() } : { idempotencyKey };
  const until = expiresAt && timeText(expiresAt);
  let facts = null;
  let end;
  const note = (answer) => facts = answer.command;
  const ask = async (wait, more = {}) => note(
    await client.request("command", { device, payload, timeout, wait, ...identity, ...more }, {
      signal,
      timeout: wait ? wait * 1e3 + 2e4 : void 0
    })
  );
  const accepted = ask(0, { expiresAt: until });
  accepted.catch(() => {
  });
  async function follow() {
    let now = await accepted;
    while (!now.final) {
      try {
        now = await ask(WAIT);
      } catch (error) {
        if (!(error instanceof IotSphereError && error.retry)) throw error;
        await new Promise((resolve) => setTimeout(resolve, error.retryAfter ?? 1e3));
      }
    }
    return now;
  }
  async function* states() {
    const status = client.subscribe(`${client.domain}/devices/${device}/commands/status`, {
      hidden: "continue",
      ...signal && { signal }
    });
    try {
      let known = await accepted;
      yield known;
      if (known.final) return;
      await status.ready();
      const now = await ask(0);
      if (isNewer(now, known)) yield known = now;
      if (now.final) return;
      for await (const { payload: payload2 } of status) {
        const told = payload2;
        if (told.commandId !== known.commandId || !isNewer(told, known)) continue;
        yield facts = known = told;
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
    cancel: async (given = {}) => note(await client.request("cancel", { command: (await accepted).commandId }, { ...given, repeat: false }))
  };
}

// src/shadow.ts
function shadow(client, device, name = "") {
  const ask = (members, options) => client.request("shadow", { device, name, ...members }, options);
  const changed = ({ messageId, version, deltaSequence, changed: changed2 }) => ({ messageId, version, deltaSequence, changed: changed2 });
  return {
    async get(options = {}) {
      const { asOf, version } = options;
      const answer = await ask({ version, asOf: asOf && timeText(asOf) }, options);
      return answer.shadow;
    },
    async update(desired, options = {}) {
      const { version, messageId = uuid(), expires, expiresAt } = options;
      const times = expires && Object.fromEntries(Object.entries(expires).map(([at, time]) => [at, timeText(time)]));
      const until = expiresAt && timeText(expiresAt);
      return changed(await ask({ desired, version, messageId, expires: times, expiresAt: until }, options));
    },
    async delete(options = {}) {
      const { version, messageId = uuid() } = options;
      return changed(await ask({ delete: true, version, messageId }, options));
    }
  };
}

// src/values.ts
var LastValues = class extends Events {
  #values = /* @__PURE__ */ new Map();
  constructor(subscription, { limit = 1e5, signal } = {}) {
    super();
    const take = ({ detail }) => {
      const changed = /* @__PURE__ */ new Set();
      for (const message of detail) {
        const { topic, timestamp } = message.metadata;
        const known = this.#values.get(topic);
        if (known && known.metadata.timestamp > timestamp) continue;
        this.#values.delete(topic);
        this.#values.set(topic, message);
        changed.add(topic);
        if (this.#values.size > limit) this.#values.delete(this.#values.keys().next().value);
      }
      if (changed.size) this._emit("change", [...changed]);
    };
    subscription.addEventListener("messages", take, signal && { signal });
  }
  get size() {
    return this.#values.size;
  }
  get(topic) {
    return this.#values.get(topic);
  }
  has(topic) {
    return this.#values.has(topic);
  }
  keys() {
    return this.#values.keys();
  }
  values() {
    return this.#values.values();
  }
  entries() {
    return this.#values.entries();
  }
  [Symbol.iterator]() {
    return this.#values.entries();
  }
  forEach(callback) {
    for (const [topic, value] of this.#values) callback(value, topic, this);
  }
};
export {
  ConflictError,
  IotSphereError,
  LastValues,
  command,
  connect,
  shadow
};
