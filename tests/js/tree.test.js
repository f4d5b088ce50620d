import assert from "node:assert/strict";
import { test } from "node:test";

import { Turn, endOf, leafBeside, leafThrough, placeOf, shown, shownAs } from "#octavo/tree.js";

/** "1", "1>2": messages in the order in which they were made, each with the one that it follows. Questions have capitals. */
function conversation(...edges) {
  const messages = edges.map((edge) => {
    const [parent, id] = edge.includes(">") ? edge.split(">") : [null, edge];
    const role = id === id.toUpperCase() ? "user" : "assistant";
    return { id, parent_id: parent, role, text: `(${id})`, status: "completed" };
  });
  const find = (id) => messages.find((message) => message.id === id);
  return { messages, find, leaf: null };
}

const texts = (of) => shown(of).map((message) => message.text);
const places = (of) => shown(of).map((message) => Object.values(placeOf(message)));
const step = (of, index, by) => (of.leaf = leafBeside(of, shown(of)[index], by));

test("the shown branch leads from the root to the newest message", () => {
  assert.deepEqual(texts(conversation("Q", "Q>a", "Q>b", "b>R")), ["(Q)", "(b)", "(R)"]);
  assert.deepEqual(texts(conversation()), []);
});

test("a branch that is read stays and grows, whatever begins beside it", () => {
  const talk = conversation("Q", "Q>a", "a>R", "R>b");
  talk.leaf = talk.find("b");
  const more = conversation("Q", "Q>a", "a>R", "R>b", "R>c", "P", "P>d", "b>S", "S>e");
  talk.messages.push(...more.messages.slice(4));
  assert.deepEqual(texts(talk), ["(Q)", "(a)", "(R)", "(b)", "(S)", "(e)"]);
  talk.leaf = null;
  assert.equal(endOf(talk).id, "e");
});

test("siblings are counted and walked, also of the first question", () => {
  const talk = conversation("Q", "Q>a", "a>R", "R>b", "Q>c", "P", "P>d");
  assert.deepEqual(texts(talk), ["(P)", "(d)"]);
  assert.deepEqual(places(talk), [[1, 2], [0, 1]]);
  step(talk, 0, -1);
  assert.deepEqual(texts(talk), ["(Q)", "(c)"], "the newest below it");
  assert.deepEqual(places(talk), [[0, 2], [1, 2]]);
  step(talk, 1, -1);
  assert.deepEqual(texts(talk), ["(Q)", "(a)", "(R)", "(b)"]);
  assert.equal(leafBeside(talk, shown(talk)[1], -1), null, "there is none before the first");
});

test("an answer and what goes on with it are one message", () => {
  const talk = conversation("Q", "Q>a", "a>b", "b>c", "c>R");
  const [, turn] = shown(talk);
  assert.ok(turn instanceof Turn);
  assert.equal(turn.text, "(a)(b)(c)");
  assert.deepEqual(places(talk), [[0, 1], [0, 1], [0, 1]]);
  assert.equal(shownAs(talk.find("b")), turn);
  assert.equal(shown(talk)[1], turn, "it is the same one as long as the page lives");
  talk.find("c").status = "running";
  assert.equal(turn.status, "running");
});

test("its figures are those of the whole, and half a character at a cut is left to the rest", () => {
  const talk = conversation("Q", "Q>a", "a>b");
  const [a, b] = [talk.find("a"), talk.find("b")];
  Object.assign(a, { text: "Hi \uFFFD", usage: { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 5 }, timing: { prefill_s: 1, decode_s: 2 } });
  Object.assign(b, { text: "👋", usage: { prompt_tokens: 14, cached_tokens: 13, completion_tokens: 6 }, timing: { prefill_s: 3, decode_s: 4 } });
  const [, turn] = shown(talk);
  assert.equal(turn.text, "Hi 👋");
  assert.deepEqual(turn.usage, { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 11 });
  assert.deepEqual(turn.timing, { prefill_s: 1, decode_s: 6 });
  assert.equal(turn.said, b);
});

test("an answer that was gone on with in two ways, and asked about before, has three versions", () => {
  const talk = conversation("Q", "Q>a", "a>R", "R>x", "a>b", "a>c", "c>S");
  assert.deepEqual(texts(talk), ["(Q)", "(a)(c)", "(S)"]);
  assert.deepEqual(places(talk)[1], [2, 3]);
  step(talk, 1, -1);
  assert.deepEqual(texts(talk), ["(Q)", "(a)(b)"]);
  step(talk, 1, -1);
  assert.deepEqual(texts(talk), ["(Q)", "(a)", "(R)", "(x)"], "and not what goes on with it");
});

test("an answer that failed with nothing is no version once there is another", () => {
  const talk = conversation("Q", "Q>a", "Q>b");
  Object.assign(talk.find("a"), { text: "", status: "failed" });
  assert.deepEqual(places(talk)[1], [0, 1]);
  talk.leaf = talk.find("a");
  assert.deepEqual(places(talk)[1], [0, 2], "but there is a way on from it");
  const cut = conversation("Q", "Q>a", "a>b", "Q>c");
  Object.assign(cut.find("b"), { text: "", status: "failed" });
  assert.deepEqual(places(cut)[1], [1, 2]);
  step(cut, 1, -1);
  assert.equal(shown(cut)[1].text, "(a)", "what went on with it in vain takes nothing away");
  Object.assign(talk.find("a"), { status: "cancelled" });
  talk.leaf = null;
  assert.deepEqual(places(talk)[1], [0, 1], "nor is one that was stopped before it began");
});

test("a thousand messages, loops and lost parents are shown all the same", () => {
  const edges = ["Q0"];
  for (let n = 1; n < 1000; n += 1) edges.push(`${n % 2 ? "Q" : "a"}${n - 1}>${n % 2 ? "a" : "Q"}${n}`);
  assert.equal(shown(conversation(...edges)).length, 1000);
  const rests = Array.from({ length: 20_000 }, (_, n) => (n ? `r${n - 1}>r${n}` : "Q>r0"));
  assert.equal(shown(conversation("Q", ...rests)).length, 2, "also where one answer was gone on with very often");
  const loop = conversation("b>A", "A>b");
  assert.equal(shown(loop).length, 2);
  assert.deepEqual(texts(conversation("gone>Q", "Q>a")), ["(Q)", "(a)"]);
});

test("a message of another branch is shown with its own branch, and one that is shown changes nothing", () => {
  const of = { messages: [], leaf: null };
  const say = (id, role, parent_id) => of.messages.push({ id, parent_id, role, text: id, status: "completed" });
  say("q1", "user", null);
  say("a1", "assistant", "q1");
  say("q2", "user", "a1");
  say("q3", "user", "a1");
  const [, , q2, q3] = of.messages;
  assert.equal(leafThrough(of, q3), null);
  of.leaf = leafThrough(of, q2);
  assert.deepEqual(texts(of), ["q1", "a1", "q2"]);
  assert.equal(leafThrough(of, of.messages[0]), q2, "which is on both");
});
