/** One connection after another to a gateway: tokens, back-off, signs of life, and which end is the last one. */
import { IotSphereError } from "./errors.js";
import type { Answer, ClientEvents, ClientState, ConnectOptions } from "./types.js";
/** What a connection tells its client. */
export interface Hooks {
    opened(): void;
    frame(frame: Answer): void;
    lost(): void;
    told(detail: ClientEvents["state"]): void;
}
export declare class Connection {
    #private;
    state: ClientState;
    expiresAt: Date | null;
    error: IotSphereError | undefined;
    constructor(url: string, options: ConnectOptions, hooks: Hooks);
    /** Write one frame. */
    send(frame: string): void;
    /** The network or the page is back: connect now, or find out whether the connection still lives. */
    hurry(): void;
    /** Show a fresh token on the open connection. */
    renew(token?: string): Promise<void>;
    /** No more connections. */
    close(error?: IotSphereError): void;
}
