/** One device: what it measures, what it is and is to be, what it was asked to do, now or as it was. */

import { html } from "../vendor/lit/lit-html.js";
import { moment } from "../core/format.js";
import { part } from "../core/api.js";
import { view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { firstOf, rewindBar } from "../parts/rewind.js";
import { commandsPanel } from "./device-commands.js";
import { shadowPanel } from "./device-shadow.js";
import { telemetryPanel } from "./device-telemetry.js";

export function device(root, context) {
  const { api, domain, isOperator, leave, listen, rest } = context;
  const [id] = rest;
  let presence = null;
  let labels = [];

  const update = view(
    root,
    () => html`<div class="device">
      <div class="row wrap facts">
        <span class="badge ${presence?.state === "online" ? "ok" : ""}" data-presence=${presence?.state ?? "unknown"}>
          <span class="dot"></span>${presence?.state ?? "never connected"}
        </span>
        ${presence?.since ? html`<span class="muted small">since ${moment(presence.since)}${presence.reason ? ` · ${presence.reason}` : ""}</span>` : ""}
        ${labels.map(([name, value]) => html`<span class="label">${name} <b>${value}</b></span>`)}
        <span class="grow"></span>
        <a class="button small" href="#/explorer?filter=${part(`${domain}/devices/${id}/#`)}">${icon("explorer")}All its messages</a>
      </div>
      <div class="bar"></div>
      <section class="telemetry" aria-label="Telemetry"></section>
      <div class="split">
        <section class="shadow card" aria-label="Shadow"></section>
        <section class="commands card" aria-label="Commands"></section>
      </div>
    </div>`,
    leave,
  );
  const at = (name) => root.querySelector(name);

  const telemetry = telemetryPanel(at(".telemetry"), context, id, (clock) => {
    bar.tick(clock);
    shadow.asOf(clock.state === "live" ? null : clock.time);
  });
  const shadow = shadowPanel(at(".shadow"), context, id);
  commandsPanel(at(".commands"), context, id);
  const bar = rewindBar(
    at(".bar"),
    {
      first: (since) => firstOf(api, leave)(`${domain}/devices/${id}/telemetry/#`, since),
      play: (from, speed) => telemetry.rewind(from, speed),
      speed: (speed) => telemetry.play(speed),
      live: () => {
        telemetry.live();
        shadow.asOf(null);
      },
    },
    leave,
  );

  listen("Presence", `${domain}/devices/${id}/presence`, { from: "latest", policy: "latest", signal: leave }, (messages) => {
    presence = messages.at(-1).payload;
    update();
  });
  if (isOperator)
    api.get(`api/v1/devices/${part(id)}/labels`, {}, leave).then(
      (told) => {
        labels = Object.entries(told.labels);
        update();
      },
      () => {}, // it has none, or is on no roster yet
    );
}
