import assert from "node:assert/strict";
import { test } from "node:test";

import { REASONS } from "#octavo/feedback.js";
import { chats, leftOut, messages } from "#octavo/importing.js";
import { nameIn } from "#octavo/moving.js";

test("the name of a download is read as RFC 6266 has it, in any script", () => {
  assert.equal(nameIn('attachment; filename="Tides.md"'), "Tides.md");
  assert.equal(nameIn('attachment; filename="say \\"sea\\".md"'), 'say "sea".md');
  assert.equal(nameIn("attachment; filename*=utf-8''%E6%BD%AE%20a.json"), "潮 a.json");
  assert.equal(nameIn("attachment; filename*=utf-8''%E6%"), "");
  assert.equal(nameIn(null), "");
});

test("counts are said with their number, one and many", () => {
  assert.equal(chats(1), "1 chat");
  assert.equal(messages(1234), "1,234 messages");
});

test("what an import leaves out is said in words, and what there is none of is not", () => {
  assert.deepEqual(leftOut({ images: 1, tools: 2, files: 0 }), ["1 image", "2 steps of tools"]);
  assert.deepEqual(leftOut({ something_new: 3 }), ["3 something_new"]);
});

test("a rating has its own reasons", () => {
  const up = REASONS.up().map(([name]) => name);
  const down = REASONS.down().map(([name]) => name);
  assert.ok(up.length && down.length);
  assert.ok(!up.some((name) => down.includes(name)));
});
