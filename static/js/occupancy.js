/* The operators' block table: which worker, now or at a moment of the last half hour, and which block.

   The feed keeps the table that frames add up to (block-table.js); this joins it to what shows it. The board is drawn
   with every frame, what is said in words a few times a second. */

import { BlockCard } from "#octavo/block-card.js";
import { BlockList } from "#octavo/block-list.js";
import { passes } from "#octavo/block-look.js";
import { Feed, figuresOf } from "#octavo/block-table.js";
import { plural, sequenceName, shortId } from "#octavo/block-words.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { onColours, resolver } from "#octavo/colours.js";
import { coloursOf, Grid } from "#octavo/grid.js";
import { hueNumber, hueOf } from "#octavo/hues.js";
import { health, Lanes } from "#octavo/lanes.js";
import { moved } from "#octavo/memory-cells.js";
import { Connection, socketUrl } from "#octavo/octavo.js";
import { PagedFigure } from "#octavo/paged-figure.js";
import { PoolFigures, swatch } from "#octavo/pool-figures.js";
import { fillRows, row, say } from "#octavo/rows.js";
import { clock, TimeLine } from "#octavo/time-line.js";

const WORDS_EVERY_MS = 250;
// A row of the list of sequences is so high, and the list so many pixels, as occupancy.css has it.
const ROW = 32;
const SIGHT = 13 * ROW;
// A worker that is watched and says nothing for so long has nothing to say.
const PATIENCE_MS = 3000;
// A page that nobody touches goes over to the successor of a worker that is gone: it may hang on a wall.
const FOLLOW_MS = 60_000;
// Times of frames and of the line's points differ by as much; more is history that is not kept.
const SLACK_MS = 2000;

const $ = (id) => document.getElementById(id);
const place = $("occupancy");

const wanted = new URLSearchParams(location.search).get("worker"); // by the link that led here
let workers = []; // alive, and the one that is watched though it is gone
let names = {};
let queued = {}; // model -> tenant -> what no worker has taken yet
let watched = null;
let at = null; // the moment that is shown; null: now
let asked = null; // the moment that was asked for and is under way
let next = null; // the one to ask for then
let pointed = -1; // by the pointer
let chosen = -1; // by click or key
let open = null; // the number of the sequence whose table is shown
let goneAt = 0; // by the page's clock, when the watched worker was first missed
const lines = new Map(); // worker -> the points of its time line
const filter = { tenants: new Set(), marks: new Set() }; // tenants by id here, by place for the board

const grid = new Grid({
  board: $("board"), scroller: $("board-scroll"), space: $("board-space"),
  canvas: $("grid"), overlay: $("chosen"), map: $("map"), view: $("view"),
}); // prettier-ignore
const figures = new PoolFigures({
  totals: $("totals"), saved: $("saved"), bar: $("pool-bar"), counts: $("counts"), none: $("no-teams"),
}); // prettier-ignore
const card = new BlockCard($("hover"));
const paged = new PagedFigure($("paged-figure"), {
  spoken: $("spoken"),
  onChoose: (block) => choose(block),
  onOpen: (block) => {
    choose(block);
    $("board-scroll").focus();
  },
});
const list = new BlockList({
  details: $("blocks"), body: $("blocks-body"), where: $("blocks-where"),
  before: $("blocks-before"), next: $("blocks-next"), field: $("blocks-field"),
  onChoose: (block) => {
    choose(block);
    $("board-scroll").focus();
  },
  wanted: (block) => passes(feed.table, block, grid.filter),
}); // prettier-ignore
const lanes = new Lanes($("lanes"), { onChoose: (worker) => worker !== watched && watch(worker) });
const time = new TimeLine(
  { place: $("time-line"), moment: $("moment"), earlier: $("earlier"), later: $("later"), live: $("go-live") },
  { onPick: (moment) => lookBack(moment), onLive: () => goLive(), nameOf: (id) => nameOf(id) },
);
const feed = new Feed({ onChange: changed, onGap: () => (at === null ? ask("watch") : lookBack(at)) });
const socket = new Connection(socketUrl("/ws/ops/occupancy"), {
  onFrame: heard,
  onBytes: (message) => feed.take(message),
  onState: connected,
});

const nameOf = (id) => names[id] || shortId(id);
const teamAt = (tenant) => nameOf(feed.table.tenants[tenant] ?? "");

// --- the connection -------------------------------------------------------------------------------------------------

