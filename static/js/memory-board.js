/* A chat's blocks on a canvas, filling token by token: the picture of the Memory drawer.

   Draws what memory-cells.js works out, and only the cells that changed. Between two frames the newest cell grows towards
   what the page has heard since, a little with each animation frame; where motion is unwelcome it is set at once. A
   pointer or the arrow keys choose a cell, which a card describes. */

import { cellAt, fit, paint, placeOf } from "#octavo/cells.js";
import { h } from "#octavo/dom.js";
import { cellsOf, describe, eased, lookOf, moved } from "#octavo/memory-cells.js";

// The tallest board before cells become smaller, as a share of the window.
const TALLEST = 0.4;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class MemoryBoard {
  /** `spoken`: where a chosen cell is said to those who do not see it. */
  constructor({ board, canvas, card, spoken }) {
    Object.assign(this, { board, canvas, card, spoken });
    this.context = canvas.getContext("2d");
    this.memory = null;
    this.cells = [];
    this.drawn = [];
    this.shown = this.target = 0; // tokens
    this.chosen = -1;
    new ResizeObserver(() => this.#refit()).observe(board);
    const recolour = () => this.colour();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme", "class"] });
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerdown", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.choose(-1));
    board.addEventListener("keydown", (event) => this.#pressed(event));
    board.addEventListener("blur", () => this.choose(-1));
    this.colour();
  }

  /** Colours as the canvas needs them, resolved by the browser from the tokens. */
  colour() {
    const probe = this.board.appendChild(h("span", { class: "swatch", hidden: true }));
    const resolve = (token) => {
      probe.style.color = `var(${token})`;
      return getComputedStyle(probe).color;
    };
    this.colours = {
      shared: resolve("--accent"),
      own: resolve("--text-2"),
      line: resolve("--line"),
      page: resolve("--surface-1"),
      ring: resolve("--text-1"),
    };
    probe.remove();
    this.#redraw();
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
    this.cells = [];
    this.choose(-1);
    this.#refit();
  }

  #move() {
    if (this.moving || (this.shown === this.target && this.cells.length)) return;
    this.moving = true;
    let before = performance.now();
    const step = (now) => {
      if (!this.memory || this.board.offsetParent === null) return (this.moving = false);
      this.shown = still.matches ? this.target : eased(this.shown, this.target, now - before);
      before = now;
      this.#draw();
      if (this.shown === this.target) return (this.moving = false);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  #refit() {
    const width = this.board.clientWidth;
    this.canvas.hidden = this.cells.length === 0;
    if (width <= 0 || this.cells.length === 0) return;
    this.width = width;
    this.form = fit(this.cells.length, width, innerHeight * TALLEST);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.form.height * scale);
    this.canvas.style.inlineSize = `${width}px`;
    this.canvas.style.blockSize = `${this.form.height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.#redraw();
  }

  get #mirrored() {
    return getComputedStyle(this.board).direction === "rtl" ? this.width : 0;
  }

  #redraw() {
    this.drawn = [];
    if (this.memory) this.#draw();
  }

  #draw() {
    const before = this.cells.length;
    this.cells = cellsOf(this.memory, this.shown);
    if (this.cells.length !== before || !this.form) this.#refit();
    if (!this.form || this.canvas.hidden) return;
    const mirrored = this.#mirrored;
    const step = 1 / (this.form.size * (devicePixelRatio || 1));
    this.cells.forEach((cell, index) => {
      const key = `${cell.kind} ${cell.chats} ${cell.pinned} ${cell.host} ${Math.round(cell.filled / step)} ${index === this.chosen}`;
      if (this.drawn[index] === key) return;
      this.drawn[index] = key;
      const { x, y } = placeOf(index, this.form, mirrored);
      paint(this.context, x, y, this.form.size, { ...lookOf(cell, this.colours), mirrored: Boolean(mirrored) });
      if (index === this.chosen) {
        this.context.strokeStyle = this.colours.ring;
        this.context.lineWidth = 1.5;
        this.context.strokeRect(x + 0.75, y + 0.75, this.form.size - 1.5, this.form.size - 1.5);
        this.context.lineWidth = 1;
      }
    });
    if (this.chosen >= 0) this.#fillCard();
  }

  // --- choosing a cell ----------------------------------------------------------------------------------------------

  choose(index, aloud = false) {
    this.chosen = Math.min(index, this.cells.length - 1);
    this.card.hidden = this.chosen < 0;
    if (this.memory && this.form) this.#draw();
    if (this.chosen < 0) return;
    this.#fillCard();
    const { x, y } = placeOf(this.chosen, this.form, this.#mirrored);
    const at = this.canvas.getBoundingClientRect();
    const left = Math.min(Math.max(at.left + x - this.card.offsetWidth / 2, 8), innerWidth - this.card.offsetWidth - 8);
    // Below the board, so that no block is hidden; over the cell where there is no room below.
    const below = Math.max(at.bottom, at.top + y + this.form.size) + 8;
    const above = at.top + y - this.card.offsetHeight - 8;
    const top = below + this.card.offsetHeight > innerHeight - 8 ? Math.max(above, 8) : below;
    this.card.style.transform = `translate(${left}px, ${top}px)`;
    if (aloud) this.spoken.textContent = describe(this.cells[this.chosen], this.memory).join(". ");
  }

  #fillCard() {
    const [heading, ...lines] = describe(this.cells[this.chosen], this.memory);
    const text = [heading, ...lines].join("\n");
    if (this.card.dataset.text === text) return;
    this.card.dataset.text = text;
    this.card.replaceChildren(h("strong", { text: heading }), ...lines.map((line) => h("span", { text: line })));
  }

  #point(event) {
    if (!this.form) return;
    const at = this.canvas.getBoundingClientRect();
    this.choose(
      cellAt(event.clientX - at.left, event.clientY - at.top, this.form, this.cells.length, this.#mirrored),
    );
  }

  #pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.form) return;
    const to = moved(this.chosen, event.key, this.form, this.cells.length, Boolean(this.#mirrored));
    if (to === null) return;
    event.preventDefault();
    this.choose(to, true);
  }
}
