import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Octavo } from "#octavo/octavo.js";
import { Session } from "#octavo/session.js";
import { placeOf, shown } from "#octavo/tree.js";
import { beingAnswered } from "#octavo/refusals.js";
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

test("files go with the question, with it again when it is edited, and come back when it is refused", () => {
  const tab = open();
  const files = [{ id: "file-1", name: "a.txt" }];
  const conversation = tab.session.fresh();
  tab.session.ask(conversation, "Hi", undefined, files);
  assert.deepEqual(tab.sent.at(-1).file_ids, ["file-1"]);
  assert.deepEqual(conversation.messages[0].files, files);
  tab.receive({ type: "error", event_id: tab.sent.at(-1).event_id, code: "context_too_long", message: "No." });
  assert.deepEqual(tab.changes.at(-1).files, files);
  tab.session.ask(conversation, "Hi", undefined, files);
  conversation.messages[1].status = "failed";
  tab.session.edit(conversation, conversation.messages[0], "Hi!");
  assert.deepEqual(tab.sent.at(-1).file_ids, ["file-1"]);
  conversation.messages.at(-1).status = "completed";
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

test("a question that page after page asks again grows old all the same", async () => {
  const storage = new Shelf();
  const first = open({ storage });
  ask(first, "Lost?");
  let time = first.clock.now;
  for (let page = 0; page < 2; page += 1) {
    time += 4 * 60_000;
    const next = open({ storage, time });
    assert.deepEqual(await next.session.askLeft(() => next.session.fresh()), []);
    assert.equal(next.sent.at(-1).input, "Lost?");
  }
  const last = open({ storage, time: time + 4 * 60_000 });
  const left = await last.session.askLeft(() => last.session.fresh());
  assert.deepEqual(left.map((entry) => entry.request.input), ["Lost?"]);
  assert.equal(last.sent.length, 0);
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

test("a question that was stopped before it was acknowledged is given back and not asked", async () => {
  const storage = new Shelf();
  const before = open({ storage });
  const { conversation } = ask(before, "Never mind");
  before.session.stop(conversation);
  const next = open({ storage });
  const left = await next.session.askLeft(() => next.session.fresh());
  assert.deepEqual(left.map((entry) => entry.request.input), ["Never mind"]);
  assert.equal(next.sent.length, 0);
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

test("a conversation is current when the list says its time, in whatever digits, and that nothing runs in it", () => {
  const tab = open();
  const item = { id: "c1", title: "c1", updated_at: "2026-01-01T00:00:00.123456+00:00", running: false };
  tab.session.list = [item];
  const known = tab.session.adopt({ id: "c1", title: "c1", updated_at: "2026-01-01T00:00:00.123Z", messages: [] });
  assert.equal(tab.session.isCurrent(known), true);
  assert.equal(tab.session.hear(item), false);
  tab.session.list = [{ ...item, running: true }];
  assert.equal(tab.session.isCurrent(known), false);
  tab.session.list = [{ ...item, updated_at: "2026-01-01T00:00:01Z" }];
  assert.equal(tab.session.isCurrent(known), false);
  tab.session.list = [];
  assert.equal(tab.session.isCurrent(known), false);
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

// --- branches --------------------------------------------------------------------------------------------------------

/** A conversation that the server has, with one answer. */
function loaded({ session }, { status = "completed", finish_reason = "stop", more = [] } = {}) {
  return session.adopt({
    id: "c1",
    title: "T",
    messages: [
      { id: "m1", parent_id: null, role: "user", text: "Hi" },
      { id: "m2", parent_id: "m1", role: "assistant", text: "Hello, ", status, finish_reason, response_id: "r0" },
      ...more,
    ],
  });
}

const request = ({ sent }) => {
  const { type, event_id, idempotency_key, ...rest } = sent.at(-1);
  assert.equal(type, "response.create");
  assert.ok(event_id && idempotency_key);
  return rest;
};

function accept({ sent, receive }, parent_id) {
  const { event_id } = sent.at(-1);
  receive({ type: "response.queued", event_id, response_id: "r1", conversation_id: "c1", message_id: "m9", parent_id, position: 1 });
}

const seen = (conversation) => shown(conversation).map((message) => message.text);

test("another answer is asked for by its question, which is not doubled", () => {
  const tab = open();
  const conversation = loaded(tab);
  tab.session.answerAgain(conversation, shown(conversation)[1]);
  assert.deepEqual(request(tab), { question_id: "m1", conversation_id: "c1" });
  accept(tab, "m1");
  tab.receive(delta(1, 1, "Good day"));
  assert.deepEqual(seen(conversation), ["Hi", "Good day"]);
  assert.deepEqual(placeOf(shown(conversation)[1]), { at: 1, of: 2 });
  assert.equal(tab.changes.at(-1).message, shown(conversation)[1]);
});

test("what goes on with an answer is one message with it, and so it is told", () => {
  const tab = open();
  const conversation = loaded(tab, { status: "finished", finish_reason: "length" });
  const [, turn] = shown(conversation);
  assert.equal(turn.status, "incomplete");
  tab.session.goOn(conversation, turn);
  assert.deepEqual(request(tab), { continue_id: "m2", conversation_id: "c1" });
  assert.equal(turn.status, "sending");
  accept(tab, "m2");
  tab.receive(delta(1, 1, "friend."));
  tab.receive({ type: "response.completed", response_id: "r1", seq: 2, finish_reason: "stop" });
  assert.equal(turn.text, "Hello, friend.");
  assert.equal(turn.status, "completed");
  assert.equal(tab.changes.at(-1).message, turn);
  tab.session.ask(conversation, "And?");
  assert.equal(request(tab).parent_id, "m9", "the next question follows the rest");
});

test("an edited question is asked beside the one that is there, also beside the first", () => {
  const tab = open();
  const conversation = loaded(tab, { more: [{ id: "m3", parent_id: "m2", role: "user", text: "More" }, { id: "m4", parent_id: "m3", role: "assistant", text: "Yes", status: "completed" }] });
  tab.session.edit(conversation, shown(conversation)[2], "Less");
  assert.deepEqual(request(tab), { input: "Less", parent_id: "m2", conversation_id: "c1" });
  assert.deepEqual(seen(conversation), ["Hi", "Hello, ", "Less", ""]);
  tab.receive({ type: "error", event_id: tab.sent.at(-1).event_id, code: "queue_full", message: "Full.", retryable: true });
  const { kind, text, edited } = tab.changes.at(-1);
  assert.deepEqual([kind, text, edited.id], ["rejected", "Less", "m3"]);
  assert.deepEqual(seen(conversation), ["Hi", "Hello, ", "More", "Yes"], "what was read is read on");
  tab.session.edit(conversation, shown(conversation)[0], "Hey");
  assert.deepEqual(request(tab), { input: "Hey", parent_id: "root", conversation_id: "c1" });
});

test("a refused answer or rest can be tried once more, and nothing else has changed", () => {
  const tab = open();
  const conversation = loaded(tab, { status: "cancelled" });
  tab.session.goOn(conversation, shown(conversation)[1]);
  tab.receive({ type: "error", event_id: tab.sent.at(-1).event_id, code: "queue_full", message: "Full.", retryable: true });
  assert.deepEqual(seen(conversation), ["Hi", "Hello, "]);
  const { kind, text, again } = tab.changes.at(-1);
  assert.deepEqual([kind, text], ["rejected", null]);
  again();
  assert.deepEqual(request(tab), { continue_id: "m2", conversation_id: "c1" });
});

test("a rest that failed is asked for again, and an answer that failed is answered again", () => {
  const tab = open();
  const failed = { id: "m3", parent_id: "m2", role: "assistant", text: "", status: "failed", response_id: "r2" };
  const conversation = loaded(tab, { status: "cancelled", more: [failed] });
  const [, turn] = shown(conversation);
  assert.equal(turn.status, "failed");
  tab.session.askAgain(conversation, turn);
  assert.deepEqual(request(tab), { continue_id: "m2", conversation_id: "c1" });
  const other = open();
  const talk = loaded(other, { status: "failed" });
  other.session.askAgain(talk, shown(talk)[1]);
  assert.deepEqual(request(other), { question_id: "m1", conversation_id: "c1" });
});

test("what is asked while an answer runs comes back at once and is not lost", () => {
  const tab = open();
  const conversation = loaded(tab, { status: "running" });
  const sent = tab.sent.length;
  tab.session.ask(conversation, "Now?");
  const { kind, text, error } = tab.changes.at(-1);
  assert.deepEqual([kind, text, error.code], ["rejected", "Now?", "conversation_busy"]);
  assert.equal(error.message, beingAnswered(), "as it is said everywhere");
  assert.equal(tab.sent.length, sent);
});

test("the branch that was chosen is kept in this browser, the newest needs no keeping", (t) => {
  const kept = new Map();
  globalThis.localStorage = {
    getItem: (name) => kept.get(name) ?? null,
    setItem: (name, value) => kept.set(name, value),
    removeItem: (name) => kept.delete(name),
  };
  t.after(() => delete globalThis.localStorage);
  const more = [{ id: "m3", parent_id: "m1", role: "assistant", text: "Good day", status: "completed" }];
  const tab = open();
  const conversation = loaded(tab, { more });
  assert.deepEqual(seen(conversation), ["Hi", "Good day"]);
  tab.session.step(conversation, shown(conversation)[1], -1);
  assert.deepEqual(seen(conversation), ["Hi", "Hello, "]);
  assert.equal(tab.changes.at(-1).kind, "branch");
  const reloaded = open();
  const again = loaded(reloaded, { more });
  assert.deepEqual(seen(again), ["Hi", "Hello, "]);
  reloaded.session.step(again, shown(again)[1], 1);
  assert.deepEqual(seen(again), ["Hi", "Good day"]);
  assert.equal(kept.size, 0);
});

test("what another device begins beside the branch that is read does not take the reader away", () => {
  const tab = open();
  const conversation = loaded(tab);
  loaded(tab, { more: [{ id: "m3", parent_id: "m1", role: "assistant", text: "Good day", status: "completed" }] });
  assert.deepEqual(seen(conversation), ["Hi", "Hello, "]);
  assert.deepEqual(placeOf(shown(conversation)[1]), { at: 0, of: 2 });
  loaded(tab, { more: [{ id: "m4", parent_id: "m2", role: "user", text: "Mine" }] });
  assert.deepEqual(seen(conversation), ["Hi", "Hello, ", "Mine"], "what goes on with it is shown");
});