function connected(state) {
  if (state === "open") {
    for (const worker of workers) socket.send({ type: "line", worker: worker.id });
    asked = null;
    if (watched && at === null) ask("watch");
    else if (watched) lookBack(at);
  }
  place.dataset.connection = state;
  if (state === "waiting") say($("about"), "No connection to the server; trying again.");
  if (state === "ended") say($("about"), "You may not see this any more. Log in again.");
}

function heard(frame) {
  if (frame.type === "workers") listWorkers(frame);
  else if (frame.type === "line") {
    lines.set(frame.worker, frame.points);
    if (frame.worker === watched) time.show(frame.points);
    tellLanes();
  } else if (frame.type === "point") {
    if (frame.worker === watched) time.add(frame.point);
    else lines.set(frame.worker, [...(lines.get(frame.worker) ?? []), frame.point].slice(-900));
    tellLanes();
  } else if (frame.type === "shown") feed.after(() => shown(frame));
}

const ask = (type) => socket.send({ type, worker: watched });

// --- which worker ---------------------------------------------------------------------------------------------------

function listWorkers(frame) {
  const known = new Set(workers.map(({ id }) => id));
  const before = workers.find(({ id }) => id === watched);
  names = frame.tenants;
  queued = frame.queued ?? {};
  workers = frame.workers;
  for (const { id } of workers) if (!known.has(id)) socket.send({ type: "line", worker: id });
  const lost = before && !workers.some(({ id }) => id === watched);
  // The last picture of one that is gone stays, and its history with it; an empty page would say less.
  if (lost && feed.table.head) workers = [{ ...before, gone: true }, ...workers];
  else if (lost || !watched) watched = null;
  followOn();
  if (!watched && workers.length) watch((workers.find(({ id }) => id === wanted) ?? workers[0]).id);
  tell();
  if (feed.table.head) tellOnce(figuresInWords);
}

/** Another worker of the same model, or any; who looks at something of the one that is gone keeps it. */
const successor = (worker) => workers.find((one) => !one.gone && one.model === worker.model) ?? workers.find((one) => !one.gone);

function followOn() {
  const worker = workers.find(({ id }) => id === watched);
  if (!worker?.gone) goneAt = performance.now();
  else if (at === null && chosen < 0 && open === null && performance.now() - goneAt > FOLLOW_MS) {
    const other = successor(worker);
    if (other) watch(other.id);
  }
}

function watch(worker) {
  watched = worker;
  at = asked = next = null;
  pointed = chosen = -1;
  open = null;
  card.hide();
  grid.choose(-1);
  grid.hold([]);
  feed.begin(worker);
  time.look(null);
  time.show(lines.get(worker) ?? []);
  ask("watch");
  const { table } = feed;
  setTimeout(() => feed.table === table && tell(), PATIENCE_MS);
  place.dataset.since = String(performance.now());
  tell();
}

/** How the page stands, in words. */
function tell() {
  const worker = workers.find((one) => one.id === watched);
  const any = Boolean(feed.table.head);
  const silent = worker && !any && performance.now() - Number(place.dataset.since) >= PATIENCE_MS;
  place.dataset.state = !worker ? "none" : silent ? "silent" : !any ? "connecting" : worker.gone ? "gone" : at === null ? "live" : "past";
  $("none").hidden = Boolean(worker);
  $("live").hidden = !worker || !any;
  $("skeleton").hidden = !worker || any || silent;
  grid.unplaced();
  tellLanes();
  tellNotice(worker, silent);
  if (place.dataset.connection !== "open") return;
  if (!worker) say($("about"), "0 workers");
  else {
    const parts = [
      worker.model,
      worker.device,
      worker.dtype,
      `${count(worker.num_blocks)} blocks of ${worker.block_size} tokens`,
      workers.length > 1 ? worker.id : "",
      health(worker),
    ];
    say($("about"), parts.filter(Boolean).join(" · "));
  }
}

function tellLanes() {
  lanes.show(workers, watched, (id) => (id === watched && at === null && feed.table.head ? feed.table.figures : figuresAt(id)));
}

const figuresAt = (id) => {
  const point = lines.get(id)?.at(-1);
  return point && figuresOf(point.figures);
};

