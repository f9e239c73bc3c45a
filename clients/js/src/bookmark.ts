/** Where a subscription stands, here and in the storage of the page. */

import type { ConnectOptions } from "./types.js";

/** `tail`: the cursor of what came last; `taken`: of what the page has finished with, kept in the storage by name. */
export class Bookmark {
  tail: string | null;
  taken: string | null;
  #storage: ConnectOptions["storage"];
  #key: string | undefined;

  constructor(name: string | undefined, storage: ConnectOptions["storage"]) {
    this.#storage = storage;
    this.#key = name && `iotsphere.cursor.${name}`;
    this.tail = this.taken = (this.#key && storage?.getItem(this.#key)) || null;
  }

  /** The page has finished with what this cursor stands after. */
  take(cursor: string, keep: boolean): void {
    this.taken = cursor;
    if (!keep || !this.#key) return;
    try {
      this.#storage?.setItem(this.#key, cursor);
    } catch (error) {
      this.#key = undefined; // the storage is full: the page learns it once, and messages go on
      queueMicrotask(() => {
        throw error;
      });
    }
  }
}
