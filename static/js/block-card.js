/* The card beside a block that is pointed at or chosen. It stands where it hides as little as it can. */

import { describe } from "#octavo/block-words.js";
import { h } from "#octavo/dom.js";

const GAP = 12;
const NEAR = 280;

export class BlockCard {
  constructor(card) {
    this.card = card;
    this.text = "";
  }

  hide() {
    this.card.hidden = true;
  }

  /** Describe a block of a table. `where`: as Grid.whereIs gives it; null: where it was. Returns the same in words, for
      those who listen. */
  show(table, block, where, nameOf) {
    const { title, state, lines } = describe(table, block, nameOf);
    const text = [title, state, ...lines.flat()].join("\n");
    if (text !== this.text) {
      this.text = text;
      const list = h("dl", {}, ...lines.flatMap(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })]));
      this.card.replaceChildren(h("strong", { text: title }), h("span", { class: "state", text: state }), list);
    }
    this.card.hidden = false;
    if (where) this.#place(where);
    return [`${title}: ${state.toLowerCase()}`, ...lines.map(([name, value]) => (name ? `${name} ${value}` : value))].join(". ");
  }

  #place({ left, top, size, board }) {
    const { offsetWidth: width, offsetHeight: height } = this.card;
    const right = left + size + GAP;
    let x = right + width < innerWidth - 8 ? right : Math.max(left - width - GAP, Math.min(board.left, innerWidth - width - 8));
    let y = Math.max(8, Math.min(top + size / 2 - height / 2, innerHeight - height - 8));
    // Below the board no block is hidden, where that is near enough.
    const below = board.bottom + GAP;
    if (below - top < NEAR && below + height < innerHeight - 8) {
      x = Math.max(8, board.left - GAP, Math.min(left + size / 2 - width / 2, innerWidth - width - 8));
      y = below;
    }
    // A block that was scrolled out of sight takes its card along.
    const inSight = top + size > board.top && top < board.bottom;
    this.card.style.visibility = inSight ? "" : "hidden";
    this.card.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }
}