function tellNotice(worker, silent) {
  let text = "";
  let way = null;
  if (silent) text = "This worker has said nothing of its blocks yet. It does so as soon as something runs.";
  else if (worker?.gone) {
    const when = clock(feed.table.head.at_ms);
    text = `This worker is gone. What you see is ${at === null ? "its last picture, of" : "how it was at"} ${when}.`;
    const other = successor(worker);
    if (other) way = { text: `Watch ${other.id}`, go: () => watch(other.id) };
  } else if (place.dataset.short) {
    text = place.dataset.short;
    way = { text: "Live", go: goLive };
  }
  const key = `${text}\n${way?.text}`;
  if ($("notice").dataset.key === key) return;
  $("notice").dataset.key = key;
  $("notice").hidden = !text;
  $("notice").replaceChildren(h("span", { text }));
  if (way) $("notice").append(h("button", { type: "button", text: way.text, onclick: way.go }));
}

// --- now, or a moment -----------------------------------------------------------------------------------------------

function goLive() {
  at = asked = next = null;
  delete place.dataset.short;
  time.look(null);
  ask("watch");
  tell();
}

function lookBack(moment) {
  at = Math.round(moment);
  time.look(at);
  if (asked !== null) next = at;
  else if (socket.send({ type: "at", worker: watched, at_ms: at })) asked = at;
  tell();
}

/** The frames of a moment are in. */
function shown(frame) {
  if (frame.worker !== watched || asked === null) return;
  asked = null;
  if (next !== null && next !== frame.at_ms && at !== null) {
    const moment = next;
    next = null;
    lookBack(moment);
    return;
  }
  next = null;
  if (at === null) return;
  delete place.dataset.short;
  if (!frame.frame_ms) place.dataset.short = "Nothing is kept of that time any more.";
  else if (frame.frame_ms > frame.at_ms + SLACK_MS)
    place.dataset.short = `History does not reach back so far. What you see is the oldest picture, of ${clock(frame.frame_ms)}.`;
  drawSoon(null);
  tell();
}

// --- drawing --------------------------------------------------------------------------------------------------------

let due = []; // what changed since the last picture; null: all
let waits = false;
let tenants = null; // the ids of them that colours and legend were made for
let total = -1;
let told = 0;
let telling = null;
const HALVES = [figuresInWords, sequencesInWords];
let untold = [];

function changed(blocks) {
  if (asked === null) drawSoon(blocks);
}

function drawSoon(blocks) {
  // Many at once are a catching up: all is looked at then.
  due = blocks === null || due === null || due.length > 4 ? null : [...due, blocks];
  if (waits) return;
  waits = true;
  const draw = () => {
    waits = false;
    drawNow();
  };
  // A hidden tab has no frames; its page still has to be right.
  if (document.hidden) setTimeout(draw, WORDS_EVERY_MS);
  else requestAnimationFrame(draw);
}

function drawNow() {
  const { table } = feed;
  if (!table.head) return;
  if ($("live").hidden) tell();
  const all = due;
  due = [];
  const named = table.tenants.join();
  if (tenants !== named || total !== table.total) {
    tenants = named;
    total = table.total;
    grid.filter = filterByPlace();
    grid.show(table, hues());
  } else if (grid.table !== table) grid.show(table, hues());
  else if (all === null) grid.draw(null);
  else for (const blocks of all) grid.draw(blocks);
  holdOpen();
  HALVES.forEach(tellOnce);
}

function tellOnce(half) {
  if (!untold.includes(half)) untold = [...untold, half];
  tellSoon();
}

/** What waits for a worker of this model. What was, nobody has kept; and for one that is gone nothing waits. */
function queueNow() {
  const worker = workers.find(({ id }) => id === watched);
  return at === null && worker && !worker.gone ? (queued[worker.model] ?? {}) : {};
}

const tellSoon = () => {
  if (!telling) telling = setTimeout(words, Math.max(0, told + WORDS_EVERY_MS - performance.now()));
};

const hues = () => feed.table.tenants.map(hueNumber);

/** What is said beside the board, one half of it and then the other, so that no update has to bear all. */
function words() {
  telling = null;
  told = performance.now();
  if (!feed.table.head) return;
  untold.shift()();
  if (untold.length) tellSoon();
}

function figuresInWords() {
  figures.show(feed.table, lines.get(watched) ?? [], nameOf, queueNow());
  tellLegend();
}

function sequencesInWords() {
  tellSequences();
  tellOpen();
  list.show(feed.table, teamAt);
  if (!$("hover").hidden) describe({ still: true });
}

// --- the legend -----------------------------------------------------------------------------------------------------

