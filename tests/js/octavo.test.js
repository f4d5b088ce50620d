import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Connection, Octavo, OctavoError } from "#octavo/octavo.js";

/** Sockets that the test opens and breaks by hand. */
function network() {
  const made = [];
  class Wire {
    constructor() {
      this.sent = [];
      made.push(this);
    }
    send(text) {
      this.sent.push(JSON.parse(text));
    }
    close() {}
  }
  const states = [];
  const frames = [];
  const socket = new Connection("ws://x", {
    WebSocketClass: Wire,
    onFrame: (frame) => frames.push(frame),
    onState: (state) => states.push(state),
  });
  return { made, states, frames, socket };
}

test("a broken connection is made again, later each time", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { made, states, socket } = network();
  socket.connect();
  made[0].onopen();
  made[0].onclose({ code: 1006 });
  assert.equal(made.length, 1);
  t.mock.timers.tick(500);
  assert.equal(made.length, 2);
  made[1].onclose({ code: 1006 });
  t.mock.timers.tick(499);
  assert.equal(made.length, 2);
  t.mock.timers.tick(501);
  assert.equal(made.length, 3);
  assert.deepEqual(states, ["connecting", "open", "waiting", "connecting", "waiting", "connecting"]);
  socket.end();
});

test("a server that accepts and then closes is not hammered", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { made, socket } = network();
  socket.connect();
  for (let round = 0; round < 60; round += 1) {
    made.at(-1).onopen?.();
    made.at(-1).onmessage({ data: '{"type":"error","code":"internal"}' });
    made.at(-1).onclose({ code: 1011 });
    t.mock.timers.tick(1000);
  }
  assert.ok(made.length < 15, `${made.length} connections in a minute`);
  socket.end();
});

test("a connection that answers no ping is given up", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { made, states, socket } = network();
  socket.connect();
  made[0].onopen();
  t.mock.timers.tick(20_000);
  assert.deepEqual(made[0].sent, [{ type: "ping" }]);
  made[0].onmessage({ data: '{"type":"pong"}' });
  t.mock.timers.tick(20_000);
  assert.equal(made[0].sent.length, 2);
  t.mock.timers.tick(8_000);
  assert.equal(states.at(-1), "waiting");
  socket.end();
});

test("a closed session ends it, and frames of a replaced connection are not heard", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { made, states, frames, socket } = network();
  socket.connect();
  made[0].onclose({ code: 1006 });
  socket.hurry();
  made[0].onmessage({ data: '{"type":"pong"}' });
  assert.deepEqual(frames, []);
  made[1].onopen();
  made[1].onclose({ code: 4401 });
  assert.equal(states.at(-1), "ended");
  t.mock.timers.tick(60_000);
  assert.equal(made.length, 2);
});

test("a frame that the server cannot read, or that is too long, is no end of the session", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  for (const code of [4400, 4413]) {
    const { made, states, socket } = network();
    socket.connect();
    made[0].onopen();
    made[0].onclose({ code });
    assert.equal(states.at(-1), "waiting");
    t.mock.timers.tick(500);
    assert.equal(made.length, 2);
    made[1].onopen();
    assert.equal(states.at(-1), "open");
    socket.end();
  }
});

/** A client whose connections the test opens, breaks and speaks for, with a clock that is set by hand. */
function client(options = {}) {
  const made = [];
  class Wire {
    constructor(url, protocols) {
      Object.assign(this, { url, protocols, sent: [] });
      made.push(this);
    }
    send(text) {
      this.sent.push(JSON.parse(text));
    }
    close() {
      this.closed = true;
    }
    say(...frames) {
      for (const frame of frames) this.onmessage({ data: JSON.stringify(frame) });
    }
    open() {
      this.onopen();
      this.say({ type: "session.created", heartbeat_s: 25, limits: { max_frame_bytes: 65536 } });
    }
  }
  const clock = { now: 1_000_000 };
  const octavo = new Octavo({ url: "https://h", WebSocketClass: Wire, now: () => clock.now, ...options });
  after(() => octavo.close());
  return { octavo, made, clock, get wire() { return made.at(-1); } };
}

