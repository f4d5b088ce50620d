import assert from "node:assert/strict";
import { test } from "node:test";

import { KEYS, ariaOf, commands, matches, pressed, wordsOf } from "#octavo/commands.js";

const BODY = { closest: () => null, dataset: {} };
const FIELD = { closest: () => FIELD, dataset: {}, value: "text" };
const BOX = (value) => ({ closest: () => FIELD, dataset: { message: "" }, value });

const key = (name, more = {}) => ({
  key: name,
  code: /^[a-z]$/i.test(name) ? `Key${name.toUpperCase()}` : "",
  target: BODY,
  getModifierState: (modifier) => modifier === "AltGraph" && Boolean(more.third),
  preventDefault() {
    this.defaultPrevented = true;
  },
  ...more,
});

test("Mod is Ctrl, and the command key on a Mac", () => {
  assert.ok(matches("Mod+K", key("k", { ctrlKey: true }), false));
  assert.ok(!matches("Mod+K", key("k", { metaKey: true }), false));
  assert.ok(matches("Mod+K", key("k", { metaKey: true }), true));
  assert.ok(!matches("Mod+K", key("k", { ctrlKey: true }), true));
  assert.ok(!matches("Mod+K", key("K", { ctrlKey: true, shiftKey: true }), false));
});

test("Own is Alt+Shift, and Ctrl+Shift on a Mac, where Option types characters", () => {
  assert.ok(matches("Own+N", key("N", { altKey: true, shiftKey: true }), false));
  assert.ok(!matches("Own+N", key("n", { altKey: true }), false));
  assert.ok(matches("Own+N", key("N", { ctrlKey: true, shiftKey: true }), true));
  assert.ok(!matches("Own+N", key("Ñ", { altKey: true, shiftKey: true, code: "KeyN" }), true));
});

test("the third character of a key starts nothing: AltGr comes as Ctrl and Alt", () => {
  assert.ok(!matches("Mod+K", key("k", { ctrlKey: true, altKey: true, third: true }), false));
  assert.ok(!matches("Mod+K", key("k", { ctrlKey: true, altKey: true }), false));
});

test("a letter counts by its place where the keyboard writes another script", () => {
  assert.ok(matches("Mod+K", key("л", { ctrlKey: true, code: "KeyK" }), false));
  assert.ok(!matches("Mod+K", key("t", { ctrlKey: true, code: "KeyK" }), false), "Dvorak's own letter counts");
});

test("a slash and a question mark are those characters, whatever the keyboard needs for them", () => {
  assert.ok(matches("?", key("?", { shiftKey: true }), false));
  assert.ok(matches("/", key("/", { shiftKey: true, code: "Digit7" }), false), "a German keyboard");
  assert.ok(matches("/", key("/", { ctrlKey: true, altKey: true, third: true }), false), "with AltGr");
  assert.ok(matches("/", key("/", { altKey: true }), true), "with Option");
  assert.ok(!matches("/", key("/", { ctrlKey: true }), false), "Ctrl+/ is something else");
});

test("single characters are for those who are not typing; chords work while one types", () => {
  assert.ok(!matches("?", key("?", { target: FIELD }), false));
  assert.ok(matches("Mod+K", key("k", { ctrlKey: true, target: FIELD }), false));
});

test("keys of the message box are none elsewhere, and Up only where nothing is written", () => {
  assert.ok(matches("Message+Enter", key("Enter", { target: BOX("x") }), false));
  assert.ok(!matches("Message+Enter", key("Enter", { target: FIELD }), false));
  assert.ok(!matches("Message+Enter", key("Enter", { target: BOX("x"), shiftKey: true }), false));
  assert.ok(matches("Empty+ArrowUp", key("ArrowUp", { target: BOX("") }), false));
  assert.ok(!matches("Empty+ArrowUp", key("ArrowUp", { target: BOX("x") }), false));
});

test("an input method's keys start nothing, and a held key does it once", () => {
  let runs = 0;
  commands.add({ id: "help", title: "Help", run: () => (runs += 1) });
  assert.ok(!pressed(key("?", { isComposing: true })));
  assert.ok(!pressed(key("?", { keyCode: 229 })));
  assert.ok(pressed(key("?")));
  assert.ok(pressed(key("?", { repeat: true })));
  assert.equal(runs, 1);
  commands.remove("help");
});

test("what cannot be done now is listed nowhere and started by nothing", () => {
  commands.add({ id: "stop", title: "Stop", when: () => false, run: () => assert.fail() });
  assert.deepEqual(commands.list(), []);
  assert.equal(commands.all().length, 1);
  assert.ok(!pressed(key("Escape")));
  assert.equal(commands.run("stop"), false);
  commands.remove("stop");
});

test("what other keys are for is not asked whether it can be done", () => {
  commands.add({ id: "copy-code", title: "Copy", when: () => assert.fail(), run: () => {} });
  assert.ok(!pressed(key("x", { target: FIELD })));
  commands.remove("copy-code");
});

test("no two commands have the same keys, and none has those of browsers", () => {
  const all = Object.values(KEYS);
  assert.equal(new Set(all).size, all.length);
  const taken = all.filter((keys) => /^Mod\+/.test(keys) && keys !== "Mod+K");
  assert.deepEqual(taken, [], "chords with Ctrl are the browser's; only the palette's is asked for");
  // Chromium: feedback, dialogs, bookmarks and tools; Firefox leaves Alt+Shift to pages.
  const own = all.filter((keys) => keys.startsWith("Own+")).map((keys) => keys.slice(4));
  assert.deepEqual(own.filter((letter) => "AIBT".includes(letter)), []);
});

test("keys are said as they are printed", () => {
  assert.deepEqual(wordsOf("Mod+K", false), ["Ctrl", "K"]);
  assert.deepEqual(wordsOf("Mod+K", true), ["⌘", "K"]);
  assert.deepEqual(wordsOf("Own+N", true), ["⌃", "⇧", "N"]);
  assert.deepEqual(wordsOf("Message+Shift+Enter", false), ["Shift", "Enter"]);
  assert.equal(ariaOf("Own+N", false), "Alt+Shift+N");
  assert.equal(ariaOf("Mod+K", true), "Meta+K");
});
