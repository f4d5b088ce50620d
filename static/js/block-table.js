/* The block table of a worker as its frames tell it: engine/occupancy_wire.py in the browser's words. Pure.

   A binary message is the length of its head (uint32, little-endian), the head as JSON, and zlib-compressed columns of
   uint32. BlockTable keeps what whole frames and changes add up to, in four typed arrays and a map of the running
   sequences. Feed reads messages as they come, applies them in order, and says what has changed. */

export const FREE = 0;
export const CACHED = 1;
export const USED = 2;
export const HOST = 3;

export const PLATFORM = 1;
export const TEAM = 2;
export const OWN = 3;

const WORDS = 4;
const PINNED = 4;
const FENCED = 8;

const ROW = { number: 0, id: "", tenant: -1, choice: 0, prompt: 0, cached: 0, tokens: 0, regions: [0, 0], at: 0, blocks: [] };
const FIGURES = {
  used: 0, cached: 0, free: 0, pinned: 0, host: 0, running: 0, waiting: 0,
  wasted_slots: 0, saved_blocks: 0, of: {}, service: {}, counters: {},
}; // prettier-ignore

/** What a frame leaves out is 0 or empty. */
export const figuresOf = (told) => ({ ...FIGURES, ...told });

/** A change was given to a table that lacks the frame before it. */
export class Gap extends Error {}

/** The two parts of a binary message: its head, and its cells as they are compressed. */
export function unpack(message) {
  const size = new DataView(message).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(message, 4, size)));
  return { head, cells: new Uint8Array(message, 4 + size) };
}

/** The words of compressed cells. */
export async function inflate(cells) {
  const stream = new Blob([cells]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint32Array(await new Response(stream).arrayBuffer());
}

export class BlockTable {
  constructor() {
    this.head = null;
    this.figures = figuresOf();
    this.tenants = [];
    this.rows = new Map(); // number -> the running sequence
    this.total = 0; // blocks of the pool, and the host's slots behind them
    this.columns = Array.from({ length: WORDS }, () => new Uint32Array(0));
  }

  /** Take in the next frame. Gives the blocks that it says something of; null for all. Throws Gap. */
  apply(head, words) {
    let changed = null;
    if (!head.base) {
      this.tenants = [];
      this.rows = new Map();
      this.total = head.blocks + (head.host_blocks ?? 0);
      this.columns = this.columns.map((_, n) => words.subarray(n * this.total, (n + 1) * this.total));
    } else if (this.head?.number !== head.base || this.head.worker !== head.worker) {
      throw new Gap(`frame ${head.number} follows ${head.base}, which this table lacks`);
    } else {
      const count = words.length / (WORDS + 1);
      changed = words.subarray(0, count);
      this.columns.forEach((column, n) => {
        const from = (n + 1) * count;
        for (let at = 0; at < count; at += 1) column[changed[at]] = words[from + at];
      });
    }
    if (head.tenants) this.tenants = [...this.tenants, ...head.tenants];
    for (const number of head.gone ?? []) this.rows.delete(number);
    for (const told of head.rows ?? []) {
      const row = { ...ROW, ...told };
      const before = this.rows.get(row.number);
      if (before) {
        const blocks = before.blocks.slice(0, row.at).concat(row.blocks);
        this.rows.set(row.number, { ...before, tokens: row.tokens, blocks });
      } else this.rows.set(row.number, row);
    }
    this.head = head;
    this.figures = figuresOf(head.figures);
    return changed;
  }

  state(block) {
    return this.columns[0][block] & 3;
  }

  pinned(block) {
    return (this.columns[0][block] & PINNED) !== 0;
  }

  /** In use by the engine itself and no sequence, for the length of a copy or a step. */
  fenced(block) {
    return (this.columns[0][block] & FENCED) !== 0;
  }

  kind(block) {
    return (this.columns[0][block] >>> 4) & 3;
  }

  refs(block) {
    return this.columns[0][block] >>> 8;
  }

  /** The place in `tenants`, -1 for none. */
  tenant(block) {
    return (this.columns[1][block] & 0xffff) - 1;
  }

  filled(block) {
    return this.columns[1][block] >>> 16;
  }

  /** The block that it builds on, -1 for none. */
  parent(block) {
    return this.columns[2][block] - 1;
  }

  /** Seconds of the Unix epoch, 0 for never. */
  used(block) {
    return this.columns[3][block];
  }

  /** What a block builds on, the nearest first. Two frames may be needed to say it all: a circle ends it. */
  chain(block) {
    const found = [];
    const seen = new Set([block]);
    for (let at = this.parent(block); at >= 0 && at < this.total && !seen.has(at); at = this.parent(at)) {
      found.push(at);
      seen.add(at);
    }
    return found;
  }

  /** The running sequences whose tables have the block: [{row, index: the logical one}]. */
  holders(block) {
    const found = [];
    for (const row of this.rows.values()) {
      const index = row.blocks.indexOf(block);
      if (index >= 0) found.push({ row, index });
    }
    return found;
  }
}

/** Reads messages as they come and applies them in order.

    `onChange(changed)`: the blocks of which something was said, null for all. `onGap()`: frames are missing; nothing
    more is applied until a whole one comes. */
export class Feed {
  constructor({ onChange, onGap }) {
    Object.assign(this, { onChange, onGap });
    this.begin(null);
  }

  /** Begin anew, with a worker of whom nothing is known. Frames of others are passed over. */
  begin(worker) {
    this.worker = worker;
    this.table = new BlockTable();
    this.gap = false;
    this.last = Promise.resolve();
  }

  take(message) {
    const { table } = this;
    const { head, cells } = unpack(message);
    if (head.worker !== this.worker) return this.last;
    const words = inflate(cells).catch(() => null); // a broken message is a missing one
    return this.after(async () => {
      const told = await words;
      if (table === this.table) this.#apply(head, told);
    });
  }

  /** Do something once all that came before is applied. */
  after(work) {
    this.last = this.last.then(work);
    return this.last;
  }

  #apply(head, words) {
    if (this.gap && head.base) return;
    let changed;
    try {
      if (!words) throw new Gap(`frame ${head.number} cannot be read`);
      changed = this.table.apply(head, words);
    } catch (error) {
      if (!(error instanceof Gap)) throw error;
      this.gap = true;
      this.onGap();
      return;
    }
    this.gap = false;
    this.onChange(changed);
  }
}
