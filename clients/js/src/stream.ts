/** Messages on their way to the page: as events, or through an iteration at the page's own pace. */

import { Events, type Listener } from "./events.js";
import { replaced } from "./quality.js";
import type { IotSphereError } from "./errors.js";
import type { Message, SubscriptionEvents } from "./types.js";
import { type Item, Unread } from "./unread.js";

const lastCursor = (items: Item[]): string | null => items.findLast((item) => item.cursor)?.cursor ?? null;

export abstract class Stream extends Events<SubscriptionEvents> implements AsyncIterable<Message> {
  /** @internal */
  _unread: Unread;
  #iterated = false;
  #listened = false;
  #over = false;
  #error: IotSphereError | undefined;

  /** @internal */
  constructor(buffer: number) {
    super();
    this._unread = new Unread(buffer);
  }

  /** Unsubscribe; iterations end. */
  abstract close(): Promise<void>;

  /** The page has finished with messages; `cursor` stands after them, where that is known. @internal */
  abstract _took(cursor: string | null): void;

  override addEventListener<K extends keyof SubscriptionEvents>(
    type: K,
    listener: Listener<SubscriptionEvents[K]>,
    options?: boolean | AddEventListenerOptions,
  ): void;
  override addEventListener(type: string, listener: any, options?: boolean | AddEventListenerOptions): void {
    super.addEventListener(type, listener, options);
    if (type !== "message" && type !== "messages") return;
    this.#listened = true; // what came before anybody listened is told now
    const early = this.#iterated ? [] : this._unread.all();
    if (early.length)
      queueMicrotask(() => {
        this.#tell(early.map((item) => item.message));
        this._took(lastCursor(early));
      });
  }

  /** One message after the other. Leaving the loop closes the subscription. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Message, void, undefined> {
    try {
      while (await this.#more()) {
        const item = this._unread.next()!;
        yield item.message;
        this._took(item.cursor);
      }
    } finally {
      await this.close();
    }
  }

  /** All that is there, at once. Leaving the loop closes the subscription. */
  async *batches(): AsyncGenerator<Message[], void, undefined> {
    try {
      while (await this.#more()) {
        const items = this._unread.all();
        yield items.map((item) => item.message);
        this._took(lastCursor(items));
      }
    } finally {
      await this.close();
    }
  }

  /** Messages came. With `latest`, a buffer that is full keeps the newest of each topic. @internal */
  _receive(messages: Message[], cursor: string | null, latest: boolean): void {
    if (this.#iterated || !this.#listened) {
      const superseded = this._unread.put(messages, cursor, latest);
      if (superseded) this._emit("quality", replaced(superseded));
    }
    if (!this.#listened) return;
    this.#tell(messages);
    if (!this.#iterated) this._took(cursor);
  }

  /** Nothing more comes. @internal */
  _over(error?: IotSphereError): void {
    this.#over = true;
    this.#error = error;
    this._unread.end();
  }

  #tell(messages: Message[]): void {
    this._emit("messages", messages);
    for (const message of messages) this._emit("message", message);
  }

  /** Wait for something unread; false at the end. Throws what ended it. */
  async #more(): Promise<boolean> {
    this.#iterated = true;
    if (!this._unread.length && !this.#over) await this._unread.arrival();
    if (this._unread.length) return true;
    if (this.#error) throw this.#error;
    return false;
  }
}
