import assert from "node:assert/strict";
import { test } from "node:test";

import { statusOf } from "#octavo/answer.js";
import { addDelta, end } from "#octavo/octavo.js";

const fresh = () => ({ id: "a", text: "", last_seq: -1, status: "queued" });
const delta = (first_seq, seq, text) => ({
  type: "response.output_text.delta",
  index: 0,
  first_seq,
  seq,
  delta: text,
});

test("deltas in order make the text", () => {
  const answer = fresh();
  assert.equal(addDelta(answer, delta(1, 1, "Hel")), "applied");
  assert.equal(addDelta(answer, delta(2, 5, "lo")), "applied");
  assert.deepEqual([answer.text, answer.last_seq, answer.status], ["Hello", 5, "running"]);
});

test("a repeated range adds nothing", () => {
  const answer = fresh();
  addDelta(answer, delta(1, 3, "one"));
  assert.equal(addDelta(answer, delta(1, 3, "one")), "known");
  assert.equal(addDelta(answer, delta(2, 3, "ne")), "known");
  assert.equal(answer.text, "one");
});

test("a range behind a hole is a gap and changes nothing", () => {
  const answer = fresh();
  addDelta(answer, delta(1, 3, "one"));
  assert.equal(addDelta(answer, delta(5, 6, "three")), "gap");
  assert.equal(addDelta(answer, delta(3, 6, "overlap that cannot be cut")), "gap");
  assert.deepEqual([answer.text, answer.last_seq], ["one", 3]);
});

test("the whole text in one piece replaces what was there", () => {
  const answer = fresh();
  addDelta(answer, delta(1, 2, "on"));
  assert.equal(addDelta(answer, delta(1, 9, "one two")), "applied");
  assert.deepEqual([answer.text, answer.last_seq], ["one two", 9]);
});

test("any mixture of merged and repeated frames, resumed at gaps, gives the same text", () => {
  const pieces = Array.from({ length: 60 }, (_, i) => `${i} `);
  const range = (first, last) => delta(first, last, pieces.slice(first - 1, last).join(""));
  let state = 7;
  const random = (n) => (state = (state * 48271) % 2147483647) % n;
  for (let round = 0; round < 300; round += 1) {
    const answer = fresh();
    while (answer.last_seq < 60) {
      const next = Math.max(answer.last_seq, 0) + 1;
      // Somewhere near where the answer stands: in order, repeated, or lost in part.
      const first = Math.min(Math.max(next + random(5) - 2, 1), 60);
      const outcome = addDelta(answer, range(first, Math.min(first + random(6), 60)));
      if (outcome === "gap") addDelta(answer, range(next, Math.min(next + random(6), 60)));
    }
    assert.equal(answer.text, pieces.join(""));
  }
});

test("an ending that follows a hole waits for what is missing", () => {
  const answer = fresh();
  addDelta(answer, delta(1, 2, "ab"));
  assert.equal(end(answer, { type: "response.completed", seq: 5 }), "gap");
  assert.equal(answer.status, "running");
  addDelta(answer, delta(3, 4, "cd"));
  assert.equal(end(answer, { type: "response.completed", seq: 5, finish_reason: "stop" }), "applied");
  assert.deepEqual([answer.text, answer.status], ["abcd", "completed"]);
});

test("a stopped answer stays stopped", () => {
  const answer = fresh();
  assert.equal(end(answer, { type: "response.cancelled", seq: 0 }), "applied");
  assert.equal(end(answer, { type: "response.completed", seq: 0 }), "known");
  assert.equal(answer.status, "cancelled");
});

test("text of other choices is counted but not shown", () => {
  const answer = fresh();
  addDelta(answer, { ...delta(1, 1, "other"), index: 1 });
  addDelta(answer, delta(2, 2, "shown"));
  assert.deepEqual([answer.text, answer.last_seq], ["shown", 2]);
});

test("an answer cut by its limit is incomplete", () => {
  assert.equal(statusOf("finished", "length"), "incomplete");
  assert.equal(statusOf("finished", "stop"), "completed");
  assert.equal(statusOf("interrupted", null), "failed");
  assert.equal(statusOf("accepted", null), "queued");
});
