import assert from "node:assert/strict";
import { after, beforeEach, test } from "node:test";

import { Library } from "#octavo/library.js";
import { Session } from "#octavo/session.js";
import { suggested } from "#octavo/tags.js";
import { Unread } from "#octavo/unread.js";

/** A session without a connection, and a server that answers what the test says. */
function open({ list = [], starred = [] } = {}) {
  const told = [];
  const session = new Session({
    api: "/api/t/x", conversations: { items: list, next: null }, notify: (change) => told.push(change.kind),
  });
  return { session, library: new Library({ session, starred }), told };
}

let requests;
let answers;
const realFetch = globalThis.fetch;

beforeEach(() => {
  requests = [];
  answers = [];
  globalThis.fetch = async (url, { method, body, signal }) => {
    requests.push({ url, method, body: body && JSON.parse(body) });
    const answer = answers.shift();
    if (signal?.aborted) throw Object.assign(new Error("aborted"), { name: "AbortError" });
    if (answer instanceof Error) throw answer;
    const [status, said] = answer;
    return { ok: status < 400, status, json: async () => said };
  };
});

after(() => {
  globalThis.fetch = realFetch;
});

const item = (id, more = {}) => ({
  id, title: id, updated_at: "2026-11-29T10:00:00Z", running: false, starred_at: null, archived_at: null, deleted_at: null,
  tags: [], ...more,
});

test("a new name shows at once, and everywhere", async () => {
  const { session, library } = open({ list: [item("a")] });
  session.loaded.set("a", { id: "a", title: "a", messages: [] });
  answers.push([200, item("a", { title: "Better" })]);
  const renaming = library.rename("a", "Better");
  assert.equal(session.list[0].title, "Better");
  await renaming;
  assert.equal(session.loaded.get("a").title, "Better");
  assert.deepEqual(requests, [{ url: "/api/t/x/conversations/a", method: "PATCH", body: { title: "Better" } }]);
});

test("what the server refuses is taken back, with its reason", async () => {
  const { session, library } = open({ list: [item("a")] });
  answers.push([400, { error: { message: "A title has at most 120 characters." } }]);
  await assert.rejects(library.rename("a", "x".repeat(121)), /at most 120/);
  assert.equal(session.list[0].title, "a");
  answers.push(new TypeError("network"));
  await assert.rejects(library.setStarred("a", true), { status: 0, message: /^No connection to the server/ });
  assert.equal(session.list[0].starred_at, null);
});

test("what is deleted leaves the list, comes back where it fails, and stays away where it was gone already", async () => {
  const { session, library } = open({ list: [item("a"), item("b")] });
  answers.push([503, null]);
  const removing = library.remove("a");
  assert.deepEqual(session.list.map((one) => one.id), ["b"]);
  await assert.rejects(removing, { status: 503, message: /^The server could not do this/ });
  assert.deepEqual(session.list.map((one) => one.id).toSorted(), ["a", "b"]);
  answers.push([404, { error: { message: "There is no such conversation." } }]);
  await library.remove("a");
  assert.deepEqual(session.list.map((one) => one.id), ["b"]);
  answers.push([200, item("a")]);
  await library.restore("a");
  assert.deepEqual(session.list.map((one) => one.id).toSorted(), ["a", "b"]);
  assert.equal(library.item("a").deleted_at, null);
});

test("many are changed a hundred at a time, and those that are gone are left out", async () => {
  const ids = Array.from({ length: 130 }, (_, n) => `${n}`);
  const { session, library, told } = open({ list: ids.map((id) => item(id)) });
  answers.push([200, { items: ids.slice(0, 100).map((id) => item(id, { deleted_at: "2026-11-29T11:00:00Z" })) }]);
  answers.push([200, { items: [item("100", { deleted_at: "2026-11-29T11:00:00Z" })] }]);
  const changed = await library.changeMany(ids, { deleted: true });
  assert.equal(changed.length, 101);
  assert.deepEqual(requests.map((one) => one.body.ids.length), [100, 30]);
  assert.equal(session.list.length, 29);
  assert.equal(told.filter((kind) => kind === "gone").length, 101);
});

test("what is archived leaves the list and is known all the same, and comes back where it was", async () => {
  const { session, library } = open({ list: [item("a"), item("b", { updated_at: "2026-11-28T10:00:00Z" })] });
  answers.push([200, item("a", { archived_at: "2026-11-29T11:00:00Z" })], [200, item("a")]);
  await library.setArchived("a", true);
  assert.deepEqual(session.list.map((one) => one.id), ["b"]);
  assert.equal(library.item("a").archived_at, "2026-11-29T11:00:00Z");
  await library.setArchived("a", false);
  assert.deepEqual(session.list.map((one) => one.id), ["a", "b"]);
});

test("starred ones of long ago are in the list once", () => {
  const { session } = open({ list: [item("a"), item("b")], starred: [item("b"), item("z")] });
  assert.deepEqual(session.list.map((one) => one.id), ["a", "b", "z"]);
});

test("a search names what is wanted and nothing else", async () => {
  const { library } = open();
  answers.push([200, { items: [], next: null }], [200, { items: [], next: null }]);
  await library.search("50% a&b", { starred: true, archived: false, tag: "" });
  await library.list({ tag: "ä b" }, { cursor: "c" });
  assert.deepEqual(requests.map((one) => one.url), [
    "/api/t/x/conversations/search?q=50%25+a%26b&starred=true",
    "/api/t/x/conversations?tag=%C3%A4+b&cursor=c",
  ]);
});

test("tags are suggested by what is typed, those that begin with it first", () => {
  const known = [["network", 9], ["work", 1], ["Working", 2], ["home", 5]].map(([name, conversations]) => ({ name, conversations }));
  const names = (...given) => suggested(known, ...given).map((tag) => tag.name);
  assert.deepEqual(names("WORK", []), ["Working", "work", "network"]);
  assert.deepEqual(names("# wor", ["WORK"]), ["Working", "network"]);
  assert.deepEqual(names("", []), ["network", "home", "Working", "work"]);
});

function storage() {
  const kept = new Map();
  return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value), kept };
}

test("an answer that ended while another chat was shown is unread until it is shown", () => {
  const unread = new Unread({ slug: "x", storage: storage() });
  unread.see([item("a", { running: true }), item("b", { running: true })], "b");
  unread.see([item("a"), item("b")], "b");
  assert.deepEqual([unread.has("a"), unread.has("b")], [true, false]);
  assert.equal(unread.see([item("a"), item("b")], "a"), true);
  assert.equal(unread.has("a"), false);
  assert.equal(unread.see([item("a"), item("b")], "a"), false, "nothing is written where nothing has changed");
});

test("what ends while nobody looks at the page is unread, also across pages", () => {
  const store = storage();
  const looked = { at: false };
  const one = new Unread({ slug: "x", storage: store, shown: () => looked.at });
  one.see([item("a", { running: true })], "a");
  one.see([item("a")], "a");
  assert.equal(one.has("a"), true);
  looked.at = true;
  one.see([item("b", { running: true })], "a");
  assert.equal(one.has("a"), false);
  const reloaded = new Unread({ slug: "x", storage: store });
  reloaded.see([item("b")], null);
  assert.equal(reloaded.has("b"), true);
});

test("a storage that is off or full of something else changes nothing but what is remembered", () => {
  const broken = { getItem: () => "[1", setItem: () => { throw new Error("full"); } };
  const unread = new Unread({ slug: "x", storage: broken });
  unread.see([item("a", { running: true })], null);
  unread.see([item("a")], null);
  assert.equal(unread.has("a"), true);
});
