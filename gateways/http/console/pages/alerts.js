/** What wants attention: the fleet's and the gateway's alerts, and the notifications of whoever is signed in. */

import { html } from "../vendor/lit/lit-html.js";
import { repeat } from "../vendor/lit/directives/repeat.js";
import { part } from "../core/api.js";
import { ago, moment, words } from "../core/format.js";
import { link } from "../core/router.js";
import { every, view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { json } from "../parts/json.js";
import { told } from "../parts/toast.js";

const WEEK = 7 * 24 * 3_600_000;
const KEPT = 500;
const ASKED_TIMES = 10;
const ASKED_EVERY_MS = 500;
const BAD = new Set(["critical", "error", "fatal", "alarm", "high"]);

export function alerts(root, { api, domain, leave, listen, me, setCount }) {
  let found = []; // alerts, newest first
  let notes = new Map(); // notifications by id
  let all = false;
  let user = me.name;
  let problem = "";
  const open = new Set();

  const update = view(
    root,
    () => {
      const list = [...notes.values()].filter((one) => all || !one.read).sort((a, b) => (a.at < b.at ? 1 : -1));
      return html`<div class="split wide">
        <section class="stack" aria-label="Alerts">
          <div class="row"><h2>Alerts</h2><span class="muted small">of the last week</span></div>
          ${found.length ? "" : html`<div class="card empty">${icon("check")}<p>No alerts.</p></div>`}
          ${repeat(found, (one) => one.metadata.messageId, alert)}
        </section>
        <section class="stack" aria-label="Notifications">
          <form class="row wrap" @submit=${(event) => (event.preventDefault(), (user = new FormData(event.target).get("user").trim() || me.name), load())}>
            <h2>Notifications</h2><label class="row small muted">for <input class="short" name="user" .value=${user} aria-label="User" /></label>
            <span class="grow"></span>
            <label class="row small"><input type="checkbox" .checked=${all} @change=${(event) => ((all = event.target.checked), load())} /> read ones too</label>
          </form>
          ${problem ? html`<p class="problem" role="alert">${problem}</p>` : ""}
          ${list.length ? "" : html`<div class="card empty">${icon("alerts")}<p>${user} has read everything.</p></div>`}
          ${repeat(list, (one) => one.id, note)}
        </section>
      </div>`;
    },
    leave,
  );

  function alert({ metadata, payload }) {
    const severity = String(payload.severity ?? payload.level ?? "warning");
    const kind = BAD.has(severity.toLowerCase()) ? "bad" : severity === "info" ? "accent" : "warn";
    const title = payload.title ?? payload.alert ?? payload.kind ?? payload.type ?? "alert";
    const text = payload.message ?? payload.text ?? payload.detail ?? payload.reason;
    const device = typeof payload.device === "string" ? payload.device : (payload.device_id ?? payload.deviceId);
    const isOpen = open.has(metadata.messageId);
    return html`<article class="card alert ${kind}" data-alert=${metadata.messageId}>
      <button class="head" aria-expanded=${isOpen} @click=${() => turn(metadata.messageId)}>
        <span class="badge ${kind}">${severity}</span><b class="ellipsis grow">${words(title)}</b>
        <span class="muted small num" title=${metadata.timestamp}>${ago(metadata.timestamp)}</span>
      </button>
      ${typeof text === "string" ? html`<p>${text}</p>` : ""}
      <p class="row wrap small muted">
        ${typeof device === "string" ? html`<a href=${link("devices", device)}>${device}</a>` : ""}
        <span>${metadata.source}</span><span class="mono">${metadata.topic}</span>
      </p>
      ${isOpen ? json(payload) : ""}
    </article>`;
  }

  function note(one) {
    const { title, text, ...more } = one.content ?? {};
    return html`<article class="card note ${one.read ? "read" : ""}" data-note=${one.id}>
      <div class="row"><b class="grow">${title ?? text ?? "Notification"}</b><span class="muted small num">${moment(one.at)}</span></div>
      ${title && text ? html`<p>${text}</p>` : ""}
      ${Object.keys(more).length ? json(more) : ""}
      <div class="row"><span class="muted small grow">${one.source ? `from ${one.source}` : ""}</span>
        ${one.read ? html`<span class="badge">read</span>` : html`<button class="button small" @click=${() => read(one)}>${icon("check")}Mark as read</button>`}
      </div>
    </article>`;
  }

  function turn(id) {
    if (!open.delete(id)) open.add(id);
    update();
  }

  const path = () => `api/v1/users/${part(user)}/notifications`;
  const read = (one) =>
    told(async () => {
      notes.set(one.id, await api.post(`${path()}/${part(one.id)}/read`, undefined, leave));
      told_();
    });

  function told_() {
    if (user === me.name) setCount("notes", [...notes.values()].filter((one) => !one.read).length);
    update();
  }

  async function load() {
    problem = "";
    try {
      const { notifications } = await api.get(path(), { all, limit: KEPT }, leave);
      notes = new Map(notifications.map((one) => [one.id, one]));
    } catch (error) {
      if (error.name === "AbortError") return;
      notes = new Map();
      problem = error.message;
    }
    told_();
  }

  load();
  const topics = [`${domain}/devices/batch/alerts`, `${domain}/system/alerts`];
  listen("Alerts", topics, { from: new Date(Date.now() - WEEK), signal: leave }, (messages) => {
    found = messages.toReversed().concat(found).slice(0, KEPT);
    update();
  });
  listen("Notifications", `${domain}/users/${me.name}/notifications`, { from: "live", signal: leave }, async (messages) => {
    // A notification is written a moment later than it comes: it is asked for until it is there.
    for (let times = 0; times < ASKED_TIMES && !leave.aborted; times += 1) {
      await load();
      if (user !== me.name || messages.every(({ metadata }) => notes.has(metadata.messageId))) return;
      await new Promise((resolve) => setTimeout(resolve, ASKED_EVERY_MS));
    }
  });
  every(30_000, leave, update);
}