function tellLegend() {
  const { table } = feed;
  const of = table.figures.of;
  const ids = [...table.tenants].sort((a, b) => sum(of[b]) - sum(of[a]) || hueNumber(a) - hueNumber(b));
  // Buttons stay where they are while the teams stay the same, so that nobody presses another than was meant.
  const kept = [...$("legend").children].map((item) => item.dataset.key);
  const order = [...kept.filter((id) => ids.includes(id)), ...ids.filter((id) => !kept.includes(id))];
  fillRows($("legend"), order, {
    keyOf: (id) => id,
    make: (id) => h("li", {}, h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle(filter.tenants, id) }, swatch(id), h("span"), h("b"))),
    tell: (item, id) => {
      const button = item.firstChild;
      say(button.querySelector("span"), nameOf(id));
      say(button.querySelector("b"), count(sum(of[id])));
      button.setAttribute("aria-pressed", String(filter.tenants.has(id)));
    },
  });
  $("marks").querySelector("[data-host]").hidden = !table.head.host_blocks;
}

const sum = (told) => (told ? told[0] + told[1] : 0);

function toggle(set, value) {
  if (!set.delete(value)) set.add(value);
  refilter();
}

function refilter() {
  for (const button of $("marks").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(filter.marks.has(button.dataset.mark)));
  for (const item of $("legend").children)
    item.firstChild.setAttribute("aria-pressed", String(filter.tenants.has(item.dataset.key)));
  $("all").hidden = !filter.tenants.size && !filter.marks.size;
  grid.only(filterByPlace());
  list.reset();
}

const filterByPlace = () => ({
  tenants: new Set([...filter.tenants].map((id) => feed.table.tenants.indexOf(id))),
  marks: filter.marks,
});

$("marks").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) toggle(filter.marks, button.dataset.mark);
});
$("all").addEventListener("click", () => {
  filter.tenants.clear();
  filter.marks.clear();
  refilter();
  $("board-scroll").focus();
});

// --- sequences ------------------------------------------------------------------------------------------------------

/** The rows in sight, between two that keep the room of the others: a busy worker has hundreds. */
function tellSequences() {
  const { table } = feed;
  const all = [...table.rows.values()].sort((a, b) => a.number - b.number);
  $("idle").hidden = all.length > 0;
  $("sequences-table").hidden = all.length === 0;
  $("beside").hidden = all.length === 0 && open === null;
  const first = Math.max(0, Math.min(Math.floor(scroller.scrollTop / ROW) - 2, all.length - 1));
  const last = Math.min(first + Math.ceil(SIGHT / ROW) + 4, all.length);
  $("sequences-above").style.blockSize = `${first * ROW}px`;
  $("sequences-below").style.blockSize = `${(all.length - last) * ROW}px`;
  $("sequences-table").setAttribute("aria-rowcount", String(all.length + 1));
  fillRows($("sequences"), all.slice(first, last), {
    keyOf: ({ number }) => number,
    make: ({ number, tenant }) =>
      row(h("button", { type: "button", onclick: () => openSequence(number) }, swatch(table.tenants[tenant]), h("span")), 5),
    tell: (line, one) => {
      line.classList.toggle("open", one.number === open);
      const button = line.querySelector("button");
      button.setAttribute("aria-pressed", String(one.number === open));
      button.title = `Generation ${one.id}`;
      say(button.querySelector("span"), sequenceName(one));
      const team = one.tenant < 0 ? "" : teamAt(one.tenant);
      say(line.cells[1], team);
      line.cells[1].title = team;
      [one.prompt, one.cached, one.tokens, one.blocks.length].forEach((n, place) => say(line.cells[place + 2], count(n)));
    },
  });
  [...$("sequences").children].forEach((line, place) => line.setAttribute("aria-rowindex", String(first + place + 2)));
}

const scroller = $("sequences-scroll");
scroller.addEventListener("scroll", () => feed.table.head && tellSequences(), { passive: true });

function openSequence(number) {
  open = open === number ? null : number;
  tellSequences();
  tellOpen();
  holdOpen();
}

function holdOpen() {
  const one = open === null ? null : feed.table.rows.get(open);
  const blocks = one ? one.blocks.filter((block) => block >= 0) : [];
  if (blocks.length || grid.held.length) grid.hold(blocks);
}

