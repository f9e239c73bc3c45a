/** What came and was not taken yet, in bounds. */

import type { Message } from "./types.js";

/** `cursor`: where one stands after this message, where that is known. */
export interface Item {
  readonly message: Message;
  cursor: string | null;
}

export class Unread {
  #items: Item[] = [];
  #head = 0;
  #limit: number;
  #ended = false;
  #arrived: (() => void) | undefined;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get length(): number {
    return this.#items.length - this.#head;
  }

  /** No more should come: a frame was taken beyond the limit. */
  get isFull(): boolean {
    return this.length >= this.#limit;
  }

  /** Enough was taken that more may come. */
  get isLow(): boolean {
    return this.length <= this.#limit >> 2;
  }

  /** Put a frame in. With `latest`, past the limit only the newest of each topic stays; returns how many went. */
  put(messages: Message[], cursor: string | null, latest: boolean): number {
    for (const message of messages) this.#items.push({ message, cursor: null });
    this.#items.at(-1)!.cursor = cursor;
    const before = this.length;
    if (latest && this.isFull) {
      const newest = new Map<string, Item>();
      for (const item of this.all()) {
        newest.delete(item.message.metadata.topic);
        newest.set(item.message.metadata.topic, item);
      }
      this.#items = [...newest.values()];
    }
    this.#wake();
    return before - this.length;
  }

  /** Note a cursor after what is there; false when nothing is. */
  mark(cursor: string): boolean {
    if (!this.length) return false;
    this.#items.at(-1)!.cursor = cursor;
    return true;
  }

  next(): Item | undefined {
    const item = this.#items[this.#head++];
    if (this.#head * 2 > this.#items.length) {
      this.#items.splice(0, this.#head);
      this.#head = 0;
    }
    return item;
  }

  all(): Item[] {
    const items = this.#items.slice(this.#head);
    this.#items = [];
    this.#head = 0;
    return items;
  }

  /** Resolves when something is there, or at the end. */
  async arrival(): Promise<void> {
    if (!this.length && !this.#ended) await new Promise<void>((resolve) => (this.#arrived = resolve));
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  #wake(): void {
    this.#arrived?.();
    this.#arrived = undefined;
  }
}
