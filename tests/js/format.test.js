import assert from "node:assert/strict";
import { test } from "node:test";

import { byteLength, duration, figures, figuresMeaning, place, relativeTime, seconds, titleOf } from "#octavo/format.js";

test("the footer tells time to the first token, speed, prompt, cached and shared part, and output", () => {
  const usage = { prompt_tokens: 1612, cached_tokens: 1580, shared_tokens: 540, completion_tokens: 128 };
  const timing = { queue_s: 0.1, prefill_s: 0.3, decode_s: 127 / 71 };
  assert.equal(
    figures(usage, timing),
    "0.4 s to first token · 71 tok/s · 1,612 prompt (1,580 cached, 540 shared) · 128 output",
  );
  assert.equal(
    figuresMeaning(usage),
    "1,580 of the 1,612 tokens of the prompt were in memory already. " +
      "540 of them are instructions, which all chats of your team share in one copy.",
  );
});

test("what is cached and shared is said once where it is the same, and not where there is none", () => {
  const of = (cached_tokens, shared_tokens) => figures({ prompt_tokens: 600, cached_tokens, shared_tokens }, null);
  assert.equal(of(540, 540), "600 prompt (540 shared)");
  assert.equal(of(540, 0), "600 prompt (540 cached)");
  assert.equal(of(540, undefined), "600 prompt (540 cached)");
  assert.equal(of(0, 0), "600 prompt");
  assert.equal(figuresMeaning({ prompt_tokens: 600, cached_tokens: 0 }), "");
});

test("the footer leaves out what is not known", () => {
  assert.equal(figures({ prompt_tokens: 12 }, null), "12 prompt");
  assert.equal(
    figures({ prompt_tokens: 12, completion_tokens: 1 }, { prefill_s: 0.25 }),
    "0.25 s to first token · 12 prompt · 1 output",
  );
  assert.equal(figures(null, null), "");
});

test("seconds have the digits that mean something", () => {
  assert.deepEqual([0.001, 0.42, 0.4, 3.14, 75.2].map(seconds), [
    "0.01 s",
    "0.42 s",
    "0.4 s",
    "3.1 s",
    "75 s",
  ]);
});

test("a queue position says how many are before", () => {
  assert.equal(place(1), "Waiting for the model, next in line");
  assert.equal(place(4), "Waiting for the model, 3 before you");
});

test("a new conversation is called by the first line of its question", () => {
  assert.equal(titleOf("  Hello there\nmore"), "Hello there");
  assert.equal(titleOf("x".repeat(80)), `${"x".repeat(59)}…`);
});

test("bytes are those of UTF-8", () => {
  assert.equal(byteLength("aé삼👋"), 1 + 2 + 3 + 4);
});

test("a time that comes is told as one", () => {
  const now = new Date("2026-03-01T12:00:00Z");
  assert.equal(relativeTime("2026-03-01T12:30:00Z", now), "in 30 min");
  assert.equal(relativeTime("2026-03-02T12:00:00Z", now), "in 24 h");
  assert.equal(relativeTime("2026-03-05T12:00:00Z", now), "in 4 days");
  assert.equal(relativeTime("2027-03-05T12:00:00Z", now), "Mar 5, 2027");
  assert.equal(relativeTime("2026-03-01T12:00:30Z", now), "just now");
});

test("measured times have two digits and the unit that suits them", () => {
  const said = [0, 0.0042, 0.012, 0.0994, 0.1, 0.42, 3.14, 9.96, 75].map(duration);
  assert.deepEqual(said, ["0 ms", "4.2 ms", "12 ms", "99 ms", "0.1 s", "0.42 s", "3.1 s", "10 s", "75 s"]);
});