function tellOpen() {
  $("paged").hidden = open === null;
  if (open === null) return;
  const one = feed.table.rows.get(open);
  if (!one) {
    say($("paged-about"), at === null ? "It has ended: its blocks are cached or free now." : "It does not run at this moment.");
    $("paged").classList.add("ended");
    return;
  }
  $("paged").classList.remove("ended");
  const { block_size: size } = feed.table.head;
  const live = one.blocks.filter((block) => block >= 0).length;
  say($("paged-title"), `${sequenceName(one)} · ${one.tenant < 0 ? "no team" : teamAt(one.tenant)}`);
  const waste = Math.max(live * size - one.tokens, 0);
  const shared = one.blocks.filter((block) => block >= 0 && feed.table.refs(block) > 1).length;
  say(
    $("paged-about"),
    `${plural(one.tokens, "token")} in ${plural(live, "block")}, ${count(shared)} of them shared; ` +
      `${count(one.cached)} of ${count(one.prompt)} prompt tokens found; ${plural(waste, "slot")} not filled.`,
  );
  paged.show(feed.table, one, one.tenant < 0 ? "--text-3" : hueOf(feed.table.tenants[one.tenant]));
}

$("paged-close").addEventListener("click", () => {
  const line = $("sequences").querySelector(`[data-key="${open}"] button`);
  openSequence(open);
  (line ?? $("board-scroll")).focus();
});

// --- pointing at a block --------------------------------------------------------------------------------------------

/** `still`: nothing has moved since. */
function describe({ aloud = false, still = false } = {}) {
  const block = pointed >= 0 ? pointed : chosen;
  if (block < 0 || block >= feed.table.total) {
    card.hide();
    return;
  }
  const said = card.show(feed.table, block, still ? null : grid.whereIs(block), teamAt);
  if (aloud) $("spoken").textContent = said;
}

/** Choose a block, as by a click or a key: it keeps its card. */
function choose(block, aloud = false) {
  chosen = block;
  pointed = -1;
  grid.choose(block, block < 0 ? [] : feed.table.chain(block));
  grid.reveal(block);
  paged.point(block);
  describe({ aloud });
}

/** Open the sequence that holds a block; of several the one after that which is open. */
function openHolder(block) {
  const holders = feed.table.holders(block);
  if (!holders.length) return false;
  const place = holders.findIndex(({ row: one }) => one.number === open);
  const { row: one } = holders[(place + 1) % holders.length];
  if (one.number !== open) openSequence(one.number);
  paged.point(block);
  return true;
}

const board = $("board-scroll");
board.addEventListener("pointermove", (event) => {
  if (event.pointerType === "touch") return;
  const block = grid.blockAt(event.clientX, event.clientY);
  if (block === pointed) return;
  pointed = block;
  if (block >= 0) grid.choose(block, feed.table.chain(block));
  else grid.choose(chosen, chosen < 0 ? [] : feed.table.chain(chosen));
  describe();
});
board.addEventListener("pointerleave", () => {
  pointed = -1;
  grid.choose(chosen, chosen < 0 ? [] : feed.table.chain(chosen));
  describe();
});
board.addEventListener("click", (event) => {
  const block = grid.blockAt(event.clientX, event.clientY);
  choose(block === chosen ? -1 : block);
  if (chosen >= 0) openHolder(chosen);
});
board.addEventListener("blur", () => {
  if (chosen < 0) return;
  card.hide();
});
board.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || !grid.form) return;
  const { table } = feed;
  const pages = { PageDown: grid.page, PageUp: -grid.page };
  if (event.key in pages) choose(Math.max(0, Math.min(Math.max(chosen, 0) + pages[event.key], table.total - 1)), true);
  else if (event.key === "Escape" && chosen >= 0) choose(-1);
  else if ((event.key === "p" || event.key === "P") && chosen >= 0) {
    const parent = table.parent(chosen);
    if (parent >= 0) choose(parent, true);
    else $("spoken").textContent = "It builds on no other block.";
  } else if (event.key === "Enter" && chosen >= 0) {
    const opened = openHolder(chosen);
    $("spoken").textContent = opened ? `${$("paged-title").textContent}. ${$("paged-about").textContent}` : "No running sequence holds this block.";
  } else {
    const to = moved(event.key === "End" ? Math.max(chosen, 0) : chosen, event.key, grid.form, table.total);
    if (to === null) return;
    choose(to, true);
  }
  event.preventDefault();
});
// Whatever scrolls, the board may be moved by it.
addEventListener(
  "scroll",
  () => {
    grid.unplaced();
    if (!$("hover").hidden) describe();
  },
  { passive: true, capture: true },
);
addEventListener("resize", () => grid.unplaced());

// --- colours and sizes ----------------------------------------------------------------------------------------------

const resolve = resolver(place);
const colour = () => grid.colour(coloursOf(resolve));
colour();
onColours(colour);
let width = 0;
new ResizeObserver(([entry]) => {
  const now = Math.round(entry.contentRect.width);
  if (now === width) return;
  width = now;
  grid.resize();
}).observe($("board"));

socket.connect();
