/* Figures and times in words, in the language of the page. Pure otherwise: knows no page. */

import { fill, gettext, language, ngettext } from "#octavo/i18n.js";

// Formatters are dear to make and cheap to use; a page has one language.
const made = new Map();
function formatter(digits = 0, least = digits) {
  const key = `${language()} ${digits} ${least}`;
  if (!made.has(key))
    made.set(
      key,
      new Intl.NumberFormat(language(), { minimumFractionDigits: least, maximumFractionDigits: digits }),
    );
  return made.get(key);
}

export const count = (value) => formatter().format(value);

/** With so many digits behind the point, `least` of them also where they are zeros. */
export const decimal = (value, digits, least = digits) => formatter(digits, least).format(value);

export const tokens = (value) => fill(ngettext("%(n)s token", "%(n)s tokens", value), { n: count(value) });

/** 812 bytes, 4.2 KB, 1.5 MB. */
export function bytes(value) {
  if (value < 1024) return fill(ngettext("%(n)s byte", "%(n)s bytes", value), { n: count(value) });
  const [size, unit] = value < 1024 ** 2 ? [value / 1024, "KB"] : [value / 1024 ** 2, "MB"];
  return `${size < 10 ? decimal(size, 1, 0) : count(Math.round(size))} ${unit}`;
}

/** Seconds as a reader wants them: 0.42 s, 3.1 s, 75 s. */
export function seconds(value) {
  if (value < 1) return `${decimal(Math.max(value, 0.01), 2, 1)} s`;
  return `${value < 10 ? decimal(value, 1) : count(Math.round(value))} s`;
}

/** A measured time to two digits, as the server writes percentiles: 12 ms, 0.42 s, 3.1 s, 75 s. */
export function duration(value) {
  const digits = (part) => decimal(part, part >= 10 ? 0 : part >= 1 ? 1 : 2, 0);
  return value < 0.1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
}

/** "0.4 s to first token · 71 tok/s · 612 prompt (580 cached, 540 shared) · 128 output", with the parts that are known. */
export function figures(usage, timing) {
  const parts = [];
  const output = usage?.completion_tokens ?? 0;
  if (timing && output > 0) {
    const wait = seconds((timing.queue_s ?? 0) + (timing.prefill_s ?? 0));
    parts.push(fill(gettext("%(time)s to first token"), { time: wait }));
    if (output > 1 && timing.decode_s > 0) {
      const speed = (output - 1) / timing.decode_s;
      parts.push(fill(gettext("%(n)s tok/s"), { n: speed < 10 ? decimal(speed, 1) : count(Math.round(speed)) }));
    }
  }
  if (usage?.prompt_tokens) parts.push(fill(promptWords(usage), counted(usage)));
  if (output > 0) parts.push(fill(gettext("%(n)s output"), { n: count(output) }));
  return parts.join(" · ");
}

function promptWords({ cached_tokens: cached = 0, shared_tokens: shared = 0 }) {
  if (!cached) return gettext("%(prompt)s prompt");
  if (!shared) return gettext("%(prompt)s prompt (%(cached)s cached)");
  if (shared === cached) return gettext("%(prompt)s prompt (%(shared)s shared)");
  return gettext("%(prompt)s prompt (%(cached)s cached, %(shared)s shared)");
}

const counted = (usage) => ({
  prompt: count(usage.prompt_tokens),
  cached: count(usage.cached_tokens ?? 0),
  shared: count(usage.shared_tokens ?? 0),
});

/** What the figures mean, in sentences; "" where nothing was cached. */
export function figuresMeaning(usage) {
  if (!usage?.cached_tokens) return "";
  const cached = fill(gettext("%(cached)s of the %(prompt)s tokens of the prompt were in memory already."), counted(usage));
  if (!usage.shared_tokens) return cached;
  const shared = gettext("%(shared)s of them are instructions, which all chats of your team share in one copy.");
  return `${cached} ${fill(shared, counted(usage))}`;
}

/** Where a question stands in the queue; 0 and 1 both mean that nothing is before it. */
export function place(position) {
  if (!position || position <= 1) return gettext("Waiting for the model, next in line");
  return fill(gettext("Waiting for the model, %(n)s before you"), { n: count(position - 1) });
}

export function relativeTime(iso, now = new Date()) {
  const passed = (now - new Date(iso)) / 1000;
  if (passed < -60) return future(-passed) ?? shortDay(iso);
  if (passed < 60) return gettext("just now");
  if (passed < 3600) return fill(gettext("%(n)s min ago"), { n: Math.floor(passed / 60) });
  if (passed < 86_400) return fill(gettext("%(n)s h ago"), { n: Math.floor(passed / 3600) });
  return shortDay(iso);
}

const shortDay = (iso) =>
  new Date(iso).toLocaleDateString(language(), { day: "numeric", month: "short", year: "numeric" });

function future(seconds) {
  if (seconds < 3600) return fill(gettext("in %(n)s min"), { n: Math.round(seconds / 60) });
  if (seconds < 2 * 86_400) return fill(gettext("in %(n)s h"), { n: Math.round(seconds / 3600) });
  if (seconds >= 30 * 86_400) return null;
  const days = Math.round(seconds / 86_400);
  return fill(ngettext("in %(n)s day", "in %(n)s days", days), { n: days });
}

export const exactTime = (iso) =>
  new Date(iso).toLocaleString(language(), { dateStyle: "full", timeStyle: "medium" });

/** The first line of a text, as a conversation is called until the server has named it. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].trim();
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

export const byteLength = (text) => new TextEncoder().encode(text).length;
