/* What the operators' dashboard says of its figures. Pure: knows no page. Operators' pages are in English. */

const grouped = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => grouped.format(value);
/** 1.2M tokens in a column. */
export const compact = (value) => (value < 10_000 ? grouped.format(value) : short.format(value));
export const many = (value, one, several = `${one}s`) => `${count(value)} ${value === 1 ? one : several}`;

/** A time that somebody waits or that has passed: 0.04 s, 3.1 s, 42 s, 5 min, 3 h, 2 days. */
export function span(seconds) {
  if (seconds < 0.005) return "0 s";
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  for (const [most, unit, size] of [[90, "s", 1], [5400, "min", 60], [172_800, "h", 3600]])
    if (seconds < most) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds / 86_400)} days`;
}

export const ago = (seconds) => (seconds < 1 ? "just now" : `${span(seconds)} ago`);

export function size(bytes) {
  if (bytes < 1024) return many(bytes, "byte");
  for (const unit of ["KB", "MB"]) {
    bytes /= 1024;
    if (bytes < 1024) return `${bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
  }
  return `${(bytes / 1024).toFixed(1)} GB`;
}

export const percent = (share) => (share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`);

/** Parts of a whole as `[name, from, width]` in hundredths, side by side; those of nothing are left out. */
export function parts(named, whole) {
  let from = 0;
  const found = [];
  for (const [name, value] of named) {
    const width = whole > 0 ? Math.min((value / whole) * 100, 100 - from) : 0;
    if (width > 0) found.push([name, from, width]);
    from += width;
  }
  return found;
}

/** Steps a second of each worker, between two looks at it; nothing of one that is new or was started anew. */
export function rates(before, now) {
  const found = {};
  if (!before?.engines || !now.engines) return found;
  const passed = (new Date(now.at) - new Date(before.at)) / 1000;
  if (!(passed > 0.2)) return found;
  const steps = new Map(before.engines.workers.map((worker) => [worker.id, worker.steps]));
  for (const worker of now.engines.workers) {
    const earlier = steps.get(worker.id);
    if (earlier !== undefined && worker.steps >= earlier) found[worker.id] = (worker.steps - earlier) / passed;
  }
  return found;
}

/** In one line whether anything needs somebody. `worst`: good, warn or bad. */
export function verdict(findings) {
  const bad = findings.filter((one) => one.state === "bad").length;
  const worst = bad ? "bad" : findings.length ? "warn" : "good";
  if (worst === "good") return { worst, text: "All is well" };
  const rest = findings.length - bad;
  if (!bad) return { worst, text: `${many(rest, "thing")} to look at` };
  const broken = bad === 1 ? "1 thing is broken" : `${count(bad)} things are broken`;
  return { worst, text: rest ? `${broken}, ${count(rest)} more to look at` : broken };
}
