import assert from "node:assert/strict";
import { test } from "node:test";

import { between, estimate, firstWhere, outward } from "#octavo/nearby.js";

/** Messages of 100 px, 10 px apart, of which the view's top is `scrolled` px below the first one's. */
const extent = (scrolled) => ({ top: (i) => i * 110 - scrolled, bottom: (i) => i * 110 + 100 - scrolled });

test("the first that fits is found among none, one and many, with few looks", () => {
  for (const count of [0, 1, 2, 7, 2000])
    for (const first of [0, Math.floor(count / 3), count]) {
      let looks = 0;
      const found = firstWhere(count, (index) => {
        looks += 1;
        return index >= first;
      });
      assert.equal(found, first);
      assert.ok(looks <= 12);
    }
});

test("what is seen are the messages that the view meets, cut ones too", () => {
  assert.deepEqual(between(500, extent(0), 0, 300), [0, 3]);
  assert.deepEqual(between(500, extent(250), 0, 300), [2, 5]);
  assert.deepEqual(between(500, extent(100), 0, 10), [1, 1]); // between two of them
  assert.deepEqual(between(500, extent(110 * 499), 0, 300), [499, 500]);
  assert.deepEqual(between(500, extent(1e6), 0, 300), [500, 500]);
  assert.deepEqual(between(0, extent(0), 0, 300), [0, 0]);
});

test("how many are near does not depend on how many there are", () => {
  const sizes = [100, 500, 2000].map((count) => {
    const [from, to] = between(count, extent(110 * 50), -600, 1200);
    return to - from;
  });
  assert.deepEqual(sizes, [17, 17, 17]);
});

test("what is seen comes first, then the nearest, and each once", () => {
  assert.deepEqual(outward([2, 9], [4, 6]), [4, 5, 6, 3, 7, 2, 8]);
  assert.deepEqual(outward([0, 3], [2, 3]), [2, 1, 0]);
  assert.deepEqual(outward([0, 0], [0, 0]), []);
  assert.deepEqual(outward([5, 8], [5, 5]), [5, 6, 7]);
});

test("a longer text, and a narrower column, are estimated to be higher", () => {
  const long = { role: "assistant", text: "word ".repeat(400) };
  assert.ok(estimate(long, 736) > estimate({ ...long, text: "word" }, 736));
  assert.ok(estimate(long, 320) > estimate(long, 736));
  const code = { role: "assistant", text: `\`\`\`py\n${"x = 1\n".repeat(100)}\`\`\`` };
  assert.ok(estimate(code, 736) > 100 * 20 && estimate(code, 736) < 100 * 30);
  assert.equal(estimate(code, 736), estimate(code, 320)); // code does not wrap
});
