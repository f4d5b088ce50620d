/* What a chart draws, worked out of what it was given. Pure: knows no page and no library.

   Series are {label, values, colour, stack?, line?, dash?}; values are numbers or null, as many as there are times. */

import { language } from "#octavo/i18n.js";

const DAY = 86_400;

/** Each series' values as they are drawn: those that stack stand on the shown ones before them; what is not shown is null.
   With `bars`, so is what adds nothing: a bar right behind another one would show at its edges. */
export function drawn(series, shown, bars = false) {
  let below = null;
  return series.map(({ values, stack }, index) => {
    if (!shown[index]) return values.map(() => null);
    if (!stack) return values;
    const here = values.map((value, at) => (value ?? 0) + (below?.[at] ?? 0));
    below = here;
    return bars ? here.map((sum, at) => (values[at] ? sum : null)) : here;
  });
}

/** Whether there is a value at all. */
export const hasValues = (series) => series.some(({ values }) => values.some((value) => Number.isFinite(value)));

/** Whether all values are whole numbers, so that an axis has no use for halves. */
export const areWhole = (series) =>
  series.every(({ values }) => values.every((value) => value === null || value === undefined || Number.isInteger(value)));

/** The least distance between two neighbours, in seconds; Infinity where there are not two. */
export function stepOf(times) {
  let least = Number.POSITIVE_INFINITY;
  for (let at = 1; at < times.length; at += 1) least = Math.min(least, times[at] - times[at - 1]);
  return least;
}

const made = new Map();
function formatter(options, zone) {
  const key = `${language()} ${zone} ${JSON.stringify(options)}`;
  if (!made.has(key)) made.set(key, new Intl.DateTimeFormat(language(), { ...options, timeZone: zone || undefined }));
  return made.get(key);
}
const at = (time, options, zone) => formatter(options, zone).format(time * 1000);

const CLOCK = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const DATE = { day: "numeric", month: "short" };
// An hour is lost or won when clocks change: days are at least 23 of them apart.
const isDays = (step) => step >= 23 * 3600 && step < Number.POSITIVE_INFINITY;

/** A time as the reader of a point wants it, in full: the day, or the day and the clock. */
export function momentOf(time, step, zone) {
  if (isDays(step)) return at(time, { weekday: "short", day: "numeric", month: "short", year: "numeric" }, zone);
  return at(time, { ...DATE, ...CLOCK, ...(step < 60 ? { second: "2-digit" } : {}) }, zone);
}

/** The labels under an axis, short: only what differs between its ends. */
export function axisLabels(times, { span, step, zone }) {
  return times.map((time) => {
    if (isDays(step) || span > 3 * DAY) return at(time, span > 400 * DAY ? { month: "short", year: "numeric" } : DATE, zone);
    if (span > 1.1 * DAY) return at(time, { weekday: "short", ...CLOCK }, zone);
    return at(time, { ...CLOCK, ...(span < 300 ? { second: "2-digit" } : {}) }, zone);
  });
}

/** Which places of so many get a label when they may stand `least` apart: every one, every second, fifth … */
export function placesOf(count, least) {
  const nice = [1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 100, 200, 500, 1000];
  const every = nice.find((each) => each >= least) ?? Math.ceil(least);
  return Array.from({ length: Math.ceil(count / every) }, (_, index) => index * every);
}

/** The place between points, as a fraction of indices, where a time lies; null where there are no points. */
export function placeOf(times, time) {
  if (times.length === 0) return null;
  if (time <= times[0]) return 0;
  if (time >= times.at(-1)) return times.length - 1;
  const after = times.findIndex((each) => each > time);
  return after - 1 + (time - times[after - 1]) / (times[after] - times[after - 1]);
}

/** The index of the point nearest to a time; null where there is none. */
export function nearestTo(times, time) {
  const place = placeOf(times, time);
  return place === null ? null : Math.round(place);
}
