/** The explorer: listen to any filter that is granted, hold it still, look into each message, publish, and rewind. */

import { html } from "../vendor/lit/lit-html.js";
import { brief, count, many, moment } from "../core/format.js";
import { Ahead, Playhead } from "../core/playhead.js";
import { link, remember } from "../core/router.js";
import { every, view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { json } from "../parts/json.js";
import { LongList } from "../parts/long-list.js";
import { firstOf, rewindBar } from "../parts/rewind.js";
import { publishDialog } from "./explorer-publish.js";

const KEPT = 2_000;
const KEPT_CHARACTERS = 16 * 1024 * 1024;
const MOVED_EVERY_MS = 150;
const STARTS = { live: "Live", latest: "Last values, then live", hour: "The last hour", earliest: "From the beginning" };

export function explorer(root, context) {
  const { api, domain, isOperator, leave, listen, query } = context;
  let filter = query.get("filter") ?? `${domain}/devices/+/telemetry/#`;
  let start = "latest";
  let policy = "complete";
  let messages = []; // newest first, KEPT at most
  let waiting = []; // came since the last drawing, oldest first
  const playhead = new Playhead();
  let ahead = new Ahead();
  const sizes = new WeakMap(); // message -> characters of its payload
  let held = null; // what is shown while it stands still
  let chosen = null;
  let life = null;
  let subscription = null;
  let problem = "";
  let total = 0;
  let rate = 0;
  let before = 0;

  const shown = () => held ?? messages;
  const filters = () => filter.split(/[\s,]+/).filter(Boolean);

  const update = view(
    root,
    () => html`<section class="explorer">
      <form class="row wrap tools" @submit=${(event) => (event.preventDefault(), begin())}>
        <label class="search grow"><span class="sr">Filter</span>${icon("explorer")}
          <input type="search" class="mono" .value=${filter} list="filters" spellcheck="false" @input=${(event) => (filter = event.target.value)} /></label>
        <datalist id="filters">
          ${["devices/+/telemetry/#", "devices/+/presence", "devices/+/shadow/#", "devices/+/commands/#", "devices/#", "system/#", "#"].map(
            (each) => html`<option value="${domain}/${each}"></option>`,
          )}
        </datalist>
        <select class="auto" aria-label="Start" @change=${(event) => (start = event.target.value)}>
          ${Object.entries(STARTS).map(([value, text]) => html`<option value=${value} ?selected=${value === start}>${text}</option>`)}
        </select>
        <select class="auto" aria-label="When this page is slow" @change=${(event) => ((policy = event.target.value), begin())}>
          <option value="complete">Every message</option><option value="latest">Newest values only</option>
        </select>
        <button class="button primary">${icon("reader")}Listen</button>
        <button type="button" class="button" aria-pressed=${held !== null} @click=${hold}>
          ${icon(held ? "play" : "pause")}${held ? "Go on" : "Pause"}
        </button>
        <button type="button" class="button" @click=${() => publishDialog(context, chosen)}>${icon("send")}Publish</button>
      </form>
      ${problem ? html`<p class="problem" role="alert">${problem}</p>` : ""}
      <div class="halves ${chosen ? "open" : ""}">
        <div class="card table">
          <div class="row small muted head num"><span>${many(total, "message")}</span><span>${count(rate)} / s</span>
            <span class="grow"></span><span>${held ? `standing still, ${count(behind())} came since` : `the newest ${count(KEPT)} are kept`}</span></div>
          <div class="list"></div>
          <div class="empty" ?hidden=${shown().length > 0}>${icon("explorer")}<p role="status">Nothing came yet. Topics look like
            <code>${domain}/devices/pump-7/telemetry/temperature</code>; + stands for one level, # for all below.</p></div>
        </div>
        <aside class="card detail" aria-label="Message" ?hidden=${!chosen}>${chosen ? inspect(chosen) : ""}</aside>
      </div>
      <div class="bar"></div>
    </section>`,
    leave,
  );

  const behind = () => total - held.total;

  const inspect = ({ metadata, payload }) => html`<header>
      <h2 class="wraps grow mono">${metadata.topic}</h2>
      <button class="button ghost small" aria-label="Close" @click=${() => choose(null)}>${icon("close")}</button>
    </header>
    <div class="body stack">
      <div class="row wrap">
        <span class="badge">${metadata.messageType}</span>
        ${metadata.quality ? html`<span class="badge warn">${metadata.quality}</span>` : ""}
        <span class="muted small num">${moment(metadata.timestamp)}</span><span class="grow"></span>
        ${isOperator ? html`<a class="button small" href=${link("journey", metadata.messageId)}>${icon("journey")}Its journey</a>` : ""}
      </div>
      <h3>Payload</h3>${json(payload)}
      <h3>Metadata</h3>${json(metadata)}
    </div>`;

  const line = (message) => html`<div class="line message-line" role="listitem" tabindex="0" aria-selected=${message === chosen}
      @click=${() => choose(message)} @keydown=${(event) => event.key === "Enter" && choose(message)}>
      <span class="muted small num">${moment(message.metadata.timestamp)}</span>
      <span class="mono ellipsis topic" title=${message.metadata.topic}>${message.metadata.topic.slice(domain.length + 1)}</span>
      <span class="mono ellipsis">${brief(message.payload, 160)}</span>
    </div>`;

  function choose(message) {
    chosen = message;
    list.update();
    update();
  }

  function hold() {
    flush();
    held = held ? null : Object.assign(messages.slice(), { total });
    list.show(shown());
    update();
  }

  /** Lines move a few times a second, which is as fast as anybody reads; what comes between is taken together. */
  function take(received) {
    ahead.put(received);
    const came = ahead.due(playhead.shown);
    total += came.length;
    for (const message of came) sizes.set(message, JSON.stringify(message.payload).length);
    waiting = newest(waiting.concat(came).reverse()).reverse();
  }

  /** The first of a list that may be kept: so many, and no more than so large together. */
  function newest(all) {
    let size = 0;
    const end = all.findIndex((message, index) => index >= KEPT || (size += sizes.get(message)) > KEPT_CHARACTERS);
    return end < 0 ? all : all.slice(0, Math.max(1, end));
  }

  function flush() {
    if (!waiting.length) return;
    const came = waiting.toReversed();
    waiting = [];
    const wasEmpty = !messages.length;
    messages = newest(came.concat(messages));
    if (!held) list.show(messages, came.length);
    if (wasEmpty) update();
  }

  function begin(options) {
    life?.abort();
    life = new AbortController();
    const { signal } = life;
    leave.addEventListener("abort", () => life.abort(), { signal });
    if (options?.speed === undefined) playhead.end();
    messages = [];
    waiting = [];
    ahead = new Ahead();
    held = null;
    total = before = 0;
    problem = "";
    list.show(messages);
    remember({ filter });
    const from = start === "hour" ? new Date(Date.now() - 3_600_000) : start;
    subscription = listen("The explorer", filters(), { from, policy, ...options, signal }, take);
    subscription?.addEventListener("clock", ({ detail }) => bar.tick(detail));
    subscription?.addEventListener("state", ({ detail }) => {
      problem = detail.error?.message ?? "";
      update();
    });
    bar.draw();
    update();
  }

  const list = new LongList(
    root.querySelector(".list"),
    { height: 38, line, key: (_, index) => index, label: "Messages" },
    leave,
  );
  const bar = rewindBar(
    root.querySelector(".bar"),
    playhead,
    {
      moved: () => take([]),
      first: (since) => firstOf(api, leave)(filters(), since),
      play: (from, speed) => begin({ from, speed }),
      speed: (speed) => subscription?.play(speed),
      live: () => begin({ from: "latest" }),
    },
    leave,
  );
  begin();
  every(MOVED_EVERY_MS, leave, flush);
  every(1_000, leave, () => {
    rate = total - before;
    before = total;
    update();
  });
}
