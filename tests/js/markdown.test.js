import assert from "node:assert/strict";
import { test } from "node:test";

import { BlockCutter } from "#octavo/blocks.js";
import { grammar } from "#octavo/grammar.js";
import { openFenceOf, repairSource, withoutHalfFence } from "#octavo/repair.js";

const md = grammar();

/** HTML of a text that still grows. */
const growing = (source, first = false) => md.render(repairSource(source, first), { live: true });

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

// What a growing text shows, as the markdown of the same picture.
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
  ["``a ` b`", "``a ` b``"],
  ["`a*b` and **c", "`a*b` and **c**"],
  ["**done** and *open", "**done** and *open*"],
  ["~~gone", "~~gone~~"],
  ["see [the docs](https://exam", "see the docs"],
  ["see [the docs", "see the docs"],
  ["see [the docs]", "see the docs"],
  ["see [the docs](https://example.org)", "see [the docs](https://example.org)"],
  ["an array[0", "an array[0"],
  ["![pic](https://ex", ""],
  ["![pic", ""],
  ["at <https://exam", "at https://exam"],
  ["fish &am", "fish "],
  ["AT&T and R&D", "AT&T and R&D"],
  ["fish &amp;", "fish &amp;"],
  ["half an escape \\", "half an escape "],
  ["line\n-", "line"],
  ["line\n==", "line"],
  ["line\n$$", "line"],
  ["1. one\n2.", "1. one"],
  ["- one\n  - two\n  -", "- one\n  - two"],
  ["> quoted\n>", "> quoted"],
  ["> quoted **bo", "> quoted **bo**"],
  ["> quoted\n> 1. a *b", "> quoted\n> 1. a *b*"],
  ["- one *open\n- two `co", "- one *open\n- two `co`"],
  ["- [", "-"],
  ["- [x", "-"],
  ["- [ ] do **it", "- [ ] do **it**"],
  ["## Head `co", "## Head `co`"],
  ["## Head **bo\n", "## Head **bo"],
  ["text\n##", "text"],
  ["noted[^1", "noted"],
  ["noted[^1]", "noted[^1]"],
  ["| a | b", "| a | b |\n|---|---|"],
  ["Text:\n| a | b |", "Text:\n| a | b |\n|---|---|"],
  ["| a | b |\n|", "| a | b |\n|---|---|"],
  ["| a | b |\n|--", "| a | b |\n|---|---|"],
  ["| a | b |\n|---|--:", "| a | b |\n|---|--:|"],
  ["a | b\n---|", "a | b\n---|---"],
  ["| a | b |\n|---|---|\n|", "| a | b |\n|---|---|"],
  ["| a | b |\n|---|---|\n| **on", "| a | b |\n|---|---|\n| **on** | |"],
  ["| a | b |\n|---|---|\n| *x | **on", "| a | b |\n|---|---|\n| *x | **on** |"],
  ["> | a | b |\n> |-", "> | a | b |\n> |---|---|"],
  ["- | a | b |\n  |-", "- | a | b |\n  |---|---|"],
  ["```js\nlet a;\n```\n\nand **b", "```js\nlet a;\n```\n\nand **b**"],
  ["text\n\n```pyth", "text"],
  ["text\n\n```", "text"],
  ["- item\n\n  ```sh\n  ls", "- item\n\n  ```sh\n  ls"],
  ["````md\n```js\nlet a;\n```", "````md\n```js\nlet a;\n````"],
  ["````md\n```js\nlet a;\n```\n", "````md\n```js\nlet a;\n```\n````"],
  ["````md\n```js\nlet a;\n```\n``", "````md\n```js\nlet a;\n```\n````"],
  ["```js\nlet a = `x", "```js\nlet a = `x"],
  ["```js\nlet a;\n``", "```js\nlet a;\n```"],
  ["the sum \\(a + b", "the sum \\(a + b\\)"],
  ["the sum \\(", "the sum "],
  ["the sum $a^2", "the sum $a^2$"],
  ["**the sum \\(a*b", "**the sum \\(a*b\\)**"],
  ["the price is $5", "the price is $5"],
  ["$$\na + b", "$$\na + b\n$$"],
  ["text\n\\[\na + b", "text\n\\[\na + b\n\\]"],
];