const delta = (first_seq, seq, text, more = {}) => ({
  type: "response.output_text.delta",
  response_id: "r1",
  index: 0,
  first_seq,
  seq,
  delta: text,
  ...more,
});
const accept = (wire, more = {}) =>
  wire.say({
    type: "response.queued",
    event_id: wire.sent.at(-1).event_id,
    response_id: "r1",
    conversation_id: "c1",
    position: 0,
    ...more,
  });
const ended = (seq, kind = "completed") => ({ type: `response.${kind}`, response_id: "r1", seq, finish_reason: "stop" });

/** Connected, and the answer to "Hi" accepted. */
function asked(input = "Hi", options = {}, of = {}) {
  const all = client(of);
  const stream = all.octavo.stream(input, options);
  all.wire.open();
  accept(all.wire);
  return { ...all, wire: all.wire, stream };
}

async function read(stream) {
  const texts = [];
  for await (const { delta } of stream.deltas()) texts.push(delta);
  return texts.join("");
}

test("a stream gives the text as it comes, and the answer at its end", async () => {
  const { wire, stream } = asked();
  const text = read(stream);
  wire.say(delta(1, 1, "Hel"));
  await new Promise(setImmediate);
  wire.say(delta(2, 3, "lo"), ended(4));
  assert.equal(await text, "Hello");
  const answer = await stream.whole();
  assert.deepEqual([answer.text, answer.status, answer.conversation_id], ["Hello", "completed", "c1"]);
});

test("a question over which connections are closed fails in the end with what the server said, and the client goes on", async () => {
  const all = client();
  const failed = assert.rejects(all.octavo.stream("broken").whole(), { code: "frame_too_large", message: "Too long." });
  for (let round = 0; round < 3; round += 1) {
    all.wire.open();
    assert.equal(all.wire.sent.at(-1).input, "broken");
    all.wire.say({ type: "error", code: "frame_too_large", message: "Too long." });
    all.wire.onclose({ code: 4413 });
    all.octavo.hurry();
  }
  all.wire.open();
  assert.deepEqual(all.wire.sent, []);
  await failed;
  const stream = all.octavo.stream("Hi");
  accept(all.wire);
  all.wire.say(delta(1, 1, "Hello"), ended(2));
  assert.equal((await stream.whole()).text, "Hello");
});

test("an answer goes on behind its last number after a lost connection, and no text comes twice", async () => {
  const { octavo, made, wire, stream } = asked();
  const text = read(stream);
  wire.say(delta(1, 2, "ab"));
  wire.onclose({ code: 1006 });
  octavo.hurry();
  made[1].open();
  assert.deepEqual(made[1].sent, [{ type: "response.resume", response_id: "r1", after: 2 }]);
  wire.say(delta(3, 3, "late"));
  made[1].say(delta(1, 3, "abc"), delta(4, 4, "d"), ended(5));
  assert.equal(await text, "abcd");
});

test("a step that is told in several frames counts as a whole or not at all", async () => {
  const { octavo, made, wire, stream } = asked([{ role: "user", content: "Hi" }], { params: { n: 2 } }, {});
  stream.response.request.input = "a conversation's, which goes on";
  wire.say(delta(1, 1, "a", { more: true }), delta(1, 1, "x", { index: 1 }), delta(2, 2, "b", { more: true }));
  wire.onclose({ code: 1006 });
  octavo.hurry();
  made[1].open();
  assert.equal(made[1].sent.at(-1).after, 1);
  made[1].say(delta(2, 2, "b", { more: true }), delta(2, 2, "y", { index: 1, finish_reason: "stop" }), ended(3));
  const answer = await stream.whole();
  assert.equal(answer.text, "ab");
  assert.deepEqual([answer.choices[1].text, answer.choices[1].finish_reason], ["xy", "stop"]);
});

