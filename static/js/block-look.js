/* How a block of a worker's pool looks, as a number: blocks of one number look the same, so each look is painted once.
   And which blocks a legend's filter leaves in colour. Pure.

   Hue is the tenant, strength the references, and marks are those of cells.js. */

import { CACHED, FREE, HOST, PLATFORM, TEAM, USED } from "#octavo/block-table.js";

/** Tenants that have a hue of their own; the next begin again. The one behind the last is of no tenant. */
export const HUES = 16;
const STRENGTHS = [0.3, 0.55, 0.7, 0.85, 1];

/** 0: nobody holds it; then 1, 2 or 3, 4 to 7, 8 and more references. */
export const levelOf = (refs) => (refs > 0 ? Math.min(32 - Math.clz32(refs), STRENGTHS.length - 1) : 0);

export const strengthOf = (level) => STRENGTHS[level];

/** What the legend's marks mean, by name. */
const MARKS = {
  free: (table, block) => table.state(block) === FREE,
  cached: (table, block) => table.state(block) === CACHED,
  used: (table, block) => table.state(block) === USED,
  several: (table, block) => table.refs(block) > 1,
  part: (table, block) => isPart(table, block),
  pinned: (table, block) => table.pinned(block),
  team: (table, block) => table.state(block) !== FREE && table.kind(block) === TEAM,
  platform: (table, block) => table.state(block) !== FREE && table.kind(block) === PLATFORM,
  host: (table, block) => table.state(block) === HOST,
  fenced: (table, block) => table.fenced(block),
};

const isPart = (table, block) => {
  const state = table.state(block);
  return (state === CACHED || state === USED) && table.filled(block) < (table.head?.block_size ?? 0);
};

/** Whether a block passes a filter {tenants: Set of places in `tenants`, marks: Set of names}: one of each that is not
    empty. */
export function passes(table, block, { tenants, marks }) {
  if (tenants.size && (table.state(block) === FREE || !tenants.has(table.tenant(block)))) return false;
  if (!marks.size) return true;
  for (const name of marks) if (MARKS[name](table, block)) return true;
  return false;
}

/** The number of a look. `hues`: by the tenant's place; `steps`: how many parts of a cell can be told from each other,
    31 at most. */
export function keyOf(table, block, { hues, steps, filter }) {
  const state = table.state(block);
  const dim = filter && !passes(table, block, filter) ? 1 : 0;
  if (state === FREE && !table.fenced(block)) return dim << 19;
  const tenant = table.tenant(block);
  const hue = tenant < 0 ? HUES : (hues[tenant] ?? HUES);
  const size = table.head?.block_size || 1;
  const part = state === HOST ? steps : Math.round((steps * Math.min(table.filled(block), size)) / size);
  const level = state === USED ? levelOf(table.refs(block)) : 0;
  const kind = table.kind(block);
  const corners = kind === PLATFORM ? 2 : kind === TEAM ? 1 : 0;
  return (
    state |
    (level << 2) |
    (hue << 5) |
    (part << 10) |
    ((table.pinned(block) ? 1 : 0) << 15) |
    ((table.fenced(block) ? 1 : 0) << 16) |
    (corners << 17) |
    (dim << 19)
  );
}

/** What cells.js paints for a number. `colours`: {hues: [], line, page, ring, plain: weak ones are to be seen too}. */
export function lookOf(key, { colours, steps }) {
  const state = key & 3;
  const dim = key >>> 19 ? 0.16 : 1;
  const fenced = (key >>> 16) & 1;
  if (state === FREE && !fenced) return { outline: true, colour: colours.line, dim };
  const strength = strengthOf((key >>> 2) & 7);
  return {
    colour: colours.hues[(key >>> 5) & 31],
    strength: colours.plain ? (1 + strength) / 2 : strength,
    part: ((key >>> 10) & 31) / steps,
    pinned: Boolean((key >>> 15) & 1),
    ring: fenced ? colours.ring : null,
    corners: (key >>> 17) & 3,
    host: state === HOST,
    mark: colours.page,
    dim,
  };
}

/** The same at the size of a point: everything but state, references, hue and dimness is too fine for it. */
export const coarse = (key) => (key & 0x3ff) | (key & (1 << 19));
