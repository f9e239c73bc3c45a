/** The console: signs in, draws the frame, and shows the page that the address names. */

import { html, render } from "./vendor/lit/lit-html.js";
import { ApiError } from "./core/api.js";
import { open } from "./core/context.js";
import { Counts, badge } from "./core/counts.js";
import { span } from "./core/format.js";
import { go, link, place } from "./core/router.js";
import * as session from "./core/session.js";
import * as theme from "./core/theme.js";
import { beforeNextFrame } from "./core/view.js";
import { alerts } from "./pages/alerts.js";
import { device } from "./pages/device.js";
import { explorer } from "./pages/explorer.js";
import { fleet } from "./pages/fleet.js";
import { health } from "./pages/health.js";
import { journey } from "./pages/journey.js";
import { letters } from "./pages/letters.js";
import { gate } from "./pages/gate.js";
import { icon } from "./parts/icons.js";

const root = document.getElementById("app");
// name -> title, page, whether only operators are served, whether it fills the window by itself
const PAGES = {
  fleet: { title: "Fleet", page: fleet, fill: true },
  explorer: { title: "Explorer", page: explorer, fill: true },
  alerts: { title: "Alerts", page: alerts },
  letters: { title: "Dead letters", page: letters, operator: true, fill: true },
  health: { title: "Health", page: health, operator: true },
  journey: { title: "Journey", page: journey, operator: true },
};
const STATES = {
  open: ["ok", "Connected"],
  connecting: ["warn", "Connecting"],
  waiting: ["warn", "Reconnecting"],
  closed: ["bad", "Not connected"],
};

let context = null;
let leave = new AbortController();
let shown = null;
let counts = null;

async function begin() {
  root.replaceChildren();
  theme.begin();
  addEventListener("hashchange", route);
  addEventListener("keydown", shortcuts);
  const { levels } = place();
  if (levels[0] === "sign-in") {
    history.replaceState(null, "", location.pathname); // the code does not stay in the address
    if (session.token() && (await enter())) return; // a link does not change who is signed in here
    return showGate("", levels[1] ?? "");
  }
  if (!session.token() || !(await enter())) showGate();
}

/** Try the token that is kept. Answers whether it was believed. */
async function enter() {
  try {
    context = await open(signedOut);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) session.forget();
    else showGate(error.message);
    return false;
  }
  render(html``, root);
  context.notices.addEventListener("change", () => beforeNextFrame(frame));
  let lost = false;
  context.client?.addEventListener("state", ({ detail }) => {
    context.link = detail;
    if (detail.state === "waiting" && !lost) context.lostAt = Date.now();
    lost = detail.state !== "open";
    beforeNextFrame(frame);
  });
  counts = new Counts(context, () => beforeNextFrame(frame), () => shown?.name);
  context.setCount = (name, number) => counts?.set(name, number);
  if (!location.hash) history.replaceState(null, "", link("fleet"));
  frame();
  route();
  return true;
}

function signedOut(why) {
  leave.abort();
  context = shown = counts = null;
  showGate(why);
}

function showGate(why = "", code = "") {
  render(html``, root);
  gate(root, { why, code, entered: enter });
}

function frame() {
  if (!context) return;
  const { me, notices, client } = context;
  const state = context.link?.state ?? client?.state ?? "closed";
  const [kind, text] = STATES[state];
  const retry = state === "waiting" && context.link?.retryIn ? ` in ${span(context.link.retryIn / 1000)}` : "";
  const current = shown?.name === "devices" ? "fleet" : shown?.name;
  render(
    html`<div class="shell">
      <aside class="side">
        <a class="brand" href=${link("fleet")}><img src="console/icon.svg" alt="" />IoTSphere</a>
        <nav class="nav" aria-label="Pages">
          ${Object.entries(PAGES).map(([name, { title, operator }]) =>
            operator && !context.isOperator
              ? ""
              : html`<a href=${link(name)} aria-current=${current === name ? "page" : "false"}>
                  ${icon(name)}<span>${title}</span>
                  ${counted(name)}
                </a>`,
          )}
        </nav>
        <div class="foot">
          <div><div class="muted">${me.kind} in ${me.domain}</div><div class="who">${me.name}</div></div>
          <div class="row">${wayOut()}</div>
        </div>
      </aside>
      <main class="main">
        <header class="top">
          <div class="crumbs grow">
            ${shown?.up ? html`<a class="button ghost" href=${shown.up} aria-label="Back">${icon("back")}</a>` : ""}
            <h1 class="ellipsis" tabindex="-1">${shown?.title ?? ""}</h1>
          </div>
          <span class="narrow row">${wayOut()}</span>
          <span class="link-state ${kind}" role="status" data-state=${state}>
            <span class="dot"></span>${text}${retry}
          </span>
        </header>
        <div class="notices" role="status">
          ${notices.all.map(
            ({ key, kind: level, text: words }) => html`<div class="notice ${level}">
              ${icon("warn")}<span>${words}</span>
              <button class="button ghost small" aria-label="Dismiss" @click=${() => notices.drop(key)}>${icon("close")}</button>
            </div>`,
          )}
        </div>
        <div id="page" class="page"></div>
      </main>
    </div>`,
    root,
  );
}

/** The buttons for colours and for leaving; where it is narrow, only their icons. */
const wayOut = () => html`<button class="button ghost small" @click=${turnTheme} title="Theme: ${theme.theme()}" aria-label="Theme: ${theme.theme()}">
    ${icon("theme")}<span>${theme.theme()}</span></button>
  <button class="button ghost small" @click=${context.signOut} title="Sign out">${icon("out")}<span>Sign out</span></button>`;

function counted(name) {
  const text = badge(counts.of(name));
  return text ? html`<span class="count num">${text}</span>` : "";
}

function turnTheme() {
  theme.turn();
  frame();
}

/** Show the page of this address; what the last one held is let go. */
function route() {
  if (!context) return;
  const { levels, query } = place();
  const [name, ...rest] = levels;
  const isDevice = name === "devices" && rest[0];
  const known = isDevice ? { title: rest[0], page: device } : (PAGES[name] ?? null);
  if (!known || (known.operator && !context.isOperator)) return go("fleet");
  leave.abort();
  leave = new AbortController();
  shown = { name, title: known.title, up: isDevice ? link("fleet") : null };
  document.title = `${known.title} · IoTSphere`;
  if (name === "alerts") counts.set("alerts", 0);
  frame();
  const old = document.getElementById("page");
  const next = document.createElement("div"); // a page never inherits what another has drawn
  next.id = "page";
  next.className = known.fill ? "page fill" : "page";
  old.replaceWith(next);
  if (old.hasChildNodes()) document.querySelector("h1").focus({ preventScroll: true }); // readers begin with the new page
  known.page(next, { ...context, leave: leave.signal, rest, query });
}

function shortcuts(event) {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("#page input[type=search]");
    search?.focus();
    if (search) event.preventDefault();
  }
}

begin();
