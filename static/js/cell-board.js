/* Cells on a canvas, one after the other: drawn only where they changed, chosen by pointer or arrow keys, described by a
   card and to screen readers. What a cell looks like and what is said of it, whoever owns the board says. */

import { cellAt, fit, paint, placeOf } from "#octavo/cells.js";
import { h } from "#octavo/dom.js";
import { moved } from "#octavo/memory-cells.js";


export class CellBoard {
  /** `look(index)`: a look for cells.js, with `chosen`, the colour around a chosen cell; `describe(index)`: lines, the
      first of which is a heading; `pick(index)`: Enter or a press on a cell; `tallest`: the board before cells become
      smaller, as a share of the window. `card` and `spoken` may be shared by several boards. */
  constructor({ board, card, spoken, look, describe, tallest, pick = () => {} }) {
    Object.assign(this, { board, card, spoken, look, describe, tallest, pick });
    this.canvas = board.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.total = 0;
    this.drawn = [];
    this.chosen = -1;
    new ResizeObserver(() => this.#refit()).observe(board);
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.#under(event)));
    this.canvas.addEventListener("pointerdown", (event) => this.choose(this.#under(event)));
    this.canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.choose(-1));
    this.canvas.addEventListener("click", (event) => this.#under(event) >= 0 && this.pick(this.#under(event)));
    board.addEventListener("keydown", (event) => this.#pressed(event));
    board.addEventListener("blur", () => this.choose(-1));
  }

  /** There are so many cells now; those that look as they did are left alone. */
  show(total) {
    if (total !== this.total) {
      this.total = total;
      this.#refit();
    } else this.#draw();
    if (this.chosen >= total) this.choose(-1);
    else if (this.chosen >= 0) this.#fillCard();
  }

  /** Colours have changed. */
  redraw() {
    this.drawn = [];
    this.#draw();
  }

  #refit() {
    const width = this.board.clientWidth;
    this.canvas.hidden = this.total === 0;
    if (width <= 0 || this.total === 0) return;
    this.width = width;
    this.form = fit(this.total, width, innerHeight * this.tallest);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.form.height * scale);
    this.canvas.style.inlineSize = `${width}px`;
    this.canvas.style.blockSize = `${this.form.height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.redraw();
  }

  get #mirrored() {
    return getComputedStyle(this.board).direction === "rtl" ? this.width : 0;
  }

  #draw() {
    if (!this.form) return;
    const mirrored = this.#mirrored;
    const pixels = this.form.size * (devicePixelRatio || 1);
    for (let index = 0; index < this.total; index += 1) {
      const look = this.look(index);
      const chosen = index === this.chosen;
      const part = Math.round((look.part ?? 1) * pixels);
      const key = `${look.colour} ${look.strength} ${part} ${look.pinned} ${look.host} ${look.dim} ${chosen}`;
      if (this.drawn[index] === key) continue;
      this.drawn[index] = key;
      const { x, y } = placeOf(index, this.form, mirrored);
      paint(this.context, x, y, this.form.size, { ...look, mirrored: Boolean(mirrored) });
      if (!chosen) continue;
      this.context.strokeStyle = look.chosen;
      this.context.lineWidth = 1.5;
      this.context.strokeRect(x + 0.75, y + 0.75, this.form.size - 1.5, this.form.size - 1.5);
      this.context.lineWidth = 1;
    }
  }

  // --- choosing a cell ----------------------------------------------------------------------------------------------

  choose(index, aloud = false) {
    if (index === this.chosen && !aloud) return;
    this.chosen = index;
    this.card.hidden = index < 0;
    this.#draw();
    if (index < 0) return;
    this.#fillCard();
    const { x, y } = placeOf(index, this.form, this.#mirrored);
    const at = this.canvas.getBoundingClientRect();
    const left = Math.min(Math.max(at.left + x - this.card.offsetWidth / 2, 8), innerWidth - this.card.offsetWidth - 8);
    // Below the board, so that no block is hidden; over the cell where there is no room below.
    const below = Math.max(at.bottom, at.top + y + this.form.size) + 8;
    const above = at.top + y - this.card.offsetHeight - 8;
    const top = below + this.card.offsetHeight > innerHeight - 8 ? Math.max(above, 8) : below;
    this.card.style.transform = `translate(${left}px, ${top}px)`;
    if (aloud) this.spoken.textContent = this.describe(index).join(". ");
  }

  #fillCard() {
    const [heading, ...lines] = this.describe(this.chosen);
    const text = [heading, ...lines].join("\n");
    if (this.card.dataset.text === text) return;
    this.card.dataset.text = text;
    this.card.replaceChildren(h("strong", { text: heading }), ...lines.map((line) => h("span", { text: line })));
  }

  #under(event) {
    if (!this.form) return -1;
    const at = this.canvas.getBoundingClientRect();
    return cellAt(event.clientX - at.left, event.clientY - at.top, this.form, this.total, this.#mirrored);
  }

  #pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.form) return;
    if (event.key === "Escape" && this.chosen >= 0) return this.choose(-1);
    if (event.key === "Enter" && this.chosen >= 0) {
      event.preventDefault();
      return this.pick(this.chosen);
    }
    const to = moved(this.chosen, event.key, this.form, this.total, Boolean(this.#mirrored));
    if (to === null) return;
    event.preventDefault();
    this.choose(to, true);
  }
}
