/* A sequence's block table as the PagedAttention paper draws it (Kwon et al. 2023, figure 6): its logical blocks, the
   table with their physical numbers and what is filled, and the physical blocks in the order of memory, with a line for
   each entry. Draws what is in sight of a table of any length; the physical ones are those of the rows in sight.

   Arrow keys choose an entry; Enter goes to its block on the board. */

import { strengthOf, levelOf } from "#octavo/block-look.js";
import { OWN, PLATFORM, TEAM } from "#octavo/block-table.js";
import { plural, tableOf } from "#octavo/block-words.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";

const PITCH = 24;
const ROWS = 14;
const BAR = 15; // the height of a block
const HEAD = 24;
const SVG = "http://www.w3.org/2000/svg";
const LEAST = 40; // the width of a block
const MOST = 160;
const REGIONS = { [PLATFORM]: "platform", [TEAM]: "team", [OWN]: "own" };

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const refsOf = ({ refs }) => (refs > 1 ? ` ×${count(refs)}` : "");
const labelOf = (entry) => (entry.gone ? "" : count(entry.block) + refsOf(entry));

export class PagedFigure {
  /** `onChoose(block)`: an entry was chosen; `onOpen(block)`: the reader wants to go there. */
  constructor(place, { spoken, onChoose, onOpen }) {
    Object.assign(this, { place, spoken, onChoose, onOpen });
    this.svg = draw("svg", { class: "paged-drawing", "aria-hidden": "true" });
    this.space = h("div", { class: "paged-space" });
    this.scroller = h(
      "div",
      {
        class: "paged-scroll",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "block table of a sequence",
        "aria-label": "Logical to physical blocks. Up and down choose an entry, Enter goes to its block.",
      },
      this.space,
    );
    this.space.append(this.svg);
    place.replaceChildren(this.scroller);
    this.ruler = new OffscreenCanvas(1, 1).getContext("2d");
    this.entries = [];
    this.labels = ""; // the longest of what is said beside physical blocks
    this.chosen = -1;
    this.key = "";
    this.scroller.addEventListener("scroll", () => this.#draw(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.#pressed(event));
    this.svg.addEventListener("click", (event) => this.#clicked(event));
    new ResizeObserver(() => this.#draw()).observe(place);
  }

  /** `hue`: the name of a CSS variable. */
  show(table, row, hue) {
    const other = row.number !== this.number;
    this.number = row.number;
    this.size = table.head.block_size;
    this.hue = hue;
    this.entries = tableOf(table, row);
    this.labels = this.entries.reduce((longest, entry) => (labelOf(entry).length > longest.length ? labelOf(entry) : longest), "");
    if (other) {
      this.chosen = -1;
      this.scroller.scrollTop = 0;
    }
    this.space.style.blockSize = `${HEAD + this.entries.length * PITCH}px`;
    this.scroller.style.blockSize = `${HEAD + Math.min(this.entries.length, ROWS) * PITCH}px`;
    this.#draw();
  }

  /** Choose the entry of a block, if this table has it. */
  point(block) {
    const index = block < 0 ? -1 : this.entries.findIndex((entry) => entry.block === block);
    if (index === this.chosen) return;
    this.chosen = index;
    if (index >= 0) this.#reveal();
    this.#draw();
  }

  #pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const last = this.entries.length - 1;
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: 1 - ROWS, PageDown: ROWS - 1, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.chosen >= 0) this.onOpen(this.entries[this.chosen].block);
    else if (event.key in steps) {
      const from = this.chosen < 0 && steps[event.key] > 0 ? -1 : this.chosen;
      this.#choose(Math.max(0, Math.min(from + steps[event.key], last)), true);
    } else return;
    event.preventDefault();
  }

  #clicked(event) {
    const at = event.clientY - this.svg.getBoundingClientRect().top - HEAD;
    const right = event.target.closest("[data-index]");
    const index = right ? Number(right.dataset.index) : this.first + Math.floor(at / PITCH);
    if (at >= 0 && index < this.entries.length) this.#choose(index, false);
  }

