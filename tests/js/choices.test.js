import assert from "node:assert/strict";
import { test } from "node:test";

import { chosenOf } from "#octavo/choices.js";

const bounds = { temperature: { default: 0.3 }, max_tokens: { default: 1024 }, top_p: { default: 0.9 } };

test("only what differs from what holds anyway is chosen", () => {
  const values = { temperature: "0.3", top_p: "0.5", max_tokens: "", seed: "", stop: "" };
  assert.deepEqual(chosenOf(values, bounds), { top_p: 0.5 });
  assert.deepEqual(chosenOf({ max_tokens: "1024", seed: " 7 " }, bounds), { seed: 7 });
});

test("each line is a text to stop at, with its spaces", () => {
  assert.deepEqual(chosenOf({ stop: "END\n\n  User:" }, bounds), { stop: ["END", "  User:"] });
});
