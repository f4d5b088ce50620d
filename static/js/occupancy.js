/* The operators' block table: which worker, its blocks as a grid, and the same as numbers. */

import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { CACHED, FREE, Grid } from "#octavo/grid.js";
import { Connection, socketUrl } from "#octavo/octavo.js";

const ACCENTS = ["blue", "rust", "teal", "plum", "ochre", "violet", "moss", "rose"];
const STATES = ["free", "cached", "used"];

const $ = (id) => document.getElementById(id);
const grid = new Grid($("grid"));
let workers = [];
let names = {};
let watched = null;
let snapshot = null;
let only = null;

const socket = new Connection(
  socketUrl("/ws/ops/occupancy"),
  {
    onFrame: (frame) => {
      if (frame.type === "workers") listWorkers(frame);
      else if (frame.type === "snapshot" && frame.snapshot.worker === watched) show(frame.snapshot);
    },
    onState: (state) => {
      if (state === "open" && watched) socket.send({ type: "watch", worker: watched });
      if (state === "waiting") $("about").textContent = "No connection to the server; trying again.";
      if (state === "ended") $("about").textContent = "You may not see this any more. Log in again.";
    },
  },
);

function listWorkers(frame) {
  workers = frame.workers;
  names = frame.tenants;
  const alive = workers.length > 0;
  $("none").hidden = alive;
  $("live").hidden = !alive || !snapshot;
  $("worker-field").hidden = workers.length < 2;
  if (!alive) {
    watched = snapshot = null;
    $("about").textContent = "0 workers";
    return;
  }
  if (!workers.some((worker) => worker.id === watched)) watch(workers[0].id);
  const options = workers.map((worker) =>
    h("option", { value: worker.id, text: worker.id, selected: worker.id === watched }),
  );
  const ids = workers.map((worker) => worker.id).join("\n");
  if ($("worker").dataset.ids !== ids) {
    $("worker").replaceChildren(...options);
    $("worker").dataset.ids = ids;
  }
  about();
}

function watch(worker) {
  watched = worker;
  snapshot = null;
  only = null;
  grid.only = null;
  $("live").hidden = true;
  socket.send({ type: "watch", worker });
  about();
}

function about() {
  const worker = workers.find((one) => one.id === watched);
  if (!worker) return;
  const health = worker.draining ? "draining" : worker.healthy === false ? "not healthy" : "healthy";
  const parts = [
    worker.model,
    worker.device,
    worker.dtype,
    `${count(worker.num_blocks)} blocks of ${worker.block_size} tokens`,
    health,
  ];
  $("about").textContent = parts.filter(Boolean).join(" · ");
}

function show(next) {
  const changed = !snapshot || snapshot.tenants.join() !== next.tenants.join();
  snapshot = next;
  $("live").hidden = false;
  if (changed) colour();
  grid.draw(next);
  numbers();
  if (pointed >= 0) describe();
}

const tenantName = (index) =>
  index < 0 ? "no tenant" : names[snapshot.tenants[index]] || snapshot.tenants[index] || "shared by all";
const accentOf = (index) => ACCENTS[index % ACCENTS.length];

/** Colours as the canvas needs them, resolved by the browser from the tokens. */
function colour() {
  const probe = h("span", { class: "swatch", hidden: true });
  $("occupancy").append(probe);
  const resolve = (token, accent) => {
    if (accent) probe.dataset.accent = accent;
    probe.style.color = `var(${token})`;
    return getComputedStyle(probe).color;
  };
  grid.paint({
    line: resolve("--line"),
    page: resolve("--surface-1"),
    none: resolve("--text-3"),
    tenants: snapshot.tenants.map((_, index) => resolve("--accent", accentOf(index))),
  });
  probe.remove();
}

function tally() {
  const rows = snapshot.tenants.map((id, index) => ({
    index,
    used: 0,
    cached: 0,
    pinned: 0,
    running: snapshot.running?.[id] ?? 0,
    waiting: snapshot.waiting?.[id] ?? 0,
  }));
  const totals = { free: 0, cached: 0, used: 0, pinned: snapshot.pinned?.length ?? 0 };
  snapshot.state.forEach((state, block) => {
    totals[STATES[state]] += 1;
    const row = rows[snapshot.tenant[block]];
    if (row && state !== FREE) row[state === CACHED ? "cached" : "used"] += 1;
  });
  for (const block of snapshot.pinned ?? [])
    if (rows[snapshot.tenant[block]]) rows[snapshot.tenant[block]].pinned += 1;
  return { rows, totals };
}

