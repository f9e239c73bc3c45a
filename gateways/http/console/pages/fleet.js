/** The fleet: every device with labels, presence, its newest value and how fresh that is; searched as one types. */

import { html } from "../vendor/lit/lit-html.js";
import { ago, brief, count, number, unit } from "../core/format.js";
import { go, link, remember } from "../core/router.js";
import { metrics, subject } from "../core/telemetry.js";
import { every, view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { LongList } from "../parts/long-list.js";
import { Trail, sparkline } from "../parts/sparkline.js";

const PAGE = 1_000;
const QUIET_MS = 60_000; // online, but not heard for so long
const MAX_RATE = 500; // messages a second that this page takes of all devices together
const STATES = { all: "All", online: "Online", quiet: "Quiet", offline: "Offline" };

class Line {
  constructor(id) {
    this.id = id;
    this.labels = [];
    this.presence = "unknown";
    this.since = null;
    this.heard = null;
    this.metric = "";
    this.value = null;
    this.unit = "";
    this.trail = null;
    this.text = id.toLowerCase();
  }

  describe(told) {
    this.labels = Object.entries(told.labels);
    this.text = [this.id, ...this.labels.map(([name, value]) => `${name}:${value}`)].join(" ").toLowerCase();
    if (told.presence && !this.since) Object.assign(this, { presence: told.presence.state, since: told.presence.since });
    if (told.newest && !this.heard) {
      this.heard = Date.parse(told.newest.at);
      Object.assign(this, { metric: told.newest.metric, value: told.newest.value, unit: told.newest.unit ?? "" });
    }
  }

  hear(message) {
    this.heard = Date.now();
    for (const [metric, value, measure] of metrics(message)) {
      if (this.metric && this.metric !== metric && this.trail) continue; // one line shows one metric
      Object.assign(this, { metric, value, unit: measure });
      if (typeof value === "number") (this.trail ??= new Trail()).push(value);
      break;
    }
  }

  /** Whether values are likely to come that make a line: numbers, of a device that is online or was heard just now. */
  fills(state) {
    return (state !== "offline" || this.trail !== null) && (this.value === null || typeof this.value === "number");
  }

  state(now) {
    if (this.presence !== "online") return this.presence === "unknown" ? "offline" : this.presence;
    return now - (this.heard ?? 0) > QUIET_MS ? "quiet" : "online";
  }
}

export function fleet(root, { api, domain, listen, leave, query }) {
  const lines = new Map();
  let sorted = [];
  let seen = [];
  let loading = true;
  let problem = "";
  let search = query.get("q") ?? "";
  let wanted = query.get("state") ?? "all";
  let list = null;
  let tally = { online: 0, quiet: 0, offline: 0 };

  const line = (id) => lines.get(id) ?? (lines.set(id, new Line(id)), (sorted = []), lines.get(id));

  function select() {
    const now = Date.now();
    if (sorted.length !== lines.size) sorted = [...lines.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
    tally = { online: 0, quiet: 0, offline: 0 };
    const parts = search.toLowerCase().split(/\s+/).filter(Boolean);
    seen = sorted.filter((one) => {
      const state = one.state(now);
      tally[state] = (tally[state] ?? 0) + 1;
      return (wanted === "all" || wanted === state) && parts.every((text) => one.text.includes(text));
    });
    list?.show(seen);
    update();
  }

  function ask(event) {
    search = event.target.value;
    again();
  }

  /** From the search into what it found: ArrowDown walks into the list, Enter opens the first. */
  function follow(event) {
    if (event.isComposing || !seen.length) return;
    if (event.key === "ArrowDown") list.enter();
    else if (event.key === "Enter" && search.trim()) go("devices", seen[0].id);
    else return;
    event.preventDefault();
  }

  function choose(state) {
    wanted = state;
    again();
  }

  function again() {
    remember({ q: search, state: wanted === "all" ? "" : wanted });
    list.toTop();
    select();
  }

  async function load() {
    let after = "";
    try {
      do {
        const page = await api.get("api/v1/fleet", { after, limit: PAGE }, leave);
        for (const told of page.devices) line(told.device_id).describe(told);
        after = page.after;
        select();
      } while (after);
    } catch (error) {
      if (error.name !== "AbortError") problem = error.message;
    }
    loading = false;
    select();
  }

  const row = (one) => {
    const now = Date.now();
    const state = one.state(now);
    const kind = { online: "ok", quiet: "warn" }[state] ?? "idle";
    return html`<a class="line device-line" role="listitem" href=${link("devices", one.id)}>
      <span class="row"><span class="dot ${kind}"></span><span class="ellipsis name">${one.id}</span></span>
      <span class="row labels">${one.labels.slice(0, 4).map(([name, value]) => html`<span class="label">${name} <b>${brief(value, 24)}</b></span>`)}</span>
      <span class="${kind === "idle" ? "muted" : kind} small state">${state}</span>
      ${sparkline(one.trail, one.fills(state) ? "fills while you watch" : "")}
      <span class="value num"><b>${one.value === null ? "–" : typeof one.value === "number" ? number(one.value) : brief(one.value, 16)}</b>
        <span class="muted">${unit(one.unit)}</span><span class="muted small ellipsis metric">${one.metric}</span></span>
      <span class="muted small num fresh">${one.heard ? ago(one.heard, now) : "never"}</span>
    </a>`;
  };

  const update = view(
    root,
    () => html`<section class="fleet">
      <div class="row wrap tools">
        <label class="search grow">
          <span class="sr">Search devices and labels</span>${icon("search")}
          <input type="search" placeholder="Search by id or label, such as city:sf" .value=${search} @input=${ask} @keydown=${follow} />
          <kbd aria-hidden="true">/</kbd>
        </label>
        <div class="seg" role="group" aria-label="State">
          ${Object.entries(STATES).map(
            ([state, text]) => html`<button aria-pressed=${wanted === state} @click=${() => choose(state)}>
              ${text} <span class="num">${count(state === "all" ? lines.size : (tally[state] ?? 0))}</span>
            </button>`,
          )}
        </div>
      </div>
      <div class="card table">
        <div class="device-line titles small muted" aria-hidden="true">
          <span>Device</span><span>Labels</span><span>Presence</span><span>Last values</span><span>Newest value</span><span>Heard</span>
        </div>
        <div class="list"></div>
        <div class="empty" ?hidden=${seen.length > 0}>
          ${icon("device")}
          <p role="status">${problem || (loading ? "Looking for devices …" : lines.size ? "No device matches." : "No device is registered yet.")}</p>
          ${loading || lines.size || problem ? "" : html`<p>Admit one: <code>iotsphere device add my-device</code></p>`}
        </div>
      </div>
    </section>`,
    leave,
  );
  list = new LongList(root.querySelector(".list"), { height: 50, line: row, key: (one) => one.id, label: "Devices" }, leave);

  load();
  every(1_000, leave, select);
  const options = { policy: "latest", signal: leave };
  listen("Presence", `${domain}/devices/+/presence`, { ...options, from: "live" }, (messages) => {
    for (const { metadata, payload } of messages) {
      const one = line(subject(metadata.topic).device);
      Object.assign(one, { presence: payload.state, since: payload.since });
    }
    list.update();
  });
  listen("The fleet's telemetry", `${domain}/devices/+/telemetry/#`, { ...options, from: "live", maxRate: MAX_RATE }, (messages) => {
    for (const message of messages) {
      const { device } = subject(message.metadata.topic);
      if (device !== "batch") line(device).hear(message);
    }
    list.update();
  });
}
