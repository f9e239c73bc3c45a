/** Drawing: any number of changes between two frames cost one drawing, and none while nobody looks. */

import { render } from "../vendor/lit/lit-html.js";

const waiting = new Set();
let frame = 0;

/** Have `paint` called once before the next frame. */
export function beforeNextFrame(paint) {
  waiting.add(paint);
  frame ||= requestAnimationFrame(flush);
}

function flush() {
  frame = 0;
  const due = [...waiting];
  waiting.clear();
  for (const paint of due) paint();
}

/** A template that is drawn into an element whenever `update` was called; at once by `update.now`. Ends with the signal. */
export function view(root, template, signal) {
  let over = false;
  const paint = () => {
    if (!over) render(template(), root);
  };
  const update = () => beforeNextFrame(paint);
  update.now = paint;
  signal?.addEventListener("abort", () => {
    over = true;
    waiting.delete(paint);
  });
  paint();
  return update;
}

/** Call back every so many milliseconds while the page is seen, until the signal aborts. */
export function every(ms, signal, work) {
  if (signal.aborted) return;
  const timer = setInterval(() => document.visibilityState === "visible" && work(), ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}
