import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Octavo } from "#octavo/octavo.js";
import { Session } from "#octavo/session.js";
import { Unsent } from "#octavo/unsent.js";

/** What a browser keeps, as far as the session uses it. */
class Shelf {
  kept = new Map();
  get length() {
    return this.kept.size;
  }
  key(index) {
    return [...this.kept.keys()][index];
  }
  getItem(name) {
    return this.kept.get(name) ?? null;
  }
  setItem(name, text) {
    this.kept.set(name, text);
  }
  removeItem(name) {
    this.kept.delete(name);
  }
}

/** A session whose connection keeps what is sent, and whose clock is set by hand. */
function open({ storage = new Shelf(), time = 1_000_000 } = {}) {
  const sent = [];
  const changes = [];
  const clock = { now: time };
  let wire;
  class Wire {
    constructor() {
      wire = this;
    }
    send(text) {
      sent.push(JSON.parse(text));
    }
    close() {}
  }
  const now = () => clock.now;
  const session = new Session({ api: "/api/t/x", notify: (change) => changes.push(change), now });
  session.unsent = new Unsent("x", { storage, now });
  const octavo = new Octavo({ url: "ws://x/ws/ui?tenant=x", WebSocketClass: Wire, patient: true, now });
  session.attach(octavo);
  octavo.connect();
  const tab = {
    session,
    sent,
    changes,
    clock,
    receive: (frame) => wire.onmessage({ data: JSON.stringify(frame) }),
    /** The network breaks, and comes back. */
    lose: () => wire.onclose({ code: 1006 }),
    reconnect: () => {
      octavo.hurry();
      wire.onopen();
    },
    tick: () => octavo.tick(),
  };
  wire.onopen();
  after(() => octavo.close());
  return tab;
}

function ask({ session, sent, receive }, text = "Hi") {
  const conversation = session.fresh();
  session.ask(conversation, text);
  const { event_id } = sent.at(-1);
  const accept = () =>
    receive({
      type: "response.queued",
      event_id,
      response_id: "r1",
      conversation_id: "c1",
      message_id: "m2",
      parent_id: "m1",
      position: 1,
    });
  return { conversation, accept };
}

const delta = (first_seq, seq, text) => ({
  type: "response.output_text.delta",
  response_id: "r1",
  index: 0,
  first_seq,
  seq,
  delta: text,
});

test("a question becomes a conversation when it is accepted", () => {
  const all = open();
  const { conversation, accept } = ask(all, "Hello\nthere");
  accept();
  assert.equal(conversation.id, "c1");
  assert.deepEqual(
    conversation.messages.map((m) => m.id),
    ["m1", "m2"],
  );
  assert.equal(all.session.list[0].title, "Hello");
  assert.equal(all.session.list[0].running, true);
});

test("after a reconnect an answer is resumed behind the last event it has", () => {
  const all = open();
  const { conversation, accept } = ask(all);
  accept();
  all.receive(delta(1, 4, "one "));
  all.lose();
  all.reconnect();
  assert.deepEqual(all.sent.at(-1), { type: "response.resume", response_id: "r1", after: 4 });
  all.receive(delta(5, 6, "two"));
  all.receive({ type: "response.completed", response_id: "r1", seq: 7, finish_reason: "stop" });
  assert.equal(conversation.messages[1].text, "one two");
  assert.equal(all.session.list[0].running, false);
});

test("a question that the connection swallowed is sent again under the same key", () => {
  const all = open();
  all.lose();
  const conversation = all.session.fresh();
  all.session.ask(conversation, "Hi");
  assert.equal(all.sent.length, 0);
  all.reconnect();
  all.lose();
  all.reconnect();
  assert.equal(all.sent.length, 2);
  assert.equal(all.sent[0].idempotency_key, all.sent[1].idempotency_key);
});

test("a question without an answer is sent again, and comes back after the third time", () => {
  const all = open();
  const { conversation } = ask(all, "Anyone?");
  for (let second = 0; second < 60; second += 1) {
    all.clock.now += 1000;
    all.tick();
  }
  assert.equal(all.sent.length, 3);
  assert.equal(new Set(all.sent.map((frame) => frame.idempotency_key)).size, 1);
  const { kind, text, error } = all.changes.at(-1);
  assert.deepEqual([kind, text, error.retryable], ["rejected", "Anyone?", true]);
  assert.deepEqual(conversation.messages, []);
});

test("some seconds without an event resume the answer, then less and less often", () => {
  const all = open();
  ask(all).accept();
  const resumes = () => all.sent.filter((frame) => frame.type === "response.resume").length;
  for (let second = 0; second < 31; second += 1) {
    all.tick();
    all.clock.now += 1000;
  }
  assert.equal(resumes(), 2); // after 5 s, and 10 s later; the third would come 20 s after that
  all.receive(delta(1, 1, "a"));
  all.clock.now += 5000;
  all.tick();
  assert.equal(resumes(), 3);
});

