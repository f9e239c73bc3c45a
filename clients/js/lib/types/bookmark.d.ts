/** Where a subscription stands, here and in the storage of the page. */
import type { ConnectOptions } from "./types.js";
/** `tail`: the cursor of what came last; `taken`: of what the page has finished with, kept in the storage by name. */
export declare class Bookmark {
    #private;
    tail: string | null;
    taken: string | null;
    constructor(name: string | undefined, storage: ConnectOptions["storage"]);
    /** The page has finished with what this cursor stands after. */
    take(cursor: string, keep: boolean): void;
}
