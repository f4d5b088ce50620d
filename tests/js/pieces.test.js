import assert from "node:assert/strict";
import { test } from "node:test";

import { pieces } from "#octavo/pieces.js";

test("what a reader wrote stays as it was typed, but for code between fences", () => {
  const odd = "  *not* _markdown_ <b> $5\n\n\n# no head \u202e 👩‍👩‍👧 e\u0301";
  assert.deepEqual(pieces(odd), [{ text: odd }]);
  assert.deepEqual(pieces("why?\n```js title=a\nlet a;\n\n\nlet b;\n```\n\nthanks"), [
    { text: "why?" },
    { code: "let a;\n\n\nlet b;\n", info: "js title=a" },
    { text: "thanks" },
  ]);
  assert.deepEqual(pieces("~~~\n```\n~~~"), [{ code: "```\n", info: "" }]);
  assert.deepEqual(pieces("an open ``` in a line\n```\nand one without end"), [
    { text: "an open ``` in a line\n```\nand one without end" },
  ]);
});

test("fences that nothing closes cost no more, however many there are", () => {
  for (const line of ["```a\n", "~~~ b\n", `${"~".repeat(30)}\``]) {
    const text = line.repeat(40_000);
    const began = performance.now();
    assert.deepEqual(pieces(text), [{ text }]);
    assert.ok(performance.now() - began < 1000, line);
  }
  const long = "`".repeat(100_000);
  assert.deepEqual(pieces(`${long}\nlet a;\n${long}`), [{ code: "let a;\n", info: "" }]);
  assert.deepEqual(pieces("~~~~\na\n~~~"), [{ text: "~~~~\na\n~~~" }], "a shorter one closes nothing");
});
