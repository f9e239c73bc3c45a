/** One subscription over as many connections as it takes: cursors, gaps, a bounded buffer, and the clock of a rewind. */
import { Events, type Listener } from "./events.js";
import type { Clock, Message, SubscriptionEvents, SubscriptionState } from "./types.js";
export declare class Subscription extends Events<SubscriptionEvents> implements AsyncIterable<Message> {
    #private;
    readonly filters: readonly string[];
    state: SubscriptionState;
    /** Resumes right after what was taken: after the last event, or what the iteration has finished with. */
    cursor: string | null;
    /** Of a rewind. */
    clock: Clock | null;
    /** Resolves once the gateway has accepted it; rejects when it was refused. */
    ready(): Promise<this>;
    addEventListener<K extends keyof SubscriptionEvents>(type: K, listener: Listener<SubscriptionEvents[K]>, options?: boolean | AddEventListenerOptions): void;
    /** One message after the other. Leaving the loop closes the subscription. */
    [Symbol.asyncIterator](): AsyncGenerator<Message, void, undefined>;
    /** All that is there, at once. Leaving the loop closes the subscription. */
    batches(): AsyncGenerator<Message[], void, undefined>;
    /** Play the past from a time on, at a multiple of its speed. It ends in the present by itself. */
    rewind({ from, speed }: {
        from: Date | number | string;
        speed?: number;
    }): void;
    /** Go on at another speed; 0 stands still. */
    play(speed: number): void;
    /** Back to now: the last values, then what comes. */
    live(): void;
    /** Unsubscribe; iterations end. The cursor stays in the storage if `resume` was asked for. */
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
}
