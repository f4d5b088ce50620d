/* What a team's memory page makes of what the server says. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  cellsOf,
  describe,
  isEmpty,
  lookOf,
  nameOf,
  partsOf,
  rowsOf,
  summaryOf,
  tableOf,
} from "#octavo/team-memory-cells.js";

const memory = (changes = {}) => ({
  block_size: 16,
  instructions: 3,
  running: 2,
  waiting: 0,
  cells: [
    { kind: "platform", held: 2, pinned: true },
    { kind: "team", held: 2, pinned: true, blocks: 2 },
    { kind: "own", held: 1, room: 7 },
    { kind: "own", held: 1, room: 12 },
    { kind: "own", since: 1700000000, blocks: 2 },
    { kind: "own", host: true, since: 1600000000 },
  ],
  sequences: [
    { id: "0191-first", table: [[0, 4]] },
    { id: "0191-second", table: [[-1, 2], [2, 1], [4, 1]] },
  ],
  ...changes,
});

test("runs are cells in their order, in three parts", () => {
  const cells = cellsOf(memory());
  assert.equal(cells.length, 8);
  assert.deepEqual(partsOf(memory(), cells), { instructions: [0, 3], running: [3, 5], kept: [5, 8] });
  const none = memory({ cells: [{ kind: "team", blocks: 3 }], sequences: [] });
  assert.deepEqual(partsOf(none, cellsOf(none)), { instructions: [0, 3], running: [3, 3], kept: [3, 3] });
});

test("a block table says where each logical block lies, in as few rows as it can", () => {
  const [first, second] = memory().sequences;
  const cells = cellsOf(memory());
  assert.deepEqual(tableOf(first), [0, 1, 2, 3]);
  assert.deepEqual(tableOf(second), [-1, -1, 2, 4]);
  assert.deepEqual(rowsOf(first, cells), [
    { from: 0, to: 0, first: 0, kind: "platform" },
    { from: 1, to: 2, first: 1, kind: "team" },
    { from: 3, to: 3, first: 3, kind: "own" },
  ]);
  assert.deepEqual(rowsOf(second, cells), [
    { from: 0, to: 1, first: -1, kind: "gone" },
    { from: 2, to: 2, first: 2, kind: "team" },
    { from: 3, to: 3, first: 4, kind: "own" },
  ]);
});

test("a cell says what it holds, who holds it and where", () => {
  const cells = cellsOf(memory());
  assert.deepEqual(describe(cells, 2, memory()), [
    "Block 3",
    "Your team’s instructions",
    "16 of 16 slots filled",
    "Held by 2 running answers",
    "Number 3 in the table of …91-first",
    "Number 3 in the table of …1-second",
    "Pinned: it goes last",
  ]);
  const now = new Date(1600000000000 + 2 * 3600000);
  const kept = describe(cells, 7, memory(), now);
  assert.ok(kept.includes("Kept: the next question may find it"));
  assert.ok(kept.includes("In host memory"));
  assert.equal(kept.at(-1), "Last used 2 h ago");
});

test("the more answers hold instructions the stronger they are, what is kept is weaker, the rest of others is dimmed", () => {
  const colours = { shared: "s", own: "o", page: "p", ring: "r" };
  const strength = (cell) => lookOf({ kind: "team", held: 0, room: 0, ...cell }, 16, colours).strength;
  assert.ok(strength({}) < strength({ held: 1 }));
  assert.ok(strength({ held: 1 }) < strength({ held: 9 }));
  assert.ok(strength({ kind: "own" }) < strength({ kind: "own", held: 1 }));
  const filling = lookOf({ kind: "own", held: 1, room: 12 }, 16, colours, true);
  assert.deepEqual([filling.part, filling.colour, filling.dim], [0.25, "o", 0.2]);
});

test("neighbours that are alike are one row of the table, and all blocks are in it", () => {
  const rows = summaryOf(cellsOf(memory()));
  assert.deepEqual(
    rows.map(({ from, to, kind, held, host }) => [from, to, kind, held, host]),
    [
      [0, 0, "platform", 2, 0],
      [1, 2, "team", 2, 0],
      [3, 4, "own", 1, 0],
      [5, 7, "own", 0, 1],
    ],
  );
});

test("an answer is named by what it is for, and what is no answer is instructions on their way", () => {
  const answers = { a: { kind: "chat", assistant: "Ada" }, b: { kind: "api", assistant: "" }, c: { kind: "", assistant: "" } };
  assert.deepEqual(
    ["a", "b", "c", "d"].map((id) => nameOf({ id }, answers)),
    ["Chat", "API", "Instructions being computed", "Instructions being computed"],
  );
});

test("nothing is there when there are neither blocks nor questions", () => {
  assert.ok(isEmpty(null));
  assert.ok(isEmpty(memory({ cells: [], running: 0 })));
  assert.ok(!isEmpty(memory({ cells: [], running: 0, waiting: 1 })));
  assert.ok(!isEmpty(memory({ cells: [], running: 0, waiting: 0 }), 1));
  assert.ok(!isEmpty(memory()));
});
