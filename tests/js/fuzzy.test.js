import assert from "node:assert/strict";
import { test } from "node:test";

import { fuzzy } from "#octavo/fuzzy.js";

const marked = (query, text) => fuzzy(query, text)?.marks.map(([from, to]) => text.slice(from, to));
const order = (query, texts) =>
  texts
    .map((text) => ({ text, found: fuzzy(query, text) }))
    .filter(({ found }) => found)
    .sort((one, other) => other.found.score - one.found.score)
    .map(({ text }) => text);

test("letters in their order are found and marked, the beginnings of words first", () => {
  assert.deepEqual(marked("nc", "New chat"), ["N", "c"]);
  assert.deepEqual(marked("chat", "New chat"), ["chat"]);
  assert.deepEqual(marked("tgsb", "Toggle the sidebar"), ["T", "g", "s", "b"]);
  assert.equal(fuzzy("xyz", "New chat"), null);
});

test("every word has to be there, in any order", () => {
  assert.deepEqual(marked("chat new", "New chat"), ["New", "chat"]);
  assert.equal(fuzzy("chat old", "New chat"), null);
});

test("a word as it stands comes before letters that are apart, and a beginning before a middle", () => {
  assert.deepEqual(order("tide", ["The idea of destiny", "High tides", "Tides", "Multitide"]), [
    "Tides",
    "High tides",
    "Multitide",
    "The idea of destiny",
  ]);
});

test("case, accents and width do not count, and marks stay in place in odd Unicode", () => {
  assert.deepEqual(marked("uber", "Etwas ÜBER"), ["ÜBER"]);
  assert.deepEqual(marked("cafe", "Cafe\u0301 noir"), ["Cafe"]);
  assert.deepEqual(marked("b", "👩‍🚀 b"), ["b"]);
  assert.deepEqual(marked("海水", "月亮牵引海水"), ["海水"]);
  assert.deepEqual(marked("ABC", "ａｂｃ"), ["ａｂｃ"]);
});

test("an empty query fits everything and marks nothing", () => {
  assert.deepEqual(fuzzy("  ", "New chat").marks, []);
});

test("a text in which letters are only strewn does not fit", () => {
  assert.equal(fuzzy("zq", `zebra ${"and so on ".repeat(20)} q`), null);
});
