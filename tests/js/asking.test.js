import assert from "node:assert/strict";
import { test } from "node:test";

import { askUntil } from "#octavo/asking.js";

/** Asks what `replies` says in turn, a status or an answer; the last one for ever. */
async function asked(replies, options = {}) {
  const waits = [];
  let at = 0;
  let error = null;
  const ask = async () => {
    const reply = replies[Math.min(at, replies.length - 1)];
    at += 1;
    assert.ok(at < 200, "it asks for ever");
    if (typeof reply === "number") throw Object.assign(new Error("no"), { status: reply });
    return reply;
  };
  await askUntil({ ask, isOver: (one) => one === "over", pause: async (ms) => waits.push(ms), ...options }).catch((one) => {
    error = one.status;
  });
  return { asked: at, waits, error };
}

test("it asks until it is over, later each time and every three seconds in the end", async () => {
  const { asked: times, waits, error } = await asked([...Array(12).fill("on"), "over"]);
  assert.deepEqual([times, error, waits[0], waits.at(-1)], [13, null, 250, 3000]);
  waits.forEach((ms, i) => assert.ok(i === 0 || ms >= waits[i - 1]));
});

test("a refusal is asked about once: logged out, not allowed, gone", async () => {
  for (const status of [400, 401, 403, 404, 410]) {
    const { asked: times, error } = await asked(["on", status]);
    assert.deepEqual([times, error], [2, status]);
  }
});

test("a server in trouble is asked some times more, ever more rarely, and then no more", async () => {
  for (const status of [500, 502, 503, 429]) {
    const { asked: times, waits, error } = await asked([status]);
    assert.deepEqual([times, error], [8, status]);
    assert.ok(waits.at(-1) >= 15_000 && waits.at(-1) <= 30_000, waits.at(-1));
  }
});

test("a server that comes back in between is asked on as before", async () => {
  const trouble = Array(7).fill(503);
  const { error, waits } = await asked([...trouble, "on", ...trouble, "on", "over"]);
  assert.equal(error, null);
  assert.equal(waits[7], 250);
});

test("without a connection it is asked on, every few seconds", async () => {
  const { error, waits } = await asked([...Array(50).fill(0), "over"]);
  assert.equal(error, null);
  assert.equal(waits.at(-1), 3000);
});

test("what nobody waits for any more is not asked about", async () => {
  let wanted = 3;
  const { asked: times } = await asked(["on"], { unwanted: () => (wanted -= 1) < 0 });
  assert.equal(times, 3);
});
