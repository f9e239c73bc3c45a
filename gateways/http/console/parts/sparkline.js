/** A line of the last few values, without axes. */

import { html, svg } from "../vendor/lit/lit-html.js";

const KEPT = 40;

/** The last values of one thing, a fixed number at most. */
export class Trail {
  values = [];

  push(value) {
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
  }

  /** Points of a polyline in a box of 120 by 30. */
  get points() {
    const { values } = this;
    const low = Math.min(...values);
    const high = Math.max(...values);
    const reach = high - low || 1;
    const step = 120 / (KEPT - 1);
    const start = 120 - (values.length - 1) * step;
    return values.map((value, i) => `${(start + i * step).toFixed(1)},${(27 - ((value - low) / reach) * 24).toFixed(1)}`).join(" ");
  }
}

/** `hint`: said while there is no line yet. */
export const sparkline = (trail, hint = "") =>
  trail && trail.values.length > 1
    ? html`<svg class="spark" viewBox="0 0 120 30" aria-hidden="true">${svg`<polyline points=${trail.points} />`}</svg>`
    : html`<span class="spark muted">${hint}</span>`;
