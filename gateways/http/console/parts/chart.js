/** A chart of one metric over time: a bounded series, drawn at most a few times a second, and only when in sight. */

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { clock, tick } from "../core/format.js";
import { colour, onTheme } from "../core/theme.js";

const CAPACITY = 20_000;
const AXIS = 50; // pixels for the y axis at least
const LETTER = 6.2; // pixels of a digit, on average
const FEW = 60; // points in sight; so many are drawn as dots too

/** Points in the order of their times; the oldest go when there are too many. */
export class Series {
  times = []; // seconds
  values = [];
  unit = "";

  put(ms, value) {
    const time = ms / 1000;
    const { times, values } = this;
    let at = times.length;
    while (at > 0 && times[at - 1] > time) at -= 1; // nearly always at the end already
    if (at === times.length) {
      times.push(time);
      values.push(value);
    } else {
      times.splice(at, 0, time);
      values.splice(at, 0, value);
    }
    if (times.length > CAPACITY * 1.1) {
      times.splice(0, times.length - CAPACITY);
      values.splice(0, values.length - CAPACITY);
    }
  }

  get last() {
    return this.values.at(-1);
  }

  /** Least and greatest value since a time in seconds. */
  bounds(from) {
    let low = Infinity;
    let high = -Infinity;
    for (let i = this.times.length - 1; i >= 0 && this.times[i] >= from; i -= 1) {
      low = Math.min(low, this.values[i]);
      high = Math.max(high, this.values[i]);
    }
    return low <= high ? [low, high] : null;
  }
}

export class Chart {
  #plot;
  #root;
  #series;
  #inSight = true;
  #changed = true;

  /** `floor`: what the y axis begins with at the latest; then it reaches one above it at least. */
  constructor(root, series, ink, signal, floor = Infinity) {
    this.#root = root;
    this.#series = series;
    const width = () => Math.max(120, root.clientWidth);
    const make = () => {
      const line = colour(ink);
      const grid = { stroke: colour("--line"), width: 1 };
      const axis = { stroke: colour("--muted"), font: "11px Inter, sans-serif", grid, ticks: { show: false } };
      this.#plot?.destroy();
      this.#plot = new uPlot(
        {
          width: width(),
          height: 168,
          padding: [8, 26, 0, 4], // the last time is written in the middle below its line
          cursor: { points: { size: 7 }, y: false, drag: { x: false, y: false } },
          legend: { show: false },
          scales: { x: { time: true, auto: false }, y: { range: (_, low, high) => padded(low, high, floor) } },
          axes: [
            { ...axis, space: 70, size: 26, values: (_, at) => at.map((seconds) => clock(seconds * 1000)) },
            { ...axis, size: (_, texts) => Math.max(AXIS, ...(texts ?? []).map((text) => text.length * LETTER + 14)), values: (_, at) => at.map(tick) },
          ],
          series: [
            {},
            {
              stroke: line, width: 2, fill: line.replace("rgb(", "rgba(").replace(")", ", 0.09)"), gaps: silences,
              points: { size: 6, fill: line, show: (_, __, first, last) => last - first < FEW, filter: (plot, _, shown) => (shown ? null : alone(plot.data[0], ...plot.series[0].idxs)) },
            },
          ],
        },
        [series.times, series.values],
        root,
      );
      this.#changed = true;
    };
    make();
    const size = new ResizeObserver(() => this.#plot.setSize({ width: width(), height: 168 }));
    size.observe(root);
    const sight = new IntersectionObserver(([entry]) => (this.#inSight = entry.isIntersecting));
    sight.observe(root);
    onTheme(signal, make);
    signal.addEventListener("abort", () => {
      size.disconnect();
      sight.disconnect();
      this.#plot.destroy();
    });
  }

  /** New points came. */
  changed() {
    this.#changed = true;
  }

  /** Draw the range of seconds; its end is noted in `data-until`, ms. */
  draw(from, to) {
    if (!this.#inSight) return;
    this.#root.dataset.until = Math.round(to * 1000);
    this.#plot.batch(() => {
      if (this.#changed) this.#plot.setData([this.#series.times, this.#series.values], false);
      this.#changed = false;
      this.#plot.setScale("x", { min: from, max: to });
    });
  }
}

/** How long nothing comes before that is a silence. */
const silence = (times, first, last) => Math.max(5, ((times[last] - times[first]) / Math.max(1, last - first)) * 8);

/** Points with a silence on either side: no line touches them, so they are drawn as dots among however many. */
export function alone(times, first, last) {
  const long = silence(times, first, last);
  const apart = (i) => i < 1 || i >= times.length || times[i] - times[i - 1] > long;
  const found = [];
  for (let i = first; i <= last; i += 1) if (apart(i) && apart(i + 1)) found.push(i);
  return found.length ? found : null;
}

/** Where nothing came for much longer than usual, the line is broken: nobody measured what lies between. */
function silences(plot, _, first, last) {
  const [times] = plot.data;
  const long = silence(times, first, last);
  const found = [];
  for (let i = first + 1; i <= last; i += 1)
    if (times[i] - times[i - 1] > long)
      found.push([times[i - 1], times[i]].map((time) => Math.round(plot.valToPos(time, "x", true))));
  return found;
}

function padded(low, high, floor) {
  if (low === null || high === null) return [0, 1];
  const least = Math.min(low, floor);
  const reach = high - least || Math.abs(high) * 0.1 || 1;
  if (least !== floor) return [least - reach * 0.15, high + reach * 0.15];
  return [floor, Math.max(floor + 1, high + reach * 0.15)];
}
