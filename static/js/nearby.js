/* Which messages of a long conversation are worth rendering: those that are seen, and some around them. Pure: numbers.

   A message that is not rendered has its height estimated until it once was rendered. */

// Rendered before they are seen, in heights of the view; kept for longer, so that small movements render nothing.
export const NEAR = 1;
export const FAR = 3;

/** The first of `count` things in a row for which `is(index)`, true from some index on; `count` when none. */
export function firstWhere(count, is) {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The messages between `above` and `below` pixels of the view's top, as [from, to). `top(i)` and `bottom(i)`: where
    they are below it. */
export function between(count, { top, bottom }, above, below) {
  const from = firstWhere(count, (index) => bottom(index) > above);
  const to = firstWhere(count, (index) => top(index) >= below);
  return [from, Math.max(to, from)];
}

/** Indices of [from, to), those of [first, last) first, then the nearest to them, below before above. */
export function outward([from, to], [first, last]) {
  const order = [];
  for (let index = Math.max(first, from); index < Math.min(last, to); index += 1) order.push(index);
  for (let step = 0; last + step < to || first - 1 - step >= from; step += 1) {
    if (last + step < to && last + step >= from) order.push(last + step);
    if (first - 1 - step >= from && first - 1 - step < to) order.push(first - 1 - step);
  }
  return order;
}

const LETTER = 8.2; // px, of text of 17 px, with the spaces
const LINE = 27;
const CODE_LINE = 22.5;
const CODE_FRAME = 66; // its bar and what is around its lines
const GAP = 16; // between blocks
const AROUND = 64; // who, the footer, and what is between messages
const BUBBLE = 24;
const CODE_FENCE = /^ {0,3}(`{3,}|~{3,})/;

/** About how high a message will be, in px, in a column of `width` px. */
export function estimate({ role, text }, width) {
  const asked = role === "user";
  const letters = Math.max(Math.floor(((asked ? 0.88 : 1) * width - (asked ? 32 : 0)) / LETTER), 10);
  let height = AROUND + (asked ? BUBBLE : 0);
  let code = false;
  for (const line of text.split("\n")) {
    if (!asked && CODE_FENCE.test(line)) {
      code = !code;
      if (code) height += CODE_FRAME;
    } else if (code) height += CODE_LINE;
    else if (!asked && line.trim() === "") height += GAP;
    else height += LINE * Math.max(Math.ceil(line.length / letters), 1);
  }
  return height;
}
