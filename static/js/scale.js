/* Sliders for figures that span magnitudes: where on a slider of 0 to 1 a value stands, and which value stands there.
   Knows no page. Scales: linear (steps of `step`), powers (of two), log (two digits; may begin at 0), bytes (halves and
   wholes of powers of two, in words). */

const UNITS = ["", "KiB", "MiB", "GiB", "TiB"];
const SIZE = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b?)\s*$/i;

/** Bytes of "8GiB", "8G" (both binary), "8GB" (decimal); NaN of what is no size. */
export function bytesOf(text) {
  const match = SIZE.exec(text);
  if (!match) return NaN;
  const power = "_kmgt".indexOf(match[2].toLowerCase() || "_");
  return Number(match[1]) * (match[3].toLowerCase() === "b" ? 1000 : 1024) ** power;
}

/** 1536 MiB is "1.5GiB". */
export function inUnits(bytes) {
  const power = Math.min(Math.floor(Math.log2(bytes) / 10), UNITS.length - 1);
  return `${bytes / 1024 ** power}${UNITS[power]}`;
}

const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

function twoDigits(value) {
  const unit = 10 ** Math.max(Math.floor(Math.log10(value)) - 1, 0);
  return Math.round(value / unit) * unit;
}

// A scale that begins at 0 has no logarithm there: it is that of one more.
const shift = ({ scale, least }) => (scale === "log" && least === 0 ? 1 : 0);

/** The text of a field whose slider stands at `position`. */
export function valueAt(position, of) {
  const { scale, least, most, step = 1 } = of;
  if (scale === "linear") return String(least + Math.round((position * (most - least)) / step) * step);
  const more = shift(of);
  const value = (least + more) * ((most + more) / (least + more)) ** position - more;
  if (scale === "powers") return String(2 ** Math.round(Math.log2(value)));
  if (scale === "bytes") {
    const power = 2 ** Math.floor(Math.log2(value) + 1e-9);
    return inUnits(clamp(Math.round((2 * value) / power) * (power / 2), least, most));
  }
  // The ends are reached, however many digits they have.
  if (position <= 0 || position >= 1) return String(position <= 0 ? least : most);
  return String(clamp(twoDigits(value), least, most));
}

/** Where the slider of a field with `text` stands: 0 to 1, or null where the text is no number. */
export function positionOf(text, of) {
  const { scale, least, most } = of;
  const value = scale === "bytes" ? bytesOf(text) : text.trim() === "" ? NaN : Number(text);
  if (!Number.isFinite(value)) return null;
  const within = clamp(value, least, most);
  if (scale === "linear") return (within - least) / (most - least);
  const more = shift(of);
  return Math.log((within + more) / (least + more)) / Math.log((most + more) / (least + more));
}
