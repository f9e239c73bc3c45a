/** Somebody was faster: what they desire, what you desire, and the choice. */

import { html, render } from "../vendor/lit/lit-html.js";
import { at, leaves, pointer } from "../core/patch.js";

const text = (value) => (value === undefined || value === null ? "–" : JSON.stringify(value));

/** Resolves with true for "mine over theirs", false for "keep theirs". */
export function conflictDialog({ base, theirs, patch, version }, signal) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "conflict");
  document.body.append(dialog);
  const paths = new Map();
  for (const document of [patch, theirs, base]) for (const [path] of leaves(document)) paths.set(pointer(path), path);
  const rows = [...paths].filter(([, path]) => text(at(base, path)) !== text(at(theirs, path)) || at(patch, path) !== undefined);
  return new Promise((resolve) => {
    const done = (mine) => {
      dialog.close();
      dialog.remove();
      resolve(mine);
    };
    signal.addEventListener("abort", () => done(false));
    dialog.addEventListener("cancel", () => done(false));
    render(
      html`<div class="inside">
        <h2 id="conflict">Somebody changed it meanwhile</h2>
        <p class="muted">The shadow is at version ${version} now. Nothing of yours was saved yet.</p>
        <div class="scroll-x"><table>
          <thead><tr><th>Key</th><th>Before</th><th>Theirs</th><th>Yours</th></tr></thead>
          <tbody>
            ${rows.map(
              ([name, path]) => html`<tr>
                <th scope="row" class="mono">${name.slice(1)}</th>
                <td class="mono muted">${text(at(base, path))}</td>
                <td class="mono theirs">${text(at(theirs, path))}</td>
                <td class="mono yours"><b>${at(patch, path) === undefined ? "" : text(at(patch, path))}</b></td>
              </tr>`,
            )}
          </tbody>
        </table></div>
        <div class="actions">
          <button class="button" @click=${() => done(false)}>Keep theirs</button>
          <button class="button primary" @click=${() => done(true)}>Put mine on top</button>
        </div>
      </div>`,
      dialog,
    );
    dialog.showModal();
  });
}
