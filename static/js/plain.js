/* What a reader wrote: text as it was typed, every line break and sign of it, with the code between fences in the frame
   that code has in answers. Nothing else is markdown here: readers write asterisks and mean them. */

import { codeFrame, finishCode } from "#octavo/code.js";
import { pieces } from "#octavo/pieces.js";

export class PlainView {
  constructor(element) {
    this.element = element;
    this.shown = null;
  }

  update(text) {
    if (text === this.shown) return;
    this.shown = text;
    if (!/^(?:```|~~~)/m.test(text)) {
      this.element.textContent = text;
      return;
    }
    this.element.replaceChildren(
      ...pieces(text).map((piece) => ("code" in piece ? codeFrame(piece.code, { info: piece.info }) : piece.text)),
    );
    finishCode(this.element);
  }
}
