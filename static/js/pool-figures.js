/* What stands beside the board: the pool as a bar and in figures, what sharing saves, and each team's part. */

import { figuresInWords, grown, plural, share } from "#octavo/block-words.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { hueOf } from "#octavo/hues.js";
import { fillRows, row, say } from "#octavo/rows.js";

const LATELY_MS = 5 * 60_000;

/** A mark in a team's colour. */
export function swatch(id) {
  const mark = h("i", { class: "cell" });
  mark.style.setProperty("--accent", `var(${hueOf(id)})`);
  return mark;
}

/** A bar of used, cached and free blocks. */
export function poolBar() {
  return h("span", { class: "pool-bar", "aria-hidden": "true" }, h("i", { class: "used" }), h("i", { class: "cached" }));
}

export function fillBar(bar, { used = 0, cached = 0 }, blocks) {
  const part = (n) => `${blocks ? (100 * n) / blocks : 0}%`;
  bar.children[0].style.inlineSize = part(used);
  bar.children[1].style.inlineSize = part(cached);
}

export class PoolFigures {
  constructor({ totals, saved, bar, counts, none }) {
    Object.assign(this, { totals, saved, bar, counts, none });
    this.figures = new Map();
  }

  /** `points`: of the worker's time line; `nameOf(tenant id)`; `queue`: tenant id -> what waits for a worker. */
  show(table, points, nameOf, queue = {}) {
    const { figures, head } = table;
    const { blocks } = head;
    fillBar(this.bar, figures, blocks);
    const of = `of ${count(blocks)}`;
    this.#figure("used", "Used", count(figures.used), `${share(figures.used, blocks)} ${of}`);
    this.#figure("cached", "Cached", count(figures.cached), share(figures.cached, blocks));
    this.#figure("free", "Free", count(figures.free), share(figures.free, blocks));
    this.#figure("pinned", "Pinned", count(figures.pinned), "of used and cached");
    if (head.host_blocks) this.#figure("host", "On the host", count(figures.host), `of ${count(head.host_blocks)} slots`);
    this.#figure("running", "Running", count(figures.running), figures.running === 1 ? "sequence" : "sequences");
    const queued = Object.values(queue).reduce((sum, n) => sum + n, 0);
    const where = queued ? `${count(queued)} for any worker` : figures.waiting === 1 ? "sequence" : "sequences";
    this.#figure("waiting", "Waiting", count(figures.waiting + queued), where);

    const words = figuresInWords(figures, head.block_size, blocks);
    const lately = (name) => {
      const n = grown(points, name, figures.counters[name] ?? 0, head.at_ms - LATELY_MS);
      return n === null ? words[name].note : `${count(n)} in the last 5 min`;
    };
    this.#figure("wasted", "Waste", words.wasted.value, words.wasted.note);
    this.#figure("saved", "Saved by sharing", words.saved.value, words.saved.note);
    this.#figure("hits", "Hit rate", words.hits.value, words.hits.note);
    this.#figure("preemptions", "Preemptions", words.preemptions.value, lately("preemptions"));
    this.#figure("evictions", "Evictions", words.evictions.value, lately("evictions"));
    this.#teams(figures, blocks, nameOf, queue);
  }

  #figure(key, name, value, note) {
    let found = this.figures.get(key);
    if (!found) {
      const place = ["wasted", "saved", "hits", "preemptions", "evictions"].includes(key) ? this.saved : this.totals;
      found = { value: h("span"), note: h("small") };
      place.append(h("div", { "data-figure": key }, h("dt", { text: name }), h("dd", {}, found.value, found.note)));
      this.figures.set(key, found);
    }
    say(found.value, value);
    say(found.note, note);
  }

  #teams(figures, blocks, nameOf, queue) {
    const least = Math.min(...Object.values(figures.service));
    const ids = new Set([...Object.keys(figures.of), ...Object.keys(queue)]);
    const teams = [...ids].map((id) => {
      const [used, cached, pinned, running, waiting] = figures.of[id] ?? [0, 0, 0, 0, 0];
      return { id, used, cached, pinned, running, waiting: waiting + (queue[id] ?? 0), service: figures.service[id] };
    });
    teams.sort((a, b) => nameOf(a.id).localeCompare(nameOf(b.id)) || (a.id < b.id ? -1 : 1)); // a row stays where it is
    this.none.hidden = teams.length > 0;
    fillRows(this.counts, teams, {
      keyOf: ({ id }) => id,
      make: ({ id }) => row(h("span", { class: "name" }, swatch(id), h("span")), 7),
      tell: (line, { id, used, cached, pinned, running, waiting, service }) => {
        say(line.querySelector(".name > span"), nameOf(id));
        const ahead = service === undefined ? "–" : `+${count(Math.round(service - least))}`;
        [used, cached, pinned].forEach((n, at) => say(line.cells[at + 1], count(n)));
        say(line.cells[4], share(used + cached, blocks));
        [running, waiting].forEach((n, at) => say(line.cells[at + 5], count(n)));
        say(line.cells[7], ahead);
        line.cells[7].title = service === undefined ? "" : `${plural(Math.round(service), "token")} of service, by weight`;
      },
    });
  }
}
