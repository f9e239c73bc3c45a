/** Addresses behind `#`: `#/devices/pump-7` is ["devices", "pump-7"]. */

export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const levels = path.split("/").filter(Boolean).map((level) => {
    try {
      return decodeURIComponent(level);
    } catch {
      return level;
    }
  });
  return { levels, query: new URLSearchParams(query) };
}

export const link = (...levels) => `#/${levels.map(encodeURIComponent).join("/")}`;
export const go = (...levels) => void (location.hash = link(...levels));

/** Change the query of this address, without a new page. */
export function remember(query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  const [path] = location.hash.split("?", 1);
  history.replaceState(null, "", `${location.pathname}${path}${text ? `?${text}` : ""}`);
}
