/** The journey of one message: sent, accepted at a place in the log, and which readers are past it; or refused, and why. */

import { html } from "../vendor/lit/lit-html.js";
import { part } from "../core/api.js";
import { moment, span, words } from "../core/format.js";
import { go, link } from "../core/router.js";
import { every, view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { json } from "../parts/json.js";

export function journey(root, { api, domain, leave, listen, rest }) {
  const [id = ""] = rest;
  let trace = null;
  let message = null;
  let problem = "";
  let recent = [];

  const update = view(
    root,
    () => html`<div class="journey stack">
      <form class="row tools" @submit=${(event) => (event.preventDefault(), go("journey", new FormData(event.target).get("id").trim()))}>
        <label class="search grow"><span class="sr">Message id</span>${icon("search")}
          <input type="search" class="mono" name="id" required .value=${id} placeholder="A message id, such as 0197f3c2-6d1e-7a52-9b0c-3f1f4d2e8a01" spellcheck="false" /></label>
        <button class="button primary">Follow</button>
      </form>
      ${problem ? html`<p class="problem" role="alert">${problem}</p>` : ""}
      ${trace ? picture(trace) : id ? "" : choice()}
    </div>`,
    leave,
  );

  function choice() {
    return html`<section class="card" aria-label="Recent messages">
    <header><h2>Or one that just came</h2></header>
    <div class="body">${recent.length ? "" : html`<p class="muted">Waiting for messages …</p>`}
      ${recent.map(({ metadata }) => html`<a class="reason" href=${link("journey", metadata.messageId)}><span class="mono ellipsis grow">${metadata.topic}</span>
        <span class="mono muted small ellipsis">${metadata.messageId}</span></a>`)}
    </div></section>`;
  }

  function picture({ place, dead_letter: letter, readers }) {
    const passed = readers.filter((reader) => reader.passed).length;
    const source = message?.metadata.source ?? letter?.source ?? "its sender";
    const took = place ? (Date.parse(place.appended_at) - Date.parse(place.timestamp)) / 1000 : 0;
    return html`<ol class="way">
        <li class="station ok"><span class="disc">${icon("device")}</span><div><h3>Sent</h3>
          <p><a href=${link("devices", source)}>${source}</a></p><p class="muted small num">${moment(place?.timestamp ?? letter.received_at)}</p>
          <p class="mono small wraps">${place?.topic ?? letter.topic}</p></div></li>
        ${letter
          ? html`<li class="station bad"><span class="disc">${icon("letters")}</span><div><h3>Refused: ${words(letter.reason)} <code class="code">${letter.reason}</code></h3>
              <p>${letter.detail}</p><p class="muted small">${moment(letter.received_at)} · ${letter.stage} · now ${letter.state}</p>
              <p><a href="${link("letters")}?reason=${part(letter.reason)}">Look at it among the dead letters</a></p></div></li>`
          : ""}
        ${place
          ? html`<li class="station ok" data-station="log"><span class="disc">${icon("log")}</span><div><h3>In the log, durably</h3>
              <p class="mono">${place.position}</p><p class="muted small num">${moment(place.appended_at)}${took >= 0 ? ` · ${span(took)} after its time` : ""}</p>
              ${place.expires_at ? html`<p class="small">expires ${moment(place.expires_at)}</p>` : ""}</div></li>
            <li class="station ${passed === readers.length ? "ok" : "warn"}" data-station="readers"><span class="disc">${icon("reader")}</span><div>
              <h3>${readers.length ? `${passed} of ${readers.length} registered readers are past it` : "No reader is registered for its partition"}</h3>
              <ul class="readers">${readers.map((reader) => html`<li class="row"><span class="${reader.passed ? "ok" : "warn"} row">${icon(reader.passed ? "check" : "rewind")}</span>
                <span class="mono small">${reader.reader}</span><span class="muted small">${reader.passed ? "has it" : "not yet"}</span></li>`)}</ul></div></li>`
          : ""}
      </ol>
      ${message ? html`<section class="card" aria-label="Message"><header><h2>The message</h2></header><div class="body">${json(message)}</div></section>` : ""}`;
  }

  async function look() {
    try {
      trace = await api.get(`api/v1/messages/${part(id)}/trace`, {}, leave);
      problem = "";
      if (trace.place && !message) await fetchMessage(trace.place);
    } catch (error) {
      if (error.name === "AbortError") return;
      trace = null;
      problem = error.status === 404 ? "No message with this id is known: it was never taken here, or its retention has ended." : error.message;
    }
    update();
  }

  async function fetchMessage(place) {
    const from = new Date(Date.parse(place.appended_at) - 5).toISOString();
    const { messages } = await api.get("api/v1/messages", { filter: place.topic, from, limit: 100 }, leave);
    message = messages.find(({ metadata }) => metadata.messageId === id) ?? null;
  }

  if (id) {
    look();
    every(2_000, leave, () => trace?.readers.some((reader) => !reader.passed) && look());
  } else {
    listen(null, `${domain}/devices/#`, { from: "latest", policy: "latest", maxRate: 20, signal: leave }, (messages) => {
      recent = messages.toReversed().concat(recent).slice(0, 12);
      update();
    });
  }
}
