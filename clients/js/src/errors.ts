/** What can go wrong, with the gateway's stable codes (docs/reference/errors.md) and a few that are made here. */

import type { Answer } from "./types.js";

/** `retry`: whether the same can succeed later; `retryAfter`: after so many milliseconds, where that is known. */
export class IotSphereError extends Error {
  override readonly name: string = "IotSphereError"; // minifying shortens the names of classes
  readonly code: string;
  readonly retry: boolean;
  readonly retryAfter: number | undefined;

  constructor(code: string, message: string, retry = false, retryAfter?: number) {
    super(message);
    this.code = code;
    this.retry = retry;
    this.retryAfter = retryAfter;
  }
}

/** Somebody was faster: what is there now, to look at and decide anew. */
export class ConflictError extends IotSphereError {
  override readonly name = "ConflictError";
  readonly version: number;
  readonly current: Record<string, unknown>;

  constructor(message: string, version: number, current: Record<string, unknown>) {
    super("version_conflict", message);
    this.version = version;
    this.current = current;
  }
}

/** @internal */
export function errorOf(answer: Answer): IotSphereError {
  const { code, message, retry, retryAfter, current } = answer as Record<string, any>;
  return current
    ? new ConflictError(message, current.version, current.state)
    : new IotSphereError(code, message, retry, retryAfter);
}

/** @internal */
export const closed = (why = "the client was closed"): IotSphereError => new IotSphereError("closed", why);
