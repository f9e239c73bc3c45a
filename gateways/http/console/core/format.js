/** Times, numbers and texts as people read them. */

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
const LARGE = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 6 });
const EXPONENT = new Intl.NumberFormat("en", { notation: "scientific", maximumSignificantDigits: 6 });
const COUNT = new Intl.NumberFormat("en");
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A number to six digits, more where it has them before the point: a meter's reading is told as it is. */
export function number(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-6)) return EXPONENT.format(value);
  return (size >= 1e5 ? LARGE : NUMBER).format(value);
}

/** A number in few letters, for an axis. */
export function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return EXPONENT.format(value);
  return (size >= 1e6 ? SHORT : NUMBER).format(value);
}

export const count = (value) => COUNT.format(value);
export const many = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
export const clock = (time) => TIME.format(time);

/** A time of today, or with its day. */
export function moment(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "–";
  return at.toDateString() === new Date().toDateString() ? TIME.format(at) : DAY.format(at);
}

/** How long ago, in one unit. */
export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - new Date(time).getTime()) / 1000));
  if (Number.isNaN(seconds)) return "–";
  return seconds < 3 ? "just now" : `${span(seconds)} ago`;
}

/** A length of time, in one unit. */
export function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < units.length - 1) [value, step] = [value / 1024, step + 1];
  return `${value >= 100 || step === 0 ? Math.round(value) : value.toFixed(1)} ${units[step]}`;
}

/** A value of JSON in one short line. */
export function brief(value, length = 80) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

/** `json_duplicate_key` as words. */
export const words = (code) => {
  const text = String(code).replaceAll("_", " ").replace(/\b(json|acl)\b/g, (name) => name.toUpperCase()).replace("utf8", "UTF-8");
  return text.charAt(0).toUpperCase() + text.slice(1);
};

const UNITS = { Cel: "°C", "[degF]": "°F" };
/** A unit (UCUM) as it is usually written. */
export const unit = (code) => (Object.hasOwn(UNITS, code) ? UNITS[code] : code);
