/* Tables of an answer: a box that scrolls sideways, and a button that copies the cells for a spreadsheet. */

import { copyButton, h } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";

/** Put a table into its box. */
export function frameTable(table) {
  const scroll = h("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": gettext("Table") });
  const box = h("div", { class: "table" }, scroll);
  table.replaceWith(box);
  scroll.append(table);
  const copy = copyButton(() => cellsOf(box.querySelector("table")), { class: "copy-table", title: gettext("Copy the table, for a spreadsheet") });
  box.append(copy);
}

/** For morph: the button keeps what it says. */
export function keepTable(old, next) {
  return old.classList.contains("copy-table") && next.classList.contains("copy-table") ? true : undefined;
}

/** Rows in lines, cells between tabs: what spreadsheets and documents paste as a table. */
function cellsOf(table) {
  const say = (cell) => (cell.querySelector(".math[data-tex]") ? withSources(cell) : cell.textContent);
  return [...table.rows]
    .map((row) => [...row.cells].map((cell) => say(cell).replace(/\s+/g, " ").trim()).join("\t"))
    .join("\n");
}

function withSources(cell) {
  const copy = cell.cloneNode(true);
  for (const formula of copy.querySelectorAll(".math[data-tex]")) formula.textContent = `$${formula.dataset.tex}$`;
  return copy.textContent;
}
