/** The rewind bar: set a time in the past, play from there at a speed, and go back to live. */

import { html } from "../vendor/lit/lit-html.js";
import { moment, span } from "../core/format.js";
import { every, view } from "../core/view.js";
import { icon } from "./icons.js";
import { toast } from "./toast.js";

const SPEEDS = [1, 2, 5, 10, 60, 300, 1000];
const SPANS = { 15: "15 min", 60: "1 h", 360: "6 h", 1440: "24 h", 10080: "7 d" };
const MINUTE = 60_000;
const MOVED_EVERY_MS = 200;

/** Answers when the first message of some filters came since a time; if none did, the first that is kept; null: unknown. */
export const firstOf = (api, signal) => async (filter, since) => {
  const ask = (from) => api.get("api/v1/messages", { filter, from, limit: 1 }, signal);
  let page = await ask(since.toISOString());
  const isRecent = page.messages.length > 0 || page.more;
  if (!isRecent) page = await ask("earliest");
  if (!page.messages.length) return null;
  const time = Date.parse(page.messages[0].metadata.timestamp); // a device's own clock may tell anything
  return new Date(Math.min(Date.now(), isRecent ? Math.max(since.getTime(), time) : time));
};

/** Moves the playhead on. `play(from, speed)` begins a rewind, `speed(n)` changes it (0 stands still), `live()` ends it;
 *  `moved()`: the playhead shows another moment. `first(since)`: when there is something to see first, as `firstOf` answers. */
export function rewindBar(root, playhead, { play, speed, live, moved, first }, signal) {
  let rate = 10;
  let minutes = 60;
  let pulled = null; // where the slider is being dragged to
  let asking = false; // where to begin
  const update = view(root, template, signal);

  function begin(from) {
    playhead.begin(from, rate);
    play(from, rate);
    draw();
  }

  /** From where there is something to see, in the reach of the slider where possible. */
  async function beginAtFirst() {
    if (asking) return;
    asking = true;
    const since = new Date(Date.now() - minutes * MINUTE);
    const found = await first(since).catch((error) => void (signal.aborted || toast(error.message, "bad")));
    asking = false;
    if (!signal.aborted && !playhead.clock) begin(found ?? since);
  }

  function choose(event) {
    rate = Number(event.target.value);
    if (playhead.clock?.state === "playing") change(rate);
    update();
  }

  function turn() {
    if (!playhead.clock) return beginAtFirst();
    change(playhead.clock.state === "playing" ? 0 : rate);
    return update();
  }

  function change(to) {
    playhead.play(to);
    speed(to);
  }

  function end() {
    playhead.end();
    live();
    draw();
  }

  /** All parts of the page go on together, at once: between two of them nobody looks. */
  function draw() {
    playhead.step();
    moved();
    update.now();
  }

  function template() {
    const now = Date.now();
    const { clock, shown } = playhead;
    const at = pulled ?? shown ?? now;
    const local = new Date(at - new Date(at).getTimezoneOffset() * MINUTE).toISOString().slice(0, 19);
    return html`<div class="rewind ${clock ? "past" : ""}" role="group" aria-label="Rewind">
      <button class="button small" @click=${turn} title=${clock ? "" : "Play from the past"}>
        ${icon(clock?.state === "playing" ? "pause" : clock ? "play" : "rewind")}
        <span>${clock ? (clock.state === "playing" ? "Pause" : "Play") : "Rewind"}</span>
      </button>
      <span class="when num" role="status" data-clock=${clock ? new Date(shown).toISOString() : "live"}>
        ${clock ? html`${moment(shown)} <span class="muted small">×${clock.state === "paused" ? 0 : rate}</span>` : "Live"}
        ${clock?.skipped ? html`<span class="muted small"> skipped ${span(clock.skipped / 1000)} of silence</span>` : ""}
      </span>
      <input class="track" type="range" aria-label="Time" min=${-minutes * 60} max="0" step="1"
        .value=${String(Math.max(-minutes * 60, Math.round((at - now) / 1000)))}
        aria-valuetext=${clock ? moment(at) : "live"}
        @input=${(event) => ((pulled = now + event.target.value * 1000), update())}
        @change=${(event) => {
          const back = Number(event.target.value);
          pulled = null;
          if (back >= -1) return clock ? end() : update();
          return begin(new Date(Date.now() + back * 1000));
        }} />
      <select aria-label="Reach of the slider" @change=${(event) => ((minutes = Number(event.target.value)), update())}>
        ${Object.entries(SPANS).map(([value, text]) => html`<option value=${value} ?selected=${Number(value) === minutes}>${text}</option>`)}
      </select>
      <input type="datetime-local" step="1" aria-label="Play from" .value=${local} max=${local.slice(0, 10) + "T23:59:59"}
        @change=${(event) => event.target.value && begin(new Date(event.target.value))} />
      <span class="row pace">
        <select aria-label="Speed" @change=${choose}>
          ${SPEEDS.map((each) => html`<option value=${each} ?selected=${each === rate}>×${each}</option>`)}
        </select>
        <button class="button small ${clock ? "primary" : ""}" ?disabled=${!clock} @click=${end}>${icon("live")}Live</button>
      </span>
    </div>`;
  }

  every(MOVED_EVERY_MS, signal, () => playhead.clock && draw());
  return {
    draw,
    /** The gateway tells the time of the rewind. */
    tick(told) {
      playhead.tell(told);
      draw();
    },
  };
}
