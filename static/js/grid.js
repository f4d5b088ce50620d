/* A worker's block table on a canvas: one cell a block, as many as fit, and the rest by scrolling.

   Each look (block-look.js) is painted once, and copied as pixels for every block that has it; a frame costs what has
   changed in sight. The canvas is as large as the window onto the board and not as the board, so 100,000 blocks cost no
   more than 5,000. Where they do not fit, a map beside the board has a point for each. What is chosen lies on a canvas
   of its own above. */

import { coarse, HUES, keyOf, lookOf } from "#octavo/block-look.js";
import { cellAt, fit, GAP, paint, placeOf } from "#octavo/cells.js";

// The tallest board before cells become smaller, and then the tallest window onto it, as a share of the screen.
const TALLEST = 0.56;
const STEPS = 28; // of a part-filled cell
const NEAR = 4; // links of a prefix chain, from the chosen block on, that are drawn in full
const NOTHING = { tenants: new Set(), marks: new Set() };

export class Grid {
  /** `board` holds the others; `scroller` the two canvases, `view` the map's sign of what is in sight. */
  constructor({ board, scroller, space, canvas, overlay, map, view }) {
    Object.assign(this, { board, scroller, space, canvas, overlay, map, view });
    this.context = canvas.getContext("2d");
    this.above = overlay.getContext("2d");
    this.scratch = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    this.table = null;
    this.hues = [];
    this.filter = NOTHING;
    this.chosen = -1;
    this.chain = [];
    this.held = []; // blocks of the sequence that is open
    this.keys = new Int32Array(0);
    this.sprites = new Map();
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    map.addEventListener("pointerdown", (event) => {
      map.setPointerCapture(event.pointerId);
      this.#goTo(event);
    });
    map.addEventListener("pointermove", (event) => map.hasPointerCapture(event.pointerId) && this.#goTo(event));
  }

  // --- what is shown ------------------------------------------------------------------------------------------------

  /** Resolved colours: {hues: HUES + 1 of them, line, page, ring, sign}. */
  colour(colours) {
    this.colours = colours;
    this.sprites.clear();
    this.points = new Map();
    this.redraw();
  }

  /** Another table, or one of another size. `hues`: the hue of each tenant, by its place. */
  show(table, hues) {
    const other = this.table?.total !== table.total;
    this.table = table;
    this.hues = hues;
    if (other || !this.form) this.resize();
    else this.redraw();
  }

  choose(block, chain = []) {
    this.chosen = block;
    this.chain = chain;
    this.mark();
  }

  /** The blocks of a sequence, in their logical order. */
  hold(blocks) {
    this.held = blocks;
    this.mark();
  }

  only(filter) {
    this.filter = filter;
    this.redraw();
  }

  // --- form ---------------------------------------------------------------------------------------------------------

  /** Fit the board to its place. */
  resize() {
    const total = this.table?.total ?? 0;
    if (!total || !this.colours) return;
    this.unplaced();
    const tallest = Math.max(Math.round(innerHeight * TALLEST), 160);
    this.board.classList.remove("mapped");
    let width = this.scroller.clientWidth;
    if (width <= 0) return;
    let form = fit(total, width, tallest);
    const mapped = form.height > tallest;
    this.board.classList.toggle("mapped", mapped);
    if (mapped) {
      width = this.scroller.clientWidth;
      form = fit(total, width, tallest);
    }
    this.form = form;
    this.mapped = mapped;
    this.pitch = form.size + GAP;
    this.scale = devicePixelRatio || 1;
    this.tall = Math.min(form.height, tallest);
    this.wide = form.columns * this.pitch - GAP;
    this.space.style.blockSize = `${form.height}px`;
    this.scroller.style.blockSize = `${this.tall}px`;
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.max(Math.round(this.wide * this.scale), 1);
      canvas.height = Math.max(Math.round(this.tall * this.scale), 1);
      canvas.style.inlineSize = `${canvas.width / this.scale}px`;
      canvas.style.blockSize = `${canvas.height / this.scale}px`;
    }
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.side = Math.round(form.size * this.scale); // of a cell, in the canvas's pixels
    this.sprites.clear();
    this.keys = new Int32Array(total);
    if (mapped) {
      this.map.width = form.columns;
      this.map.height = form.rows;
      this.mapImage = this.map.getContext("2d").createImageData(form.columns, form.rows);
      this.mapPixels = new Uint32Array(this.mapImage.data.buffer);
    }
    this.redraw();
  }

