/* Lets text appear steadily although it comes in bursts. Pure: lengths and times, no page.

   What has come is spread over the time until the next piece is expected, which is learned from the pieces before. No
   character waits longer than MOST_MS, however the pieces come. Where each frame has a piece of its own, nothing waits. */

export const MOST_MS = 250;
// Pieces that come a little later than the ones before should still find something to show.
const MARGIN = 1.2;
// How much the newest gap counts: a change of pace is learned within a few pieces.
const WEIGHT = 0.3;
// Pieces that come nearly with every frame need no spreading.
const STEADY_MS = 25;
const HALF_FRAME_MS = 8;

export class Pace {
  /** `length`: what is shown already. */
  constructor(length = 0) {
    this.length = length; // what has come
    this.shown = length; // may have a fraction
    this.at = null; // when the last piece came
    this.gap = null; // ms that are expected until the next one
    this.end = 0; // when all that has come should be shown
    this.drawn = 0; // the last frame
    this.pieces = []; // {at, length}: what had come by then, of those that may still wait
  }

  get behind() {
    return this.length - this.shown;
  }

  /** The text is `length` long now. */
  arrive(length, now) {
    if (length < this.shown) this.shown = 0; // told anew, from its beginning
    if (length < this.length) this.pieces = [];
    if (length === this.length) return;
    if (this.at !== null) {
      const gap = Math.min(now - this.at, MOST_MS);
      this.gap = this.gap === null ? gap : this.gap + WEIGHT * (gap - this.gap);
    }
    if (this.behind <= 0) this.drawn = now;
    this.at = now;
    this.length = length;
    const gap = this.gap ?? 0;
    this.end = now + (gap <= STEADY_MS ? 0 : Math.min(gap * MARGIN, MOST_MS));
    this.pieces.push({ at: now, length });
  }

  /** How much of the text to show in the frame at `now`. */
  show(now) {
    const passed = Math.max(now - this.drawn, 0);
    const left = this.end - now;
    this.drawn = now;
    // The frame that the end is nearest to shows the rest.
    if (left <= HALF_FRAME_MS) this.shown = this.length;
    else this.shown += this.behind * (passed / (passed + left));
    while (this.pieces.length && now - this.pieces[0].at >= MOST_MS - HALF_FRAME_MS)
      this.shown = Math.max(this.shown, this.pieces.shift().length);
    if (this.behind < 1) {
      this.shown = this.length;
      this.pieces = [];
    }
    return Math.floor(this.shown);
  }
}

/** Where to cut `text` at about `length`, so that no character is torn in two. */
export function whole(text, length) {
  const next = text.charCodeAt(length);
  return length > 0 && next >= 0xdc00 && next < 0xe000 ? length + 1 : length;
}
