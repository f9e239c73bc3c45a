/** Light, dark, or as the system says. */

const KEY = "iotsphere.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const changed = new EventTarget();

export function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function set(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  changed.dispatchEvent(new Event("change"));
}

export function begin() {
  const kept = localStorage.getItem(KEY);
  if (Object.hasOwn(NEXT, kept ?? "")) set(kept);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed.dispatchEvent(new Event("change")));
}

export function turn() {
  const name = NEXT[theme()];
  localStorage.setItem(KEY, name);
  set(name);
}

export function onTheme(signal, listener) {
  changed.addEventListener("change", listener, { signal });
}

/** A colour of base.css as the canvas wants it. */
const probe = document.createElement("span");
export function colour(name) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
