/** A device's shadow: reported, desired and delta side by side, leaf by leaf; wishes are edited in place. */

import { html } from "../vendor/lit/lit-html.js";
import { ConflictError, shadow as shadowOf } from "../vendor/iotsphere/iotsphere.min.js";
import { part } from "../core/api.js";
import { brief, moment } from "../core/format.js";
import { at, difference, leaves, patchOf, pointer, same, typed } from "../core/patch.js";
import { view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { toast } from "../parts/toast.js";
import { conflictDialog } from "./shadow-conflict.js";
import { NONE, ShadowPast } from "./shadow-past.js";

const MAX_ROWS = 300;

export function shadowPanel(root, { api, client, domain, leave, listen, playhead }, device) {
  const known = new Map([["", NONE]]); // name -> document
  let name = "";
  let editing = null; // { path, text, problem }; path null: the whole document
  let past = null; // { document, moment } that a rewind shows; no document while it is asked for
  let pasts = new Map(); // name -> its versions during a rewind

  const ask = (path, query) => api.get(`api/v1/devices/${part(device)}/${path}`, query, leave);

  /** Show what is true at the moment of the page. */
  function moved() {
    const { shown } = playhead;
    if (shown === null) {
      if (!past) return;
      past = null;
      pasts = new Map();
      return update.now();
    }
    editing = null;
    const which = name;
    if (!pasts.has(which)) pasts.set(which, new ShadowPast(ask, which, () => known.get(which)?.version ?? 0));
    past = { moment: shown, document: pasts.get(which).at(shown, moved) };
    return update.now();
  }

  const document_ = () => (past ? (past.document ?? NONE) : (known.get(name) ?? NONE));

  function rows() {
    const { reported, desired, delta } = document_();
    const found = new Map();
    for (const [path] of [...leaves(desired), ...leaves(reported)]) found.set(pointer(path), path);
    for (const [path] of leaves(delta)) found.set(pointer(path), path);
    return [...found].sort(([a], [b]) => (a < b ? -1 : 1)).slice(0, MAX_ROWS);
  }

  const update = view(
    root,
    () => {
      const shown = document_();
      const lines = rows();
      const waits = [...leaves(shown.delta)].length;
      const refused = Object.values(shown.wishes ?? {}).filter((wish) => wish.status === "refused").length;
      const differs = [...leaves(shown.desired)].some(
        ([path, wanted]) => shown.wishes?.[pointer(path)]?.status === "refused" && !same(wanted, at(shown.reported, path)),
      ); // what is refused is no work to do, but not in sync either
      return html`<header>
          <h2>Shadow</h2>
          ${known.size > 1
            ? html`<select class="names" aria-label="Shadow" @change=${(event) => ((name = event.target.value), (editing = null), past ? moved() : update())}>
                ${[...known.keys()].map((each) => html`<option value=${each} ?selected=${each === name}>${each || "main"}</option>`)}
              </select>`
            : ""}
          <span class="badge num" data-version=${shown.version}>version ${shown.version}</span>
          <span class="badge ${waits || differs ? "warn" : shown.version ? "ok" : ""}" data-delta=${waits}>${waits ? `${waits} to do` : differs ? "differs" : shown.version ? "in sync" : "new"}</span>
          ${refused ? html`<span class="badge bad" data-refused=${refused}>${refused} refused</span>` : ""}
          ${past ? html`<span class="badge accent" aria-busy=${!past.document}>${past.document ? `as of ${moment(past.moment)}` : "looking …"}</span>` : ""}
          <span class="grow"></span>
          <button class="button small" ?disabled=${Boolean(past)} @click=${editAll}>${icon("edit")}Edit desired</button>
        </header>
        <div class="body">
          ${editing && editing.path === null ? whole() : ""}
          <div class="scroll-x"><table class="leaves" role="table">
            <thead><tr><th>Key</th><th>Reported</th><th>Desired</th><th>Delta</th></tr></thead>
            <tbody>
              ${lines.map(([text, path]) => row(text, path, shown))}
              ${lines.length ? "" : html`<tr><td colspan="4" class="muted">${past && !past.document ? "Looking …" : `Nothing is reported or desired ${past ? "at this time" : "yet"}.`}</td></tr>`}
            </tbody>
          </table></div>
        </div>`;
    },
    leave,
  );

  function row(text, path, shown) {
    const wish = shown.wishes?.[text];
    const waits = at(shown.delta, path) !== undefined;
    const edited = editing?.path && pointer(editing.path) === text;
    return html`<tr role="row" class=${waits ? "waits" : ""} data-key=${text}>
      <th scope="row" role="rowheader" class="mono">${text.slice(1)}</th>
      <td role="cell" class="mono reported">${value(at(shown.reported, path))}</td>
      <td role="cell" class="mono desired">
        ${edited
          ? html`<form class="row" @submit=${saveOne}>
              <input class="mono ${editing.problem ? "invalid" : ""}" aria-label="Desired ${text.slice(1)}" .value=${editing.text}
                @input=${(event) => (editing.text = event.target.value)} @keydown=${escape} />
              <button class="button small primary">Save</button>
            </form>${editing.problem ? html`<p class="problem" role="alert">${editing.problem}</p>` : ""}`
          : html`<button class="cell" ?disabled=${Boolean(past)} title="Change what is desired of ${text.slice(1)}" @click=${() => editOne(path, shown)}>
              <span>${value(at(shown.desired, path))}</span>${icon("edit")}<span class="sr">change</span>
            </button>`}
      </td>
      <td role="cell">${waits || wish?.status === "refused"
          ? html`<span class="badge ${wish?.status === "refused" ? "bad" : "warn"}">${wish?.status ?? "waiting"}</span>`
          : wish ? html`<span class="small muted">${wish.status}</span>` : ""}
        ${wish?.reason ? html`<div class="small bad">${brief(wish.reason, 120)}</div>` : ""}</td>
    </tr>`;
  }

  const whole = () => html`<form class="stack whole" @submit=${saveAll}>
    <label class="field"><span>What is desired, as JSON. A key that you take out is desired no longer.</span>
      <textarea class="mono" rows=${Math.min(18, Math.max(4, editing.text.split("\n").length))} spellcheck="false" .value=${editing.text} @keydown=${escape}
        @input=${(event) => (editing.text = event.target.value)}></textarea></label>
    ${editing.problem ? html`<p class="problem" role="alert">${editing.problem}</p>` : ""}
    <div class="row"><button class="button small primary">Save</button>
      <button type="button" class="button small" @click=${stop}>Cancel</button><span class="muted small">Ctrl+Enter saves</span></div>
  </form>`;

  function stop() {
    editing = null;
    update();
  }

  function escape(event) {
    if (event.key === "Escape") stop();
    if (event.key === "Enter" && event.ctrlKey) event.target.form.requestSubmit();
  }

  function editOne(path, shown) {
    const now = at(shown.desired, path) ?? at(shown.reported, path);
    editing = { path, text: now === undefined ? "" : JSON.stringify(now), version: shown.version, base: shown.desired };
    update.now(); // before the next key comes, which may be sooner than the next frame
    root.querySelector(".leaves input")?.select();
  }

  function editAll() {
    const { desired, version } = document_();
    editing = { path: null, text: JSON.stringify(desired, null, 2), version, base: desired };
    update.now();
    const field = root.querySelector(".whole textarea");
    field?.setSelectionRange(0, 0); // one reads from the beginning
    field?.focus();
  }

  /** What was typed, in a list of one; none when it is no JSON, which the user is told. */
  function read(text) {
    try {
      return [typed(text)];
    } catch (error) {
      editing.problem = `This is no JSON: ${error.message}`;
      update();
      return [];
    }
  }

  async function saveOne(event) {
    event.preventDefault();
    const text = editing.text.trim();
    for (const value of text === "" ? [undefined] : read(text)) await send(patchOf(editing.path, value), editing);
  }

  async function saveAll(event) {
    event.preventDefault();
    const [wanted = false] = read(editing.text);
    if (wanted === false) return undefined;
    if (wanted === null || typeof wanted !== "object" || Array.isArray(wanted)) {
      editing.problem = "Write a JSON object, such as {\"interval\": 5}.";
      return update();
    }
    const patch = difference(editing.base, wanted);
    if (patch === undefined) return stop();
    return send(patch, editing);
  }

  /** Send a patch for the version that was looked at; when somebody was faster, show both and let the user decide. */
  async function send(patch, { version, base }) {
    try {
      const { changed } = await shadowOf(client, device, name).update(patch, { version, signal: leave });
      toast(changed ? "Desired. The device is told what differs." : "It was desired already.");
      stop();
    } catch (error) {
      if (error instanceof ConflictError) {
        const theirs = error.current?.desired ?? {};
        const mine = await conflictDialog({ base, theirs, patch, version: error.version }, leave);
        if (mine) return send(patch, { version: error.version, base: theirs });
        return stop();
      }
      if (error.name === "AbortError") return undefined;
      if (editing) editing.problem = error.message;
      else toast(error.message, "bad");
      update();
    }
    return undefined;
  }

  listen(
    `${device}'s shadow`,
    [`${domain}/devices/${device}/shadow/document`, `${domain}/devices/${device}/shadow/+/document`],
    { from: "latest", policy: "latest", signal: leave },
    (messages) => {
      for (const { metadata, payload } of messages) {
        const levels = metadata.topic.split("/");
        const which = levels.length === 6 ? levels[4] : "";
        if ((known.get(which)?.version ?? -1) <= payload.version) known.set(which, payload);
      }
      update();
    },
  );

  return { moved };
}

const value = (given) => (given === undefined ? html`<span class="muted">–</span>` : brief(JSON.stringify(given), 160));
