/** A client of one gateway: requests that are answered once, and subscriptions that outlive connections. */
import { Events } from "./events.js";
import { Subscription } from "./subscription.js";
import type { Answer, ClientEvents, ClientState, ConnectOptions, Members, Notification, PublishOptions, Published, RequestOptions, SubscribeOptions } from "./types.js";
/** Begin to connect. The client is there at once; await `opened()` to know that it is connected. */
export declare function connect(url: string | URL, options?: ConnectOptions): Client;
export declare class Client extends Events<ClientEvents> {
    #private;
    /** The first level of topics. */
    readonly domain: string;
    get state(): ClientState;
    /** When the token in use expires. */
    get expiresAt(): Date | null;
    /** What waits to be sent or answered. */
    get outbox(): {
        readonly messages: number;
        readonly bytes: number;
        readonly full: boolean;
    };
    /** Resolves once connected and let in; rejects when that will never be. */
    opened(options?: RequestOptions): Promise<void>;
    /** Listen to one filter or several. */
    subscribe(filters: string | readonly string[], options?: SubscribeOptions): Subscription;
    /** Publish once: waits in the outbox while there is no connection. Rejects with `outbox_full` when that is full. */
    publish(topic: string, payload: unknown, options?: PublishOptions): Promise<Published>;
    /** Mark a notification as read. */
    read(notification: string, options?: RequestOptions & {
        user?: string;
    }): Promise<Notification>;
    /** The gateway's time. */
    ping(options?: RequestOptions): Promise<Date>;
    /** Show a fresh token now; without one, the token source is asked. */
    renew(token?: string): Promise<void>;
    /**
     * Send any request of the protocol (docs/reference/asyncapi.yaml). While its answer is outstanding it is repeated on
     * each new connection, so give requests that change something an id; with `repeat: false` it fails with
     * `connection_lost` instead.
     */
    request(type: string, members: Members, options?: RequestOptions & {
        repeat?: boolean;
    }): Promise<Answer>;
    /** End everything. What was published and not answered rejects with `closed`. */
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
}
