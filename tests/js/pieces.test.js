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
