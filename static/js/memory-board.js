/* A chat's blocks, filling token by token: the picture of the Memory drawer.

   Draws what memory-cells.js works out, on a CellBoard. Between two frames the newest cell grows towards what the page has
   heard since, a little with each animation frame; where motion is unwelcome it is set at once. */

import { CellBoard } from "#octavo/cell-board.js";
import { onColours, resolver } from "#octavo/colours.js";
import { cellsOf, describe, eased, lookOf } from "#octavo/memory-cells.js";

// The tallest board before cells become smaller, as a share of the window.
const TALLEST = 0.4;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class MemoryBoard {
  /** `spoken`: where a chosen cell is said to those who do not see it. */
  constructor({ board, card, spoken }) {
    this.place = board;
    this.memory = null;
    this.cells = [];
    this.shown = this.target = 0; // tokens
    this.board = new CellBoard({
      board,
      card,
      spoken,
      tallest: TALLEST,
      look: (index) => ({ ...lookOf(this.cells[index], this.colours), chosen: this.colours.ring }),
      describe: (index) => describe(this.cells[index], this.memory),
    });
    this.resolve = resolver(board);
    this.#colour();
    onColours(() => this.#colour());
  }

  #colour() {
    const { resolve } = this;
    this.colours = {
      shared: resolve("--accent"),
      own: resolve("--text-2"),
      line: resolve("--line"),
      page: resolve("--surface-1"),
      ring: resolve("--text-1"),
    };
    this.board.redraw();
  }

  /** What the engine says, with `tokens` filled by now. Another chat, or another answer, starts without a movement. */
  show(memory, tokens) {
    const other = !this.memory || this.memory.state !== memory.state || this.memory.response !== memory.response;
    this.memory = memory;
    // A step back is a correction of what the page guessed: it waits there until it is true.
    const behind = tokens < this.shown && this.shown - tokens <= 2 * memory.block_size;
    this.target = behind && !other ? this.shown : tokens;
    if (other || tokens < this.shown - 2 * memory.block_size || still.matches) this.shown = this.target;
    this.#draw();
    this.#move();
  }

  /** More tokens are filled. */
  grow(tokens) {
    if (!this.memory || tokens <= this.target) return;
    this.target = tokens;
    if (still.matches) this.shown = tokens;
    this.#move();
  }

  clear() {
    this.memory = null;
    this.#draw();
  }

  #draw() {
    this.cells = cellsOf(this.memory, this.shown);
    this.board.show(this.cells.length);
  }

  #move() {
    if (this.moving || (this.shown === this.target && this.cells.length)) return;
    this.moving = true;
    let before = performance.now();
    const step = (now) => {
      if (!this.memory || this.place.offsetParent === null) return (this.moving = false);
      this.shown = still.matches ? this.target : eased(this.shown, this.target, now - before);
      before = now;
      this.#draw();
      if (this.shown === this.target) return (this.moving = false);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
}
