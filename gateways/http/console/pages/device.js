/** One device: what it measures, what it is and is to be, what it was asked to do, now or as it was. */

import { html } from "../vendor/lit/lit-html.js";
import { part } from "../core/api.js";
import { moment } from "../core/format.js";
import { Playhead } from "../core/playhead.js";
import { link } from "../core/router.js";
import { view } from "../core/view.js";
import { icon } from "../parts/icons.js";
import { firstOf, rewindBar } from "../parts/rewind.js";
import { commandsPanel } from "./device-commands.js";
import { shadowPanel } from "./device-shadow.js";
import { telemetryPanel } from "./device-telemetry.js";

const MAX_ID = 64;

/** `standing`: what the gateway tells of it at a glance; null where it tells nothing, undefined where it could not. */
export async function device(root, context) {
  const { api, domain, leave, rest } = context;
  const [id] = rest;
  const ask = async () => (await api.get("api/v1/fleet", { device: id }, leave)).devices[0] ?? null;
  const standing = id.length > MAX_ID ? null : await ask().catch(() => undefined);
  if (leave.aborted) return;
  if (standing === null) unknown(root, context, id);
  else known(root, context, id, standing);
}

const unknown = (root, { domain, leave }, id) =>
  view(
    root,
    () => html`<div class="card empty" data-unknown>
      ${icon("device")}<h2>No such device</h2>
      <p><b class="mono">${id}</b> is not registered here, or you may see nothing of it. Ids are case-sensitive.</p>
      <p class="row wrap center"><a class="button primary" href=${link("fleet")}>${icon("fleet")}Back to the fleet</a>
        <a class="button" href="#/explorer?filter=${part(`${domain}/devices/${id}/#`)}">${icon("explorer")}Messages on its topics</a></p>
      <p class="small">Admit it: <code>iotsphere device add ${id}</code></p>
    </div>`,
    leave,
  );

function known(root, context, id, standing) {
  const { api, domain, leave, listen } = context;
  const playhead = new Playhead();
  let presence = standing?.presence ?? null;
  const labels = Object.entries(standing?.labels ?? {});

  const update = view(
    root,
    () => html`<div class="device">
      <div class="row wrap facts">
        <span class="badge ${presence?.state === "online" ? "ok" : ""}" data-presence=${presence?.state ?? "unknown"}>
          <span class="dot"></span>${presence?.state ?? "never connected"}${presence && playhead.clock ? " now" : ""}
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

  const inTime = { ...context, playhead };
  const telemetry = telemetryPanel(at(".telemetry"), inTime, id, (clock) => bar.tick(clock));
  const panels = [telemetry, shadowPanel(at(".shadow"), inTime, id), commandsPanel(at(".commands"), inTime, id)];
  const bar = rewindBar(
    at(".bar"),
    playhead,
    {
      moved: () => {
        for (const panel of panels) panel.moved();
        update.now();
      },
      first: (since) => firstOf(api, leave)(`${domain}/devices/${id}/telemetry/#`, since),
      play: (from, speed) => telemetry.rewind(from, speed),
      speed: (speed) => telemetry.play(speed),
      live: () => telemetry.live(),
    },
    leave,
  );

  listen("Presence", `${domain}/devices/${id}/presence`, { from: "latest", policy: "latest", signal: leave }, (messages) => {
    presence = messages.at(-1).payload;
    update();
  });
}