test("a gap asks for what is missing", () => {
  const all = open();
  ask(all).accept();
  all.receive(delta(1, 2, "a"));
  all.receive(delta(4, 5, "c"));
  assert.deepEqual(all.sent.at(-1), { type: "response.resume", response_id: "r1", after: 2 });
});

test("a stop before the question is accepted cancels it as soon as it has an id", () => {
  const all = open();
  const { conversation, accept } = ask(all);
  all.session.stop(conversation);
  accept();
  assert.deepEqual(all.sent.at(-1), { type: "response.cancel", response_id: "r1" });
  all.receive({ type: "response.cancelled", response_id: "r1", seq: 0 });
  assert.equal(conversation.messages[1].status, "cancelled");
});

test("a refused question leaves the conversation and comes back with the reason", () => {
  const all = open();
  const conversation = all.session.fresh();
  all.session.ask(conversation, "too much");
  const error = {
    type: "error",
    event_id: all.sent[0].event_id,
    code: "queue_full",
    message: "Full.",
    retryable: true,
  };
  all.receive(error);
  assert.deepEqual(conversation.messages, []);
  const { kind, text } = all.changes.at(-1);
  assert.deepEqual([kind, text], ["rejected", "too much"]);
});

test("a page loaded in the middle of an answer takes what the server has and resumes the rest", () => {
  const all = open();
  const conversation = all.session.adopt({
    id: "c1",
    title: "T",
    messages: [
      { id: "m1", parent_id: null, role: "user", text: "Hi" },
      {
        id: "m2",
        parent_id: "m1",
        role: "assistant",
        text: "",
        status: "running",
        response_id: "r1",
        last_seq: -1,
      },
    ],
  });
  assert.deepEqual(all.sent, [{ type: "response.resume", response_id: "r1", after: -1 }]);
  all.receive({ type: "response.created", response_id: "r1", prompt_tokens: 3 });
  all.receive(delta(1, 3, "all of it"));
  assert.equal(conversation.messages[1].text, "all of it");
});

test("data of the server that is behind the socket does not take text away", () => {
  const all = open();
  const { accept } = ask(all);
  accept();
  all.receive(delta(1, 3, "text"));
  const conversation = all.session.adopt({
    id: "c1",
    title: "Named",
    messages: [
      { id: "m1", parent_id: null, role: "user", text: "Hi" },
      {
        id: "m2",
        parent_id: "m1",
        role: "assistant",
        text: "",
        status: "running",
        response_id: "r1",
        last_seq: -1,
      },
    ],
  });
  assert.equal(conversation.title, "Named");
  assert.equal(conversation.messages[1].text, "text");
});

test("files go with the question, with it again when it is asked again, and come back when it is refused", () => {
  const tab = open();
  const files = [{ id: "file-1", name: "a.txt" }];
  const conversation = tab.session.fresh();
  tab.session.ask(conversation, "Hi", undefined, files);
  assert.deepEqual(tab.sent.at(-1).file_ids, ["file-1"]);
  assert.deepEqual(conversation.messages[0].files, files);
  tab.receive({ type: "error", event_id: tab.sent.at(-1).event_id, code: "context_too_long", message: "No." });
  assert.deepEqual(tab.changes.at(-1).files, files);
  tab.session.ask(conversation, "Hi", undefined, files);
  const answer = conversation.messages[1];
  answer.status = "failed";
  tab.session.askAgain(conversation, answer);
  assert.deepEqual(tab.sent.at(-1).file_ids, ["file-1"]);
  tab.session.ask(conversation, "Without");
  assert.equal(tab.sent.at(-1).file_ids, undefined);
});

test("what the connection cannot tell any more is loaded from the database", async (t) => {
  const tab = open();
  const { conversation, accept } = ask(tab);
  accept();
  const stored = { id: "m2", parent_id: "m1", role: "assistant", text: "all of it", status: "completed", last_seq: 9 };
  const messages = [{ id: "m1", parent_id: null, role: "user", text: "Hi" }, stored];
  const asked = [];
  t.mock.method(globalThis, "fetch", async (url) => {
    asked.push(url);
    return { ok: true, json: async () => ({ id: "c1", title: "T", messages }) };
  });
  tab.receive({ type: "error", response_id: "r1", code: "expired", message: "Gone.", retryable: false });
  await new Promise(setImmediate);
  assert.deepEqual(asked, ["/api/t/x/conversations/c1"]);
  assert.deepEqual([conversation.messages[1].text, conversation.messages[1].status], ["all of it", "completed"]);
  assert.equal(tab.session.live(conversation), undefined);
});

