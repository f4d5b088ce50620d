/* The operators' dashboard: draws the figures that came with the page, and then asks for new ones every few seconds, but
   not while nobody looks. Says so where none come, and keeps the last ones. */

import { fadeEdges } from "#octavo/edges.js";
import { morph } from "#octavo/morph.js";
import {
  drawFaults,
  drawHealth,
  drawModels,
  drawQueues,
  drawSlow,
  drawTeams,
  drawVerdict,
  drawWorkers,
} from "#octavo/operations-view.js";
import { rates } from "#octavo/operations-words.js";

const EVERY_MS = 3000;
const WITHIN_MS = 10_000;

const page = document.getElementById("operations");
const places = { ...page.dataset, token: document.querySelector("#csrf input").value };
const pulse = document.getElementById("pulse");
const fade = fadeEdges(page, ".scroll");
let figures = JSON.parse(document.getElementById("figures").textContent);
let speeds = {};
let timer = 0;
let over = false;

const clock = (iso) => new Date(iso).toLocaleTimeString("en-GB");

/** A row that stands for something else now is a new one: nobody is to press a button that has just changed its meaning. */
const keep = (old, next) => (old.dataset?.key === next.dataset?.key ? undefined : false);

function draw() {
  const sections = {
    verdict: drawVerdict(figures),
    models: drawModels(figures),
    workers: drawWorkers(figures, speeds, places),
    queues: drawQueues(figures),
    teams: drawTeams(figures, places),
    slow: drawSlow(figures, places),
    faults: drawFaults(figures),
    health: drawHealth(figures),
  };
  for (const [id, nodes] of Object.entries(sections)) {
    const wanted = document.createElement("div");
    wanted.append(...nodes.filter(Boolean));
    morph(document.getElementById(id), wanted, keep);
  }
  fade();
}

function say(text, state = "") {
  if (pulse.textContent !== text) pulse.textContent = text;
  pulse.className = `pulse ${state}`;
  page.classList.toggle("old", state === "bad");
}

async function refresh() {
  clearTimeout(timer);
  try {
    // Who is not logged in any more is sent on to do so, which is no answer to us.
    const reply = await fetch(places.figures, { signal: AbortSignal.timeout(WITHIN_MS), redirect: "manual" });
    if (reply.status === 403 || reply.type === "opaqueredirect") {
      over = true;
      say("You are not logged in as an operator any more. Reload to log in again.", "bad");
      return;
    }
    if (!reply.ok) throw new Error(String(reply.status));
    const before = figures;
    figures = await reply.json();
    speeds = rates(before, figures);
    draw();
    say(`Live, as of ${clock(figures.at)}`);
  } catch {
    say(`The server does not answer. As of ${clock(figures.at)}; trying again.`, "bad");
  }
  if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && !over) refresh();
});

draw();
say(`Live, as of ${clock(figures.at)}`);
timer = setTimeout(refresh, EVERY_MS);
