/** The last value of each topic of a subscription, by the time of the message and not of its arrival. */

import { Events } from "./events.js";
import type { Subscription } from "./subscription.js";
import type { Message } from "./types.js";

/** A read-only map from topic to message; past `limit` topics, those that were quiet for longest are left out. */
export class LastValues extends Events<{ change: string[] }> implements ReadonlyMap<string, Message> {
  #values = new Map<string, Message>();

  constructor(subscription: Subscription, { limit = 100_000, signal }: { limit?: number; signal?: AbortSignal } = {}) {
    super();
    const take = ({ detail }: CustomEvent<Message[]>): void => {
      const changed = new Set<string>();
      for (const message of detail) {
        const { topic, timestamp } = message.metadata;
        const known = this.#values.get(topic);
        if (known && known.metadata.timestamp > timestamp) continue;
        this.#values.delete(topic);
        this.#values.set(topic, message);
        changed.add(topic);
        if (this.#values.size > limit) this.#values.delete(this.#values.keys().next().value!);
      }
      if (changed.size) this._emit("change", [...changed]);
    };
    subscription.addEventListener("messages", take, signal && { signal });
  }

  get size(): number {
    return this.#values.size;
  }

  get(topic: string): Message | undefined {
    return this.#values.get(topic);
  }

  has(topic: string): boolean {
    return this.#values.has(topic);
  }

  keys(): MapIterator<string> {
    return this.#values.keys();
  }

  values(): MapIterator<Message> {
    return this.#values.values();
  }

  entries(): MapIterator<[string, Message]> {
    return this.#values.entries();
  }

  [Symbol.iterator](): MapIterator<[string, Message]> {
    return this.#values.entries();
  }

  forEach(callback: (value: Message, topic: string, values: ReadonlyMap<string, Message>) => void): void {
    for (const [topic, value] of this.#values) callback(value, topic, this);
  }
}
