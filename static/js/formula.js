/* Formulas: LaTeX to MathML, which the browser sets and screen readers read. Temml is loaded with the first one.

   Until then, and where a formula is none, its source stands there as code. A formula that would be too much for the
   page (macros without end, thousands of parts) stays source. What is copied out of a text is LaTeX again. */

import { cleanMath } from "#octavo/clean.js";
import { copyButton, h } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";

const MOST = { characters: 4000, parts: 3000, depth: 48 };
// Definitions of macros: a few of them make a million parts, and counting expansions does not see how long each is.
const DEFINES = /\\(?:[gex]?def|xdef|let|futurelet|global|long|(?:re)?newcommand|providecommand|DeclareMathOperator|csname|require)(?![A-Za-z])/;
const RULES = { throwOnError: true, trust: false, strict: false, maxExpand: 300, maxSize: [20, 200] };

let temml = null;
let loading = null;

function load() {
  loading ??= import("temml").then(
    (module) => {
      temml = module.default;
    },
    () => {
      loading = null; // the source stays; the next formula tries again
    },
  );
  return loading;
}

/** Make the source in an element of class "math" a formula's place. `open`: its end has not come. */
export function frameFormula(element, { tex, display, open }) {
  element.textContent = tex;
  element.classList.toggle("display", display);
  element.dataset.tex = tex;
  if (open) element.dataset.open = "";
}

/** For morph: a formula whose source has not changed is the one that stands there. */
export function keepFormula(old, next) {
  if (!old.classList.contains("math") || !next.classList.contains("math")) return undefined;
  const alike = ["tex", "open"].every((name) => old.dataset[name] === next.dataset[name]);
  return alike && old.classList.contains("display") === next.classList.contains("display");
}

/** Draw what is not yet drawn under `root`. */
export function drawFormulas(root) {
  const waiting = root.querySelectorAll(".math:not(.ready, .failed, [data-open])");
  if (waiting.length === 0) return;
  if (temml) for (const element of waiting) draw(element);
  else load().then(() => temml && drawFormulas(root));
}

function draw(element) {
  const { tex } = element.dataset;
  const display = element.classList.contains("display");
  const box = h("span");
  try {
    if (tex.length > MOST.characters || DEFINES.test(tex)) throw new Error("too much");
    temml.render(tex, box, { ...RULES, displayMode: display });
    if (!isModest(box)) throw new Error("too much");
    cleanMath(box.querySelector(":scope > math"));
  } catch {
    element.classList.add("failed");
    element.title = gettext("This is no formula that can be shown; it is here as it was written.");
    return;
  }
  element.classList.add("ready");
  element.replaceChildren(box.firstElementChild);
  if (display) element.append(copyButton(() => tex, { class: "copy-tex", "aria-label": gettext("Copy LaTeX") }));
}

function isModest(box) {
  if (box.getElementsByTagName("*").length > MOST.parts) return false;
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_ELEMENT);
  let depth = 0;
  for (let node = walker.firstChild(); node;) {
    depth += 1;
    if (depth > MOST.depth) return false;
    let next = walker.firstChild();
    while (!next) {
      next = walker.nextSibling();
      if (next) {
        depth -= 1;
        break;
      }
      if (!walker.parentNode() || walker.currentNode === box) return true;
      depth -= 1;
    }
    node = next;
  }
  return true;
}

/** Text that is copied with formulas in it has them as LaTeX. */
function copyAsSource(event) {
  const selection = document.getSelection();
  if (!selection || selection.isCollapsed || event.defaultPrevented) return;
  const range = selection.getRangeAt(0);
  const around = range.commonAncestorContainer;
  const element = around.nodeType === Node.ELEMENT_NODE ? around : around.parentElement;
  if (element?.closest(".math.ready")) {
    event.clipboardData.setData("text/plain", element.closest(".math.ready").dataset.tex);
    event.preventDefault();
    return;
  }
  if (!element?.querySelector(".math.ready")) return;
  const part = range.cloneContents();
  const formulas = part.querySelectorAll(".math.ready");
  if (formulas.length === 0) return;
  for (const formula of formulas) {
    const mark = formula.classList.contains("display") ? "$$" : "$";
    formula.replaceWith(`${mark}${formula.dataset.tex}${mark}`);
  }
  for (const said of part.querySelectorAll(".code-bar, .code-more, .turning, button")) said.remove();
  // Laid out where nobody sees it, so that paragraphs and rows keep their line breaks.
  const box = h("div", { class: "only-read" });
  box.append(part);
  document.body.append(box);
  event.clipboardData.setData("text/plain", box.innerText);
  box.remove();
  event.preventDefault();
}

document.addEventListener("copy", copyAsSource);
