/* The block table on a canvas: one cell a physical block. Draws what it is told, and only the cells that changed.

   Hue is the tenant, lightness the references; a dot is pinned, a lighter rest is not filled yet (cells.js). */

import { cellAt, fit, paint, placeOf } from "#octavo/cells.js";

// The tallest board before cells become smaller, as a share of the window.
const TALLEST = 0.56;

export const FREE = 0;
export const CACHED = 1;

export class Grid {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.drawn = new Float64Array(0);
    this.colours = { free: "", line: "", page: "", tenants: [], none: "" };
    this.only = null; // the tenant that is not dimmed
  }

  /** Colours as CSS; `tenants` in the order of the snapshot's. */
  paint(colours) {
    this.colours = colours;
    this.redraw();
  }

  dimOthers(tenant) {
    this.only = tenant;
    this.redraw();
  }

  redraw() {
    this.drawn.fill(-1);
    if (this.snapshot) this.draw(this.snapshot);
  }

  /** Fit the board to its place. */
  resize() {
    const width = this.canvas.parentElement.clientWidth - 24;
    const total = this.snapshot?.state.length ?? 0;
    if (width <= 0 || total === 0) return;
    this.form = fit(total, width, innerHeight * TALLEST);
    const scale = devicePixelRatio || 1;
    const { height } = this.form;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawn = new Float64Array(total).fill(-1);
  }

  draw(snapshot) {
    const grew = this.snapshot?.state.length !== snapshot.state.length;
    this.snapshot = snapshot;
    if (grew || !this.form) this.resize();
    if (!this.form) return;
    const pinned = new Set(snapshot.pinned);
    for (let block = 0; block < snapshot.state.length; block += 1) {
      const refs = Math.min(snapshot.refs[block], 2);
      const key =
        snapshot.state[block] +
        4 * refs +
        16 * (snapshot.tenant[block] + 1) +
        65536 * snapshot.filled[block] +
        (pinned.has(block) ? 2 ** 40 : 0);
      if (this.drawn[block] === key) continue;
      this.drawn[block] = key;
      this.#drawCell(block, snapshot, pinned.has(block));
    }
  }

  #drawCell(block, snapshot, pinned) {
    const { colours } = this;
    const { x, y } = placeOf(block, this.form);
    const tenant = snapshot.tenant[block];
    const state = snapshot.state[block];
    const outline = state === FREE;
    paint(this.context, x, y, this.form.size, {
      colour: outline ? colours.line : tenant < 0 ? colours.none : colours.tenants[tenant],
      strength: state === CACHED ? 0.32 : snapshot.refs[block] > 1 ? 1 : 0.72,
      part: snapshot.filled[block] / snapshot.block_size,
      dim: this.only !== null && (tenant !== this.only || outline) ? 0.2 : 1,
      mark: colours.page,
      outline,
      pinned,
    });
  }

  /** The block under a point of the canvas, in CSS pixels from its corner; -1 for none. */
  blockAt(x, y) {
    return this.form ? cellAt(x, y, this.form, this.drawn.length) : -1;
  }
}
