/** What came and was not taken yet, in bounds. */
import type { Message } from "./types.js";
/** `cursor`: where one stands after this message, where that is known. */
export interface Item {
    readonly message: Message;
    cursor: string | null;
}
export declare class Unread {
    #private;
    constructor(limit: number);
    get length(): number;
    /** No more should come: a frame was taken beyond the limit. */
    get isFull(): boolean;
    /** Enough was taken that more may come. */
    get isLow(): boolean;
    /** Put a frame in. With `latest`, past the limit only the newest of each topic stays; returns how many went. */
    put(messages: Message[], cursor: string | null, latest: boolean): number;
    /** Note a cursor after what is there; false when nothing is. */
    mark(cursor: string): boolean;
    next(): Item | undefined;
    all(): Item[];
    /** Resolves when something is there, or at the end. */
    arrival(): Promise<void>;
    end(): void;
}
