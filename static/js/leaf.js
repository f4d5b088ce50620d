/* So many messages of the log in one element, which is closed while none of them is near the reader.

   What a browser does for each element of a page with every frame (is it seen? has it moved?) it does once for a closed
   leaf: a conversation may be long without its streaming becoming slow. The text in it is still found and spoken. */

import { h } from "#octavo/dom.js";

export const LEAF = 25;

export class Leaf {
  constructor() {
    this.element = h("div", { class: "leaf" });
    this.rows = [];
    this.closed = false;
  }

  /** Have exactly these rows; the ones that it has already are not moved. */
  hold(rows) {
    this.rows = rows;
    let before = null;
    for (const row of rows) {
      const { element } = row;
      row.leaf = this;
      const place = before ? before.nextSibling : this.element.firstChild;
      if (place !== element) this.element.insertBefore(element, place);
      before = element;
    }
    while (this.element.lastChild !== before) this.element.lastChild.remove();
    if (rows.some((row) => row.loaded)) this.open();
    else this.close();
  }

  open() {
    if (!this.closed) return;
    this.closed = false;
    this.element.classList.remove("closed");
    this.element.style.blockSize = "";
  }

  /** All of its rows are plain, and of known height. */
  close() {
    this.closed = true;
    this.element.classList.add("closed");
    this.element.style.blockSize = `${this.rows.reduce((sum, row) => sum + row.height, 0)}px`;
  }

  /** Where a row is, in px of the window. Looking into a closed leaf would make the browser lay it out. */
  extent(index) {
    if (!this.closed) return this.rows[index].element.getBoundingClientRect();
    let { top } = this.element.getBoundingClientRect();
    for (let before = 0; before < index; before += 1) top += this.rows[before].height;
    return { top, bottom: top + this.rows[index].height };
  }
}
