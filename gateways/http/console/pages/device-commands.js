/** A device's commands: send one, and see each step of its life as it happens. */

import { html } from "../vendor/lit/lit-html.js";
import { repeat } from "../vendor/lit/directives/repeat.js";
import { command } from "../vendor/iotsphere/iotsphere.min.js";
import { part } from "../core/api.js";
import { brief, moment, span, words } from "../core/format.js";
import { view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { told } from "../parts/toast.js";

const KEPT = 100;
const IN_A_ROW = 6; // steps of a usual life
const PAGE = 1_000;
const DAY = 24 * 3_600_000;
const KINDS = { succeeded: "ok", failed: "bad", rejected: "bad", expired: "warn", timed_out: "warn", cancelled: "" };
const MAY_BE_CANCELLED = new Set(["accepted", "queued"]);

/** A command as it was at a moment, ms, by the steps that it had made; null: it was not sent yet. */
function asOf(one, moment) {
  if (moment === null) return one;
  if (Date.parse(one.createdAt) > moment) return null;
  const steps = one.steps.filter((step) => Date.parse(step.at) <= moment);
  if (steps.length === one.steps.length) return one;
  return { ...one, steps, state: steps.at(-1)?.state ?? "accepted", final: false, progress: undefined, result: undefined, reason: undefined };
}

export function commandsPanel(root, { api, client, domain, leave, listen, playhead }, device) {
  const known = new Map(); // id -> facts
  const open = new Set();
  let problem = "";
  let sending = false;

  const update = view(
    root,
    () => {
      const { shown } = playhead;
      const all = [...known.values()].map((one) => asOf(one, shown)).filter(Boolean).sort((a, b) => (a.createdAt < b.createdAt ? 1 : -1)).slice(0, KEPT);
      return html`<header><h2>Commands</h2><span class="muted small">of the last day</span>
          ${shown === null ? "" : html`<span class="badge accent">as of ${moment(shown)}</span>`}</header>
        <div class="body stack">
          <form class="stack send" @submit=${send}>
            <label class="field"><span>Command, a JSON object</span>
              <textarea name="payload" class="mono" rows="2" spellcheck="false" @keydown=${submitOnEnter}>{"action": "restart"}</textarea></label>
            <div class="row wrap">
              <label class="row small muted">Time to finish <input name="timeout" title="What the device has, from being handed the command" class="seconds num" type="number" min="1" max="86400" value="60" /> s</label>
              <span class="grow"></span>
              <button class="button primary small" ?disabled=${sending || !client || shown !== null}>${icon("send")}Send</button>
            </div>
            ${shown === null ? "" : html`<p class="muted small hint">You are in the past: press Live to send.</p>`}
            ${problem ? html`<p class="problem" role="alert">${problem}</p>` : ""}
          </form>
          <ol class="lives">${repeat(all, (one) => one.commandId, life)}</ol>
          ${all.length ? "" : html`<p class="muted">No commands${shown === null ? " yet" : " at this time"}.</p>`}
        </div>`;
    },
    leave,
  );

  function life(one) {
    const kind = one.final ? (KINDS[one.state] ?? "") : "accent";
    const isOpen = open.has(one.commandId);
    const began = Date.parse(one.createdAt);
    return html`<li class="life" data-command=${one.commandId} data-state=${one.state}>
      <button class="head" aria-expanded=${isOpen} @click=${() => turn(one.commandId)}>
        <span class="badge ${kind}">${words(one.state)}${!one.final && one.progress !== undefined ? ` ${one.progress} %` : ""}</span>
        <span class="mono ellipsis grow">${brief(JSON.stringify(one.payload), 90)}</span>
        <span class="muted small num">${moment(one.createdAt)}</span>
      </button>
      <ol class="steps ${one.steps.length > IN_A_ROW ? "many" : ""}" aria-label="Steps">
        ${one.steps.map(
          (step) => html`<li class="${KINDS[step.state] ?? ""}"><span class="pin"></span>
            <span class="small">${words(step.state)}</span>
            <span class="muted small num">${Date.parse(step.at) - began < 1 ? "0 ms" : `+${span((Date.parse(step.at) - began) / 1000)}`}</span></li>`,
        )}
        ${one.final ? "" : html`<li class="now"><span class="pin"></span><span class="muted small">…</span></li>`}
      </ol>
      ${isOpen
        ? html`<dl class="facts small">
            <dt>Id</dt><dd class="mono">${one.commandId}</dd>
            <dt>From</dt><dd>${one.caller}</dd>
            <dt>Payload</dt><dd class="mono">${JSON.stringify(one.payload)}</dd>
            ${one.reason ? html`<dt>Reason</dt><dd>${one.reason}</dd>` : ""}
            ${one.result === undefined || one.result === null ? "" : html`<dt>Result</dt><dd class="mono">${JSON.stringify(one.result)}</dd>`}
            <dt>Expires</dt><dd>${one.expiresAt ? moment(one.expiresAt) : "never"}</dd>
          </dl>`
        : ""}
      ${MAY_BE_CANCELLED.has(one.state) && playhead.shown === null ? html`<button class="button small danger" @click=${() => cancel(one)}>${icon("close")}Take back</button>` : ""}
    </li>`;
  }

  function turn(id) {
    if (!open.delete(id)) open.add(id);
    update();
  }

  /** Later news of a command have more steps. */
  function note(facts) {
    const old = known.get(facts.commandId);
    if (!old || facts.steps.length >= old.steps.length) known.set(facts.commandId, facts);
    if (known.size > KEPT * 2) known.delete(known.keys().next().value);
    update();
  }

  function submitOnEnter(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit();
  }

  async function send(event) {
    event.preventDefault();
    if (playhead.shown !== null) return; // by the keyboard
    const form = new FormData(event.target);
    problem = "";
    sending = true;
    update();
    try {
      const payload = JSON.parse(form.get("payload"));
      note(await command(client, device, payload, { timeout: Number(form.get("timeout")), signal: leave }).accepted);
    } catch (error) {
      if (error.name !== "AbortError") problem = error instanceof SyntaxError ? `This is no JSON: ${error.message}` : error.message;
    }
    sending = false;
    update();
  }

  const cancel = (one) =>
    told(async () => note(await api.post(`api/v1/commands/${part(one.commandId)}/cancel`, undefined, leave)), "Taken back.");

  async function load() {
    let after = new Date(Date.now() - DAY).toISOString();
    for (;;) {
      const { commands } = await api.get(`api/v1/devices/${part(device)}/commands`, { after, limit: PAGE }, leave);
      commands.slice(-KEPT).forEach(note);
      if (commands.length < PAGE) return;
      after = commands.at(-1).createdAt;
    }
  }

  // Listening begins first, so that no step falls between the list and what comes.
  const status = listen(`${device}'s commands`, `${domain}/devices/${device}/commands/status`, { from: "live", signal: leave }, (messages) =>
    messages.forEach(({ payload }) => note(payload)),
  );
  (status?.ready() ?? Promise.resolve()).catch(() => {}).then(load).catch((error) => {
    if (error.name === "AbortError") return;
    problem = error.message;
    update();
  });
  return { moved: update.now };
}
