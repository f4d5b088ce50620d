/* A team's memory page: what it has in each engine, live, drawn as blocks; its running answers with their block tables.

   The server sends all there is to see whenever it has changed (chatapp/api/team_memory.py); what is shown of it is
   worked out in team-memory-cells.js. */

import { CellBoard } from "#octavo/cell-board.js";
import { onColours, resolver } from "#octavo/colours.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { Connection } from "#octavo/octavo.js";
import {
  cellsOf,
  describe,
  isEmpty,
  kindName,
  lookOf,
  nameOf,
  partsOf,
  rowsOf,
  shortId,
  summaryOf,
  tableOf,
} from "#octavo/team-memory-cells.js";

const PARTS = ["instructions", "running", "kept"];
// As long as this nobody needs to be told that something is on its way.
const LOADING_AFTER_MS = 150;
// A table of so many rows is as much as anybody reads.
const MOST_ROWS = 200;

// The tallest board before cells become smaller, as a share of the window.
const TALLEST = 0.3;

const $ = (id) => document.getElementById(id);
const page = $("team-memory");
const views = new Map();
let heard = false;

const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const resolve = resolver(page);
const coloursNow = () => ({
  shared: resolve("--accent"),
  own: resolve("--text-2"),
  page: resolve("--surface-1"),
  ring: resolve("--text-1"),
});
let colours = coloursNow();

class EngineView {
  constructor() {
    this.root = $("engine").content.firstElementChild.cloneNode(true);
    this.chosen = null; // the running answer whose blocks stand out
    this.cells = [];
    this.parts = { instructions: [0, 0], running: [0, 0], kept: [0, 0] };
    this.boards = Object.fromEntries(PARTS.map((part) => [part, this.#board(part)]));
    this.details = this.#part("table-details");
    this.details.addEventListener("toggle", () => this.#table());
  }

  #part(name) {
    return this.root.querySelector(`[data-part="${name}"]`);
  }

  #board(part) {
    const at = (index) => this.parts[part][0] + index;
    return new CellBoard({
      board: this.#part(`board-${part}`),
      card: $("card"),
      spoken: $("spoken"),
      tallest: TALLEST,
      look: (index) => {
        const dim = this.held !== null && !this.held.has(at(index));
        return lookOf(this.cells[at(index)], this.memory.block_size, colours, dim);
      },
      describe: (index) => describe(this.cells, at(index), this.memory),
      pick: (index) => {
        const holder = this.memory.sequences.find((one) => tableOf(one).includes(at(index)));
        if (holder) this.#choose(keyOf(holder));
      },
    });
  }

  held = null; // the cells of the chosen answer

  show(engine, answers, name) {
    this.engine = engine;
    this.memory = engine.memory;
    this.answers = answers;
    put(this.#part("name"), name);
    const empty = isEmpty(engine.memory, engine.queued);
    this.#part("empty").hidden = !empty || !engine.memory;
    this.#part("full").hidden = empty;
    this.#figures();
    if (empty) return;
    this.cells = cellsOf(this.memory);
    this.parts = partsOf(this.memory, this.cells);
    this.#sequences();
    this.#draw();
    this.#table();
  }

  redraw() {
    for (const board of Object.values(this.boards)) board.redraw();
  }

  #draw() {
    const sequence = this.memory.sequences.find((one) => keyOf(one) === this.chosen);
    this.held = sequence ? new Set(tableOf(sequence)) : null;
    for (const part of PARTS) {
      const [from, to] = this.parts[part];
      this.#part(`part-${part}`).hidden = from === to;
      put(this.#part(`count-${part}`), count(to - from));
      this.boards[part].show(to - from);
    }
    this.#blockTable(sequence);
  }

  #figures() {
    const memory = this.memory ?? { used: 0, kept: 0, host: 0, running: 0, waiting: 0, saved: 0, room: 0 };
    const { quota, queued } = this.engine;
    const set = (name, value, note) => {
      put(this.#part(`figure-${name}`), count(value));
      put(this.#part(`note-${name}`), note);
    };
    set("used", memory.used, fill(gettext("of %(n)s blocks"), { n: count(quota) }));
    set("kept", memory.kept + memory.host, memory.host ? fill(gettext("%(n)s in host memory"), { n: count(memory.host) }) : gettext("for what is asked next"));
    set("running", memory.running, fill(gettext("%(n)s waiting"), { n: count(memory.waiting + queued) }));
    set("saved", memory.saved, gettext("blocks held once, not several times"));
    set("room", memory.room, gettext("in last blocks, not filled yet"));
    const meter = this.#part("meter");
    Object.assign(meter, { max: quota, high: quota, low: quota * 0.8, value: Math.min(memory.used, quota) });
  }

  // --- running answers ----------------------------------------------------------------------------------------------

  /** Rows are kept while their answers run, so that focus and a press are not lost to the next frame. */
  #sequences() {
    const { sequences } = this.memory;
    const body = this.#part("answers");
    const there = new Map([...body.children].map((row) => [row.dataset.key, row]));
    const rows = sequences.map((sequence) => {
      const row = there.get(keyOf(sequence)) ?? this.#row(sequence);
      there.delete(keyOf(sequence));
      this.#fillRow(row, sequence);
      return row;
    });
    for (const gone of there.values()) gone.remove();
    rows.forEach((row, index) => body.children[index] !== row && body.insertBefore(row, body.children[index] ?? null));
    if (!sequences.some((sequence) => keyOf(sequence) === this.chosen)) this.chosen = null;
    this.#part("answers-table").hidden = sequences.length === 0;
    this.#part("no-answers").hidden = sequences.length > 0;
  }

  #row(sequence) {
    const key = keyOf(sequence);
    const choose = h("button", {
      type: "button",
      class: "link",
      "aria-pressed": "false",
      title: sequence.id,
      text: sequence.choice ? `…${shortId(sequence.id)} · ${count(sequence.choice + 1)}` : `…${shortId(sequence.id)}`,
      onclick: () => this.#choose(key),
    });
    const cells = Array.from({ length: 6 }, (_, index) => h("td", { class: index > 1 ? "figure" : null }));
    return h("tr", { "data-key": key }, h("th", { scope: "row" }, choose), ...cells);
  }

  #fillRow(row, sequence) {
    const [, kind, assistant, tokens, prompt, ready, blocks] = row.children;
    put(kind, nameOf(sequence, this.answers));
    put(assistant, this.answers[sequence.id]?.assistant || "–");
    put(tokens, count(sequence.tokens ?? 0));
    put(prompt, count(sequence.prompt ?? 0));
    put(ready, count(sequence.cached ?? 0));
    put(blocks, count(tableOf(sequence).filter((cell) => cell >= 0).length));
    row.querySelector("button").setAttribute("aria-pressed", String(keyOf(sequence) === this.chosen));
  }

  #choose(key) {
    this.chosen = this.chosen === key ? null : key;
    this.#sequences();
    this.#draw();
  }

