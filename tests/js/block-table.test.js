/* What a worker's block table says of a block: how it looks, what it builds on, who holds it, and in which words. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { HUES, keyOf, levelOf, lookOf, passes } from "#octavo/block-look.js";
import { BlockTable, CACHED, Gap, OWN, PLATFORM, TEAM, USED } from "#octavo/block-table.js";
import { ago, chainWords, describe, figuresInWords, grown, held, tableOf } from "#octavo/block-words.js";

const word = ({ state, refs = 0, kind = 0, pinned = 0, fenced = 0 }) => state | (pinned << 2) | (fenced << 3) | (kind << 4) | (refs << 8);

/** Blocks 0 to 3 are a chain: preamble, prompt, own, and a part-filled one; 4 is free; 5 cached, of the second team. */
function table() {
  const blocks = [
    [word({ state: USED, refs: 9, kind: PLATFORM, pinned: 1 }), 1 | (16 << 16), 0, 90],
    [word({ state: USED, refs: 4, kind: TEAM, pinned: 1 }), 1 | (16 << 16), 1, 90],
    [word({ state: USED, refs: 1, kind: OWN }), 1 | (16 << 16), 2, 100],
    [word({ state: USED, refs: 1, kind: OWN, fenced: 1 }), 1 | (5 << 16), 0, 100],
    [0, 0, 0, 0],
    [word({ state: CACHED, kind: OWN }), 2 | (16 << 16), 0, 40],
  ];
  const words = Uint32Array.from([0, 1, 2, 3].flatMap((column) => blocks.map((block) => block[column])));
  const made = new BlockTable();
  const rows = [{ number: 7, id: "g", tenant: 0, prompt: 40, cached: 32, tokens: 53, regions: [16, 32], blocks: [0, 1, 2, 3] }];
  made.apply({ worker: "w", number: 1, at_ms: 100_000, block_size: 16, blocks: 6, tenants: ["a", "b"], rows, figures: {} }, words);
  return made;
}
const nothing = { tenants: new Set(), marks: new Set() };
const how = { hues: [3, 5], steps: 28, filter: null };

test("a change that lacks the frame before it is a gap, and changes nothing", () => {
  const one = table();
  const change = { worker: "w", number: 3, base: 2, at_ms: 1, block_size: 16, blocks: 6, figures: {} };
  assert.throws(() => one.apply(change, new Uint32Array([4, 2, 0, 0, 0])), Gap);
  assert.equal(one.state(4), 0);
  assert.deepEqual([...one.apply({ ...change, number: 2, base: 1 }, new Uint32Array([4, 2, 0, 0, 0]))], [4]);
  assert.equal(one.state(4), USED);
});

test("a chain goes from the nearest block to the first, and a circle ends it", () => {
  const one = table();
  assert.deepEqual(one.chain(2), [1, 0]);
  one.columns[2][0] = 3; // 0 builds on 2, as two halves of a picture may say
  assert.deepEqual(one.chain(2), [1, 0]);
});

test("more references make a block stronger, up to eight", () => {
  assert.deepEqual([0, 1, 2, 3, 4, 7, 8, 5000].map(levelOf), [0, 1, 2, 2, 3, 3, 4, 4]);
});

test("every mark of a block changes its look, and what looks alike has one number", () => {
  const one = table();
  const looks = [0, 1, 2, 3, 4, 5].map((block) => keyOf(one, block, how));
  assert.equal(new Set(looks).size, 6);
  const colours = { hues: Array.from({ length: HUES + 1 }, (_, n) => `hue ${n}`), line: "line", page: "page", ring: "ring" };
  const seen = looks.map((key) => lookOf(key, { colours, steps: how.steps }));
  assert.deepEqual(seen.map(({ corners }) => corners ?? 0), [2, 1, 0, 0, 0, 0]);
  assert.deepEqual(seen.map(({ pinned }) => Boolean(pinned)), [true, true, false, false, false, false]);
  assert.deepEqual(seen.map(({ ring }) => ring ?? null), [null, null, null, "ring", null, null]);
  assert.deepEqual(seen.map(({ colour }) => colour), ["hue 3", "hue 3", "hue 3", "hue 3", "line", "hue 5"]);
  assert.ok(seen[3].part > 0.3 && seen[3].part < 0.33, "5 of 16 slots");
  assert.equal(keyOf(one, 2, how), keyOf(one, 2, { ...how, filter: nothing }));
});