// White space before the end of an element is not seen.
const seen = (html) => html.replace(/\s+(?=<|$)/g, "").replace(/<p><\/p>/g, "");

test("what a stream has cut off is completed", () => {
  const wrong = REPAIRS.filter(([source, wanted]) => seen(growing(source)) !== seen(md.render(wanted)));
  assert.deepEqual(
    wrong.map(([source, wanted]) => ({ source, is: seen(growing(source)), wanted: seen(md.render(wanted)) })),
    [],
  );
});

test("a lone number that is the whole answer is shown", () => {
  assert.equal(growing("42", true), "<p>42</p>\n");
});

test("whole markdown is left alone", () => {
  for (const text of [
    "# A\n\n**b** *c* `d` [e](https://f.org)",
    "- a\n- b",
    "> q\n\n1. x\n2. y",
    "a_b_c and 5 < 6",
    "| a | b |\n|---|--:|\n| 1 | 2 |",
    "It costs $5, or $10 for two; 3 < 4 & 5 > 2 [sic].",
    "\\(x\\) and $y^2$ and\n\n$$\nz\n$$",
  ]) {
    assert.equal(growing(text), md.render(text));
  }
});

test("every prefix of a text can be repaired and rendered", () => {
  for (const text of [...DOCUMENTS, ...REPAIRS.map(([, whole]) => whole)]) {
    for (let at = 0; at <= text.length; at += 1) growing(text.slice(0, at));
  }
});

test("code that grows at the margin is not parsed again, and is what it would be when parsed", () => {
  const cutter = new BlockCutter(md);
  const text = `A text.\n\n\`\`\`js\n${"let a = \"`\`\`\";\n".repeat(200)}\`\`\`\n\nMore.`;
  let parsed = 0;
  const parse = md.block.parse.bind(md.block);
  md.block.parse = (source, ...rest) => {
    parsed += source.length;
    return parse(source, ...rest);
  };
  for (let at = 3; at <= text.length; at += 3) {
    const blocks = cutter.update(text.slice(0, at));
    if (cutter.code !== null) assert.equal(blocks.at(-1), cutter.fence.head + cutter.code);
  }
  md.block.parse = parse;
  assert.ok(parsed < text.length * 4, `${parsed} characters parsed for a text of ${text.length}`);
  assert.equal(cutter.code, null);
  assert.deepEqual(cutter.update(text), new BlockCutter(md).update(text));
});

test("a bracket that begins a line of code waits for nothing, and one that may begin a link's definition does", () => {
  const cutter = new BlockCutter(md);
  const head = "Text.\n\n```json\n";
  const text = `${head}{\n  [1, 2`;
  for (let at = head.length + 1; at <= text.length; at += 1) {
    cutter.update(text.slice(0, at), true);
    assert.ok(!cutter.restarted, text.slice(0, at));
    assert.equal(cutter.code, text.slice(head.length, at));
  }
  const closed = `${text}\n\`\`\`\n`;
  assert.equal(cutter.update(`${closed}[ref`, true).join(""), closed);
  assert.equal(cutter.update(`${closed}[ref`).join(""), `${closed}[ref`);
});

test("a formula in which other blocks seem to begin is one block, however it comes", () => {
  const text = "Text.\n\n$$\na\n- b\n```\nc\n```\n# d\n$$\n\nEnd.";
  const cutter = new BlockCutter(md);
  for (let at = 1; at <= text.length; at += 1) cutter.update(text.slice(0, at), true);
  assert.deepEqual(cutter.update(text), new BlockCutter(md).update(text));
  assert.equal(cutter.blocks.length, 3);
});

