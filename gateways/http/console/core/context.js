/** What every page works with: who is signed in, the API, the live connection, and what the user must be told of it. */

import { connect } from "../vendor/iotsphere/iotsphere.min.js";
import { ApiError, makeApi } from "./api.js";
import { many } from "./format.js";
import * as session from "./session.js";

const RENEWED_S = 12 * 3600;

/** `ended`: called when nobody is signed in any more. Throws ApiError when the token is not believed. */
export async function open(ended) {
  const over = new AbortController();
  const end = (why) => {
    if (over.signal.aborted) return;
    over.abort();
    session.forget();
    ended(why);
  };
  const api = makeApi(session.token, (error) => end(error.message));
  const [me, settings] = await Promise.all([api.get("api/v1/session"), settingsOf()]);
  const isOperator = me.roles.includes("operator");

  async function token({ reason }) {
    if (reason === "refused") {
      end("This session has ended: its token expired or was revoked. Sign in again.");
      throw Object.assign(new Error("signed out"), { retry: false });
    }
    if (reason === "expiring" && isOperator) {
      const subject = `${me.kind}:${me.name}`;
      const { grants, roles } = me;
      session.keep((await api.post("api/v1/tokens", { subject, grants, roles, lifetime: RENEWED_S })).token);
    }
    return session.token();
  }

  const client = settings.websocket
    ? connect(settings.websocket, { token, domain: me.domain, storage: null, signal: over.signal, backoff: { max: 5_000 } })
    : null;
  const context = {
    api, me, isOperator, client, settings,
    domain: me.domain,
    notices: new Notices(),
    signal: over.signal,
    signOut: async () => {
      await api.delete("api/v1/session").catch((error) => {
        if (!(error instanceof ApiError)) throw error; // it is forgotten here all the same
      });
      end();
    },
  };
  context.listen = (name, filters, options, take) => listen(context, { name, filters, options, take });
  if (!client)
    context.notices.put("place", "bad", "No live data: this process serves no WebSocket door. Set IOTSPHERE_WEBSOCKET_URL to where browsers reach one.");
  else if (!settings.admitted)
    context.notices.put("place", "bad", `No live data: the WebSocket door does not admit pages of ${location.origin}. Add it to IOTSPHERE_WEBSOCKET_ORIGINS.`);
  return context;
}

async function settingsOf() {
  return (await fetch("console.json", { cache: "no-store", credentials: "omit" })).json();
}

/** Subscribe, and tell the user when messages are left out, come late, or are lost; nothing of that without a `name`:
 *  then the page shows a sample, in which nothing is missed. */
function listen(context, { name, filters, options, take }) {
  const { client, notices } = context;
  if (!client) return null;
  const subscription = client.subscribe(filters, options);
  const key = {}; // of this subscription alone
  subscription.addEventListener("messages", ({ detail }) => take(detail));
  subscription.addEventListener("quality", ({ detail }) => {
    const { mode, reason, behind, superseded } = detail;
    if (!name) return;
    if (mode === "latest" || mode === "behind") {
      const what = mode === "latest" ? "was moved to latest-value delivery" : "is behind and catching up";
      const facts = [behind && `${many(behind, "message")} behind`, superseded && `${many(superseded, "older value")} left out`];
      const rest = facts.filter(Boolean).join(", ");
      notices.put(key, "warn", `${name} ${what}: ${reason}.${rest ? ` ${rest}.` : ""}`);
    } else if (mode === "live") notices.settle(key, "It has caught up.");
  });
  subscription.addEventListener("gap", ({ detail }) => {
    if (!name) return;
    const missing = detail.missed.reduce((sum, one) => sum + one.count, 0);
    const why = [...new Set(detail.missed.map((one) => one.reason))].join(", ");
    notices.put({}, "bad", `${name}: ${missing ? many(missing, "message") : "some messages"} can no longer be had (${why}).`);
  });
  subscription.addEventListener("state", ({ detail }) => {
    if (detail.state !== "ended") return;
    notices.drop(key);
    if (detail.error) notices.put(key, "bad", `${name ?? "This list"} ended: ${detail.error.message}`);
  });
  options.signal?.addEventListener("abort", () => notices.drop(key));
  return subscription;
}

const MAX_NOTICES = 5;
const SETTLED_MS = 12_000; // what is over is shown for so long: it may have taken a moment only

/** What is shown below the header until it is over or was read. */
class Notices extends EventTarget {
  #all = new Map();

  get all() {
    return [...this.#all].map(([key, notice]) => ({ key, ...notice }));
  }

  put(key, kind, text) {
    this.#all.set(key, { kind, text });
    for (const old of this.#all.keys()) {
      if (this.#all.size <= MAX_NOTICES) break;
      this.#all.delete(old);
    }
    this.dispatchEvent(new Event("change"));
  }

  /** What a notice told is over: say so, and take it away after a while. */
  settle(key, how) {
    const notice = this.#all.get(key);
    if (!notice || notice.settled) return;
    const over = { kind: notice.kind, text: `${notice.text} ${how}`, settled: true };
    this.#all.set(key, over);
    setTimeout(() => this.#all.get(key) === over && this.drop(key), SETTLED_MS);
    this.dispatchEvent(new Event("change"));
  }

  drop(key) {
    if (this.#all.delete(key)) this.dispatchEvent(new Event("change"));
  }
}
