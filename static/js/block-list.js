/* All blocks of a worker as a table, a hundred at a time: the board for those who do not see it, or want the numbers. */

import { FREE } from "#octavo/block-table.js";
import { ago, chainWords, plural, regionName, sequenceName, stateName } from "#octavo/block-words.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { fillRows, row, say } from "#octavo/rows.js";

const PAGE = 100;

export class BlockList {
  /** `onChoose(block)`: its row was chosen; `wanted(block)`: passes the legend's filter. */
  constructor({ details, body, where, before, next, field, onChoose, wanted }) {
    Object.assign(this, { details, body, where, before, next, field, onChoose, wanted });
    this.first = 0; // in the list of those that pass
    details.addEventListener("toggle", () => this.#fill());
    before.addEventListener("click", () => this.#go(this.first - PAGE));
    next.addEventListener("click", () => this.#go(this.first + PAGE));
    field.addEventListener("change", () => field.value !== "" && this.#goTo(field.valueAsNumber));
    body.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.onChoose(Number(button.dataset.block));
    });
  }

  show(table, nameOf) {
    this.table = table;
    this.nameOf = nameOf;
    this.field.max = table.total - 1;
    this.#fill();
  }

  /** From the beginning: another filter. */
  reset() {
    this.#go(0);
  }

  #go(first) {
    this.first = Math.max(first, 0);
    this.#fill();
  }

  #goTo(block) {
    const at = this.#passing().findIndex((one) => one >= block);
    this.#go(at < 0 ? Infinity : Math.floor(at / PAGE) * PAGE); // behind the last one: the last page
    this.body.querySelector(`[data-block="${block}"]`)?.focus();
  }

  #passing() {
    const found = [];
    for (let block = 0; block < this.table.total; block += 1) if (this.wanted(block)) found.push(block);
    return found;
  }

  #fill() {
    if (!this.details.open || !this.table?.head) return;
    const { table } = this;
    const passing = this.#passing();
    if (this.first >= passing.length) this.first = Math.max(0, Math.floor((passing.length - 1) / PAGE) * PAGE);
    const shown = passing.slice(this.first, this.first + PAGE);
    const of = passing.length === table.total ? plural(table.total, "block") : `${plural(passing.length, "block")} of ${count(table.total)}, by the legend`;
    say(this.where, shown.length ? `${count(this.first + 1)} to ${count(this.first + shown.length)} of ${of}` : `None of ${of}`);
    this.before.disabled = this.first === 0;
    this.next.disabled = this.first + PAGE >= passing.length;
    const now = table.head.at_ms / 1000;
    const held = new Map();
    for (const one of table.rows.values())
      one.blocks.forEach((block, index) => {
        if (!held.has(block)) held.set(block, []);
        held.get(block).push(`${sequenceName(one)} at ${index}`);
      });
    fillRows(this.body, shown, {
      keyOf: (block) => block,
      make: (block) => row(h("button", { type: "button", "data-block": block, text: count(block) }), 8),
      tell: (line, block) => {
        const free = table.state(block) === FREE;
        const marks = [table.pinned(block) && "pinned", table.fenced(block) && "fenced"].filter(Boolean);
        const holders = held.get(block) ?? [];
        const values = [
          [stateName(table, block), ...marks].join(", "),
          free || table.tenant(block) < 0 ? "" : this.nameOf(table.tenant(block)),
          free ? "" : count(table.refs(block)),
          free ? "" : `${table.filled(block)} of ${table.head.block_size}`,
          free ? "" : regionName(table.kind(block)),
          free ? "" : chainWords(table.chain(block)),
          holders.slice(0, 3).join("; ") + (holders.length > 3 ? ` and ${count(holders.length - 3)} more` : ""),
          table.used(block) ? ago(table.used(block), now) : "",
        ];
        values.forEach((value, at) => say(line.cells[at + 1], value));
      },
    });
  }
}
