/** A random UUID (RFC 9562, version 4). `crypto.randomUUID` is missing in pages that were loaded over plain HTTP. */
export declare function uuid(): string;
/** A time as the protocol writes it. */
export declare const timeText: (time: Date | number | string) => string;
