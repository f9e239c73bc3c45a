/** What can go wrong, with the gateway's stable codes (docs/reference/errors.md) and a few that are made here. */
/** `retry`: whether the same can succeed later; `retryAfter`: after so many milliseconds, where that is known. */
export declare class IotSphereError extends Error {
    readonly name: string;
    readonly code: string;
    readonly retry: boolean;
    readonly retryAfter: number | undefined;
    constructor(code: string, message: string, retry?: boolean, retryAfter?: number);
}
/** Somebody was faster: what is there now, to look at and decide anew. */
export declare class ConflictError extends IotSphereError {
    readonly name = "ConflictError";
    readonly version: number;
    readonly current: Record<string, unknown>;
    constructor(message: string, version: number, current: Record<string, unknown>);
}
