/** Shadows: what a device reports, what is desired of it, and changes that notice when somebody was faster. */
import type { Client } from "./client.js";
import type { RequestOptions } from "./types.js";
/** docs/reference/shadow.md describes the members. */
export interface ShadowDocument {
    readonly device: string;
    readonly name: string;
    readonly reported: Record<string, unknown>;
    readonly desired: Record<string, unknown>;
    readonly delta: Record<string, unknown>;
    readonly version: number;
    readonly deleted?: true;
    readonly [member: string]: unknown;
}
/** What became of a change. `changed` is false when all was as desired already. */
export interface Changed {
    readonly messageId: string;
    readonly version: number;
    readonly deltaSequence: number;
    readonly changed: boolean;
}
export interface ChangeOptions extends RequestOptions {
    /** Only if the shadow is at this version; else ConflictError. */
    version?: number | undefined;
    /** Repeating a change with the same id changes nothing again. */
    messageId?: string | undefined;
}
export interface UpdateOptions extends ChangeOptions {
    /** Expiry of single wishes, by JSON Pointer. */
    expires?: Record<string, Date | string> | undefined;
    /** Expiry of all wishes of this patch. */
    expiresAt?: Date | string | undefined;
}
export interface Shadow {
    get(options?: RequestOptions & {
        asOf?: Date | string;
        version?: number;
    }): Promise<ShadowDocument>;
    /** Merge a patch (RFC 7396) into what is desired; `null` takes a member away. */
    update(desired: Record<string, unknown>, options?: UpdateOptions): Promise<Changed>;
    delete(options?: ChangeOptions): Promise<Changed>;
}
/** A device's shadow; the main one without a `name`. */
export declare function shadow(client: Client, device: string, name?: string): Shadow;
