/* Tables that are told again several times a second: rows and cells stay while what they say does, so that focus, a
   selection and the pointer's place are not lost, and nothing is laid out that has not changed. */

import { h } from "#octavo/dom.js";

/** Set text where it is another. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Fill `body` with a row for each of `items`, in their order.

    `keyOf(item)`: a row's own key. `make(item)`: a new row, an element. `tell(row, item)`: says what is so now. */
export function fillRows(body, items, { keyOf, make, tell }) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = make(item);
      row.dataset.key = key;
    }
    tell(row, item);
    const next = before ? before.nextElementSibling : body.firstElementChild;
    if (row !== next) body.insertBefore(row, next);
    before = row;
  }
  for (const row of known.values()) row.remove();
}

/** A row: the first cell is its header, and holds `first`; so many others. */
export const row = (first, others, props = {}) =>
  h("tr", props, h("th", { scope: "row" }, first), ...Array.from({ length: others }, () => h("td")));
