import assert from "node:assert/strict";
import { test } from "node:test";

import { ago, compact, count, many, parts, percent, rates, size, span, verdict } from "#octavo/operations-words.js";

test("times have the unit and the digits that mean something", () => {
  assert.deepEqual(
    [0.001, 0.042, 0.999, 1, 9.94, 42.4, 89, 120, 7200, 200_000].map(span),
    ["0 s", "0.04 s", "1.00 s", "1.0 s", "9.9 s", "42 s", "89 s", "2 min", "2 h", "2 days"],
  );
  assert.deepEqual([0.3, 12].map(ago), ["just now", "12 s ago"]);
});

test("sizes, counts and shares read as people say them", () => {
  assert.deepEqual([1, 900, 1536, 20 * 1024 ** 2, 3 * 1024 ** 3].map(size), ["1 byte", "900 bytes", "1.5 KB", "20 MB", "3.0 GB"]);
  assert.deepEqual([9999, 1_234_567].map(compact), ["9,999", "1.2M"]);
  assert.deepEqual([count(12_345), many(1, "team"), many(0, "team")], ["12,345", "1 team", "0 teams"]);
  assert.deepEqual([0, 0.004, 0.5, 1].map(percent), ["0 %", "< 1 %", "50 %", "100 %"]);
});

test("parts lie side by side, leave out what is nothing, and never stand out of their bar", () => {
  assert.deepEqual(parts([["a", 1], ["b", 0], ["c", 2]], 4), [["a", 0, 25], ["c", 25, 50]]);
  assert.deepEqual(parts([["a", 3], ["b", 3]], 4), [["a", 0, 75], ["b", 75, 25]]);
  assert.deepEqual(parts([["a", 1]], 0), []);
});

const at = (seconds, workers) => ({ at: new Date(seconds * 1000).toISOString(), engines: workers && { workers } });

test("steps a second are counted between two looks, for workers that were there at both", () => {
  const before = at(10, [{ id: "w", steps: 100 }, { id: "gone", steps: 5 }]);
  assert.deepEqual(rates(before, at(12, [{ id: "w", steps: 130 }, { id: "new", steps: 7 }])), { w: 15 });
  assert.deepEqual(rates(before, at(12, [{ id: "w", steps: 3 }])), {}, "one that counts anew has no rate yet");
  assert.deepEqual(rates(before, at(10, [{ id: "w", steps: 130 }])), {}, "nor has a moment");
  assert.deepEqual(rates(at(10, null), at(12, [])), {}, "nor what Redis did not say");
  assert.deepEqual(rates(null, at(12, [])), {});
});

test("the verdict counts what is broken before what is to be looked at", () => {
  const of = (...states) => verdict(states.map((state) => ({ state })));
  assert.deepEqual(of(), { worst: "good", text: "All is well" });
  assert.deepEqual(of("warn"), { worst: "warn", text: "1 thing to look at" });
  assert.deepEqual(of("bad"), { worst: "bad", text: "1 thing is broken" });
  assert.deepEqual(of("bad", "bad", "warn"), { worst: "bad", text: "2 things are broken, 1 more to look at" });
});
