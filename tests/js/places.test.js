import assert from "node:assert/strict";
import { test } from "node:test";

import { Places } from "#octavo/places.js";

/** A tab's storage; `full`: it takes nothing. */
const storage = ({ full = false } = {}) => {
  const kept = new Map();
  return () => ({
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, text) => {
      if (full) throw new Error("QuotaExceededError");
      kept.set(name, text);
    },
  });
};

test("a place is kept through a reload, and forgotten when its end was read", () => {
  const tab = storage();
  new Places(tab, true).keep("a", { id: "m1", offset: -40 });
  const reloaded = new Places(tab, false);
  assert.deepEqual(reloaded.of("a"), { id: "m1", offset: -40 });
  assert.equal(reloaded.of("b"), undefined);
  reloaded.keep("a", null);
  assert.equal(new Places(tab, false).of("a"), undefined);
});

test("who comes from somewhere else begins at the end", () => {
  const tab = storage();
  new Places(tab, true).keep("a", { id: "m1", offset: 0 });
  assert.equal(new Places(tab, true).of("a"), undefined);
});

test("a tab that keeps nothing, or nonsense, still remembers for as long as the page lives", () => {
  const places = new Places(storage({ full: true }), false);
  places.keep("a", { id: "m1", offset: 3 });
  assert.deepEqual(places.of("a"), { id: "m1", offset: 3 });
  const odd = () => ({ getItem: () => "{", setItem: () => {} });
  assert.equal(new Places(odd, false).of("a"), undefined);
  const off = () => {
    throw new Error("SecurityError");
  };
  assert.equal(new Places(off, false).of("a"), undefined);
});

test("the places of the last fifty conversations are kept, and none of one that has no id yet", () => {
  const tab = storage();
  const places = new Places(tab, false);
  places.keep(null, { id: "m", offset: 0 });
  for (let i = 0; i < 60; i += 1) places.keep(`c${i}`, { id: "m", offset: i });
  const again = new Places(tab, false);
  assert.equal(again.kept.size, 50);
  assert.equal(again.of("c9"), undefined);
  assert.equal(again.of("c59").offset, 59);
});