test("tool calls are put together", async () => {
  const { wire, stream } = asked([{ role: "user", content: "Hi" }]);
  const about = { response_id: "r1", index: 0, call: 0 };
  const item = { type: "function_call", call_id: "c", name: "look_up" };
  wire.say({ type: "response.output_item.added", ...about, first_seq: 1, seq: 1, item });
  for (const [seq, text] of [[2, '{"q"'], [3, ": 1}"]])
    wire.say({ type: "response.function_call_arguments.delta", ...about, first_seq: seq, seq, delta: text });
  wire.say(ended(4));
  const { choices } = await stream.whole();
  assert.deepEqual(choices[0].tool_calls, [{ id: "c", name: "look_up", arguments: '{"q": 1}' }]);
});

test("leaving a loop stops the answer", async () => {
  const { wire, stream } = asked();
  setImmediate(() => wire.say(delta(1, 1, "a")));
  for await (const { delta } of stream.deltas()) if (delta) break;
  assert.deepEqual(wire.sent.at(-1), { type: "response.cancel", response_id: "r1" });
});

test("a stateless answer ends with its connection, and says so", async () => {
  const { wire, stream } = asked([{ role: "user", content: "Hi" }]);
  wire.say(delta(1, 1, "a"));
  wire.onclose({ code: 1006 });
  await assert.rejects(stream.whole(), (error) => {
    assert.ok(error instanceof OctavoError);
    assert.deepEqual([error.code, error.retryable, error.answer.text], ["connection_lost", true, "a"]);
    return true;
  });
});

test("a refusal for the moment is tried again when the server says, under the same key", async () => {
  const all = client();
  const stream = all.octavo.stream("Hi", { retries: 1 });
  all.wire.open();
  const refuse = () => {
    const { event_id } = all.wire.sent.at(-1);
    all.wire.say({ type: "error", event_id, code: "queue_full", message: "Full.", retryable: true, retry_after_ms: 3000 });
  };
  refuse();
  all.clock.now += 2900;
  all.octavo.tick();
  assert.equal(all.wire.sent.length, 1);
  all.clock.now += 200;
  all.octavo.tick();
  assert.equal(all.wire.sent.length, 2);
  assert.equal(all.wire.sent[0].idempotency_key, all.wire.sent[1].idempotency_key);
  refuse();
  await assert.rejects(stream.whole(), { code: "queue_full", retry_after_ms: 3000 });
});

test("a server without room for a socket is left alone for as long as it says", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { made, socket } = network();
  socket.connect();
  made[0].onopen();
  made[0].onmessage({ data: '{"type":"error","code":"overloaded","retryable":true,"retry_after_ms":9000}' });
  made[0].onclose({ code: 1013 });
  t.mock.timers.tick(8900);
  assert.equal(made.length, 1);
  t.mock.timers.tick(200);
  assert.equal(made.length, 2);
  made[1].onclose({ code: 1006 });
  t.mock.timers.tick(1100);
  assert.equal(made.length, 3, "said once, it counts once");
});

test("a connection that will expire is replaced before it ends", () => {
  const { made, wire } = asked();
  wire.say(delta(1, 1, "a"), { type: "session.expiring", expires_at: 1 });
  assert.equal(made.length, 2);
  wire.say(delta(2, 2, "b"));
  made[1].open();
  assert.ok(wire.closed);
  assert.deepEqual(made[1].sent, [{ type: "response.resume", response_id: "r1", after: 2 }]);
});

