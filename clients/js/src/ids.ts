/** A random UUID (RFC 9562, version 4). `crypto.randomUUID` is missing in pages that were loaded over plain HTTP. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 15) | 64;
  bytes[8] = (bytes[8]! & 63) | 128;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** A time as the protocol writes it. */
export const timeText = (time: Date | number | string): string =>
  typeof time === "string" ? time : new Date(time).toISOString();
