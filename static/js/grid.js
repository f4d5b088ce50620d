/* The block table on a canvas: one cell a physical block. Draws what it is told, and only the cells that changed.

   Hue is the tenant, lightness the references; a dot is pinned, a lighter rest is not filled yet. */

const SIZES = [14, 12, 10, 8, 7, 6];
const GAP = 2;
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
    this.cell =
      SIZES.find(
        (size) => Math.ceil(total / this.#fit(width, size)) * (size + GAP) <= innerHeight * TALLEST,
      ) ?? SIZES.at(-1);
    this.columns = this.#fit(width, this.cell);
    const rows = Math.ceil(total / this.columns);
    const scale = devicePixelRatio || 1;
    const height = rows * (this.cell + GAP) - GAP;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawn = new Float64Array(total).fill(-1);
  }

  #fit(width, size) {
    return Math.max(Math.floor((width + GAP) / (size + GAP)), 1);
  }

  draw(snapshot) {
    const grew = this.snapshot?.state.length !== snapshot.state.length;
    this.snapshot = snapshot;
    if (grew || !this.columns) this.resize();
    if (!this.columns) return;
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

  #drawCell(block, snapshot, isPinned) {
    const { context, cell, colours } = this;
    const x = (block % this.columns) * (cell + GAP);
    const y = Math.floor(block / this.columns) * (cell + GAP);
    context.clearRect(x, y, cell, cell);
    const tenant = snapshot.tenant[block];
    const state = snapshot.state[block];
    const dim = this.only !== null && (tenant !== this.only || state === FREE) ? 0.2 : 1;
    if (state === FREE) {
      context.globalAlpha = dim;
      context.strokeStyle = colours.line;
      context.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
      context.globalAlpha = 1;
      return;
    }
    context.fillStyle = tenant < 0 ? colours.none : colours.tenants[tenant];
    const strength = state === CACHED ? 0.32 : snapshot.refs[block] > 1 ? 1 : 0.72;
    const part = Math.min(snapshot.filled[block] / snapshot.block_size, 1);
    context.globalAlpha = 0.24 * dim;
    if (part < 1) context.fillRect(x, y, cell, cell);
    context.globalAlpha = strength * dim;
    context.fillRect(x, y, Math.round(cell * part), cell);
    context.globalAlpha = dim;
    if (isPinned) {
      context.fillStyle = colours.page;
      context.beginPath();
      context.arc(x + cell / 2, y + cell / 2, Math.max(cell / 6, 1.2), 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** The block under a point of the canvas, in CSS pixels from its corner; -1 for none. */
  blockAt(x, y) {
    if (!this.columns) return -1;
    const column = Math.floor(x / (this.cell + GAP));
    const row = Math.floor(y / (this.cell + GAP));
    const block = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && block < this.drawn.length ? block : -1;
  }
}
