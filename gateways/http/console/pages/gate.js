/** Signing in: by a link that counts once, or with a token. Nothing of either stays in an address. */

import { html } from "../vendor/lit/lit-html.js";
import { redeem } from "../core/api.js";
import * as session from "../core/session.js";
import { view } from "../core/view.js";

/** `code`: of a sign-in link. `entered`: tries the token that is kept, and answers whether it was believed. */
export function gate(root, { why, code, entered }) {
  let problem = why;
  let busy = false;
  let byLink = Boolean(code);
  const over = new AbortController();

  async function enter(find) {
    busy = true;
    problem = "";
    update();
    try {
      session.keep(await find());
      if (await entered()) return over.abort();
      problem = "The gateway does not believe this token: it is wrong, expired or revoked. For a new link type: iotsphere console";
    } catch (error) {
      problem = byLink && error.status === 401 ? "This link was used already, or is older than 15 minutes. For a new one type: iotsphere console" : error.message;
    }
    busy = byLink = false;
    update();
  }

  function byToken(event) {
    event.preventDefault();
    const text = new FormData(event.target).get("token").trim().replace(/^Bearer\s+/i, "");
    if (text) enter(async () => text);
  }

  const update = view(
    root,
    () => html`<div class="gate">
      <form class="card" @submit=${byToken}>
        <div class="brand"><img src="console/icon.svg" alt="" />IoTSphere</div>
        ${
          byLink
            ? html`<p>You opened a sign-in link. It signs you in to <b>${location.host}</b>, once.</p>
                <button type="button" class="button primary" ?disabled=${busy} autofocus @click=${() => enter(() => redeem(code))}>
                  Sign in
                </button>
                <button type="button" class="button ghost" @click=${() => ((byLink = false), update())}>Use a token instead</button>`
            : html`<p class="muted">Open the link that <code>iotsphere up</code> has printed, get a new one with
                  <code>iotsphere console</code>, or paste a token.</p>
                <label class="field">
                  <span>Token</span>
                  <textarea name="token" required autocomplete="off" spellcheck="false" autocapitalize="off"
                    aria-describedby="problem" placeholder="eyJ…"></textarea>
                </label>
                <button class="button primary" ?disabled=${busy}>Sign in</button>`
        }
        <p id="problem" class="problem" role="alert" ?hidden=${!problem}>${problem}</p>
        <p class="muted small">The token stays in this tab, and goes when you close it or sign out.</p>
      </form>
    </div>`,
    over.signal,
  );
}