test("each connection has a ticket of its own, and a closed one for good fails what runs", async () => {
  let tickets = 0;
  const all = client({ ticket: async () => `t${(tickets += 1)}` });
  const stream = all.octavo.stream("Hi");
  await new Promise(setImmediate);
  assert.deepEqual(all.wire.protocols, ["octavo.v1", "octavo.ticket.t1"]);
  assert.equal(all.wire.url, "wss://h/ws/v1");
  all.wire.open();
  all.wire.onclose({ code: 1006 });
  all.octavo.hurry();
  await new Promise(setImmediate);
  assert.deepEqual(all.wire.protocols, ["octavo.v1", "octavo.ticket.t2"]);
  all.wire.say({ type: "error", code: "invalid_ticket", message: "No.", retryable: false });
  all.wire.onclose({ code: 4401 });
  await assert.rejects(stream.whole(), { code: "invalid_ticket" });
  await assert.rejects(all.octavo.ask("More"), { code: "closed" });
  await assert.rejects(all.octavo.ask("x".repeat(70_000)), { code: "closed" }, "for one reason, and not for its size as well");
});

test("what waits for a connection does not wait for ever", async () => {
  const { octavo, clock, wire, stream } = asked();
  wire.say(delta(1, 1, "a"));
  wire.onclose({ code: 1006 });
  clock.now += 299_000;
  octavo.tick();
  assert.equal(stream.answer.status, "running");
  clock.now += 2_000;
  octavo.tick();
  await assert.rejects(stream.whole(), { code: "unreachable", retryable: true });
});

test("a silent answer of a program's is asked for by itself", () => {
  const { octavo, clock, wire } = asked();
  clock.now += 5_000;
  octavo.tick();
  assert.deepEqual(wire.sent.at(-1), { type: "response.resume", response_id: "r1", after: -1 });
});

test("a topic is asked for on every connection, until nobody wants it any more", () => {
  const { octavo, made } = client({ patient: true });
  const heard = [];
  const leave = octavo.subscribe("conversations", (frame) => heard.push(frame.type));
  octavo.connect();
  made[0].open();
  const subscribed = () => made.at(-1).sent.filter((frame) => frame.type === "subscribe").map((frame) => frame.topic);
  assert.deepEqual(subscribed(), ["conversations"]);
  made[0].say(
    { type: "subscribed", topic: "conversations", event_id: made[0].sent.at(-1).event_id },
    { type: "conversation.updated", conversation: { id: "c1" } },
    { type: "usage.updated", response_id: "r1" },
  );
  assert.deepEqual(heard, ["subscribed", "conversation.updated"]);
  made[0].onclose({ code: 1006 });
  octavo.hurry();
  made[1].open();
  assert.deepEqual(subscribed(), ["conversations"]);
  leave();
  assert.equal(made[1].sent.at(-1).type, "unsubscribe");
  made[1].say({ type: "conversation.updated", conversation: { id: "c1" } });
  assert.equal(heard.length, 2);
});

test("whose memory is meant is said on every connection, and a refusal is told to who asked", () => {
  const { octavo, made } = client({ patient: true });
  octavo.connect();
  made[0].open();
  const heard = [];
  const leave = octavo.subscribe("memory", (frame) => heard.push(frame.type), { conversation_id: "c1" });
  const first = made[0].sent.at(-1);
  assert.deepEqual([first.topic, first.conversation_id], ["memory", "c1"]);
  octavo.subscribe("memory", (frame) => heard.push(`second ${frame.type}`), { conversation_id: "c2" });
  leave(); // another one has taken its place already
  assert.equal(made[0].sent.at(-1).conversation_id, "c2");
  made[0].say(
    { type: "error", event_id: first.event_id, code: "not_found", message: "No.", retryable: false },
    { type: "memory.updated", conversation_id: "c2" },
    { type: "error", event_id: made[0].sent.at(-1).event_id, code: "not_found", message: "No.", retryable: false },
  );
  assert.deepEqual(heard, ["second memory.updated", "second error"]);
  made[0].onclose({ code: 1006 });
  octavo.hurry();
  made[1].open();
  assert.equal(made[1].sent.find((frame) => frame.topic === "memory").conversation_id, "c2");
});
