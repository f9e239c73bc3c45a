/** Documents side by side: their leaves by path, and merge patches (RFC 7396). Keys are data here, never properties. */

/** `[path, value]` of each leaf; a path is a list of keys. Arrays and empty objects are leaves. */
export function* leaves(value, path = []) {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
    for (const key of Object.keys(value)) yield* leaves(value[key], [...path, key]);
  } else if (path.length) yield [path, value];
}

export const pointer = (path) => path.map((key) => `/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");

/** What stands at a path; undefined where nothing does. */
export function at(document, path) {
  let value = document;
  for (const key of path) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, key)) return undefined;
    value = value[key];
  }
  return value;
}

/** A patch that changes one leaf; `undefined` takes it away. */
export const patchOf = (path, value) =>
  path.reduceRight((inner, key) => Object.fromEntries([[key, inner]]), value === undefined ? null : value);

/** The merge patch that leads from one document to another; undefined when they are equal. */
export function difference(from, to) {
  const changed = new Map();
  for (const key of Object.keys(from)) if (!Object.hasOwn(to, key)) changed.set(key, null);
  for (const key of Object.keys(to)) {
    const old = Object.hasOwn(from, key) ? from[key] : undefined;
    const next = to[key];
    if (isObject(old) && isObject(next)) {
      const inner = difference(old, next);
      if (inner !== undefined) changed.set(key, inner);
    } else if (!same(old, next)) changed.set(key, next);
  }
  return changed.size ? Object.fromEntries(changed) : undefined;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function same(one, other) {
  return one === other || sorted(one) === sorted(other);
}

const sorted = (value) =>
  JSON.stringify(value, (_, inner) =>
    isObject(inner) ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1))) : inner,
  );

/** What was typed, as JSON; a word that is no JSON is a text. Throws SyntaxError for a broken object or list. */
export function typed(text) {
  const trimmed = text.trim();
  try {
    return JSON.parse(trimmed);
  } catch (error) {
    if (/^[[{"]/.test(trimmed) || trimmed === "") throw error;
    return trimmed;
  }
}
