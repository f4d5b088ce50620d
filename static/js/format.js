/* Figures and times in words. Pure: knows no page. */

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

/** "0.4 s to first token · 71 tok/s · 612 prompt (540 shared) · 128 output", with the parts that are known. */
export function figures(usage, timing) {
  const parts = [];
  const output = usage?.completion_tokens ?? 0;
  if (timing && output > 0) {
    parts.push(`${seconds((timing.queue_s ?? 0) + (timing.prefill_s ?? 0))} to first token`);
    if (output > 1 && timing.decode_s > 0) {
      const speed = (output - 1) / timing.decode_s;
      parts.push(`${speed < 10 ? speed.toFixed(1) : Math.round(speed)} tok/s`);
    }
  }
  if (usage?.prompt_tokens) {
    const shared = usage.cached_tokens ? ` (${count(usage.cached_tokens)} shared)` : "";
    parts.push(`${count(usage.prompt_tokens)} prompt${shared}`);
  }
  if (output > 0) parts.push(`${count(output)} output`);
  return parts.join(" · ");
}

/** Where a question stands in the queue; 0 and 1 both mean that nothing is before it. */
export function place(position) {
  if (!position || position <= 1) return "Waiting for the model, next in line";
  return `Waiting for the model, ${count(position - 1)} before you`;
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
