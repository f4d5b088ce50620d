import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_MS, Pace, whole } from "#octavo/pace.js";

const FRAME = 1000 / 60;

/** Frames of a screen while pieces of `size` characters come every `every` ms; what each frame showed. */
function play({ size, every, pieces, jitter = () => 0, after = 30 }) {
  const pace = new Pace();
  const arrivals = Array.from({ length: pieces }, (_, i) => i * every + jitter(i));
  const frames = [];
  let length = 0;
  for (let now = 0; now < pieces * every + after * FRAME; now += FRAME) {
    while (arrivals.length && arrivals[0] <= now) pace.arrive((length += size), arrivals.shift());
    frames.push({ now, length, shown: pace.show(now) });
  }
  return frames;
}

test("text that comes with every frame is shown with every frame", () => {
  for (const { length, shown } of play({ size: 4, every: FRAME, pieces: 60 }).slice(2))
    assert.ok(length - shown <= 4, `${length - shown} wait`);
});

test("a burst every fifth of a second grows by about the same in each frame", () => {
  const frames = play({ size: 60, every: 200, pieces: 20 }).filter(({ now }) => now > 1000 && now < 3800);
  const steps = frames.slice(1).map(({ shown }, i) => shown - frames[i].shown);
  assert.ok(Math.max(...steps) <= 10, `${Math.max(...steps)} at once, of bursts of 60`);
  assert.ok(steps.filter((step) => step > 0).length > steps.length * 0.9, "most frames have something new");
});

test("no character waits longer than the most, however irregularly pieces come", () => {
  let state = 7;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
  for (const every of [10, 50, 150, 400, 900]) {
    const frames = play({ size: 30, every, pieces: 40, jitter: () => random() * every });
    for (const { now, shown } of frames) {
      const due = frames.filter((frame) => frame.now <= now - MOST_MS - FRAME).at(-1)?.length ?? 0;
      assert.ok(shown >= due, `${due - shown} characters are late at ${now} ms, with a piece every ${every} ms`);
    }
  }
});

test("what is shown never shrinks, is never more than what came, and is all of it soon after the last piece", () => {
  const frames = play({ size: 17, every: 90, pieces: 30 });
  frames.reduce((before, { shown, length }) => {
    assert.ok(shown >= before && shown <= length);
    return shown;
  }, 0);
  assert.equal(frames.at(-1).shown, 30 * 17);
});

test("after a pause the first piece is not shown all at once for the time that nothing came in", () => {
  const pace = new Pace();
  for (let i = 1; i <= 10; i += 1) pace.arrive(i * 40, i * 100);
  pace.show(5000);
  pace.arrive(500, 9000);
  assert.ok(pace.show(9016) < 500);
});

test("an answer that is told anew from its beginning is shown from there", () => {
  const pace = new Pace();
  pace.arrive(100, 0);
  pace.show(0);
  pace.arrive(40, 10);
  assert.ok(pace.show(20) <= 40);
  assert.equal(pace.show(1000), 40);
});

test("a text is never cut within a character of two units", () => {
  const text = "a😀b";
  assert.deepEqual([0, 1, 2, 3, 4].map((length) => text.slice(0, whole(text, length))), ["", "a", "a😀", "a😀", text]);
});
