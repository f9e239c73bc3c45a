/** The last value of each topic of a subscription, by the time of the message and not of its arrival. */
import { Events } from "./events.js";
import type { Subscription } from "./subscription.js";
import type { Message } from "./types.js";
/** A read-only map from topic to message; past `limit` topics, those that were quiet for longest are left out. */
export declare class LastValues extends Events<{
    change: string[];
}> implements ReadonlyMap<string, Message> {
    #private;
    constructor(subscription: Subscription, { limit, signal }?: {
        limit?: number;
        signal?: AbortSignal;
    });
    get size(): number;
    get(topic: string): Message | undefined;
    has(topic: string): boolean;
    keys(): MapIterator<string>;
    values(): MapIterator<Message>;
    entries(): MapIterator<[string, Message]>;
    [Symbol.iterator](): MapIterator<[string, Message]>;
    forEach(callback: (value: Message, topic: string, values: ReadonlyMap<string, Message>) => void): void;
}