  #choose(index, aloud) {
    this.chosen = index;
    this.#reveal();
    this.#draw();
    const entry = this.entries[index];
    this.onChoose(entry.block);
    if (!aloud) return;
    this.spoken.textContent = entry.gone
      ? `Logical block ${index} lay behind the model's window and is gone.`
      : `Logical block ${index} is physical block ${entry.block}. ${entry.filled} of ${this.size} tokens, ${plural(entry.refs, "reference")}.`;
  }

  #reveal() {
    const top = this.chosen * PITCH;
    const view = this.scroller.clientHeight - HEAD;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + PITCH > this.scroller.scrollTop + view) this.scroller.scrollTop = top + PITCH - view;
  }

  #draw() {
    const width = this.scroller.clientWidth;
    if (!width || !this.entries.length) return;
    const shown = Math.min(this.entries.length, ROWS);
    this.first = Math.max(0, Math.min(Math.round(this.scroller.scrollTop / PITCH), this.entries.length - shown));
    const rows = this.entries.slice(this.first, this.first + shown);
    const key = JSON.stringify([width, this.hue, this.chosen, this.size, this.labels, rows]);
    if (key === this.key) return;
    this.key = key;
    const narrow = width < 420;
    const cell = narrow ? 36 : 48;
    const [logical, gap, line] = narrow ? [32, 12, 24] : [92, 24, 56];
    const names = narrow ? ["Logical", "Table", "Physical"] : ["Logical blocks", "Block table", "Physical blocks"];
    // Words have the room that they need; blocks share what is left.
    const label = 6 + this.#widthOf(this.labels);
    const room = width - logical - gap - cell * 1.6 - line - label;
    const bar = Math.min(Math.max(room / 2, LEAST), MOST);
    const x = {
      region: 0,
      index: logical - 8,
      logical,
      table: logical + Math.max(bar + gap, this.#widthOf(names[0]) + gap / 2),
      physical: width - bar - label,
    };
    const out = x.table + cell * 1.6;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEAD + shown * PITCH}`);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", HEAD + shown * PITCH);
    this.svg.style.setProperty("--hue", `var(${this.hue})`);
    const heads = [x.logical, x.table, x.physical].map((at, n) => draw("text", { class: "paged-head", x: at, y: 13 }, names[n]));
    const places = new Map(
      rows.filter((row) => !row.gone).map((row) => row.block).sort((a, b) => a - b).map((block, n) => [block, n]),
    );
    const lines = [];
    const parts = [];
    rows.forEach((row, n) => {
      const y = HEAD + n * PITCH + (PITCH - BAR) / 2;
      const is = row.index === this.chosen ? " chosen" : "";
      const text = (at, content, more = "") =>
        draw("text", { class: `paged-text${more}${is}`, x: at, y: y + BAR - 3.5, "data-index": row.index }, content);
      if (!narrow && (n === 0 || rows[n - 1].kind !== row.kind)) parts.push(text(x.region, REGIONS[row.kind], " quiet"));
      parts.push(text(x.index, count(row.index), " end quiet"));
      if (row.gone) {
        parts.push(text(x.logical, "gone: behind the window", " quiet"));
        return;
      }
      parts.push(this.#slots(x.logical, y, bar, row, `paged-slots${is}`));
      parts.push(
        draw("rect", { class: `paged-entry${is}`, x: x.table, y, width: cell, height: BAR, "data-index": row.index }),
        draw("rect", { class: `paged-entry${is}`, x: x.table + cell, y, width: cell * 0.6, height: BAR, "data-index": row.index }),
        text(x.table + cell - 5, count(row.block), " end"),
        text(x.table + cell * 1.6 - 5, row.filled, " end"),
      );
      const place = places.get(row.block);
      const to = HEAD + place * PITCH + PITCH / 2;
      const from = y + BAR / 2;
      const bend = (x.physical - out) / 2;
      const path = `M${out} ${from} C${out + bend} ${from} ${x.physical - bend} ${to} ${x.physical} ${to}`;
      lines.push(draw("path", { class: `paged-line${is}`, d: path, "data-index": row.index }));
      const top = to - BAR / 2;
      parts.push(this.#slots(x.physical, top, bar, row, `paged-slots${is}`));
      const words = draw("text", { class: `paged-text${is}`, x: x.physical + bar + 6, y: top + BAR - 3.5, "data-index": row.index });
      words.append(count(row.block));
      if (row.refs > 1) words.append(draw("tspan", { class: "paged-refs" }, refsOf(row)));
      parts.push(words);
    });
    // Between physical blocks that are no neighbours lie others.
    [...places.keys()].forEach((block, n, all) => {
      if (n === 0 || all[n - 1] === block - 1) return;
      const y = HEAD + n * PITCH;
      parts.push(draw("line", { class: "paged-break", x1: x.physical, x2: x.physical + bar, y1: y, y2: y }));
    });
    lines.sort((a, b) => a.classList.contains("chosen") - b.classList.contains("chosen"));
    this.svg.replaceChildren(...heads, ...lines, ...parts);
  }

  /** How wide words are in the drawing, at the most: chosen ones are bolder. */
  #widthOf(text) {
    const { fontSize, fontFamily } = getComputedStyle(this.svg);
    this.ruler.font = `600 ${fontSize} ${fontFamily}`;
    return Math.ceil(this.ruler.measureText(text).width);
  }

  /** A block: its slots, those that hold a token filled. */
  #slots(x, y, width, row, name) {
    const { size } = this;
    const group = draw("g", { class: name, "data-index": row.index });
    group.append(draw("rect", { class: "paged-block", x, y, width, height: BAR }));
    if (row.filled) {
      const filled = draw("rect", { class: "paged-filled", x, y, width: (width * row.filled) / size, height: BAR });
      filled.style.fillOpacity = strengthOf(levelOf(row.refs));
      group.append(filled);
    }
    if (size > 1 && width / size >= 3) {
      let ticks = "";
      for (let slot = 1; slot < size; slot += 1) ticks += `M${x + (width * slot) / size} ${y}v${BAR}`;
      group.append(draw("path", { class: "paged-ticks", d: ticks }));
    }
    return group;
  }
}
