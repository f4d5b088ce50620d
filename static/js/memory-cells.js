/* What the Memory drawer shows, worked out of what the engine says of a chat's blocks. Pure: knows no page.

   A memory is a frame's `memory`: runs of neighbouring blocks of which the same can be said, in the order of the chat's
   tokens, which fill them from the first on. What a frame leaves out is 0, false or empty. */

import { bytes, count, relativeTime } from "#octavo/format.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";

const SHARED = new Set(["platform", "team"]);

/** One cell a block: {kind, chats, pinned, host, since, from, to, filled}. `tokens`: how many slots are filled by now, where
    that is known better than by the frame; blocks that it needs and nobody has told of yet are the chat's own. */
export function cellsOf(memory, tokens = memory?.tokens ?? 0) {
  const cells = [];
  if (!memory) return cells;
  const size = memory.block_size;
  const add = (run) => {
    const from = cells.length * size;
    const filled = run.kind === "lost" ? 0 : Math.max(0, Math.min(tokens - from, size)) / size;
    cells.push({ chats: 0, pinned: false, host: false, since: 0, ...run, from, to: from + size, filled });
  };
  for (const { blocks = 1, ...run } of memory.runs) for (let n = 0; n < blocks; n += 1) add(run);
  while (memory.state === "answering" && tokens > cells.length * size) add({ kind: "own" });
  // The last block ends where the chat does.
  const last = cells.findLast((cell) => cell.filled > 0);
  if (last) last.to = Math.min(last.to, Math.max(Math.ceil(tokens), last.from + 1));
  return cells;
}

/** How a cell looks, for cells.js. `colours`: {shared, own, line, page}. */
export function lookOf(cell, colours) {
  const common = { pinned: cell.pinned, host: cell.host, mark: colours.page, part: cell.filled };
  if (cell.kind === "lost") return { colour: colours.line, outline: true };
  if (SHARED.has(cell.kind)) return { ...common, colour: colours.shared, strength: strengthOf(cell.chats) };
  if (cell.kind === "own") return { ...common, colour: colours.own, strength: 0.88 };
  return { ...common, colour: colours.own, strength: 0.44 };
}

/** The more chats hold a block, the stronger its colour: most of it for the first few. */
export const strengthOf = (chats) => 0.52 + 0.48 * (1 - 1 / (1 + chats / 2));

/** How many slots are filled while an answer comes, between two frames: the page hears of each step at once, the engine's
    word is up to a quarter of a second old. Never more than two blocks beyond that word. */
export function tokensNow(memory, answer) {
  const said = memory?.tokens ?? 0;
  if (memory?.state !== "answering" || !answer || answer.response_id !== memory.response) return said;
  const since = answer.last_seq - (memory.seq ?? -1);
  return said + Math.max(0, Math.min(since, 2 * memory.block_size));
}

/** Towards a target, as a spring without bounce: the same pace at any frame rate. */
export function eased(from, target, passedMs) {
  const next = target + (from - target) * Math.exp(-passedMs / 90);
  return Math.abs(target - next) < 0.02 ? target : next;
}

/** `words`: from ngettext, called where they stand, so that they are collected for translation. */
const counted = (words, n, values = {}) => fill(words, { n: count(n), ...values });

/** "18 blocks, 11 shared with 6 other chats of your team, 4.1 MB" */
export function summary(memory) {
  const held = cellsOf(memory).filter((cell) => cell.kind !== "lost");
  if (held.length === 0) return gettext("Nothing in memory");
  const blocks = counted(ngettext("%(n)s block", "%(n)s blocks", held.length), held.length);
  const size = bytes(held.length * memory.block_bytes);
  const shared = held.filter((cell) => cell.chats > 0).length;
  if (!shared) return fill(gettext("%(blocks)s, %(size)s"), { blocks, size });
  const chats = Math.max(...held.map((cell) => cell.chats));
  const sharing = counted(
    ngettext(
      "%(shared)s shared with %(n)s other chat of your team",
      "%(shared)s shared with %(n)s other chats of your team",
      chats,
    ),
    chats,
    { shared: count(shared) },
  );
  return fill(gettext("%(blocks)s, %(sharing)s, %(size)s"), { blocks, sharing, size });
}

