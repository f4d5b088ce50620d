import assert from "node:assert/strict";
import { test } from "node:test";

import { dayNames, grouped, inOrder, untilMidnight } from "#octavo/days.js";

const at = (...parts) => new Date(...parts).toISOString();
const item = (id, updated_at, more = {}) => ({ id, title: id, updated_at, ...more });

test("conversations stand under the day of their last change", () => {
  const now = new Date(2026, 10, 29, 0, 30);
  const name = (...parts) => dayNames(now)(new Date(...parts).getTime()).name;
  assert.equal(name(2026, 10, 29, 0, 5), "Today");
  assert.equal(name(2027, 0, 1), "Today", "a clock may be behind the server's");
  assert.equal(name(2026, 10, 28, 23, 55), "Yesterday");
  assert.equal(name(2026, 10, 23, 12), "Last 7 days");
  assert.equal(name(2026, 10, 22, 12), "Last 30 days");
  assert.equal(name(2026, 10, 5, 12), "Last 30 days");
  assert.equal(name(2026, 9, 30, 12), "October");
  assert.equal(name(2026, 6, 5, 12), "July");
  assert.equal(name(2025, 6, 5, 12), "July 2025");
});

test("the same month of two years is two groups", () => {
  const now = new Date(2026, 11, 31);
  const groups = grouped([item("a", at(2026, 6, 5)), item("b", at(2025, 6, 5)), item("c", at(2025, 6, 4))], now);
  assert.deepEqual(groups.map((group) => [group.name, group.items.length]), [["July", 1], ["July 2025", 2]]);
  assert.notEqual(groups[0].key, groups[1].key);
});

test("starred ones stand on top, in whatever order they came; what is archived or deleted stands nowhere", () => {
  const now = new Date(2026, 10, 29, 12);
  const groups = grouped(
    [
      item("old star", at(2020, 1, 1), { starred_at: at(2026, 10, 1) }),
      item("yesterday", at(2026, 10, 28, 9)),
      item("today", at(2026, 10, 29, 9)),
      item("archived", at(2026, 10, 29, 10), { archived_at: at(2026, 10, 29) }),
      item("deleted", at(2026, 10, 29, 10), { deleted_at: at(2026, 10, 29) }),
      item("new star", at(2026, 10, 29, 8), { starred_at: at(2026, 10, 2) }),
    ],
    now,
  );
  assert.deepEqual(
    groups.map((group) => [group.name, group.items.map((one) => one.id)]),
    [["Starred", ["new star", "old star"]], ["Today", ["today"]], ["Yesterday", ["yesterday"]]],
  );
});

test("a list in order is left as it is, and times of two spellings are compared as times", () => {
  const items = [item("a", "2026-11-29T10:00:00.000Z"), item("b", "2026-11-29T10:59:59.114000+01:00")];
  assert.equal(inOrder(items), items);
  assert.deepEqual(inOrder(items.toReversed()).map((one) => one.id), ["a", "b"]);
  items[1].updated_at = "2026-11-29T12:00:00Z";
  assert.deepEqual(inOrder(items).map((one) => one.id), ["b", "a"], "what has changed is looked at again");
});

test("ten thousand conversations are grouped within a frame", () => {
  const now = new Date(2026, 10, 29, 12);
  const items = Array.from({ length: 10_000 }, (_, n) => item(`${n}`, new Date(now - n * 3_600_000).toISOString()));
  const took = Array.from({ length: 5 }, () => {
    const begun = performance.now();
    grouped(items, now);
    return performance.now() - begun;
  });
  assert.ok(Math.min(...took) < 50, `${took} ms`); // others may be at work on the machine
});

test("midnight is as far away as it is", () => {
  assert.equal(untilMidnight(new Date(2026, 10, 29, 23, 59, 0)), 60_000);
  assert.ok(untilMidnight(new Date(2026, 10, 29, 0, 0, 0)) > 22 * 3_600_000);
});
