/** The icons: strokes on a grid of 24. */

import { html, svg } from "../vendor/lit/lit-html.js";

const PATHS = {
  fleet: svg`<path d="M4 5h7v6H4zM13 5h7v6h-7zM4 13h7v6H4zM13 13h7v6h-7z"/>`,
  explorer: svg`<path d="M4 6h10M4 12h16M4 18h7"/><circle cx="18" cy="6" r="2"/><circle cx="15" cy="18" r="2"/>`,
  alerts: svg`<path d="M6 16V11a6 6 0 0 1 12 0v5l1.5 2h-15zM10 20.5h4"/>`,
  letters: svg`<path d="M3.5 6.5h17v11h-17zM3.5 7l8.5 6 8.5-6"/>`,
  health: svg`<path d="M3 12h4l2.5-6 4.5 12 2.5-6H21"/>`,
  journey: svg`<circle cx="6" cy="18" r="2.2"/><circle cx="18" cy="6" r="2.2"/><path d="M8.2 18H15a3 3 0 0 0 0-6H9a3 3 0 0 1 0-6h6.5"/>`,
  search: svg`<circle cx="11" cy="11" r="6.5"/><path d="m16 16 4.5 4.5"/>`,
  back: svg`<path d="m14 6-6 6 6 6"/>`,
  play: svg`<path d="M8 5.5v13l10.5-6.5z"/>`,
  pause: svg`<path d="M8.5 5.5v13M15.5 5.5v13"/>`,
  rewind: svg`<path d="M4 12a8 8 0 1 0 2.5-5.8M4 4.5v4h4"/><path d="M12 8v4.5l3 1.8"/>`,
  live: svg`<circle cx="12" cy="12" r="2.6"/><path d="M6.5 6.5a8 8 0 0 0 0 11M17.5 6.5a8 8 0 0 1 0 11"/>`,
  send: svg`<path d="M4 12 20 4.5 15 20l-3.5-6.5z"/>`,
  edit: svg`<path d="m5 19 1-4L16.5 4.5l3 3L9 18z"/>`,
  close: svg`<path d="m6 6 12 12M18 6 6 18"/>`,
  warn: svg`<path d="M12 4 2.8 19.5h18.4zM12 10v4.5M12 17.2v.1"/>`,
  check: svg`<path d="m5 12.5 4.5 4.5L19 7.5"/>`,
  out: svg`<path d="M14 5H5v14h9M10 12h10M16.5 8l4 4-4 4"/>`,
  theme: svg`<circle cx="12" cy="12" r="8"/><path d="M12 4a8 8 0 0 1 0 16z" fill="currentColor"/>`,
  again: svg`<path d="M20 12a8 8 0 1 1-2.5-5.8M20 4.5v4h-4"/>`,
  trash: svg`<path d="M5 7h14M10 4.5h4M7 7l1 12.5h8L17 7"/>`,
  device: svg`<rect x="5" y="5" width="14" height="14" rx="2.5"/><path d="M9.5 2.5V5M14.5 2.5V5M9.5 19v2.5M14.5 19v2.5M2.5 9.5H5M2.5 14.5H5M19 9.5h2.5M19 14.5h2.5"/>`,
  log: svg`<path d="M5 4.5h14v4H5zM5 10h14v4H5zM5 15.5h14v4H5z"/>`,
  reader: svg`<path d="M3 12s3.5-6 9-6 9 6 9 6-3.5 6-9 6-9-6-9-6z"/><circle cx="12" cy="12" r="2.5"/>`,
};

/** An icon beside a text; with a `label` it stands alone. */
export const icon = (name, label) => html`<svg
  class="icon"
  viewBox="0 0 24 24"
  role=${label ? "img" : "presentation"}
  aria-hidden=${label ? "false" : "true"}
  aria-label=${label ?? ""}
>${PATHS[name]}</svg>`;