test("an open fence at the margin is known by its first line", () => {
  for (const text of ["```js\nlet a", "````\n```\n", "~~~\n```\n~~"]) assert.ok(openFenceOf(text), text);
  for (const text of ["```js", "```js\na\n```", "```js\na\n```\nmore", "text\n```js\na", "~~~\na\n~~~~", "```a`b\n"])
    assert.equal(openFenceOf(text), null, text);
  assert.equal(withoutHalfFence("let a;\n``", "```"), "let a;\n");
  assert.equal(withoutHalfFence("let a;\n``\n", "```"), "let a;\n``\n");
});

const formulas = (text) => {
  const env = {};
  md.render(text, env);
  return (env.formulas ?? []).map(({ tex, display }) => (display ? `[${tex}]` : tex));
};

test("formulas are found in all four ways of writing them", () => {
  assert.deepEqual(formulas("$a+b$, \\(c_1\\) and $$d$$ and \\[e=f\\]."), ["a+b", "c_1", "[d]", "[e=f]"]);
  assert.deepEqual(formulas("$$\na\n$$\n\n\\[\nb\n\\]\n\ntext\n$$ c $$"), ["[a]", "[b]", "[c]"]);
  assert.deepEqual(formulas("\\begin{align}\na &= b \\\\\n\\end{align}"), ["[\\begin{align}\na &= b \\\\\n\\end{align}]"]);
  assert.deepEqual(formulas("the $n$th of $2^{10}$, **$x$**, ($y$), `$no$`, $f'(x)$"), ["n", "2^{10}", "x", "y", "f'(x)"]);
  assert.deepEqual(formulas("- a\n\n  $$\n  x_1\n  $$\n\n> $$\n> y\n> $$"), ["[x_1]", "[y]"]);
  assert.deepEqual(formulas("$a*b*c$ and $a_b_c$"), ["a*b*c", "a_b_c"]);
});

test("money, shells and escapes are text", () => {
  for (const text of [
    "$5 and $10",
    "between $5 and $10, or US$3",
    "$20k–$30k, $1.50/$2.00",
    "It is $5 million now, 6$ then.",
    "$HOME and $PATH, $HOME/$USER",
    "a single $ sign, two $ signs $",
    "\\$a^2\\$",
    "not \\[a link\\] and \\(see below\\)",
    "```\n$a^2$\n```",
    "$$\n\nno end",
    "$100 for one person and 200$ for two",
  ])
    assert.deepEqual(formulas(text), [], text);
});

test("tasks, notes and alerts are marked, and what only looks like them is not", () => {
  assert.match(md.render("- [ ] a\n- [x] b"), /<li class="task">a<\/li>\n<li class="task done">b/);
  assert.match(md.render("1. [X] a\n\n   more"), /<li class="task done">\n<p>a/);
  assert.doesNotMatch(md.render("- [y] a\n- x [ ] b\n\n[ ] c"), /task/);
  assert.match(md.render("a[^1]\n\n[^1]: the *note*"), /<p class="note-text"><sup class="ref">1<\/sup> the <em>note/);
  assert.match(md.render("[^1]: https://example.org"), /note-text/);
  assert.doesNotMatch(md.render("the class [^abc] of a pattern"), /ref/);
  assert.match(md.render("> [!WARNING]\n> text"), /<blockquote class="alert warning">\n<p>text/);
  assert.doesNotMatch(md.render("> [!OTHER] text"), /alert/);
});

test("nothing that content says becomes an attribute of its own", () => {
  const html = md.render(
    '```js" onclick="x\na\n```\n\n[a](https://b.c "t\\" onclick=x")\n\n![a" id="x](https://b.c)\n\n<b onclick=x id=y>\n\n# a {#id}',
  );
  const names = html.match(/<[^>]*>/g).flatMap((tag) => [...tag.matchAll(/\s([\w-]+)=/g)].map(([, name]) => name));
  assert.deepEqual([...new Set(names)].sort(), ["class", "href"]);
});
