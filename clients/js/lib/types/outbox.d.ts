/** What waits to be published: bounded, sent in order, and known to the gateway by message ids that stay the same. */
import type { Answer, ClientEvents, ConnectOptions, Published } from "./types.js";
interface Letter {
    readonly ref: number;
    readonly id: string;
    readonly body: string;
    readonly key: string | undefined;
    sent: boolean;
    settle(error: unknown, answer?: Published): void;
}
/** What an outbox needs of its client. */
export interface Post {
    isOpen(): boolean;
    send(frame: string): void;
    nextRef(): number;
    told(detail: ClientEvents["outbox"]): void;
}
export declare class Outbox {
    #private;
    bytes: number;
    constructor(post: Post, options?: NonNullable<ConnectOptions["outbox"]>);
    get messages(): number;
    get full(): boolean;
    /** Put a message in; `settle` is called once, when it is answered. Throws `outbox_full`. */
    put(id: string, body: string, settle: Letter["settle"]): () => void;
    /** Send what was not sent yet, as far as the gateway takes it. */
    flush(): void;
    /** Take an answer; false when it is none to a message of here. */
    answered(answer: Answer): boolean;
    /** The connection is gone: whether the gateway has what was not answered, only it knows, so all is sent again. */
    lost(): void;
    /** Nobody sends any more. What is kept in a storage stays there for the next page. */
    close(error: unknown): void;
}
export {};
