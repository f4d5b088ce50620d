/* The last half hour of a worker: what its pool held, by team, with a playhead to look back by.

   Choosing a point of the chart, or the buttons beside it, asks for that moment; "Live" goes back to now. Times are the
   worker's. */

import { held } from "#octavo/block-words.js";
import { hueOf } from "#octavo/hues.js";
import { count } from "#octavo/format.js";
import { plot } from "#octavo/plot.js";

const KEPT_MS = 30 * 60_000;
const STEP_MS = 10_000;
// Between the points of a busy worker, as engine/occupancy_log.py has it.
const EVERY_MS = 2000;
const MOST_TEAMS = 8;

export const clock = (ms) =>
  new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export class TimeLine {
  /** `onPick(at_ms)`, `onLive()`; `nameOf(tenant id)`. */
  constructor(parts, { onPick, onLive, nameOf }) {
    Object.assign(this, parts, { onPick, onLive, nameOf });
    this.points = [];
    this.at = null; // the moment that is looked at; null: now
    this.key = "";
    this.earlier.addEventListener("click", () => this.#step(-STEP_MS));
    this.later.addEventListener("click", () => this.#step(STEP_MS));
    this.live.addEventListener("click", () => this.onLive());
  }

  show(points) {
    this.points = points;
    this.#draw();
  }

  add(point) {
    const last = this.points.at(-1);
    if (last && point.at_ms <= last.at_ms) return;
    this.points.push(point);
    while (this.points[0].at_ms < point.at_ms - KEPT_MS) this.points.shift();
    this.#draw();
  }

  /** Put the playhead at a moment; null: at now. */
  look(at) {
    this.at = at;
    this.live.setAttribute("aria-pressed", String(at === null));
    this.later.disabled = at === null;
    this.moment.textContent = at === null ? "" : clock(at);
    this.chart?.mark(at === null ? null : at / 1000);
  }

  #step(by) {
    const last = this.points.at(-1)?.at_ms;
    if (last === undefined) return;
    const to = (this.at ?? last) + by;
    if (to >= last) this.onLive();
    else this.onPick(Math.max(to, this.points[0].at_ms));
  }

  /** The teams that held most, most first; the others add up. */
  #teams() {
    const peaks = new Map();
    for (const { figures } of this.points)
      for (const [id, [used]] of Object.entries(figures.of ?? {})) peaks.set(id, Math.max(peaks.get(id) ?? 0, used));
    return [...peaks].sort((a, b) => b[1] - a[1]).slice(0, MOST_TEAMS).map(([id]) => id);
  }

  #draw() {
    this.earlier.disabled = this.points.length < 2;
    // Places stay while the chart does, so that a team does not wander up and down as others grow.
    const ids = Object.keys(this.points.at(-1)?.figures.of ?? {});
    if (!this.chart || ids.some((id) => !this.known.has(id))) this.#build();
    else this.chart.update(...this.#values());
  }

  #values() {
    this.drawn = held(this.points, EVERY_MS);
    const times = this.drawn.map(({ at_ms: at }) => at / 1000);
    const of = this.drawn.map(({ figures }) => figures.of ?? {});
    const teams = this.teams.map((id) => of.map((all) => all[id]?.[0] ?? 0));
    const rest = this.drawn.map(
      ({ figures }, n) => (figures.used ?? 0) - this.teams.reduce((sum, id) => sum + (of[n][id]?.[0] ?? 0), 0),
    );
    const cached = this.drawn.map(({ figures }) => figures.cached ?? 0);
    return [times, [...teams, ...(this.others ? [rest] : []), cached]];
  }

  #build() {
    this.teams = this.#teams();
    this.known = new Set(this.points.flatMap(({ figures }) => Object.keys(figures.of ?? {})));
    this.others = this.known.size > this.teams.length;
    const [times, values] = this.#values();
    const series = [
      ...this.teams.map((id) => ({ label: this.nameOf(id), colour: hueOf(id), stack: true })),
      ...(this.others ? [{ label: "other teams", colour: "--text-3", stack: true }] : []),
      { label: "cached, all teams", colour: "--line", stack: true },
    ];
    this.chart?.destroy();
    this.chart = plot(this.place, {
      title: "Blocks in use by team and cached, the last 30 minutes",
      times,
      series: series.map((one, n) => ({ ...one, values: values[n] })),
      unit: "blocks",
      format: count,
      height: 132,
      onPick: (index) => this.drawn[index] && this.onPick(this.drawn[index].at_ms),
      empty: "The time line begins with this worker's next change.",
    });
    this.look(this.at);
  }
}