/** What it means for the reader, in a sentence. `known`: the tokens that the chat's messages took, by the database. */
export function meaning(memory, { messages = 0, known = 0 } = {}) {
  const tokens = memory.tokens ?? 0;
  if (memory.state === "answering") {
    const read = Math.max((memory.length ?? 0) - tokens - 1, 0);
    if (read > memory.block_size)
      return counted(ngettext("Reading: %(n)s token to go.", "Reading: %(n)s tokens to go.", read), read);
    const cached = memory.cached ?? 0;
    if (!cached) return gettext("This answer began from nothing; all of the prompt was read.");
    return counted(
      ngettext(
        "%(n)s token was ready when this answer began.",
        "%(n)s tokens were ready when this answer began.",
        cached,
      ),
      cached,
    );
  }
  if (messages === 0)
    return tokens
      ? gettext("Your team’s instructions, computed once, wait here for every new chat.")
      : gettext("Empty so far. It fills as you write.");
  // Imported, or never answered: nobody has counted its tokens yet.
  if (memory.state !== "idle" && !known)
    return gettext("The engine has not read this chat yet; your next message reads all of it.");
  const length = memory.state === "idle" ? (memory.length ?? 0) : Math.max(known, tokens);
  const missing = Math.max(length - tokens, 0);
  if (memory.outdated)
    return counted(
      ngettext(
        "Your team’s instructions have changed; your next message reads this chat again, %(n)s token.",
        "Your team’s instructions have changed; your next message reads this chat again, %(n)s tokens.",
        length,
      ),
      length,
    );
  if (missing === 0) return gettext("All of this chat is ready for your next message.");
  const own = cellsOf(memory).some((cell) => !SHARED.has(cell.kind) && cell.kind !== "lost");
  if (own)
    return counted(
      ngettext(
        "Part of this chat has been let go; your next message reads %(n)s token again.",
        "Part of this chat has been let go; your next message reads %(n)s tokens again.",
        missing,
      ),
      missing,
    );
  return counted(
    ngettext(
      "The engine has let go of this chat’s memory; your next message reads %(n)s token again.",
      "The engine has let go of this chat’s memory; your next message reads %(n)s tokens again.",
      missing,
    ),
    missing,
  );
}

export function nameOf(kind) {
  if (kind === "platform") return gettext("The platform’s preamble");
  if (kind === "team") return gettext("Your team’s instructions");
  if (kind === "kept") return gettext("This chat, from earlier turns");
  if (kind === "own") return gettext("This turn");
  return gettext("Let go");
}

/** What is said of a cell, line by line; the first one is its heading. */
export function describe(cell, memory, now = new Date()) {
  const lines = [nameOf(cell.kind)];
  const span = { from: count(cell.from + 1), to: count(cell.to) };
  if (cell.filled > 0 || cell.kind === "lost") lines.push(fill(gettext("Tokens %(from)s to %(to)s"), span));
  else lines.push(gettext("Room for the next tokens"));
  if (cell.filled > 0 && cell.filled < 1) {
    const filled = Math.max(1, Math.floor(cell.filled * memory.block_size));
    lines.push(fill(gettext("%(filled)s of %(slots)s slots filled"), { filled, slots: memory.block_size }));
  }
  if (cell.chats)
    lines.push(
      counted(
        ngettext(
          "Shared with %(n)s other chat of your team",
          "Shared with %(n)s other chats of your team",
          cell.chats,
        ),
        cell.chats,
      ),
    );
  else if (cell.kind === "own" || cell.kind === "kept") lines.push(gettext("Nobody else can use it"));
  if (cell.pinned) lines.push(gettext("Pinned: it goes last"));
  if (cell.host) lines.push(gettext("In host memory"));
  if (cell.since) {
    const at = new Date(cell.since * 1000);
    lines.push(fill(gettext("Since %(when)s"), { when: relativeTime(at.toISOString(), now) }));
  }
  return lines;
}

/** The same as a table: neighbours that have the same kind and sharers are one row. */
export function rowsOf(memory) {
  const rows = [];
  for (const cell of cellsOf(memory)) {
    const last = rows.at(-1);
    if (last && last.kind === cell.kind && last.chats === cell.chats) {
      last.blocks += 1;
      last.to = cell.filled > 0 || cell.kind === "lost" ? cell.to : last.to;
    } else rows.push({ kind: cell.kind, chats: cell.chats, blocks: 1, from: cell.from, to: cell.to });
  }
  return rows;
}

/** Where a key leads from cell `index`; null for other keys. `rtl`: rows run from right to left. */
export function moved(index, key, { columns }, total, rtl = false) {
  const steps = {
    ArrowRight: rtl ? -1 : 1,
    ArrowLeft: rtl ? 1 : -1,
    ArrowDown: columns,
    ArrowUp: -columns,
    Home: -Infinity,
    End: Infinity,
  };
  if (!(key in steps) || total === 0) return null;
  if (index < 0) return 0;
  const to = index + steps[key];
  // From the last row but one down into a gap: to the last cell.
  if (key === "ArrowDown" && to >= total) return Math.floor(index / columns) < Math.floor((total - 1) / columns) ? total - 1 : index;
  if (key === "ArrowUp" && to < 0) return index;
  return Math.max(0, Math.min(to, total - 1));
}

/** What the cache has saved in a chat, by the figures of its answers: {prompt, cached}. */
export function saved(messages) {
  let prompt = 0;
  let cached = 0;
  for (const { usage } of messages) {
    prompt += usage?.prompt_tokens ?? 0;
    cached += usage?.cached_tokens ?? 0;
  }
  return { prompt, cached };
}

/** "In this chat 4,212 of 5,003 prompt tokens came from memory, 84 %; 791 were computed." */
export function savedInWords({ prompt, cached }) {
  if (!prompt) return "";
  return fill(
    gettext("In this chat %(cached)s of %(prompt)s prompt tokens came from memory (%(share)s %%); %(rest)s were computed."),
    {
      cached: count(cached),
      prompt: count(prompt),
      share: Math.floor((100 * cached) / prompt),
      rest: count(prompt - cached),
    },
  );
}

