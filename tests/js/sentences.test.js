import assert from "node:assert/strict";
import { test } from "node:test";

import { Sentences, plain, split } from "#octavo/sentences.js";

const ANSWER = `# Tides

The moon pulls. Twice a day, **water rises** and falls. See [the table](https://example.org/a.b?c=1).

1. First, look at the clock.
2. Then wait (about 6.2 hours).

\`\`\`python
for hour in range(12):

    print(hour)
\`\`\`

| Port | Height |
|------|-------:|
| Brest | 6.1 m |

$$ h = a \\cos t $$

That is all`;

const HEARD = [
  "Tides",
  "The moon pulls.",
  "Twice a day, water rises and falls.",
  "See the table.",
  "First, look at the clock.",
  "Then wait (about 6.2 hours).",
  "Code, 3 lines.",
  "Port, Height",
  "Brest, 6.1 m",
  "A formula.",
  "That is all",
];

test("an answer is heard sentence by sentence, with code, tables and formulas named", () => {
  assert.deepEqual(new Sentences().take(ANSWER, false), HEARD);
});

test("an answer that grows letter by letter is heard as the whole one, each sentence once", () => {
  for (const step of [1, 3, 7, 40]) {
    const reader = new Sentences();
    const heard = [];
    for (let at = step; at < ANSWER.length; at += step) heard.push(...reader.take(ANSWER.slice(0, at), true));
    heard.push(...reader.take(ANSWER, false));
    assert.deepEqual(heard, HEARD, `in steps of ${step}`);
  }
});

test("a sentence is given as soon as the next one begins, and no half one before", () => {
  const reader = new Sentences();
  assert.deepEqual(reader.take("The moon", true), []);
  assert.deepEqual(reader.take("The moon pulls.", true), []);
  assert.deepEqual(reader.take("The moon pulls. Twice", true), ["The moon pulls."]);
  assert.deepEqual(reader.take("The moon pulls. Twice a day.", false), ["Twice a day."]);
  assert.deepEqual(reader.take("The moon pulls. Twice a day.", false), []);
});

test("code that is never closed is counted at the end of the answer", () => {
  const reader = new Sentences();
  assert.deepEqual(reader.take("```\none\ntwo", true), []);
  assert.deepEqual(reader.take("```\none\ntwo", false), ["Code, 2 lines."]);
});

test("Chinese and Arabic sentences are told apart", () => {
  assert.deepEqual(new Sentences("zh").take("月亮牵引海水。一天两次。", false), ["月亮牵引海水。", "一天两次。"]);
  assert.deepEqual(new Sentences("ar").take("هل ترى القمر؟ نعم.", false), ["هل ترى القمر؟", "نعم."]);
});

test("without the browser's segmenter sentences are cut at their marks, and nothing is lost", () => {
  const { Segmenter } = Intl;
  try {
    delete Intl.Segmenter;
    const text = "One. Two? “Three!” And 月亮。";
    assert.equal(split(text).join(""), text);
    assert.deepEqual(new Sentences().take(text, false), ["One.", "Two?", "“Three!”", "And 月亮。"]);
  } finally {
    Intl.Segmenter = Segmenter;
  }
});

test("marks that are no emphasis stay", () => {
  assert.equal(plain("2 * 3 * 4 and snake_case_name"), "2 * 3 * 4 and snake_case_name");
  assert.equal(plain("> - **bold** `a * b` ~~old~~ \\*star"), "bold a * b old *star");
});
