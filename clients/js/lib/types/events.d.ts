/** Events by name, each a CustomEvent with its own kind of `detail`. */
export type Listener<D> = ((event: CustomEvent<D>) => void) | {
    handleEvent(event: CustomEvent<D>): void;
} | null;
/** An EventTarget that knows its events. */
export declare class Events<M extends object> extends EventTarget {
}
export interface Events<M extends object> {
    addEventListener<K extends keyof M & string>(type: K, listener: Listener<M[K]>, options?: boolean | AddEventListenerOptions): void;
    addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
    removeEventListener<K extends keyof M & string>(type: K, listener: Listener<M[K]>, options?: boolean | EventListenerOptions): void;
    removeEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | EventListenerOptions): void;
}