  #blockTable(sequence) {
    const place = this.#part("block-table");
    place.hidden = !sequence;
    if (!sequence) return;
    const rows = rowsOf(sequence, this.cells);
    put(this.#part("block-table-title"), fill(gettext("Block table of …%(id)s"), { id: shortId(sequence.id) }));
    const key = JSON.stringify(rows);
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    this.#part("block-table-rows").replaceChildren(
      ...rows.map(({ from, to, first, kind }) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", text: span(from, to) }),
          h("td", { text: first < 0 ? "–" : span(first, first + to - from) }),
          h("td", { text: kindName(kind) }),
        ),
      ),
    );
  }

  /** The same for those who do not see the boards; made only while it is open. */
  #table() {
    if (!this.details.open || !this.memory) return;
    const rows = summaryOf(this.cells);
    const key = JSON.stringify(rows);
    if (this.details.dataset.key === key) return;
    this.details.dataset.key = key;
    const more = rows.length - MOST_ROWS;
    put(this.#part("table-more"), more > 0 ? fill(ngettext("And %(n)s more row.", "And %(n)s more rows.", more), { n: count(more) }) : "");
    this.#part("table-rows").replaceChildren(
      ...rows.slice(0, MOST_ROWS).map((row) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", text: span(row.from, row.to) }),
          h("td", { text: kindName(row.kind) }),
          h("td", { class: "figure", text: count(row.held) }),
          h("td", { text: row.pinned ? gettext("yes") : "–" }),
          h("td", { class: "figure", text: count(row.host) }),
        ),
      ),
    );
  }
}

const keyOf = (sequence) => `${sequence.id} ${sequence.choice ?? 0}`;
const span = (from, to) =>
  from === to ? count(from + 1) : fill(gettext("%(from)s–%(to)s"), { from: count(from + 1), to: count(to + 1) });

// --- the connection -------------------------------------------------------------------------------------------------

function show({ engines, answers }) {
  heard = true;
  page.dataset.state = engines.length ? "shown" : "none";
  say("");
  const place = $("engines");
  for (const [id, view] of views)
    if (!engines.some((engine) => engine.id === id)) {
      view.root.remove();
      views.delete(id);
    }
  const several = new Map();
  engines.forEach((engine, index) => {
    const alike = engines.filter((one) => one.model === engine.model).length;
    const number = (several.get(engine.model) ?? 0) + 1;
    several.set(engine.model, number);
    if (!views.has(engine.id)) views.set(engine.id, new EngineView());
    const view = views.get(engine.id);
    if (place.children[index] !== view.root) place.insertBefore(view.root, place.children[index] ?? null);
    const name = alike > 1 ? fill(gettext("%(model)s, engine %(n)s"), { model: engine.model, n: count(number) }) : engine.model;
    // Engines of one model share its queue: what waits there is counted with the first of them, once.
    view.show(number === 1 ? engine : { ...engine, queued: 0 }, answers, name);
  });
}

function say(text) {
  put($("memory-state"), text);
  $("memory-state").hidden = !text;
}

const address = new URL(page.dataset.socket, location.href);
address.protocol = address.protocol.replace("http", "ws");
const socket = new Connection(address.href, {
  onFrame: (frame) => {
    if (frame.type === "memory") show(frame);
  },
  onState: (state) => {
    if (state === "waiting") say(heard ? gettext("No connection. This is how it was.") : gettext("No connection to the server; trying again."));
    if (state === "ended") say(gettext("You may not see this any more. Log in again."));
    page.classList.toggle("away", state === "waiting" || state === "ended");
  },
});

const recolour = () => {
  colours = coloursNow();
  for (const view of views.values()) view.redraw();
};
onColours(recolour);

setTimeout(() => heard || (page.dataset.state = "loading"), LOADING_AFTER_MS);
addEventListener("online", () => socket.hurry());
socket.connect();
