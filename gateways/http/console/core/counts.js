/** What wants attention, counted beside the names of the pages as it happens: dead letters, alerts, notifications. */

import { part } from "./api.js";
import { every } from "./view.js";

const SHOWN = 99; // more are "99+"
const APART_MS = 3_000; // between two questions, however much happens
const ANEW_MS = 60_000; // others decide too, and no message tells of that

/** A number as it stands beside a name; nothing where there is nothing. */
export const badge = (number) => (!number ? "" : number > SHOWN ? `${SHOWN}+` : String(number));

/** Counts while somebody is signed in. `changed()`: there is another number. `shown()`: the page that is looked at. */
export class Counts {
  #context;
  #changed;
  #shown;
  #numbers = { letters: 0, notes: 0, alerts: 0 };
  #told = { letters: 0, notes: 0, alerts: 0 }; // how often each was set

  constructor(context, changed, shown) {
    this.#context = context;
    this.#changed = changed;
    this.#shown = shown;
    const { domain, isOperator, me } = context;
    const notes = this.#asking(() => this.#ask("notes", "notifications are new", () => this.#notes()));
    this.#hear(`${domain}/users/${me.name}/notifications`, { policy: "latest" }, notes)?.then(notes, refused);
    if (!isOperator) return;
    const letters = this.#asking(() => this.#ask("letters", "messages were refused", () => this.#letters()));
    this.#hear(`${domain}/system/dead-letters`, { policy: "latest" }, letters)?.catch(refused);
    letters();
    every(ANEW_MS, context.signal, letters);
    this.#hear([`${domain}/devices/batch/alerts`, `${domain}/system/alerts`], {}, ({ length }) => {
      if (this.#shown() !== "alerts") this.set("alerts", this.#numbers.alerts + length);
    })?.catch(refused);
  }

  /** The number beside a page's name. */
  of(page) {
    const { letters, notes, alerts } = this.#numbers;
    return { letters, alerts: notes + alerts }[page] ?? 0;
  }

  /** `letters` that are open, `notes` that were not read, or `alerts` that came since they were looked at.
   *  A page knows better than an answer that is under way (see `#ask`). */
  set(name, number) {
    this.#told[name] += 1;
    if (this.#numbers[name] === number) return;
    this.#numbers[name] = number;
    this.#changed();
  }

  /** Resolves when it is heard; null without a door for it. */
  #hear(filters, options, take) {
    const { client, signal } = this.#context;
    const subscription = client?.subscribe(filters, { from: "live", ...options, signal });
    subscription?.addEventListener("messages", ({ detail }) => take(detail));
    return subscription?.ready() ?? null;
  }

  /** `ask`, at once and then at most once in a while. What a message tells may be written a moment later than it comes,
   *  so each time there is a second question. */
  #asking(ask) {
    const { signal } = this.#context;
    let due = 0;
    let runs = false;
    async function run() {
      runs = true;
      while (due > 0 && !signal.aborted) {
        due -= 1;
        await ask();
        await new Promise((resolve) => setTimeout(resolve, APART_MS));
      }
      runs = false;
    }
    return () => {
      due = 2;
      if (!runs) run();
    };
  }

  /** The number that a question brings, unless a page has told it meanwhile: then it is asked again. */
  async #ask(name, what, question) {
    const { notices } = this.#context;
    try {
      let told;
      let number;
      do {
        told = this.#told[name];
        number = await question();
      } while (told !== this.#told[name]);
      this.set(name, number);
      notices.drop(name);
    } catch (error) {
      // Without an answer the gateway is away, which the state of the connection tells; it is asked again.
      if (error.status) notices.put(name, "warn", `How many ${what} is not known: ${error.message}`);
    }
  }

  async #letters() {
    const { api, signal } = this.#context;
    let found = 0;
    let before = null;
    do {
      const page = await api.get("api/v1/dead-letters", { before, limit: SHOWN + 1 - found }, signal);
      found += page.dead_letters.length;
      before = page.before; // a page is short where most were decided already
    } while (before !== null && found <= SHOWN);
    return found;
  }

  async #notes() {
    const { api, me, signal } = this.#context;
    const query = { limit: SHOWN + 1 };
    return (await api.get(`api/v1/users/${part(me.name)}/notifications`, query, signal)).notifications.length;
  }
}

/** Whoever may not listen has no number: a badge is no place to explain rights. */
const refused = () => {};
