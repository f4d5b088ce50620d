import assert from "node:assert/strict";
import { test } from "node:test";

import { bytesOf, inUnits, positionOf, valueAt } from "#octavo/scale.js";

const SCALES = [
  { scale: "linear", least: 1, most: 128 },
  { scale: "linear", least: 32, most: 256, step: 8 },
  { scale: "powers", least: 1, most: 256 },
  { scale: "log", least: 16, most: 131_072 },
  { scale: "log", least: 0, most: 32_768 },
  { scale: "bytes", least: 64 * 2 ** 20, most: 256 * 2 ** 30 },
];
const plain = (text) => (/[a-z]/i.test(text) ? bytesOf(text) : Number(text));

test("a slider reaches both ends of its scale and never goes back on the way", () => {
  for (const of of SCALES) {
    const values = Array.from({ length: 501 }, (_, i) => plain(valueAt(i / 500, of)));
    assert.equal(values[0], of.least, of.scale);
    assert.equal(values.at(-1), of.most, of.scale);
    values.forEach((value, i) => assert.ok(i === 0 || value >= values[i - 1], `${of.scale}: ${value}`));
  }
});

test("a slider put where its own value stands gives that value again", () => {
  for (const of of SCALES) {
    for (let i = 0; i <= 200; i += 1) {
      const value = valueAt(i / 200, of);
      assert.equal(valueAt(positionOf(value, of), of), value, of.scale);
    }
  }
});

test("a slider gives round figures: powers, halves of them, or two digits", () => {
  assert.equal(valueAt(0.5, { scale: "powers", least: 1, most: 256 }), "16");
  assert.equal(valueAt(0.5, { scale: "bytes", least: 2 ** 26, most: 2 ** 38 }), "4GiB");
  assert.equal(inUnits(1.5 * 2 ** 30), "1.5GiB");
  for (let i = 0; i <= 100; i += 1)
    assert.match(valueAt(i / 100, { scale: "log", least: 10, most: 90_000 }), /^[1-9][0-9]?0*$/);
});

test("what is typed beyond a slider's ends leaves it there, and what is no number leaves it alone", () => {
  const of = { scale: "log", least: 0, most: 1000 };
  assert.equal(positionOf("0", of), 0);
  assert.equal(positionOf("5000", of), 1);
  assert.equal(positionOf("-3", of), 0);
  assert.equal(positionOf("many", of), null);
  assert.equal(positionOf("", of), null);
  assert.equal(positionOf("8 potatoes", { scale: "bytes", least: 1, most: 9 }), null);
});

test("sizes are read as the planner's command reads them", () => {
  assert.equal(bytesOf("8GiB"), 8 * 2 ** 30);
  assert.equal(bytesOf("8G"), 8 * 2 ** 30);
  assert.equal(bytesOf("8GB"), 8e9);
  assert.equal(bytesOf("1.5 MiB"), 1.5 * 2 ** 20);
  assert.equal(bytesOf("7"), 7);
});
