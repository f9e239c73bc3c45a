/** JSON as people read it: indented, in colours, and always as text. */

import { html } from "../vendor/lit/lit-html.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)/g;
const MAX = 64 * 1024;

export function json(value) {
  const text = (JSON.stringify(value, null, 2) ?? "").slice(0, MAX);
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    parts.push(text.slice(end, match.index));
    const [whole, string, colon, digits] = match;
    const kind = string ? (colon ? "k" : "s") : digits ? "n" : "b";
    parts.push(html`<span class=${kind}>${string ?? whole}</span>${colon ?? ""}`);
    end = match.index + whole.length;
  }
  parts.push(text.slice(end));
  return html`<pre class="json" tabindex="0">${parts}</pre>`;
}
