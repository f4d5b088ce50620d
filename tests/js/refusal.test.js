import assert from "node:assert/strict";
import { test } from "node:test";

import { secondsLeft } from "#octavo/refusal.js";

test("a refusal that names a time is waited out", () => {
  assert.equal(secondsLeft({ retry_after_ms: 5000 }, 1000, 1000), 5);
  assert.equal(secondsLeft({ retry_after_ms: 5000 }, 1000, 5001), 1);
  assert.equal(secondsLeft({ retry_after_ms: 5000 }, 1000, 6000), 0);
  assert.equal(secondsLeft({ message: "x" }, 1000, 1000), 0);
});