const sum = (counts) => Object.values(counts ?? {}).reduce((all, one) => all + one, 0);

function numbers() {
  const { rows, totals } = tally();
  const all = snapshot.state.length;
  const share = (value) => (all ? `${Math.round((100 * value) / all)} % of ${count(all)}` : "");
  const figure = (name, value, note) =>
    h("div", {}, h("dt", { text: name }), h("dd", {}, count(value), h("small", { text: note })));
  $("totals").replaceChildren(
    figure("Used", totals.used, share(totals.used)),
    figure("Cached", totals.cached, share(totals.cached)),
    figure("Free", totals.free, share(totals.free)),
    figure("Pinned", totals.pinned, "of used and cached"),
    figure("Running", sum(snapshot.running), "sequences"),
    figure("Waiting", sum(snapshot.waiting), "sequences"),
  );
  legend(rows);
  $("counts").replaceChildren(
    ...rows.map((row) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, h("span", { class: "name" }, swatch(row.index), tenantName(row.index))),
        ...[row.used, row.cached, row.pinned, row.used + row.cached, row.running, row.waiting].map((value) =>
          h("td", { text: count(value) }),
        ),
      ),
    ),
  );
  if (rows.length === 0)
    $("counts").replaceChildren(
      h(
        "tr",
        {},
        h("td", { colspan: 7, text: "No tenant has a block yet. Ask something in a chat and watch." }),
      ),
    );
}

const swatch = (index) => h("i", { class: "cell", "data-accent": accentOf(index) });

/** Buttons are kept while the tenants stay, so that focus and a press are not lost to the next snapshot. */
function legend(rows) {
  const key = snapshot.tenants.join();
  if ($("legend").dataset.key !== key) {
    $("legend").dataset.key = key;
    $("legend").replaceChildren(
      ...rows.map((row) =>
        h(
          "li",
          {},
          h(
            "button",
            { type: "button", "aria-pressed": "false", onclick: () => filter(row.index) },
            swatch(row.index),
            h("span"),
          ),
        ),
      ),
    );
  }
  rows.forEach((row, at) => {
    $("legend").children[at].querySelector("span").textContent =
      `${tenantName(row.index)} ${count(row.used + row.cached)}`;
  });
}

function filter(index) {
  only = only === index ? null : index;
  [...$("legend").children].forEach((item, at) =>
    item.firstChild.setAttribute("aria-pressed", String(at === only)),
  );
  grid.dimOthers(only);
}

// --- pointing at a block -------------------------------------------------------------------------------------------

let pointed = -1;

function describe() {
  const lines = [STATES[snapshot.state[pointed]]];
  if (snapshot.pinned?.includes(pointed)) lines.push("pinned");
  if (snapshot.state[pointed] !== FREE) {
    const refs = snapshot.refs[pointed];
    lines.push(tenantName(snapshot.tenant[pointed]), `${refs} ${refs === 1 ? "reference" : "references"}`);
    lines.push(`${snapshot.filled[pointed]} of ${snapshot.block_size} tokens`);
  }
  $("hover").replaceChildren(h("strong", { text: `Block ${pointed}` }), lines.join(" · "));
}

$("grid").addEventListener("pointermove", (event) => {
  pointed = grid.blockAt(event.offsetX, event.offsetY);
  $("hover").hidden = pointed < 0;
  if (pointed < 0) return;
  describe();
  const x = Math.min(event.clientX + 16, innerWidth - $("hover").offsetWidth - 8);
  const y = Math.min(event.clientY + 16, innerHeight - $("hover").offsetHeight - 8);
  $("hover").style.transform = `translate(${x}px, ${y}px)`;
});
$("grid").addEventListener("pointerleave", () => {
  pointed = -1;
  $("hover").hidden = true;
});
$("worker").addEventListener("change", () => watch($("worker").value));
new ResizeObserver(() => {
  grid.resize();
  grid.redraw();
}).observe($("board"));
new MutationObserver(() => snapshot && colour()).observe(document.documentElement, {
  attributeFilter: ["class"],
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => snapshot && colour());

socket.connect();