test("the legend leaves in colour what is of one of its teams and has one of its marks", () => {
  const one = table();
  const passing = (tenants, marks) =>
    [0, 1, 2, 3, 4, 5].filter((block) => passes(one, block, { tenants: new Set(tenants), marks: new Set(marks) }));
  assert.deepEqual(passing([], []), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(passing([0], []), [0, 1, 2, 3]);
  assert.deepEqual(passing([0, 1], ["cached", "part"]), [3, 5]);
  assert.deepEqual(passing([], ["free"]), [4]);
  assert.deepEqual(passing([0], ["free"]), []);
  assert.deepEqual(passing([], ["several"]), [0, 1]);
  assert.deepEqual(passing([], ["platform", "team", "fenced"]), [0, 1, 3]);
});

test("a block is described by whose it is, who holds it where, what it builds on and when it was used", () => {
  const said = describe(table(), 2, (tenant) => ["Acme", "Globex"][tenant]);
  assert.equal(said.title, "Block 2");
  assert.equal(said.state, "Used");
  assert.deepEqual(said.lines, [
    ["Team", "Acme"],
    ["Filled", "16 of 16 tokens"],
    ["References", "1"],
    ["Held by", "Sequence 7, as its block 2"],
    ["Builds on", "1 ← 0"],
    ["Region", "a conversation's or a key's own"],
    ["Last use", "now"],
  ]);
  assert.deepEqual(describe(table(), 4, () => "").lines, []);
});

test("a sequence's table has the region and the fill of every logical block", () => {
  const one = table();
  const entries = tableOf(one, one.rows.get(7));
  assert.deepEqual(entries.map(({ kind }) => kind), [PLATFORM, TEAM, OWN, OWN]);
  assert.deepEqual(entries.map(({ filled }) => filled), [16, 16, 16, 5]);
  assert.deepEqual(tableOf(one, { ...one.rows.get(7), blocks: [-1, 1] }).map(({ gone }) => gone), [true, false]);
});

test("words for long chains, times and shares stay short", () => {
  assert.equal(chainWords([]), "");
  assert.equal(chainWords([5, 4, 3, 2, 1, 0]), "5 ← 4 ← 3 ← 2 ← 2 more");
  assert.deepEqual([0, 1000, 999, 941, 400, -7000].map((used) => ago(used, 1000)), ["never", "now", "now", "59 s ago", "10 min ago", "2 h ago"]);
  const figures = { used: 10, wasted_slots: 8, saved_blocks: 1, counters: { prompt_tokens: 200, cached_tokens: 50 } };
  const words = figuresInWords(figures, 16, 100);
  assert.equal(words.wasted.value, "5 %");
  assert.equal(words.saved.note, "block by sharing, 1 % of the pool");
  assert.equal(words.hits.value, "25 %");
  assert.equal(figuresInWords({ ...figures, counters: {} }, 16, 100).hits.value, "–", "nothing was asked yet");
});

test("what a counter has grown by is known as far as the time line reaches, and not beyond a new start", () => {
  const points = [10, 20, 30].map((at_ms) => ({ at_ms, figures: { counters: { evictions: at_ms } } }));
  assert.equal(grown(points, "evictions", 34, 25), 14);
  assert.equal(grown(points, "evictions", 34, 5), null);
  assert.equal(grown(points, "evictions", 3, 25), null);
});

test("between two points of a time line all holds as it was, and does not grow slowly into the next", () => {
  const points = [0, 2000, 60_000, 62_000].map((at_ms, used) => ({ at_ms, figures: { used } }));
  const drawn = held(points, 2000).map(({ at_ms, figures }) => [at_ms, figures.used]);
  assert.deepEqual(drawn, [[0, 0], [2000, 1], [58_000, 1], [60_000, 2], [62_000, 3]]);
  assert.deepEqual(held([], 2000), []);
});
