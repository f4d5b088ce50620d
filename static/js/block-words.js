/* What can be said of a block, a sequence and a worker's figures, in words. Pure: knows no page. */

import { CACHED, FREE, HOST, OWN, PLATFORM, TEAM, USED } from "#octavo/block-table.js";
import { count, decimal } from "#octavo/format.js";

const STATES = { [FREE]: "Free", [CACHED]: "Cached", [USED]: "Used", [HOST]: "In host memory" };
const REGIONS = {
  [PLATFORM]: "the platform's preamble, shared by all teams",
  [TEAM]: "its team's prompt, shared within the team",
  [OWN]: "a conversation's or a key's own",
};
const MOST_NAMED = 4;

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export const share = (part, all) => (all > 0 ? `${decimal((100 * part) / all, all >= 1000 ? 1 : 0, 0)} %` : "–");

export const stateName = (table, block) => STATES[table.state(block)];

export const regionName = (kind) => REGIONS[kind] ?? "";

/** How long before `nowS` a block's references last changed. */
export function ago(usedS, nowS) {
  if (!usedS) return "never";
  const passed = Math.max(Math.round(nowS - usedS), 0);
  if (passed < 2) return "now";
  if (passed < 100) return `${passed} s ago`;
  if (passed < 6000) return `${Math.round(passed / 60)} min ago`;
  return `${Math.round(passed / 3600)} h ago`;
}

/** A generation's id as lists show it: its end, since ids begin with a time. */
export const shortId = (id) => (id.length > 12 ? `…${id.slice(-8)}` : id || "–");

export const sequenceName = (row) => `Sequence ${count(row.number)}${row.choice ? `, choice ${row.choice + 1}` : ""}`;

/** "41 ← 12 ← 7, 9 blocks from the first": a chain's nearest blocks, and how far it reaches. */
export function chainWords(chain) {
  if (!chain.length) return "";
  const near = chain.slice(0, MOST_NAMED).map(count).join(" ← ");
  const rest = chain.length - MOST_NAMED;
  return rest > 0 ? `${near} ← ${count(rest)} more` : near;
}

/** Everything there is to say of a block: {title, state, lines: [[name, value]…]}. `nameOf`: a tenant's, by its place. */
export function describe(table, block, nameOf) {
  const { block_size: size, at_ms: at } = table.head;
  const state = table.state(block);
  const lines = [];
  const say = (name, value) => value && lines.push([name, value]);
  const host = block - table.head.blocks;
  const title = host >= 0 ? `Host slot ${count(host)}` : `Block ${count(block)}`;
  const words = [STATES[state]];
  if (table.pinned(block)) words.push("pinned");
  if (table.fenced(block)) words.push("held by the engine until a copy or a step is done");
  if (state !== FREE) {
    if (table.tenant(block) >= 0) say("Team", nameOf(table.tenant(block)));
    if (state !== HOST || table.filled(block)) say("Filled", `${table.filled(block)} of ${size} tokens`);
    if (state === USED) say("References", count(table.refs(block)));
    const holders = table.holders(block);
    holders
      .slice(0, MOST_NAMED)
      .forEach(({ row, index }, n) => lines.push([n ? "" : "Held by", `${sequenceName(row)}, as its block ${count(index)}`]));
    if (holders.length > MOST_NAMED) lines.push(["", `and ${count(holders.length - MOST_NAMED)} more`]);
    say("Builds on", chainWords(table.chain(block)));
    say("Region", regionName(table.kind(block)));
  }
  if (table.used(block)) say("Last use", ago(table.used(block), at / 1000));
  return { title, state: words.join(", "), lines };
}

/** The logical blocks of a sequence: [{index, block, filled, kind, refs, gone}…]. */
export function tableOf(table, row) {
  const size = table.head.block_size;
  const [platform, team] = row.regions;
  return row.blocks.map((block, index) => {
    const first = index * size;
    return {
      index,
      block,
      gone: block < 0,
      filled: Math.min(Math.max(row.tokens - first, 0), size),
      kind: first + size <= platform ? PLATFORM : first + size <= team ? TEAM : OWN,
      refs: block < 0 ? 0 : table.refs(block),
    };
  });
}

/** What running sequences do not have to hold and compute: figures in words, each {name, value, note}. */
export function figuresInWords(figures, size, blocks) {
  const { counters } = figures;
  const asked = counters.prompt_tokens ?? 0;
  const found = counters.cached_tokens ?? 0;
  const slots = figures.used * size;
  return {
    wasted: {
      value: share(figures.wasted_slots, slots),
      note: `${plural(figures.wasted_slots, "slot")} in last blocks`,
    },
    saved: {
      value: count(figures.saved_blocks),
      note: `${figures.saved_blocks === 1 ? "block" : "blocks"} by sharing, ${share(figures.saved_blocks, blocks)} of the pool`,
    },
    hits: { value: share(found, asked), note: `${count(found)} of ${count(asked)} prompt tokens found` },
    preemptions: { value: count(counters.preemptions ?? 0), note: "since its start" },
    evictions: { value: count(counters.evictions ?? 0), note: "since its start" },
  };
}

/** By how much a counter has grown since `sinceMs`, out of the points of a time line; null where they do not reach so
    far, or the worker began anew meanwhile. */
export function grown(points, name, now, sinceMs) {
  let before = null;
  for (const point of points) {
    if (point.at_ms > sinceMs) break;
    before = point;
  }
  if (!before) return null;
  const passed = now - (before.figures.counters?.[name] ?? 0);
  return passed >= 0 ? passed : null;
}

/** The points of a time line as they are drawn: a worker tells none while nothing changes, so each holds until shortly
    before the next, instead of becoming it by and by. */
export function held(points, everyMs) {
  const found = [];
  points.forEach((point, n) => {
    const before = points[n - 1];
    const to = point.at_ms - everyMs;
    if (before && to - before.at_ms > everyMs) found.push({ ...before, at_ms: to });
    found.push(point);
  });
  return found;
}
