/** What a page is told about how its messages come, in words for people. */
import type { Answer, Quality } from "./types.js";
export declare const HIDDEN: Quality;
export declare const SNAPSHOT: Quality;
export declare const SLOW: Quality;
export declare const RESUMED: Quality;
/** The page takes less than comes, and wants newest values only. */
export declare const replaced: (count: number) => Quality;
/** What a `lagging` push of the gateway says. */
export declare function lagging({ policy, behind, superseded }: Answer): Quality;
