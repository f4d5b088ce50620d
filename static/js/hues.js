/* Which colour a team has on the operators' board: a team keeps its own while the page is open, and as long as there are
   not more of them than hues, no two have the same. Pure. */

import { HUES } from "#octavo/block-look.js";

const given = new Map(); // tenant id -> number

/** The number of a team's hue. */
export function hueNumber(id) {
  if (!given.has(id)) given.set(id, given.size % HUES);
  return given.get(id);
}

/** The same as the name of a CSS variable (occupancy.css). */
export const hueOf = (id) => `--hue-${hueNumber(id)}`;
