/** Messages on their way to the page: as events, or through an iteration at the page's own pace. */
import { Events, type Listener } from "./events.js";
import type { Message, SubscriptionEvents } from "./types.js";
export declare abstract class Stream extends Events<SubscriptionEvents> implements AsyncIterable<Message> {
    #private;
    /** Unsubscribe; iterations end. */
    abstract close(): Promise<void>;
    addEventListener<K extends keyof SubscriptionEvents>(type: K, listener: Listener<SubscriptionEvents[K]>, options?: boolean | AddEventListenerOptions): void;
    /** One message after the other. Leaving the loop closes the subscription. */
    [Symbol.asyncIterator](): AsyncGenerator<Message, void, undefined>;
    /** All that is there, at once. Leaving the loop closes the subscription. */
    batches(): AsyncGenerator<Message[], void, undefined>;
}
