/** What a shadow was while a rewind plays: its versions from where that began, read ahead of the moment that is shown. */

export const NONE = { reported: {}, desired: {}, delta: {}, version: 0, wishes: {} };
const PAGE = 100;
const AHEAD_MS = 60_000; // of the past, before more of many versions are asked for
const ASK_AGAIN_MS = 1_000;

/** One shadow's versions. `ask(path, query)`: the API below its device. `newest()`: its version now; 0: none is known. */
export class ShadowPast {
  #ask;
  #name;
  #newest;
  #versions = null; // in order; the first is that of the moment; null: not known yet
  #reach = null; // there are more versions than are known, which reach up to here, ms; null: all are known
  #isAsking = false;
  #askedAt = 0;
  #failed = false;
  #moment = 0;
  #first; // when the first version that is kept began, ms; null: unknown
  #round = 0;

  constructor(ask, name, newest) {
    this.#ask = ask;
    this.#name = name;
    this.#newest = newest;
  }

  /** The document of a moment, ms; undefined while it is being asked for. `then` is called when more is known. */
  at(moment, then) {
    if (moment < this.#moment) this.#reset();
    this.#moment = moment;
    while (this.#versions?.length > 1 && begunAt(this.#versions[1]) <= moment) this.#versions.shift();
    if (!this.#isAsking && this.#wantsMore()) this.#readAhead(then);
    return this.#versions && (this.#reach === null || moment < this.#reach) ? this.#versions[0] : undefined;
  }

  #reset() {
    this.#round += 1;
    this.#versions = this.#reach = null;
    this.#isAsking = false;
    this.#askedAt = 0;
  }

  #wantsMore() {
    const isEarly = Date.now() - this.#askedAt < ASK_AGAIN_MS;
    if (this.#reach !== null) return this.#moment + AHEAD_MS > this.#reach && !(this.#failed && isEarly);
    if (isEarly) return false; // it failed, or the newest one is being written
    return !this.#versions || this.#versions.at(-1).version < this.#newest();
  }

  #readAhead(then) {
    const round = this.#round;
    this.#isAsking = true;
    this.#askedAt = Date.now();
    const over = (failed) => {
      if (round !== this.#round) return;
      this.#isAsking = false;
      this.#failed = failed; // asked again after a while
      then();
    };
    this.#read(round).then(() => over(false), () => over(true));
  }

  async #read(round) {
    const versions = this.#versions ?? [await this.#base(this.#moment)];
    const query = { name: this.#name, after: versions.at(-1).version, limit: PAGE };
    const { shadows } = await this.#ask("shadow/versions", query);
    if (round !== this.#round) return;
    this.#versions = versions.concat(shadows);
    this.#reach = shadows.length === PAGE ? begunAt(shadows.at(-1)) : null;
  }

  /** The version of a moment. Nothing is asked about a time before the first one, when there was none. */
  async #base(moment) {
    if (this.#first === undefined) {
      const { shadows } = await this.#ask("shadow/versions", { name: this.#name, limit: 1 });
      this.#first = shadows.length ? begunAt(shadows[0]) : this.#newest() ? null : Infinity;
    }
    if (this.#first !== null && moment < this.#first) return NONE;
    return this.#ask("shadow", { name: this.#name, as_of: new Date(moment).toISOString() }).catch(() => NONE);
  }
}

const begunAt = (document) => Date.parse(document.updatedAt);
