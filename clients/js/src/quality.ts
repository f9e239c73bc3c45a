/** What a page is told about how its messages come, in words for people. */

import type { Answer, Quality } from "./types.js";

export const HIDDEN: Quality = quality("paused", "nobody sees the page");
export const SNAPSHOT: Quality = quality("snapshot", "what came while the page was hidden is left out");
export const SLOW: Quality = quality("behind", "this page takes less than comes: the rest is in the gateway's log");

export const RESUMED: Quality = quality("live", "messages are fetched again, from where they were left");

/** The page takes less than comes, and wants newest values only. */
export const replaced = (count: number): Quality => quality("latest", "this page takes less than comes", 0, count);

/** What a `lagging` push of the gateway says. */
export function lagging({ policy, behind, superseded }: Answer): Quality {
  const [lag, gone] = [behind as number, superseded as number];
  if (lag === 0) return quality("live", "caught up", 0, gone);
  const why = "messages come faster than they are taken: ";
  return policy === "latest"
    ? quality("latest", `${why}only the newest of each topic is sent`, lag, gone)
    : quality("behind", `${why}the gateway keeps the rest in its log`, lag, gone);
}

function quality(mode: Quality["mode"], reason: string, behind = 0, superseded = 0): Quality {
  return { mode, reason, behind, superseded };
}
