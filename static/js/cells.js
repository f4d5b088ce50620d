/* Blocks as small squares on a canvas: how large they can be, and how one is drawn. Whoever draws blocks speaks this
   language: the colour says whose, its strength how many hold it, a dot is pinned, a lighter rest is not filled yet,
   stripes lie in host memory, an outline holds nothing. Of a worker's pool also: a corner that is cut off begins many
   answers (a team's prompt; two corners: the platform's), a ring belongs to the engine for the moment. */

const SIZES = [14, 12, 10, 8, 7, 6];
export const GAP = 2;

/** The largest cells with which `total` of them, `width` pixels in a row, become no taller than `tallest`. */
export function fit(total, width, tallest) {
  const columnsOf = (size) => Math.max(Math.floor((width + GAP) / (size + GAP)), 1);
  const rowsOf = (size) => Math.ceil(total / columnsOf(size));
  const size = SIZES.find((one) => rowsOf(one) * (one + GAP) <= tallest) ?? SIZES.at(-1);
  const rows = rowsOf(size);
  return { size, columns: columnsOf(size), rows, height: Math.max(rows * (size + GAP) - GAP, 0) };
}

/** Where cell `index` stands, in pixels from the canvas's upper corner; `mirrored`: rows run from right to left. */
export function placeOf(index, { size, columns }, mirrored = 0) {
  const column = index % columns;
  const x = column * (size + GAP);
  return { x: mirrored ? mirrored - x - size : x, y: Math.floor(index / columns) * (size + GAP) };
}

/** The cell under a point, -1 for none; `mirrored`: the canvas's width where rows run from right to left. */
export function cellAt(x, y, { size, columns }, total, mirrored = 0) {
  const column = Math.floor((mirrored ? mirrored - x : x) / (size + GAP));
  const row = Math.floor(y / (size + GAP));
  const index = row * columns + column;
  return column >= 0 && column < columns && row >= 0 && index < total ? index : -1;
}

/** Draw a cell whose upper corner is at x, y.

    `look`: {colour, strength: 0 to 1, part: how much is filled, pinned, host, outline, dim, mark: the colour of dots and
    stripes, mirrored, corners: 0 to 2, ring: its colour}. */
export function paint(context, x, y, size, look) {
  const dim = look.dim ?? 1;
  context.clearRect(x, y, size, size);
  if (look.outline) {
    context.globalAlpha = dim;
    context.strokeStyle = look.colour;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    context.globalAlpha = 1;
    return;
  }
  const part = Math.min(look.part ?? 1, 1);
  context.fillStyle = look.colour;
  // Beside each other, not one over the other: what is filled has the strength that a full one has.
  const edge = x + size * (look.mirrored ? 1 - part : part);
  const [filled, rest] = look.mirrored ? [edge, x] : [x, edge];
  if (part < 1) {
    context.globalAlpha = Math.min(0.24, look.strength * 0.4) * dim;
    context.fillRect(rest, y, size * (1 - part), size);
  }
  context.globalAlpha = look.strength * dim;
  context.fillRect(filled, y, size * part, size);
  context.globalAlpha = dim;
  if (look.corners) cut(context, x, y, size, look.corners);
  if (look.host) stripe(context, x, y, size, look.mark);
  if (look.pinned) {
    context.fillStyle = look.mark;
    context.beginPath();
    context.arc(x + size / 2, y + size / 2, Math.max(size / 7, 0.8), 0, 7);
    context.fill();
  }
  if (look.ring) {
    const wide = Math.max(size / 7, 1);
    context.strokeStyle = look.ring;
    context.lineWidth = wide;
    context.strokeRect(x + wide / 2, y + wide / 2, size - wide, size - wide);
    context.lineWidth = 1;
  }
  context.globalAlpha = 1;
}

/** Takes a corner off, as of a folded sheet; or two that lie across. */
function cut(context, x, y, size, corners) {
  const leg = Math.max(Math.round(size * 0.42), 2);
  context.save();
  context.globalAlpha = 1;
  context.globalCompositeOperation = "destination-out";
  context.beginPath();
  context.moveTo(x + size - leg, y);
  context.lineTo(x + size, y);
  context.lineTo(x + size, y + leg);
  if (corners > 1) {
    context.moveTo(x, y + size - leg);
    context.lineTo(x, y + size);
    context.lineTo(x + leg, y + size);
  }
  context.fill();
  context.restore();
}

function stripe(context, x, y, size, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let at = -size; at < size; at += 4) {
    context.moveTo(x + at, y + size);
    context.lineTo(x + at + size, y);
  }
  context.stroke();
  context.restore();
}
