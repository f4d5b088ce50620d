/* Markdown as safe DOM, incrementally. Joins the grammar (what the text means), the cleaning (what may come of it), and
   the frames of code, tables and formulas.

   HTML in the source is text, never markup; every block passes DOMPurify; images become links, so that an answer cannot
   make a browser fetch something. Blocks whose source has not changed keep their DOM, and so do the parts of the one
   that grows; what a text looks like at its end is what it looks like rendered at once. */

import { BlockCutter } from "#octavo/blocks.js";
import { cleanText } from "#octavo/clean.js";
import { codeFrame, finishCode, growCode, keepCode } from "#octavo/code.js";
import { h } from "#octavo/dom.js";
import { drawFormulas, frameFormula, keepFormula } from "#octavo/formula.js";
import { grammar } from "#octavo/grammar.js";
import { gettext } from "#octavo/i18n.js";
import { morph } from "#octavo/morph.js";
import { repairSource, withoutHalfFence } from "#octavo/repair.js";
import { frameTable, keepTable } from "#octavo/table.js";

const md = grammar();

const keep = (old, next) => keepCode(old, next) ?? keepFormula(old, next) ?? keepTable(old, next);

/** Safe DOM of a markdown text, without colours and formulas (`finish`). `references`: link definitions that stand elsewhere. */
export function render(source, { references = {}, live = false } = {}) {
  const env = { references: { ...references }, live };
  const fragment = cleanText(md.render(source, env));
  fragment.querySelectorAll("pre").forEach((pre, index) => {
    pre.replaceWith(codeFrame(pre.textContent, env.codes[index]));
  });
  fragment.querySelectorAll(".math").forEach((place, index) => frameFormula(place, env.formulas[index]));
  for (const table of fragment.querySelectorAll("table")) frameTable(table);
  for (const item of fragment.querySelectorAll("li.task")) {
    const said = item.classList.contains("done") ? gettext("Done") : gettext("To do");
    const first = item.firstElementChild;
    const place = first?.localName === "p" && !item.firstChild.data?.trim() ? first : item;
    place.prepend(h("span", { class: "box", role: "img", "aria-label": said }));
  }
  for (const quote of fragment.querySelectorAll(".alert")) quote.prepend(h("p", { class: "alert-name", text: alertName(quote) }));
  return fragment;
}

function alertName({ classList }) {
  if (classList.contains("tip")) return gettext("Tip");
  if (classList.contains("important")) return gettext("Important");
  if (classList.contains("warning")) return gettext("Warning");
  return classList.contains("caution") ? gettext("Caution") : gettext("Note");
}

function finish(element) {
  finishCode(element);
  drawFormulas(element);
}

// The heading above each message, which says who speaks.
const WHO_LEVEL = 2;
const HEADINGS = "h3, h4, h5, h6";

/** A growing markdown text in an element. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.cutter = new BlockCutter(md);
    this.keys = [];
    this.settled = 0; // so many blocks from the first can no longer change
    this.names = "";
    this.ragged = false; // a block with headings has changed
  }

  update(text, live = false) {
    const sources = this.cutter.update(text, live);
    const references = this.cutter.allReferences;
    const names = Object.entries(references)
      .map(([name, { href }]) => `${name} ${href}`)
      .join("\n");
    if (names !== this.names || this.cutter.restarted) this.settled = 0;
    this.names = names;
    for (let index = this.settled; index < sources.length; index += 1) {
      const growing = live && index === sources.length - 1;
      this.#show(index, sources[index], { growing, references, names });
    }
    while (this.element.children.length > sources.length) this.element.lastElementChild.remove();
    this.keys.length = sources.length;
    if (this.ragged) this.#outline();
    this.settled = Math.min(this.cutter.closed.length, Math.max(0, sources.length - 1));
  }

  /** No heading is more than one level below the one before it, whatever the answer's author skipped: who reads by
      headings finds an outline without holes. */
  #outline() {
    this.ragged = false;
    let before = WHO_LEVEL;
    for (const heading of this.element.querySelectorAll(HEADINGS)) {
      const own = Number(heading.localName[1]);
      const level = Math.min(own, before + 1);
      if (level === own) heading.removeAttribute("aria-level");
      else heading.setAttribute("aria-level", level);
      before = level;
    }
  }

  #show(index, source, { growing, references, names }) {
    let block = this.element.children[index];
    const code = growing ? this.cutter.code : null;
    const key = code === null ? "" : `code ${this.cutter.fence.head}`;
    if (code !== null && this.keys[index] === key) {
      // The usual long block is code at the margin: what is new in it is all there is to do.
      growCode(block.firstElementChild, withoutHalfFence(code, this.cutter.fence.mark), true);
      return;
    }
    const shown = growing ? repairSource(source, index === 0) : source;
    // A definition that comes late makes links of brackets in blocks above it.
    const whole = key || `${growing} ${source.includes("[") ? names : ""} ${shown}`;
    if (this.keys[index] === whole) return;
    this.keys[index] = whole;
    block ??= this.element.appendChild(h("div", { class: "block" }));
    morph(block, render(shown, { references, live: growing }), keep);
    finish(block);
    this.ragged ||= block.querySelector(HEADINGS) !== null;
  }
}
