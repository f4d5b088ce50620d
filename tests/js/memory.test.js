/* What the Memory drawer shows of an engine's words, and where its cells stand. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { GAP, cellAt, fit, paint, placeOf } from "#octavo/cells.js";
import {
  cellsOf,
  describe,
  eased,
  lookOf,
  meaning,
  moved,
  rowsOf,
  saved,
  savedInWords,
  strengthOf,
  summary,
  tokensNow,
} from "#octavo/memory-cells.js";

const MB = 1024 * 1024;
const memory = (fields = {}) => ({
  worker: "w",
  at_ms: 1,
  state: "answering",
  block_size: 16,
  block_bytes: 0.25 * MB,
  runs: [
    { kind: "platform", chats: 6, blocks: 1 },
    { kind: "team", chats: 6, pinned: true, blocks: 10 },
    { kind: "kept", blocks: 4 },
    { kind: "own", blocks: 3 },
  ],
  tokens: 16 * 16 + 4,
  length: 16 * 16 + 5,
  cached: 240,
  response: "r1",
  seq: 30,
  ...fields,
});
const COLOURS = { shared: "teal", own: "grey", line: "line", page: "white" };

test("there is one cell a block, filled as far as the tokens go", () => {
  const cells = cellsOf(memory());
  assert.equal(cells.length, 18);
  assert.deepEqual(cells.slice(14).map((cell) => cell.filled), [1, 1, 0.25, 0]);
  assert.deepEqual([cells[16].from, cells[16].to], [256, 260]);
  assert.deepEqual([cells[0].kind, cells[10].kind, cells[11].kind, cells[17].kind], ["platform", "team", "kept", "own"]);
  assert.deepEqual(cellsOf(null), []);
});

test("tokens that come between two frames fill the newest cell, and then new ones", () => {
  assert.equal(cellsOf(memory(), 264).at(16).filled, 0.5);
  const more = cellsOf(memory(), 18 * 16 + 8);
  assert.equal(more.length, 19);
  assert.deepEqual([more.at(-1).kind, more.at(-1).filled], ["own", 0.5]);
  const idle = memory({ state: "idle" });
  assert.equal(cellsOf(idle, 400).length, 18, "an idle chat does not grow");
});

test("what the page has heard since the frame counts, for this very answer and two blocks at most", () => {
  const answer = { response_id: "r1", last_seq: 35 };
  assert.equal(tokensNow(memory(), answer), 265);
  assert.equal(tokensNow(memory(), { response_id: "r1", last_seq: 900 }), 260 + 32);
  assert.equal(tokensNow(memory(), { response_id: "r1", last_seq: 3 }), 260, "the engine knows more than the page");
  assert.equal(tokensNow(memory(), { response_id: "r2", last_seq: 35 }), 260);
  assert.equal(tokensNow(memory({ state: "idle" }), answer), 260);
  assert.equal(tokensNow(null, answer), 0);
});

test("the movement arrives, and takes the same way at any frame rate", () => {
  let fine = 0;
  for (let n = 0; n < 12; n += 1) fine = eased(fine, 10, 10);
  assert.ok(Math.abs(eased(0, 10, 120) - fine) < 1e-9);
  let at = 0;
  for (let n = 0; n < 100; n += 1) at = eased(at, 10, 16);
  assert.equal(at, 10);
});

test("one line says how much there is and with how many chats it is shared", () => {
  assert.equal(summary(memory()), "18 blocks, 11 shared with 6 other chats of your team, 4.5 MB");
  const one = memory({ runs: [{ kind: "team", chats: 1, blocks: 1 }], block_bytes: 1024, tokens: 16 });
  assert.equal(summary(one), "1 block, 1 shared with 1 other chat of your team, 1 KB");
  assert.equal(summary(memory({ runs: [{ kind: "kept", blocks: 2 }], tokens: 32 })), "2 blocks, 512 KB");
  assert.equal(summary(memory({ state: "idle", runs: [{ kind: "lost", blocks: 2 }], tokens: 0 })), "Nothing in memory");
});

test("what it means for the reader is said in every state", () => {
  const idle = (fields) => memory({ state: "idle", tokens: 260, length: 260, ...fields });
  const talked = { messages: 4, known: 900 };
  assert.equal(meaning(memory(), talked), "240 tokens were ready when this answer began.");
  assert.equal(meaning(memory({ tokens: 100, length: 612 }), talked), "Reading: 511 tokens to go.");
  assert.match(meaning(memory({ cached: 0 }), talked), /^This answer began from nothing/);
  assert.equal(meaning(idle(), talked), "All of this chat is ready for your next message.");
  const lost = [{ kind: "team", blocks: 5 }, { kind: "lost", blocks: 12 }];
  assert.equal(
    meaning(idle({ tokens: 80, runs: lost }), talked),
    "The engine has let go of this chat’s memory; your next message reads 180 tokens again.",
  );
  const partly = [{ kind: "kept", blocks: 1 }, ...lost];
  assert.match(meaning(idle({ tokens: 80, runs: partly }), talked), /^Part of this chat has been let go; .* 180 tokens/);
  assert.match(meaning(idle({ outdated: true }), talked), /instructions have changed; .* 260 tokens\.$/);
  const fresh = memory({ state: "new", tokens: 0, length: 0, runs: [] });
  assert.equal(
    meaning(fresh, talked),
    "The engine has let go of this chat’s memory; your next message reads 900 tokens again.",
  );
  // An imported chat: the engine has never had it, whatever it holds of the team's instructions.
  for (const unread of [fresh, memory({ state: "new", tokens: 176 })])
    assert.equal(
      meaning(unread, { messages: 4 }),
      "The engine has not read this chat yet; your next message reads all of it.",
    );
  assert.match(meaning(memory({ state: "new" }), { messages: 0 }), /^Your team’s instructions, computed once, wait/);
  assert.equal(meaning(fresh, { messages: 0 }), "Empty so far. It fills as you write.");
});

test("the more chats hold a block the stronger it is, and a chat's own are another colour", () => {
  const strengths = [0, 1, 2, 5, 50].map(strengthOf);
  assert.deepEqual(strengths, [...strengths].sort());
  assert.ok(strengths[0] > 0.4 && strengths.at(-1) < 1);
  const [platform, , , , , , , , , , , kept, , , , own] = cellsOf(memory());
  assert.equal(lookOf(platform, COLOURS).colour, "teal");
  assert.equal(lookOf(kept, COLOURS).colour, "grey");
  assert.ok(lookOf(own, COLOURS).strength > lookOf(kept, COLOURS).strength);
  assert.equal(lookOf({ kind: "lost" }, COLOURS).outline, true);
});

test("a cell's card says what it is, which tokens, whose, and since when, and names nobody", () => {
  const now = new Date("2026-11-30T08:10:00Z");
  const since = Date.parse("2026-11-30T08:00:00Z") / 1000;
  const told = memory({ runs: [{ kind: "team", chats: 6, pinned: true, since, blocks: 17 }, { kind: "own", host: true, blocks: 1 }] });
  const cells = cellsOf(told);
  assert.deepEqual(describe(cells[1], told, now), [
    "Your team’s instructions",
    "Tokens 17 to 32",
    "Shared with 6 other chats of your team",
    "Pinned: it goes last",
    "Since 10 min ago",
  ]);
  assert.ok(describe(cells[16], told, now).includes("4 of 16 slots filled"));
  assert.deepEqual(describe(cells[17], told, now), [
    "This turn",
    "Room for the next tokens",
    "Nobody else can use it",
    "In host memory",
  ]);
});

test("the table has a row for neighbours that are alike", () => {
  assert.deepEqual(rowsOf(memory()), [
    { kind: "platform", chats: 6, blocks: 1, from: 0, to: 16 },
    { kind: "team", chats: 6, blocks: 10, from: 16, to: 176 },
    { kind: "kept", chats: 0, blocks: 4, from: 176, to: 240 },
    { kind: "own", chats: 0, blocks: 3, from: 240, to: 260 },
  ]);
});

test("what the cache has saved is added up over all answers", () => {
  const messages = [
    { role: "user" },
    { usage: { prompt_tokens: 600, cached_tokens: 500 } },
    { usage: null },
    { usage: { prompt_tokens: 1400, cached_tokens: 1000 } },
  ];
  assert.deepEqual(saved(messages), { prompt: 2000, cached: 1500 });
  assert.equal(
    savedInWords(saved(messages)),
    "In this chat 1,500 of 2,000 prompt tokens came from memory (75 %); 500 were computed.",
  );
  assert.equal(savedInWords(saved([])), "");
});

test("cells are as large as fits, and thousands are still a picture", () => {
  assert.deepEqual(fit(18, 240, 320), { size: 14, columns: 15, rows: 2, height: 30 });
  assert.equal(fit(400, 240, 320).size, 10);
  const many = fit(2000, 240, 320);
  assert.equal(many.size, 6);
  assert.ok(many.columns * many.rows >= 2000);
  assert.deepEqual(fit(0, 240, 320).height, 0);
  assert.equal(fit(5, 3, 320).columns, 1, "however narrow");
});

test("a point finds the cell that stands there, in both directions of writing", () => {
  for (const mirrored of [0, 240]) {
    const form = fit(50, 240, 320);
    for (const index of [0, 7, 14, 15, 49]) {
      const { x, y } = placeOf(index, form, mirrored);
      assert.ok(x >= 0 && x + form.size <= 240);
      assert.equal(cellAt(x + 1, y + 1, form, 50, mirrored), index);
    }
    assert.equal(cellAt(mirrored ? 240 - 5 * (form.size + GAP) : 5 * (form.size + GAP), 3 * (form.size + GAP) + 1, form, 48, mirrored), -1);
    assert.equal(cellAt(-300, 4, form, 50, mirrored), -1);
  }
});

test("arrow keys go from cell to cell and stay on the board", () => {
  const form = { columns: 5 };
  const go = (from, ...keys) => keys.reduce((at, key) => moved(at, key, form, 12), from);
  assert.equal(go(-1, "ArrowRight"), 0);
  assert.equal(go(0, "ArrowRight", "ArrowDown", "ArrowDown"), 11);
  assert.equal(go(4, "ArrowDown", "ArrowDown"), 11, "into the gap of the last row: the last cell");
  assert.equal(go(11, "ArrowDown"), 11);
  assert.equal(go(11, "ArrowUp", "ArrowUp", "ArrowUp"), 1);
  assert.equal(go(0, "ArrowLeft", "End", "ArrowRight", "Home"), 0);
  assert.equal(moved(3, "ArrowRight", form, 12, true), 2, "rows run from right to left");
  assert.equal(moved(3, "Tab", form, 12), null);
  assert.equal(moved(-1, "ArrowRight", form, 0), null);
});

test("a part-filled cell is as strong where it is filled as a full one, and weaker where it is not", () => {
  /** How much of each pixel in a row of ten is covered in the end. */
  const covered = (look) => {
    const row = new Array(10).fill(0);
    const context = {
      globalAlpha: 1,
      clearRect: () => row.fill(0),
      fillRect(x, _y, width) {
        for (let at = Math.round(x); at < Math.round(x + width); at += 1) row[at] += this.globalAlpha * (1 - row[at]);
      },
    };
    paint(context, 0, 0, 10, look);
    return row.map((one) => Number(one.toFixed(3)));
  };
  for (const strength of [0.3, 0.44, 0.55, 1]) {
    const full = covered({ strength }).at(0);
    const half = covered({ strength, part: 0.5 });
    assert.deepEqual(half.slice(0, 5), new Array(5).fill(full));
    assert.ok(half.slice(5).every((one) => one > 0 && one <= strength / 2));
    assert.deepEqual(covered({ strength, part: 0.5, mirrored: true }), half.toReversed());
  }
});
