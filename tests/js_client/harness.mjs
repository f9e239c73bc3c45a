// Runs functions that tests send: in Node.js as JSON lines on stdin, in a page as calls of `run`.
// Each is the body of an async function of `lib` (the client's module), `g` (kept between calls) and `given`.

const AsyncFunction = (async () => {}).constructor;
const g = {};

export async function run(lib, code, given) {
  return (await new AsyncFunction("lib", "g", "given", code)(lib, g, given)) ?? null;
}

// What a page has and Node.js has not.
class MemoryStorage {
  #items = new Map();
  get length() {
    return this.#items.size;
  }
  key(index) {
    return [...this.#items.keys()][index] ?? null;
  }
  getItem(key) {
    return this.#items.get(key) ?? null;
  }
  setItem(key, value) {
    this.#items.set(key, String(value));
  }
  removeItem(key) {
    this.#items.delete(key);
  }
}

g.until = async (condition, what = String(condition)) => {
  const deadline = Date.now() + 60_000;
  for (let value; ; await new Promise((resolve) => setTimeout(resolve, 5))) {
    if ((value = await condition())) return value;
    if (Date.now() > deadline) throw new Error(`not within 60 s: ${what}`);
  }
};
g.sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
g.values = (messages) => messages.map((message) => message.payload.value);

// Keep all that a target tells: its events by name.
g.record = (target, ...names) => {
  const told = Object.fromEntries(names.map((name) => [name, []]));
  for (const name of names) target.addEventListener(name, ({ detail }) => told[name].push(detail));
  return told;
};
g.caught = async (promise) => {
  try {
    return { value: await promise };
  } catch (error) {
    const { name, code, retry, message, version, current } = error;
    return { name, code, retry, message, version, current, isError: error instanceof Error };
  }
};

if (globalThis.process?.stdin) {
  g.storage = new MemoryStorage();
  const lib = await import(process.argv[2]);
  const { createInterface } = await import("node:readline");
  const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, code, given } = JSON.parse(line);
    run(lib, code, given).then(
      (ok) => say({ id, ok }),
      (error) => say({ id, error: String(error?.stack ?? error) }),
    );
  }
  process.exit(0);
} else {
  g.storage = globalThis.sessionStorage;
}
