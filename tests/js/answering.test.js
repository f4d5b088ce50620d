import assert from "node:assert/strict";
import { test } from "node:test";

import { install, quotation } from "#octavo/answering.js";
import { shown } from "#octavo/tree.js";

test("a quotation marks every line", () => {
  assert.equal(quotation("  one\n\ntwo\n"), "> one\n>\n> two");
});

test("while another conversation is on its way, nothing is done with the messages that still stand there", () => {
  const question = { id: "q", parent_id: null, role: "user", text: "Hi", created_at: "2026-01-01T00:00:00Z" };
  const answer = { id: "a", parent_id: "q", role: "assistant", text: "Yes", status: "completed", created_at: "2026-01-01T00:00:01Z" };
  const former = { id: "c1", messages: [question, answer] };
  const done = [];
  const note = (name) => (conversation) => done.push([name, conversation.id]);
  const session = {
    live: () => undefined,
    has: (conversation) => conversation === former,
    ...Object.fromEntries(["answerAgain", "askAgain", "goOn", "edit", "step"].map((name) => [name, note(name)])),
  };
  const row = { element: { scrollIntoView() {} }, edit: () => done.push(["editor", "c1"]) };
  const input = { value: "", setSelectionRange() {}, scrollHeight: 0 };
  const workspace = {
    current: former,
    session,
    log: { toEnd() {}, row: () => row, views: new Map() },
    composer: { input, put: () => done.push(["quote", "c1"]), focus() {} },
    refusal: { hide() {} },
    acts: {},
  };
  install(workspace);
  const [asked, turn] = shown(former);
  const press = () => {
    const { again, retry, goOn, shorten, edit, quote } = workspace.acts;
    for (const act of [again, retry, goOn, shorten]) act(turn);
    edit(asked, "Hello");
    quote(turn, "");
  };
  press();
  assert.deepEqual(done.map(([name]) => name), ["answerAgain", "askAgain", "goOn", "editor", "edit", "quote"]);
  done.length = 0;
  workspace.current = { id: "c2", messages: [] };
  press();
  workspace.acts.step(turn, 1);
  assert.deepEqual(done, []);
});
