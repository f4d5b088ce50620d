import assert from "node:assert/strict";
import { test } from "node:test";

import { Socket } from "#octavo/socket.js";

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
  const socket = new Socket("ws://x", {
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
