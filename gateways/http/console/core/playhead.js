/** The moment of a rewind: one for all parts of a page, moved on between what the gateway tells once a second. */

const TOLD_EVERY_MS = 1_000;
const KEPT = 5_000;

export class Playhead {
  #told = null; // the rewind's clock; null: live
  #toldAt = 0; // by the clock of this page
  #isRunning = false; // the gateway has told a time since it was last asked for something
  #shown = null;

  /** What every part shows: ms since 1970; null: the present. */
  get shown() {
    return this.#shown;
  }

  /** `{ speed, state, skipped }` of the rewind; null: live. */
  get clock() {
    return this.#told;
  }

  /** A rewind begins. */
  begin(from, speed) {
    this.#told = { time: from.getTime(), speed, state: "playing", skipped: 0 };
    this.#isRunning = false;
    this.#shown = from.getTime();
  }

  /** Another speed was asked for; 0 stands still. */
  play(speed) {
    if (!this.#told) return;
    this.#told = { ...this.#told, time: this.#shown, speed: speed || this.#told.speed, state: speed ? "playing" : "paused" };
    this.#isRunning = false;
  }

  /** The gateway tells the time of the rewind, or that it has reached the present. */
  tell({ time, speed, state, skipped }) {
    if (state === "live") return this.end();
    if (!this.#told) return undefined; // the user went back to the present meanwhile
    this.#told = { time: time.getTime(), speed: speed || this.#told.speed, state, skipped };
    this.#toldAt = performance.now();
    this.#isRunning = state === "playing";
    return undefined;
  }

  /** The present. */
  end() {
    this.#told = this.#shown = null;
  }

  /** Move on. It never goes back: what was shown stays shown. */
  step() {
    if (!this.#told) return;
    const { time, speed } = this.#told;
    const passed = this.#isRunning ? Math.min(performance.now() - this.#toldAt, 2 * TOLD_EVERY_MS) : 0;
    this.#shown = Math.max(this.#shown, Math.floor(Math.min(time + passed * speed, Date.now())));
  }
}

/** When the gateway took a message: what a rewind goes by. */
const takenAt = ({ metadata }) => Date.parse(metadata.receivedAt ?? metadata.timestamp);

/** Messages that came before the page shows their moment: the gateway sends a little ahead of what it last told. */
export class Ahead {
  #waiting = [];

  put(messages) {
    this.#waiting = this.#waiting.length ? this.#waiting.concat(messages) : messages;
  }

  /** Take all whose moment is reached; in the present that is everything. */
  due(moment) {
    const all = this.#waiting;
    if (moment === null) {
      this.#waiting = [];
      return all;
    }
    const early = Math.max(0, all.length - KEPT); // rather too early than without bound
    this.#waiting = all.filter((message, index) => index >= early && takenAt(message) > moment);
    return all.filter((message, index) => index < early || takenAt(message) <= moment);
  }
}