test("a question that was not acknowledged is asked again by the next page, under the same key", async () => {
  const storage = new Shelf();
  const before = open({ storage });
  const { conversation } = ask(before, "Lost?");
  const key = before.sent.at(-1).idempotency_key;
  assert.equal(conversation.id, null);
  const next = open({ storage, time: before.clock.now + 60_000 });
  assert.deepEqual(await next.session.askLeft(() => next.session.fresh()), []);
  assert.deepEqual([next.sent.at(-1).input, next.sent.at(-1).idempotency_key], ["Lost?", key]);
  next.receive({ type: "response.queued", event_id: next.sent.at(-1).event_id, response_id: "r1", conversation_id: "c1" });
  const third = open({ storage });
  assert.deepEqual(await third.session.askLeft(), []);
  assert.equal(third.sent.length, 0, "what was accepted is kept no longer");
});

test("an old question that was not acknowledged is given back and not asked", async () => {
  const storage = new Shelf();
  const before = open({ storage });
  ask(before, "Yesterday's");
  const next = open({ storage, time: before.clock.now + 86_400_000 });
  const left = await next.session.askLeft();
  assert.deepEqual(left.map((entry) => entry.request.input), ["Yesterday's"]);
  assert.equal(next.sent.length, 0);
  assert.deepEqual(await next.session.askLeft(), [], "it is given back once");
});

test("a question whose conversation is gone is given back", async () => {
  const storage = new Shelf();
  new Unsent("x", { storage, now: () => 1_000_000 }).keep({ input: "Hi", conversation_id: "c9", idempotency_key: "k" });
  storage.setItem("octavo:unsent:x:broken", "{");
  storage.setItem("something else", "1");
  const tab = open({ storage });
  const left = await tab.session.askLeft(async () => {
    throw new Error("404");
  });
  assert.deepEqual(left.map((entry) => entry.request.conversation_id), ["c9"]);
});

test("what the server tells of a conversation moves it in the list and says whether there is news in it", () => {
  const tab = open();
  const item = (id, updated_at, more = {}) => ({ id, title: id, updated_at, running: false, ...more });
  tab.session.list = [item("c2", "2026-01-02T00:00:00Z"), item("c1", "2026-01-01T00:00:00Z")];
  const known = tab.session.adopt({ id: "c1", title: "c1", updated_at: "2026-01-01T00:00:00Z", messages: [] });
  assert.equal(tab.session.hear(item("c1", "2026-01-01T00:00:00Z", { title: "Renamed" })), false);
  assert.equal(known.title, "Renamed");
  assert.equal(tab.session.hear(item("c1", "2026-01-03T00:00:00Z", { running: true })), true);
  assert.deepEqual(tab.session.list.map((entry) => [entry.id, entry.running]), [["c1", true], ["c2", false]]);
  assert.equal(tab.session.hear(item("c3", "2025-01-01T00:00:00Z")), false, "one that is not open has nothing to load");
  assert.equal(tab.session.list.at(-1).id, "c3");
  tab.session.forget("c1");
  assert.deepEqual(tab.session.list.map((entry) => entry.id), ["c2", "c3"]);
  assert.deepEqual(tab.changes.at(-1), { kind: "gone", conversation: known, id: "c1" });
});

test("an answer that this tab follows makes no news of its own", () => {
  const tab = open();
  const { conversation, accept } = ask(tab);
  accept();
  const told = { id: "c1", title: "Hi", updated_at: "2026-01-03T00:00:00Z", running: true };
  assert.equal(tab.session.hear(told), false);
  tab.receive({ type: "response.completed", response_id: "r1", seq: 1, finish_reason: "stop" });
  assert.equal(tab.session.hear({ ...told, running: false }), false);
  assert.equal(conversation.updated_at, told.updated_at);
});

test("a list that is loaded again loses what was deleted meanwhile and keeps what lies behind its first page", async (t) => {
  const tab = open();
  const item = (n) => ({ id: `c${n}`, title: `c${n}`, updated_at: new Date(1e12 - n * 1000).toISOString() });
  tab.session.list = [1, 2, 3, 4, 5].map(item);
  tab.session.next = "behind 5";
  let page = { items: [item(1), item(3)], next: "behind 3" };
  t.mock.method(globalThis, "fetch", async () => ({ ok: true, json: async () => page }));
  await tab.session.refreshList();
  assert.deepEqual(tab.session.list.map((entry) => entry.id), ["c1", "c3", "c4", "c5"]);
  assert.equal(tab.session.next, "behind 5");
  tab.session.forget("c3"); // while a list with it is on its way
  await tab.session.refreshList();
  assert.deepEqual(tab.session.list.map((entry) => entry.id), ["c1", "c4", "c5"]);
  page = { items: [item(4)], next: null };
  await tab.session.refreshList();
  assert.deepEqual(tab.session.list.map((entry) => entry.id), ["c4"]);
  assert.equal(tab.session.next, null);
});
