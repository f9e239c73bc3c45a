/** What a telemetry message says: its metrics with number or text, and when. */

const BESIDE = new Set(["unit", "ts", "timestamp", "time", "Time", "measured", "observedAt", "samples", "seq"]);

/** The topic's device and what stands below `telemetry/`. */
export function subject(topic) {
  const [, , device, kind, ...rest] = topic.split("/");
  return { device, kind, metric: rest.join("/") };
}

/** `[metric, value, unit]` of each metric in a message; values are numbers, booleans or texts. */
export function* metrics({ metadata, payload }) {
  const { metric } = subject(metadata.topic);
  if (payload === null || typeof payload !== "object") return;
  const own = typeof payload.unit === "string" ? payload.unit : "";
  if (isValue(payload.value)) {
    yield [metric || "value", payload.value, own];
    return;
  }
  for (const [name, value] of Object.entries(payload)) {
    if (BESIDE.has(name)) continue;
    const full = metric ? `${metric}.${name}` : name;
    if (isValue(value)) yield [full, value, ""];
    else if (value !== null && typeof value === "object" && isValue(value.value))
      yield [full, value.value, typeof value.unit === "string" ? value.unit : ""];
  }
}

const isValue = (value) => ["number", "boolean", "string"].includes(typeof value);

export const timeOf = ({ metadata }) => new Date(metadata.timestamp).getTime();
