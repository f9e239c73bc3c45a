/** Promises that end by themselves: with a deadline, and with a signal that aborts them. */

import { IotSphereError } from "./errors.js";
import type { RequestOptions } from "./types.js";

/** Run `begin` (it returns how to withdraw) until it settles, `timeout` ms have passed, or the signal aborts. */
export function within<T>(
  { signal, timeout }: RequestOptions,
  usual: number,
  begin: (resolve: (value: T) => void, reject: (error: unknown) => void) => () => void,
): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const ms = timeout ?? usual;
    let withdraw: (() => void) | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let settled = false;
    const over = (): void => {
      settled = true;
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
      withdraw?.();
    };
    const give = (value: T): void => (over(), resolve(value));
    const fail = (error: unknown): void => (over(), reject(error));
    const aborted = (): void => fail(signal!.reason);
    signal?.addEventListener("abort", aborted);
    if (ms !== Infinity)
      timer = setTimeout(() => fail(new IotSphereError("timeout", `no answer within ${ms} ms`, true)), ms);
    try {
      withdraw = begin(give, fail);
      if (settled) withdraw();
    } catch (error) {
      fail(error);
    }
  });
}
