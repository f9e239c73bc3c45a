/** How the gateway is: its pace, its queues, and the ledger, which must balance to zero. */

import { html, svg } from "../vendor/lit/lit-html.js";
import { bytes, count, number, span, words } from "../core/format.js";
import { families } from "../core/metrics.js";
import { link } from "../core/router.js";
import { every, view } from "../core/view.js";
import { Chart, Series } from "../parts/chart.js";
import { icon } from "../parts/icons.js";

const EVERY_MS = 2_000;
const FIRST_MS = 1_100; // after the first look: the gateway works its figures out once a second at most
const SHOWN_S = 300;
const LEAST_SHOWN_S = 30;
const SECONDS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const RATES = {
  accepted: ["Accepted", "iotsphere_accepted_total", 1],
  delivered: ["Delivered", "iotsphere_delivered_total", 2],
  requests: ["HTTP requests", "iotsphere_http_requests_total", 3],
};
const PARTS = ["applied", "superseded", "expired", "dead_lettered", "lost", "pending"];

const seen = new WeakMap(); // api of a session -> what this page saw earlier, which a later visit goes on with

export function health(root, { api, leave }) {
  if (!seen.has(api)) seen.set(api, new Map(Object.keys(RATES).map((name) => [name, new Series()])));
  const series = seen.get(api);
  let figures = new Map();
  let before = null;
  let next = performance.now() + FIRST_MS;
  let ledger = null;
  let problem = "";

  const one = (name) => figures.get(name) ?? 0;

  const update = view(
    root,
    () => html`<div class="health">
      ${problem ? html`<p class="problem" role="alert">${problem}</p>` : ""}
      <div class="tiles">
        ${tile("Ledger", ledger ? (ledger.imbalance === 0 ? "Balanced" : `${count(ledger.imbalance)} off`) : "…", ledger?.imbalance === 0 ? "ok" : ledger ? "bad" : "", "imbalance")}
        ${tile("Waiting for the log", bytes(one("iotsphere_pending_bytes")), one("iotsphere_log_stalled") ? "bad" : "")}
        ${tile("Log", one("iotsphere_log_stalled") ? "Does not answer" : "Answers", one("iotsphere_log_stalled") ? "bad" : "ok")}
        ${tile("Facts not folded yet", count(one("iotsphere_facts_lag")))}
        ${tile("Memory", bytes(one("process_resident_memory_bytes")))}
        ${tile("Running for", figures.size ? span(Date.now() / 1000 - one("process_start_time_seconds")) : "…")}
      </div>
      <div class="charts">
        ${Object.entries(RATES).map(
          ([name, [title, , ink]]) => html`<figure class="card figure" data-rate=${name}>
            <header><span class="swatch s${ink}"></span><h3 class="grow">${title}</h3><span class="reading num"><b>${before?.rates ? number(Math.round(before.rates.get(name) ?? 0)) : "–"}</b> <span class="muted">/ s</span></span></header>
            <div class="plot" role="img" aria-label="${title} a second over the last five minutes"></div>
            ${series.get(name).times.length ? "" : html`<p class="collecting small muted">${problem ? "No figures" : `Collecting: the first point comes in ${SECONDS.format(Math.max(0.1, (next - performance.now()) / 1000))} s`}</p>`}
          </figure>`,
        )}
      </div>
      <section class="card" aria-label="Ledger">
        <header><h2>Ledger</h2><span class="muted small grow">accepted = applied + superseded + expired + dead-lettered + lost + pending; the imbalance is the difference</span></header>
        <div class="body scroll-x">
          <table class="ledger">
            <thead><tr><th>Reader</th><th>Channel</th><th class="right">Imbalance</th><th class="right">Accepted</th><th>What became of them</th>
              ${PARTS.map((name) => html`<th class="right"><span class="part"><span class="swatch p-${name}"></span>${words(name)}</span></th>`)}</tr></thead>
            <tbody>${(ledger?.readers ?? []).map(reader)}</tbody>
          </table>
        </div>
      </section>
      <div class="split">
        <section class="card" aria-label="Channels">
          <header><h2>Channels</h2></header>
          <div class="body scroll-x"><table>
            <thead><tr><th>Channel</th><th class="right">Partitions</th><th class="right">Accepted</th><th class="right">In the log</th></tr></thead>
            <tbody>${(ledger?.channels ?? []).map(
              (row) => html`<tr><td>${row.channel}</td><td class="right num">${row.partitions}</td><td class="right num">${count(row.accepted)}</td><td class="right num">${count(row.retained)}</td></tr>`,
            )}</tbody>
          </table></div>
        </section>
        <section class="card" aria-label="Refusals">
          <header><h2>Refused</h2><span class="muted small">by reason, all that are in the log</span></header>
          <div class="body">${Object.entries(ledger?.dead_letters ?? {}).map(
            ([reason, many]) => html`<a class="reason" href="${link("letters")}?reason=${encodeURIComponent(reason)}"><span class="grow">${words(reason)} <code class="code">${reason}</code></span><b class="num">${count(many)}</b></a>`,
          )}${ledger && !Object.keys(ledger.dead_letters).length ? html`<p class="muted">Nothing.</p>` : ""}</div>
        </section>
      </div>
    </div>`,
    leave,
  );

  function tile(title, text, kind = "", name = "") {
    return html`<div class="card tile" data-tile=${name}>
    <span class="muted small">${title}</span><b class="${kind} num">${kind === "ok" ? icon("check") : kind === "bad" ? icon("warn") : ""}${text}</b></div>`;
  }

  function reader(row) {
    return html`<tr>
    <td class="mono">${row.reader}${row.kind === "group" ? html` <span class="badge">group</span>` : ""}</td>
    <td>${row.channel}</td><td class="right num ${row.imbalance ? "bad" : "ok"}">${count(row.imbalance)}</td><td class="right num">${quiet(row.accepted)}</td>
    <td class="wide">${bar(row)}</td>
    ${PARTS.map((name) => html`<td class="right num ${name === "lost" && row.lost ? "bad" : ""}">${quiet(row[name])}</td>`)}</tr>`;
  }

  /** A stacked bar as SVG: widths are data, and the page's policy allows no inline style. */
  function bar(row) {
    let start = 0;
    const whole = row.accepted || 1;
    return html`<svg class="stackbar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${PARTS.map((name) => `${row[name]} ${words(name)}`).join(", ")}>
      ${PARTS.map((name) => {
        const width = (row[name] / whole) * 100;
        start += width;
        return svgPart(name, start - width, width);
      })}</svg>`;
  }

  const drawn = new Map();
  function draw() {
    const now = Date.now() / 1000;
    for (const [name, [, , ink]] of Object.entries(RATES)) {
      const { times } = series.get(name);
      if (!drawn.has(name))
        drawn.set(name, new Chart(root.querySelector(`[data-rate=${name}] .plot`), series.get(name), `--series-${ink}`, leave, 0));
      drawn.get(name).changed();
      drawn.get(name).draw(Math.max(now - SHOWN_S, Math.min(times[0] ?? now, now - LEAST_SHOWN_S)), now);
    }
  }

  async function look() {
    try {
      const [text, told] = await Promise.all([api.text("metrics", leave), api.get("api/v1/ledger", {}, leave)]);
      const now = performance.now();
      figures = families(text);
      ledger = told;
      problem = "";
      if (text !== before?.text) before = { text, figures, at: now, rates: before && ratesSince(before, now) };
      next = now + FIRST_MS;
    } catch (error) {
      problem = `The gateway does not answer: ${error.message}`;
    }
    if (leave.aborted) return; // a page that was left makes no charts, for nothing would take them away
    update();
    draw();
  }

  /** Each rate since an earlier look; what a restart has set back has none. */
  function ratesSince(earlier, now) {
    const rates = new Map();
    for (const [name, [, metric]] of Object.entries(RATES)) {
      const rate = ((one(metric) - (earlier.figures.get(metric) ?? 0)) / (now - earlier.at)) * 1000;
      if (rate < 0) continue;
      rates.set(name, rate);
      series.get(name).put(Date.now(), rate);
    }
    return rates;
  }

  look().then(() =>
    setTimeout(() => {
      if (leave.aborted) return;
      look();
      every(EVERY_MS, leave, look);
    }, FIRST_MS),
  );
}

/** A number that does not catch the eye where it is nothing. */
const quiet = (number) => (number ? count(number) : html`<span class="zero">0</span>`);
const svgPart = (name, x, width) => svg`<rect class="p-${name}" x=${x} y="0" width=${width} height="8" />`;
