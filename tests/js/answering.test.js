import assert from "node:assert/strict";
import { test } from "node:test";

import { quotation } from "#octavo/answering.js";

test("a quotation marks every line", () => {
  assert.equal(quotation("  one\n\ntwo\n"), "> one\n>\n> two");
});
