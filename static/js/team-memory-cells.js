/* What the page of a team's memory shows, worked out of what the server says of an engine. Pure: knows no page.

   A memory has runs of neighbouring blocks of which the same can be said (`cells`), the sequences that run now with their
   block tables, and counts. Blocks are numbered from 0 here, from 1 where a reader sees it. What a frame leaves out is 0,
   false or empty. */

import { count, relativeTime } from "#octavo/format.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { strengthOf } from "#octavo/memory-cells.js";

/** One cell a block: {kind, held, room, pinned, host, since}. */
export function cellsOf(memory) {
  const cells = [];
  for (const { blocks = 1, ...run } of memory.cells) {
    const cell = { held: 0, room: 0, pinned: false, host: false, since: 0, ...run };
    for (let n = 0; n < blocks; n += 1) cells.push(cell);
  }
  return cells;
}

/** Where each part of the cells begins and ends: instructions, what runs, what is kept. */
export function partsOf(memory, cells) {
  const kept = cells.findIndex((cell, index) => index >= memory.instructions && cell.held === 0);
  const end = kept < 0 ? cells.length : kept;
  return {
    instructions: [0, memory.instructions],
    running: [memory.instructions, end],
    kept: [end, cells.length],
  };
}

/** How a cell looks, for cells.js. `colours`: {shared, own, page, ring}. */
export function lookOf(cell, size, colours, dim = false) {
  const shared = cell.kind !== "own";
  return {
    colour: shared ? colours.shared : colours.own,
    strength: shared ? (cell.held ? strengthOf(cell.held) : 0.36) : cell.held ? 0.88 : 0.44,
    part: (size - cell.room) / size,
    pinned: cell.pinned,
    host: cell.host,
    mark: colours.page,
    chosen: colours.ring,
    dim: dim ? 0.2 : 1,
  };
}

/** The cells of a sequence by their logical place; -1 for one that is gone. */
export function tableOf(sequence) {
  const table = [];
  for (const [first, many] of sequence.table ?? [])
    for (let n = 0; n < many; n += 1) table.push(first < 0 ? -1 : first + n);
  return table;
}

/** Its block table in rows: {from, to: logical blocks, first: of the cells, -1 gone, kind}. */
export function rowsOf(sequence, cells) {
  const rows = [];
  tableOf(sequence).forEach((cell, logical) => {
    const last = rows.at(-1);
    const kind = cell < 0 ? "gone" : cells[cell]?.kind;
    const follows = last && last.kind === kind && (cell < 0 || last.first + (last.to - last.from) + 1 === cell);
    if (follows) last.to = logical;
    else rows.push({ from: logical, to: logical, first: cell, kind });
  });
  return rows;
}

/** The end of an id, which tells it from its neighbours: ids begin with their time. */
export const shortId = (id) => id.slice(-8);

/** A sequence in words: what it is an answer of. */
export function nameOf(sequence, answers) {
  const answer = answers[sequence.id];
  if (!answer?.kind) return gettext("Instructions being computed");
  return answer.kind === "chat" ? gettext("Chat") : gettext("API");
}

export function kindName(kind) {
  if (kind === "platform") return gettext("The platform’s preamble");
  if (kind === "team") return gettext("Your team’s instructions");
  if (kind === "gone") return gettext("Behind the model’s window");
  return gettext("An answer’s own");
}

/** What is said of a cell, line by line; the first one is its heading. */
export function describe(cells, index, memory, now = new Date()) {
  const cell = cells[index];
  const lines = [fill(gettext("Block %(n)s"), { n: count(index + 1) }), kindName(cell.kind)];
  const filled = memory.block_size - cell.room;
  lines.push(
    fill(ngettext("%(filled)s of %(n)s slot filled", "%(filled)s of %(n)s slots filled", memory.block_size), {
      filled: count(filled),
      n: count(memory.block_size),
    }),
  );
  if (cell.held)
    lines.push(
      fill(ngettext("Held by %(n)s running answer", "Held by %(n)s running answers", cell.held), { n: count(cell.held) }),
    );
  else lines.push(gettext("Kept: the next question may find it"));
  for (const sequence of memory.sequences) {
    const logical = tableOf(sequence).indexOf(index);
    if (logical < 0) continue;
    const values = { n: count(logical + 1), id: shortId(sequence.id) };
    lines.push(fill(gettext("Number %(n)s in the table of …%(id)s"), values));
    if (lines.length > 6) break;
  }
  if (cell.pinned) lines.push(gettext("Pinned: it goes last"));
  if (cell.host) lines.push(gettext("In host memory"));
  if (cell.since) {
    const when = relativeTime(new Date(cell.since * 1000).toISOString(), now);
    lines.push(fill(gettext("Last used %(when)s"), { when }));
  }
  return lines;
}

/** All blocks as a table: neighbours of the same kind, held by as many, are one row. */
export function summaryOf(cells) {
  const rows = [];
  cells.forEach((cell, index) => {
    const last = rows.at(-1);
    if (last && last.kind === cell.kind && last.held === cell.held && last.pinned === cell.pinned) {
      last.to = index;
      last.host += cell.host ? 1 : 0;
    } else {
      const { kind, held, pinned } = cell;
      rows.push({ from: index, to: index, kind, held, pinned, host: cell.host ? 1 : 0 });
    }
  });
  return rows;
}

/** Whether anything of the team is there at all, or waits to be. */
export const isEmpty = (memory, queued = 0) =>
  !memory || (memory.cells.length === 0 && memory.running === 0 && memory.waiting + queued === 0);