  /** The first block in sight, and the one behind the last. */
  #sight() {
    const { columns } = this.form;
    const from = Math.floor(this.scroller.scrollTop / this.pitch) * columns;
    const to = Math.ceil((this.scroller.scrollTop + this.tall) / this.pitch) * columns;
    return [from, Math.min(to, this.table.total)];
  }

  // --- drawing ------------------------------------------------------------------------------------------------------

  /** All of it. */
  redraw() {
    if (!this.table || !this.form || !this.colours) return;
    const how = this.#how();
    for (let block = 0; block < this.table.total; block += 1) this.keys[block] = keyOf(this.table, block, how);
    this.#drawSight();
    if (this.mapped) {
      for (let block = 0; block < this.table.total; block += 1) this.mapPixels[block] = this.#point(this.keys[block]);
      this.map.getContext("2d").putImageData(this.mapImage, 0, 0);
    }
  }

  /** What has changed since: blocks in ascending order; null for all. */
  draw(changed) {
    if (!this.form || !this.colours) return;
    const how = this.#how();
    const [from, to] = this.#sight();
    let top = Infinity;
    let bottom = -Infinity;
    let pointed = false;
    const count = changed ? changed.length : this.table.total;
    for (let place = 0; place < count; place += 1) {
      const block = changed ? changed[place] : place;
      const key = keyOf(this.table, block, how);
      if (key === this.keys[block]) continue;
      this.keys[block] = key;
      if (this.mapped) {
        this.mapPixels[block] = this.#point(key);
        pointed = true;
      }
      if (block < from || block >= to) continue;
      const y = this.#drawCell(block);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y + this.side);
    }
    if (bottom > top) {
      const first = Math.max(top, 0);
      this.context.putImageData(this.image, 0, 0, 0, first, this.canvas.width, Math.min(bottom, this.canvas.height) - first);
    }
    if (pointed) this.map.getContext("2d").putImageData(this.mapImage, 0, 0);
    if (this.held.length || this.chosen >= 0) this.mark();
  }

  #how() {
    const filter = this.filter.tenants.size || this.filter.marks.size ? this.filter : null;
    return { hues: this.hues, steps: STEPS, filter };
  }

  #scrolled() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      if (this.table && this.form) this.#drawSight();
    });
  }

  #drawSight() {
    this.pixels.fill(0);
    const [from, to] = this.#sight();
    for (let block = from; block < to; block += 1) this.#drawCell(block);
    this.context.putImageData(this.image, 0, 0);
    this.mark();
    if (!this.mapped) return;
    const { height } = this.form;
    this.view.style.insetBlockStart = `${(100 * this.scroller.scrollTop) / height}%`;
    this.view.style.blockSize = `${(100 * this.tall) / height}%`;
  }

  /** Copies a block's look into the image; gives its upper edge there. */
  #drawCell(block) {
    const { side, canvas, pixels, scale } = this;
    const { x, y } = placeOf(block, this.form);
    const left = Math.round(x * scale);
    const top = Math.round((y - this.scroller.scrollTop) * scale);
    const sprite = this.#sprite(this.keys[block]);
    const last = Math.min(side, canvas.height - top);
    for (let row = Math.max(0, -top); row < last; row += 1) {
      let to = (top + row) * canvas.width + left;
      let at = row * side;
      for (const end = at + side; at < end; at += 1, to += 1) pixels[to] = sprite[at];
    }
    return top;
  }

  #sprite(key) {
    let found = this.sprites.get(key);
    if (found) return found;
    const { scratch, side, scale } = this;
    if (scratch.canvas.width !== side) scratch.canvas.width = scratch.canvas.height = side;
    scratch.setTransform(scale, 0, 0, scale, 0, 0);
    scratch.clearRect(0, 0, side, side);
    paint(scratch, 0, 0, side / scale, lookOf(key, { colours: this.colours, steps: STEPS }));
    found = new Uint32Array(scratch.getImageData(0, 0, side, side).data.buffer);
    this.sprites.set(key, found);
    return found;
  }

  /** A block's pixel on the map. */
  #point(key) {
    const about = coarse(key);
    let found = this.points.get(about);
    if (found !== undefined) return found;
    const { scratch } = this;
    scratch.setTransform(1, 0, 0, 1, 0, 0);
    scratch.clearRect(0, 0, 1, 1);
    const look = lookOf(about, { colours: this.colours, steps: 1 });
    scratch.globalAlpha = look.outline ? 0.5 * look.dim : look.strength * look.dim;
    scratch.fillStyle = look.colour;
    scratch.fillRect(0, 0, 1, 1);
    scratch.globalAlpha = 1;
    [found] = new Uint32Array(scratch.getImageData(0, 0, 1, 1).data.buffer);
    this.points.set(about, found);
    return found;
  }

  // --- what is chosen -----------------------------------------------------------------------------------------------

  /** Draws over the cells: the open sequence's blocks, what the chosen one builds on, and itself. */
  mark() {
    if (!this.form || !this.colours) return;
    const { above, scale, form } = this;
    above.setTransform(scale, 0, 0, scale, 0, 0);
    above.clearRect(0, 0, this.wide, this.tall);
    if (this.chosen < 0 && !this.held.length) return;
    const [from, to] = this.#sight();
    const top = this.scroller.scrollTop;
    above.strokeStyle = this.colours.sign;
    above.lineWidth = form.size > 8 ? 1.5 : 1;
    above.beginPath();
    for (const block of this.held) {
      if (block < from || block >= to) continue;
      const { x, y } = placeOf(block, form);
      above.rect(x - 0.5, y - top - 0.5, form.size + 1, form.size + 1);
    }
    above.stroke();
    if (this.chosen < 0) return;
    const middle = (block) => {
      const { x, y } = placeOf(block, form);
      return [x + form.size / 2, y - top + form.size / 2];
    };
    // What is near in the chain is told from what is far.
    const paths = [this.chain.slice(0, NEAR), this.chain.slice(Math.max(NEAR - 1, 0))];
    paths.forEach((path, far) => {
      above.globalAlpha = far ? 0.24 : 0.8;
      above.beginPath();
      if (far && path.length) above.moveTo(...middle(path[0]));
      else above.moveTo(...middle(this.chosen));
      for (const block of path) above.lineTo(...middle(block));
      above.lineJoin = "round";
      above.stroke();
    });
    above.fillStyle = this.colours.sign;
    this.chain.forEach((block, place) => {
      if (block < from || block >= to) return;
      above.globalAlpha = place < NEAR ? 1 : 0.56;
      above.beginPath();
      above.arc(...middle(block), Math.max(form.size / (place < NEAR ? 5 : 8), 1.25), 0, 7);
      above.fill();
    });
    above.globalAlpha = 1;
    const { x, y } = placeOf(this.chosen, form);
    above.lineWidth = 2;
    above.strokeRect(x - 1, y - top - 1, form.size + 2, form.size + 2);
  }

  /** The board's edges on the screen. Asking the browser lays the page out, so it is asked once until `unplaced`. */
  #edges() {
    this.edges ??= this.scroller.getBoundingClientRect();
    return this.edges;
  }

  /** The board may be somewhere else now: the page was scrolled, or something beside it has another size. */
  unplaced() {
    this.edges = null;
  }

  /** The block under a point of the screen; -1 for none. */
  blockAt(clientX, clientY) {
    if (!this.form) return -1;
    const at = this.#edges();
    return cellAt(clientX - at.left, clientY - at.top + this.scroller.scrollTop, this.form, this.table.total);
  }

  /** Where a block is on the screen: {left, top, size}, and the board's edges. */
  whereIs(block) {
    const at = this.#edges();
    const { x, y } = placeOf(block, this.form);
    return { left: at.left + x, top: at.top + y - this.scroller.scrollTop, size: this.form.size, board: at };
  }

  /** Scroll as little as it takes for a block to be in sight. */
  reveal(block) {
    if (!this.form || block < 0) return;
    const { y } = placeOf(block, this.form);
    const { scroller, pitch, tall } = this;
    if (y < scroller.scrollTop) scroller.scrollTop = y - GAP;
    else if (y + pitch > scroller.scrollTop + tall) scroller.scrollTop = y + pitch - tall;
  }

  /** So many blocks are in a screen of the board: what PageDown passes over. */
  get page() {
    return Math.max(Math.floor(this.tall / this.pitch) - 1, 1) * this.form.columns;
  }

  #goTo(event) {
    const at = this.map.getBoundingClientRect();
    const share = (event.clientY - at.top) / at.height;
    this.scroller.scrollTop = share * this.form.height - this.tall / 2;
  }
}

/** The colours of a board. `resolve`: from colours.js. */
export function coloursOf(resolve) {
  const hues = Array.from({ length: HUES }, (_, n) => resolve(`--hue-${n}`));
  return {
    hues: [...hues, resolve("--text-3")],
    line: resolve("--line"),
    page: resolve("--surface-1"),
    ring: resolve("--warn"),
    sign: resolve("--text-1"),
    plain: matchMedia("(forced-colors: active)").matches,
  };
}
