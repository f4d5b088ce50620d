import assert from "node:assert/strict";
import { test } from "node:test";

import { Leftovers } from "#octavo/leftovers.js";

const HOUR = 3_600_000;
const names = (id) => [`octavo:branch:${id}`, `octavo:draft:me:${id}`, `octavo:files:me:${id}`];

function browser(kept = {}) {
  const shelf = new Map(Object.entries(kept));
  const clock = { now: 1_000_000 };
  const storage = () => ({
    getItem: (name) => shelf.get(name) ?? null,
    setItem: (name, value) => shelf.set(name, value),
    removeItem: (name) => shelf.delete(name),
  });
  return { shelf, clock, page: () => new Leftovers("me", names, { storage, now: () => clock.now }) };
}

const about = (...ids) => Object.fromEntries(ids.flatMap(names).map((name) => [name, "kept"]));

test("what is kept about a deleted conversation goes a day later, with the next page, and nothing else", () => {
  const { shelf, clock, page } = browser({ ...about("a", "b"), "octavo:draft:you:a": "theirs" });
  page().gone("a");
  page().gone("a");
  clock.now += 23 * HOUR;
  page().gone("a");
  page().sweep();
  assert.equal(shelf.size, 8, "it may be asked back");
  clock.now += HOUR;
  page().sweep();
  assert.deepEqual([...shelf.keys()].sort(), [...names("b"), "octavo:draft:you:a"].sort());
});

test("a conversation that was asked back keeps what there is of it", () => {
  const { shelf, clock, page } = browser(about("a"));
  page().gone("a");
  page().there([{ id: "b" }, { id: "a" }]);
  clock.now += 48 * HOUR;
  page().sweep();
  assert.deepEqual([...shelf.keys()].sort(), names("a").sort());
});

test("a browser that keeps nothing, or something else under the name, does no harm", () => {
  const broken = new Leftovers("me", names, {
    storage: () => {
      throw new Error("switched off");
    },
  });
  broken.gone("a");
  broken.there([{ id: "a" }]);
  broken.sweep();
  for (const text of ["{", "[1]", "null", '"x"', '{"a":"soon"}']) {
    const { page, shelf } = browser({ "octavo:gone:me": text, ...about("b") });
    page().sweep();
    page().gone("b");
    page().sweep();
    assert.ok(names("b").every((name) => shelf.has(name)), text);
  }
});
