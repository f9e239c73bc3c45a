/** Promises that end by themselves: with a deadline, and with a signal that aborts them. */
import type { RequestOptions } from "./types.js";
/** Run `begin` (it returns how to withdraw) until it settles, `timeout` ms have passed, or the signal aborts. */
export declare function within<T>({ signal, timeout }: RequestOptions, usual: number, begin: (resolve: (value: T) => void, reject: (error: unknown) => void) => () => void): Promise<T>;
