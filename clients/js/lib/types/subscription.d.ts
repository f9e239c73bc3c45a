/** One subscription over as many connections as it takes: cursors, gaps, a bounded buffer, the clock of a rewind. */
import { Stream } from "./stream.js";
import type { Clock, SubscriptionState } from "./types.js";
export declare class Subscription extends Stream {
    #private;
    readonly filters: readonly string[];
    state: SubscriptionState;
    /** Of a rewind. */
    clock: Clock | null;
    /** Resumes right after what was taken: after the last event, or what the iteration has finished with. */
    get cursor(): string | null;
    /** Resolves once the gateway has accepted it; rejects when it was refused. */
    ready(): Promise<this>;
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
