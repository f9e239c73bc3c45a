/** Dead letters by reason: what was refused, what exactly was wrong with it, and what becomes of it. */

import { html } from "../vendor/lit/lit-html.js";
import { part } from "../core/api.js";
import { ago, brief, bytes, count, many, moment, words } from "../core/format.js";
import { link, remember } from "../core/router.js";
import { every, view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { LongList } from "../parts/long-list.js";
import { toast, told } from "../parts/toast.js";

const PAGE = 500;
const KEPT = 5_000;
const STATES = { open: "Open", redriven: "Redriven", discarded: "Discarded", any: "All" };

export function letters(root, { api, domain, leave, listen, query, setCount }) {
  let all = []; // newest first
  let state = "open";
  let reason = query.get("reason");
  let chosen = null; // with its raw bytes
  let loading = true;
  let more = false;
  let busy = null; // { text, done, of }
  let stale = false;

  const groups = () => {
    const found = new Map();
    for (const letter of all) found.set(letter.reason, (found.get(letter.reason) ?? 0) + 1);
    return [...found].sort((a, b) => b[1] - a[1]);
  };
  const selected = () => (reason ? all.filter((letter) => letter.reason === reason) : all);

  const update = view(
    root,
    () => {
      const parts = groups();
      const most = Math.max(1, ...parts.map(([, many]) => many));
      return html`<section class="letters">
        <div class="row wrap tools">
          <div class="seg" role="group" aria-label="State">
            ${Object.entries(STATES).map(([name, text]) => html`<button aria-pressed=${state === name} @click=${() => ((state = name), load())}>${text}</button>`)}
          </div>
          <span class="muted small grow num">${more ? `${count(all.length)}+ letters` : many(all.length, "letter")}</span>
          ${stale ? html`<button class="button small" @click=${load}>${icon("again")}New ones came</button>` : ""}
          ${busy ? html`<span class="badge accent num" role="status">${busy.text} ${busy.done} of ${busy.of}</span>` : ""}
          <button class="button small" ?disabled=${!selected().length || busy || state !== "open"} @click=${() => forAll("redrive")}>
            ${icon("again")}Redrive ${reason ? "these" : "all"}</button>
          <button class="button small danger" ?disabled=${!selected().length || busy || state !== "open"} @click=${() => forAll("discard")}>
            ${icon("trash")}Discard ${reason ? "these" : "all"}</button>
        </div>
        <div class="thirds ${chosen ? "open" : ""}">
          <nav class="card reasons" aria-label="Reasons">
            <button class="reason" aria-pressed=${!reason} @click=${() => pick(null)}><span class="grow">Every reason</span><b class="num">${count(all.length)}</b></button>
            ${parts.map(
              ([name, many]) => html`<button class="reason" data-reason=${name} aria-pressed=${reason === name} @click=${() => pick(name)}>
                <span class="grow"><span>${words(name)}</span><code class="code">${name}</code><meter min="0" max=${most} value=${many} aria-hidden="true"></meter></span><b class="num">${count(many)}</b>
              </button>`,
            )}
          </nav>
          <div class="card table">
            <div class="list"></div>
            <div class="empty" ?hidden=${selected().length > 0}>${icon("letters")}<p role="status">${loading ? "Looking …" : "Nothing was refused."}</p></div>
          </div>
          <aside class="card detail" aria-label="Dead letter" ?hidden=${!chosen}>${chosen ? inspect(chosen) : ""}</aside>
        </div>
      </section>`;
    },
    leave,
  );

  const line = (letter) => html`<div class="line letter-line" role="listitem" tabindex="0" data-letter=${letter.id} aria-selected=${letter.id === chosen?.id}
      @click=${() => choose(letter)} @keydown=${(event) => event.key === "Enter" && choose(letter)}>
      <span class="row"><span class="badge ${letter.state === "open" ? "bad" : ""}" title=${letter.reason}>${words(letter.reason)}</span></span>
      <span class="ellipsis">${letter.detail || letter.topic}</span>
      <span class="muted small ellipsis">${letter.source}</span>
      <span class="muted small num">${ago(letter.received_at)}</span>
    </div>`;

  const inspect = (letter) => html`<header>
      <h2 class="grow">${words(letter.reason)} <code class="code">${letter.reason}</code></h2><span class="badge" data-letter-state=${letter.state}>${letter.state}</span>
      <button class="button ghost small" aria-label="Close" @click=${() => ((chosen = null), list.update(), update())}>${icon("close")}</button>
    </header>
    <div class="body stack">
      <p class="why">${letter.detail}</p>
      <div class="row wrap">
        <button class="button small primary" ?disabled=${letter.state !== "open" || !letter.complete} @click=${() => decide(letter, "redrive")}>${icon("again")}Redrive</button>
        <button class="button small danger" ?disabled=${letter.state !== "open"} @click=${() => decide(letter, "discard")}>${icon("trash")}Discard</button>
        ${letter.redriven_as ? html`<a class="button small" href=${link("journey", letter.redriven_as)}>${icon("journey")}Where it went</a>` : ""}
      </div>
      ${letter.complete ? "" : html`<p class="small muted">Only its first 4 KiB were kept, so it cannot be sent again from here.</p>`}
      <h3>What was sent</h3><pre class="json raw" tabindex="0">${raw(letter.raw)}</pre>
      <dl class="facts small">
        <dt>Topic</dt><dd class="mono">${letter.topic}</dd>
        <dt>From</dt><dd><a href=${link("devices", letter.source)}>${letter.source}</a></dd>
        <dt>Arrived</dt><dd>${moment(letter.received_at)}</dd>
        <dt>Stage</dt><dd>${letter.stage}, ${letter.attempts} ${letter.attempts === 1 ? "attempt" : "attempts"}</dd>
        <dt>Size</dt><dd>${bytes(letter.size)}</dd>
        <dt>SHA-256</dt><dd class="mono">${letter.sha256}</dd>
        <dt>Id</dt><dd class="mono"><a href=${link("journey", letter.id)}>${letter.id}</a></dd>
        ${letter.decided_at ? html`<dt>Decided</dt><dd>${moment(letter.decided_at)}</dd>` : ""}
      </dl>
    </div>`;

  function pick(name) {
    reason = name;
    remember({ reason });
    list.toTop();
    list.show(selected());
    update();
  }

  async function choose(letter) {
    const found = await told(() => api.get(`api/v1/dead-letters/${part(letter.id)}`, {}, leave));
    if (found) chosen = found;
    list.update();
    update();
  }

  const act = (id, what) =>
    what === "redrive" ? api.post(`api/v1/dead-letters/${part(id)}/redrive`, undefined, leave) : api.delete(`api/v1/dead-letters/${part(id)}`, leave);

  async function decide(letter, what) {
    if (await told(() => act(letter.id, what), what === "redrive" ? "It is in the log." : "Discarded.")) await load();
    await choose(letter);
  }

  /** One after the other, so that a slow gateway is not flooded; what is refused again stays open. */
  async function forAll(what) {
    const these = selected();
    const text = what === "redrive" ? "Redriving" : "Discarding";
    if (!confirm(`${text} ${these.length} messages?`)) return;
    let refused = 0;
    for (const [index, letter] of these.entries()) {
      if (leave.aborted) return;
      busy = { text, done: index + 1, of: these.length };
      update();
      try {
        await act(letter.id, what);
      } catch (error) {
        if (!error.status) break;
        refused += 1;
      }
    }
    busy = null;
    toast(refused ? `${these.length - refused} done; ${refused} were refused again and stay open.` : `${these.length} done.`, refused ? "bad" : "ok");
    await load();
  }

  async function load() {
    stale = false;
    loading = true;
    const found = [];
    let before;
    await told(async () => {
      do {
        const page = await api.get("api/v1/dead-letters", { state, before, limit: PAGE }, leave);
        found.push(...page.dead_letters);
        before = page.before;
      } while (before !== null && found.length < KEPT);
      all = found;
      more = before !== null;
    });
    loading = false;
    if (state === "open") setCount("letters", all.length);
    if (reason && !all.some((letter) => letter.reason === reason)) reason = null;
    list.show(selected());
    update();
  }

  const list = new LongList(
    root.querySelector(".list"),
    { height: 44, line, key: (letter) => letter.id, label: "Dead letters" },
    leave,
  );
  load();
  listen("Dead letters", `${domain}/system/dead-letters`, { from: "live", policy: "latest", signal: leave }, () => {
    if (!stale) update();
    stale = true;
  });
  every(10_000, leave, () => (stale && !chosen && !busy && state === "open" ? load() : list.update()));
}

/** The bytes as text where they are UTF-8, with what a terminal would obey made visible; else in hexadecimal. */
function raw(base64) {
  if (!base64) return "";
  const held = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(held);
    return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  } catch {
    return brief([...held.slice(0, 512)].map((each) => each.toString(16).padStart(2, "0")).join(" "), 1_600);
  }
}
