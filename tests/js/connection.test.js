import assert from "node:assert/strict";
import { test } from "node:test";

import { whyClosed } from "#octavo/connection.js";

const TOO_MANY = { code: "too_many_sockets", message: "You have 64 sockets open already; close some." };
const FULL = { code: "overloaded", message: "This server has as many sockets open as it can hold. Try again in 9 s." };

test("a page that is not let in says why, and not that the server is away", () => {
  assert.equal(whyClosed(4429, TOO_MANY), TOO_MANY.message);
  assert.equal(whyClosed(1013, FULL), FULL.message);
});

test("what was said once is not said of a connection that breaks later", () => {
  assert.equal(whyClosed(1006, FULL), "");
  assert.equal(whyClosed(1013, null), "");
});
