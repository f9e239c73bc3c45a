/** What waits to be published: bounded, sent in order, and known to the gateway by message ids that stay the same. */

import { IotSphereError, errorOf } from "./errors.js";
import type { Answer, ClientEvents, ConnectOptions, KeyStorage, Published } from "./types.js";

const IN_FLIGHT = 128; // of 256 that the gateway takes from a connection before it stops reading
const PAUSE = 1_000;

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

export class Outbox {
  bytes = 0;
  #letters = new Map<number, Letter>();
  #post: Post;
  #maxMessages: number;
  #maxBytes: number;
  #storage: KeyStorage | null;
  #prefix: string;
  #flying = 0;
  #holding: ReturnType<typeof setTimeout> | undefined;

  constructor(post: Post, options: NonNullable<ConnectOptions["outbox"]> = {}) {
    this.#post = post;
    this.#maxMessages = options.messages ?? 1_000;
    this.#maxBytes = options.bytes ?? 4 * 1024 * 1024;
    this.#storage = (options.key !== undefined && options.storage) || null;
    this.#prefix = `iotsphere.outbox.${options.key}.`;
    this.#restore();
  }

  get messages(): number {
    return this.#letters.size;
  }

  get full(): boolean {
    return this.messages >= this.#maxMessages || this.bytes >= this.#maxBytes;
  }

  /** Put a message in; `settle` is called once, when it is answered. Throws `outbox_full`. */
  put(id: string, body: string, settle: Letter["settle"]): () => void {
    const ref = this.#post.nextRef();
    let key: string | undefined;
    if (this.full || this.bytes + body.length > this.#maxBytes) throw full("wait for answers, or for the connection");
    if (this.#storage) {
      key = this.#prefix + Date.now().toString(36) + ref.toString(36).padStart(8, "0") + id;
      try {
        this.#storage.setItem(key, body);
      } catch (cause) {
        throw full(`the storage takes no more: ${cause}`);
      }
    }
    this.#add({ ref, id, body, key, sent: false, settle });
    this.flush();
    return () => this.#remove(ref);
  }

  /** Send what was not sent yet, as far as the gateway takes it. */
  flush(): void {
    if (!this.#post.isOpen() || this.#holding) return;
    for (const letter of this.#letters.values()) {
      if (this.#flying >= IN_FLIGHT) return;
      if (letter.sent) continue;
      letter.sent = true;
      this.#flying++;
      this.#post.send(`{"ref":${letter.ref},${letter.body.slice(1)}`);
    }
  }

  /** Take an answer; false when it is none to a message of here. */
  answered(answer: Answer): boolean {
    const letter = this.#letters.get(answer.ref as number);
    if (!letter) return false;
    const error = answer.type === "error" ? errorOf(answer) : null;
    if (error?.retry) {
      letter.sent = false;
      this.#flying--;
      this.#holding ??= setTimeout(() => {
        this.#holding = undefined;
        this.flush();
      }, error.retryAfter ?? PAUSE);
      return true;
    }
    this.#remove(letter.ref);
    const { type: _, ref: __, ...published } = answer;
    letter.settle(error, published as Published);
    this.flush();
    return true;
  }

  /** The connection is gone: whether the gateway has what was not answered, only it knows, so all is sent again. */
  lost(): void {
    for (const letter of this.#letters.values()) letter.sent = false;
    this.#flying = 0;
  }

  /** Nobody sends any more. What is kept in a storage stays there for the next page. */
  close(error: unknown): void {
    clearTimeout(this.#holding);
    for (const letter of [...this.#letters.values()]) {
      this.#letters.delete(letter.ref);
      letter.settle(error);
    }
    this.bytes = 0;
  }

  #add(letter: Letter): void {
    this.#letters.set(letter.ref, letter);
    this.bytes += letter.body.length;
    this.#tell();
  }

  #remove(ref: number): void {
    const letter = this.#letters.get(ref);
    if (!letter) return;
    this.#letters.delete(ref);
    this.bytes -= letter.body.length;
    if (letter.sent) this.#flying--;
    if (letter.key) this.#storage?.removeItem(letter.key);
    this.#tell();
  }

  #tell(refused?: ClientEvents["outbox"]["refused"]): void {
    this.#post.told({ messages: this.messages, bytes: this.bytes, full: this.full, ...(refused && { refused }) });
  }

  #restore(): void {
    const storage = this.#storage;
    if (!storage) return;
    const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index));
    for (const key of keys.filter((key) => key?.startsWith(this.#prefix)).sort() as string[]) {
      const body = storage.getItem(key)!;
      const id = key.slice(-36);
      const settle = (error: unknown) => {
        if (error instanceof IotSphereError && error.code !== "closed") this.#tell({ messageId: id, error });
      };
      this.#add({ ref: this.#post.nextRef(), id, body, key, sent: false, settle });
    }
  }
}

const full = (why: string): IotSphereError => new IotSphereError("outbox_full", `the outbox is full: ${why}`, true);
