import assert from "node:assert/strict";
import { test } from "node:test";

import MarkdownIt from "markdown-it";

import { BlockCutter } from "#octavo/blocks.js";
import { repair } from "#octavo/repair.js";

const md = new MarkdownIt({ html: false });

const DOCUMENTS = [
  "# Title\n\nA paragraph\nof two lines.\n\n- one\n- two\n\n  with more\n\n1. first\n\n2. second\n\n3. third\n\nEnd.",
  "Text\n\n```python\ndef f():\n\n    return 1\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n> quote\nlazy\n\n---\n\nlast",
  "See [one] and [two].\n\n[one]: https://example.org\n\nMore.\n\n[two]: https://example.com\n\nEven more.",
  "a\r\n\r\nb\r\n\r\n* x\r\n* y\r\n\r\nc\r\n\r\nd",
  "\n\n    indented code\n\n    goes on\n\ntext\n\nHead\n====\n\nmore 삼겹살 👩‍👩‍👧\n\n~~~\nopen fence\n\nnever closed",
  "just one line",
];

let state = 11;
const random = (n) => (state = (state * 48271) % 2147483647) % n;

test("blocks of a growing text are those of the whole text", () => {
  for (const text of DOCUMENTS) {
    const whole = new BlockCutter(md).update(text);
    for (let round = 0; round < 40; round += 1) {
      const cutter = new BlockCutter(md);
      let blocks = [];
      for (let at = 0; at < text.length;) {
        at += 1 + random(9);
        blocks = cutter.update(text.slice(0, at));
      }
      assert.deepEqual(blocks, whole);
    }
  }
});

test("rendered block by block, a text gives what it gives as a whole", () => {
  for (const text of DOCUMENTS) {
    const cutter = new BlockCutter(md);
    const html = cutter
      .update(text)
      .map((source) => md.render(source, { references: { ...cutter.allReferences } }))
      .join("");
    assert.equal(html, md.render(text));
  }
});

test("finished blocks stay the same objects of text while a long answer grows", () => {
  const cutter = new BlockCutter(md);
  const text = Array.from({ length: 50 }, (_, i) => `Paragraph ${i}.`).join("\n\n");
  let parsed = 0;
  const parse = md.block.parse.bind(md.block);
  md.block.parse = (source, ...rest) => {
    parsed += source.length;
    return parse(source, ...rest);
  };
  for (let at = 1; at <= text.length; at += 1) cutter.update(text.slice(0, at));
  md.block.parse = parse;
  // Each step parses a few dozen characters, not all that came before it.
  assert.ok(parsed < text.length * 80, `${parsed} characters parsed for a text of ${text.length}`);
});

test("a replaced text starts over", () => {
  const cutter = new BlockCutter(md);
  cutter.update("one\n\ntwo\n\nthree\n\nfour");
  assert.deepEqual(cutter.update("other\n\ntext"), ["other\n\n", "text"]);
});

const REPAIRS = [
  ["**bold", "**bold**"],
  ["**bold*", "**bold**"],
  ["some *words", "some *words*"],
  ["some **", "some "],
  ["***both", "***both***"],
  ["a * b", "a * b"],
  ["2 * 3 * 4", "2 * 3 * 4"],
  ["snake_case_name", "snake_case_name"],
  ["call `code", "call `code`"],
  ["call `", "call "],
  ["``a ` b", "``a ` b``"],
  ["`a*b` and **c", "`a*b` and **c**"],
  ["**done** and *open", "**done** and *open*"],
  ["~~gone", "~~gone~~"],
  ["see [the docs](https://exam", "see the docs"],
  ["see [the docs](https://example.org)", "see [the docs](https://example.org)"],
  ["![pic](https://ex", ""],
  ["line\n-", "line"],
  ["line\n==", "line"],
  ["1. one\n2.", "1. one"],
  ["```js\nlet a = `x", "```js\nlet a = `x"],
  ["```js\nlet a;\n``", "```js\nlet a;"],
  ["```js\nlet a;\n```\n\nand **b", "```js\nlet a;\n```\n\nand **b**"],
];

test("what a stream has cut off is completed", () => {
  for (const [source, wanted] of REPAIRS)
    assert.equal(repair(source), wanted, `of ${JSON.stringify(source)}`);
});

test("a lone number that is the whole answer is shown", () => {
  assert.equal(repair("42", true), "42");
});

test("whole markdown is left alone", () => {
  for (const text of [
    "# A\n\n**b** *c* `d` [e](https://f.org)",
    "- a\n- b",
    "> q\n\n1. x\n2. y",
    "a_b_c and 5 < 6",
  ]) {
    assert.equal(repair(text), text);
  }
});

test("every prefix of a text can be repaired and rendered", () => {
  for (const text of DOCUMENTS) {
    for (let at = 0; at <= text.length; at += 1) md.render(repair(text.slice(0, at)));
  }
});
