/** Commands: a promise of the end, and an iteration over the states on the way. */
import type { Client } from "./client.js";
import type { RequestOptions } from "./types.js";
/** docs/reference/commands.md describes the members. */
export interface CommandFacts {
    readonly commandId: string;
    readonly device: string;
    readonly state: "accepted" | "queued" | "sent" | "acknowledged" | "running" | "succeeded" | "failed" | "rejected" | "expired" | "timed_out" | "cancelled";
    readonly final: boolean;
    readonly payload: Record<string, unknown>;
    readonly steps: readonly {
        readonly state: string;
        readonly at: string;
    }[];
    readonly progress?: number;
    readonly result?: unknown;
    readonly reason?: string;
    readonly [member: string]: unknown;
}
export interface CommandOptions {
    /** A UUID; one is made without it. */
    id?: string;
    /** Stands for one command of this caller, however often and wherever it is sent. */
    idempotencyKey?: string;
    /** Not handed to the device after this time: it ends as `expired` then. In 24 hours by default, 30 days at most. */
    expiresAt?: Date | string;
    /**
     * Seconds that the device has, from being handed the command and from each report of progress; 60 by default. Not the
     * `timeout` of requests, which is milliseconds that you wait: to wait less, give a `signal`, or `expiresAt` for a
     * device that may be away.
     */
    timeout?: number;
    /** Stops waiting: rejects with its reason. The command goes on, unless you `cancel` it. */
    signal?: AbortSignal;
}
/** Await it for its end, or iterate over its states; `succeeded` and `failed` are ends alike. */
export interface Command extends PromiseLike<CommandFacts>, AsyncIterable<CommandFacts> {
    /** What is known now. */
    readonly facts: CommandFacts | null;
    readonly id: string | null;
    /** The gateway has it, and will see it to its end. */
    readonly accepted: Promise<CommandFacts>;
    /** Take it back; rejects with `conflict` once the device was sent it. */
    cancel(options?: RequestOptions): Promise<CommandFacts>;
}
/** Ask a device to do something. The promise rejects only when the gateway refuses it or the signal aborts. */
export declare function command(client: Client, device: string, payload: Record<string, unknown>, options?: CommandOptions): Command;
