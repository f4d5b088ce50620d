/* Figures and times in words. Pure: knows no page. */

import { fill, gettext } from "#octavo/i18n.js";

const number = new Intl.NumberFormat("en");

export const count = (value) => number.format(value);

export const tokens = (value) => `${count(value)} token${value === 1 ? "" : "s"}`;

/** 812 bytes, 4.2 KB, 1.5 MB. */
export function bytes(value) {
  if (value < 1024) return `${value} bytes`;
  const [size, unit] = value < 1024 ** 2 ? [value / 1024, "KB"] : [value / 1024 ** 2, "MB"];
  return `${size < 10 ? Number(size.toFixed(1)) : count(Math.round(size))} ${unit}`;
}

/** Seconds as a reader wants them: 0.42 s, 3.1 s, 75 s. */
export function seconds(value) {
  if (value < 1) return `${Math.max(value, 0.01).toFixed(2).replace(/0$/, "")} s`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
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
      parts.push(fill(gettext("%(n)s tok/s"), { n: speed < 10 ? speed.toFixed(1) : Math.round(speed) }));
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

const DAY_MS = 86_400_000;
const startOfDay = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());

/** The heading of the sidebar that a time belongs under. */
export function dayGroup(iso, now = new Date()) {
  const date = new Date(iso);
  // Rounded, since a day of the clock change has 23 or 25 hours.
  const days = Math.round((startOfDay(now) - startOfDay(date)) / DAY_MS);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Last 7 days";
  if (days < 30) return "Last 30 days";
  const year = date.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString("en", { month: "long", year });
}

export function relativeTime(iso, now = new Date()) {
  const passed = (now - new Date(iso)) / 1000;
  if (passed < -60) return future(-passed) ?? shortDay(iso);
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return shortDay(iso);
}

const shortDay = (iso) =>
  new Date(iso).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });

function future(seconds) {
  if (seconds < 3600) return `in ${Math.round(seconds / 60)} min`;
  if (seconds < 2 * 86_400) return `in ${Math.round(seconds / 3600)} h`;
  return seconds < 30 * 86_400 ? `in ${Math.round(seconds / 86_400)} days` : null;
}

export const exactTime = (iso) =>
  new Date(iso).toLocaleString("en", { dateStyle: "full", timeStyle: "medium" });

/** The first line of a text, as a conversation is called until the server has named it. */
export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].trim();
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

export const byteLength = (text) => new TextEncoder().encode(text).length;
