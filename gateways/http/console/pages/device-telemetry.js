/** A device's charts: history first, then live from the same subscription, so that nothing lies between the two. */

import { html } from "../vendor/lit/lit-html.js";
import { repeat } from "../vendor/lit/directives/repeat.js";
import { ago, brief, number, unit } from "../core/format.js";
import { Ahead } from "../core/playhead.js";
import { metrics, timeOf } from "../core/telemetry.js";
import { every, view } from "../core/view.js";
import { Chart, Series } from "../parts/chart.js";
import { icon } from "../parts/icons.js";

const RANGES = { 2: "2 min", 15: "15 min", 60: "1 h", 360: "6 h" };
const INKS = [1, 2, 3, 4, 5, 6];
const MAX_CHARTS = 24;
const DRAWN_EVERY_MS = 200;
const LEAST_SHOWN_S = 30;

/** `told(clock)`: what the gateway says of a rewind's time. */
export function telemetryPanel(root, { domain, leave, listen, playhead }, device, told) {
  let charts = new Map(); // metric -> { series, chart, life }
  let texts = new Map(); // metric -> { value, at }
  let minutes = 15;
  let subscription = null;
  let life = null;
  let ahead = new Ahead();

  const seconds = () => (playhead.shown ?? Date.now()) / 1000;

  const update = view(
    root,
    () => html`<div class="row wrap">
        <h2 class="grow">Telemetry</h2>
        <div class="seg" role="group" aria-label="Range">
          ${Object.entries(RANGES).map(
            ([value, text]) => html`<button aria-pressed=${Number(value) === minutes} @click=${() => choose(Number(value))}>${text}</button>`,
          )}
        </div>
      </div>
      <div class="charts" ?hidden=${charts.size + texts.size === 0}>
        ${repeat([...charts], ([metric]) => metric, ([metric, { series, ink }]) => figure(metric, series, ink))}
        ${repeat([...texts], ([metric]) => metric, ([metric, { value, at }]) => html`<figure class="card figure">
          <header><h3 class="ellipsis grow">${metric}</h3><span class="muted small">${ago(at)}</span></header>
          <div class="body text mono">${brief(String(value), 200)}</div>
        </figure>`)}
      </div>
      <div class="card empty" ?hidden=${charts.size + texts.size > 0}>
        ${icon("health")}<p>${playhead.clock ? "Nothing was measured at this time yet." : `Nothing was measured in the last ${RANGES[minutes]}.`}</p>
        ${playhead.clock ? "" : html`<p class="small">It publishes on topics such as <code>${domain}/devices/${device}/telemetry/temperature</code></p>`}
      </div>`,
    leave,
  );

  function figure(metric, series, ink) {
    const bounds = series.bounds(seconds() - minutes * 60);
    return html`<figure class="card figure" data-metric=${metric} .series=${series}>
      <header>
        <span class="swatch s${ink}"></span><h3 class="ellipsis grow">${metric}</h3>
        <span class="reading num"><b>${series.last === undefined ? "–" : number(series.last)}</b> <span class="muted">${unit(series.unit)}</span></span>
      </header>
      <div class="plot" role="img" aria-label="${metric}: now ${number(series.last)} ${series.unit}${bounds ? `, between ${number(bounds[0])} and ${number(bounds[1])}` : ""}"></div>
      <footer class="muted small num">${bounds ? `min ${number(bounds[0])} · max ${number(bounds[1])}` : "–"}</footer>
    </figure>`;
  }

  /** In a rewind what comes is shown with the next moment, when all parts of the page are. */
  function take(messages) {
    ahead.put(messages);
    if (!playhead.clock) show();
  }

  function show() {
    for (const message of ahead.due(playhead.shown)) {
      const time = timeOf(message);
      for (const [metric, value, measure] of metrics(message)) {
        if (typeof value === "string") {
          if (texts.has(metric) || texts.size < MAX_CHARTS) texts.set(metric, { value, at: time });
          continue;
        }
        let one = charts.get(metric);
        if (!one) {
          if (charts.size >= MAX_CHARTS) continue;
          one = { series: new Series(), chart: null, ink: INKS[charts.size % INKS.length] };
          charts.set(metric, one);
        }
        one.series.put(time, Number(value));
        if (measure) one.series.unit = measure;
        one.chart?.changed();
      }
    }
    update();
  }

  /** The whole range, or what there is of it: a chart that is nearly empty shows nothing. */
  function beginning(now) {
    const first = Math.min(...[...charts.values()].map((one) => one.series.times[0] ?? now));
    return Math.max(now - minutes * 60, Math.min(first, now - LEAST_SHOWN_S));
  }

  function draw() {
    const now = seconds();
    const from = beginning(now);
    for (const [metric, one] of charts) {
      if (!one.chart) {
        const place = [...root.querySelectorAll("[data-metric]")].find((each) => each.dataset.metric === metric);
        if (!place) continue;
        one.chart = new Chart(place.querySelector(".plot"), one.series, `--series-${one.ink}`, life.signal);
      }
      one.chart.draw(from, now);
    }
  }

  function begin(options) {
    life?.abort();
    life = new AbortController();
    const { signal } = life;
    leave.addEventListener("abort", () => life.abort(), { signal });
    charts = new Map();
    texts = new Map();
    ahead = new Ahead();
    subscription = listen(`${device}'s telemetry`, [`${domain}/devices/${device}/telemetry/#`], { ...options, signal }, take);
    subscription?.addEventListener("clock", ({ detail }) => told(detail));
    update();
  }

  const live = () => begin({ from: new Date(Date.now() - minutes * 60_000), hidden: "resume" });

  function choose(value) {
    minutes = value;
    if (playhead.clock) update();
    else live();
  }

  live();
  every(DRAWN_EVERY_MS, leave, () => playhead.clock || draw());
  every(1_000, leave, update);
  return {
    live,
    rewind: (from, speed) => begin({ from, speed }),
    play: (speed) => void subscription?.play(speed),
    moved() {
      show();
      update.now();
      draw();
    },
  };
}
