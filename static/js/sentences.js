/* An answer's markdown as sentences to be heard, given out as they become complete. Pure.

   Code is said as "code, 12 lines", a table row by row, a formula as that; marks of emphasis, links and headings are left
   out. What has been given once does not come again. */

import { fill, gettext, ngettext } from "#octavo/i18n.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const OPENS = /^\s*(?:#{1,6}\s+|>\s?|(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?)+/;
const RULE = /^\s*(?:[-*_]\s*){3,}$/;
const ROW = /^\s*\|/;
const UNDER_HEAD = /^[\s|:-]+$/;
const MATH = /^\s*(\$\$|\\\[)/;

const segmenter = (language) =>
  globalThis.Intl?.Segmenter ? new Intl.Segmenter(language, { granularity: "sentence" }) : null;

/** A text cut behind the ends of its sentences; nothing is lost. */
export function split(text, language = "en") {
  const by = segmenter(language);
  if (by) return joined(Array.from(by.segment(text), (part) => part.segment));
  return joined(text.match(/[^.!?。！？]*(?:[.!?。！？]+["'”’»)\]]*\s*|$)/gu).filter(Boolean));
}

/** A mark without a space behind it ends no sentence, but in scripts that have no spaces: it stands in an address. */
function joined(parts) {
  const whole = [];
  for (const part of parts) {
    if (whole.length && /[.!?]["'”’)\]]*$/u.test(whole.at(-1))) whole.push(whole.pop() + part);
    else whole.push(part);
  }
  return whole;
}

/** A line of markdown as it is to be heard. */
export function plain(markdown) {
  return markdown
    .replace(OPENS, "")
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/<(https?:[^>]*)>/g, "$1")
    .replace(/\\\((.+?)\\\)|\$(?!\s)([^$\n]+?)\$(?!\d)/g, "$1$2")
    .replace(/(`+)(.+?)\1/g, "$2")
    .replace(/(\*{1,3}|_{2,3}|~~)(?=\S)(.*?\S)\1/g, "$2")
    .replace(/\*{2,}|`+|~~/g, "")
    .replace(/\\([\\`*_{}[\]()#+\-.!|>~$])/g, "$1")
    .replace(/\s+/g, " ")
    .trim();
}

const codeOf = (lines) => fill(ngettext("Code, %(n)s line.", "Code, %(n)s lines.", lines), { n: lines });

/** `take(text, live)` gives the sentences of a growing text that are complete and new; not live: all that are left. */
export class Sentences {
  constructor(language = "en") {
    this.language = language;
    this.at = 0;
  }

  take(text, live) {
    const found = [];
    while (this.at < text.length) {
      const before = this.at;
      this.#next(text, live, found);
      if (this.at === before) break;
    }
    return found.filter((sentence) => /[\p{L}\p{N}\p{S}]/u.test(sentence));
  }

  #next(text, live, found) {
    const end = text.indexOf("\n", this.at);
    const whole = end >= 0 || !live;
    const line = text.slice(this.at, end < 0 ? text.length : end);
    const after = end < 0 ? text.length : end + 1;
    const begun = this.at === 0 || text[this.at - 1] === "\n";
    if (begun && FENCE.test(line)) return this.#block(text, live, found, after, FENCE.exec(line)[1]);
    if (begun && MATH.test(line)) return this.#formula(text, live, found);
    // The first characters of a line do not say yet what it is going to be.
    if (begun && !whole && /^\s*[`~|$\\#>*+\-\d]*$/.test(line)) return;
    if (begun && (ROW.test(line) || RULE.test(line))) {
      if (!whole) return;
      this.at = after;
      if (ROW.test(line) && !UNDER_HEAD.test(line))
        found.push(line.split("|").map(plain).filter(Boolean).join(", "));
      return;
    }
    const parts = split(text.slice(this.at, this.#paragraphEnd(text)), this.language);
    const closed = this.#paragraphEnd(text) < text.length || !live;
    for (const part of closed ? parts : parts.slice(0, -1)) {
      const words = plain(part);
      if (words) found.push(words);
      this.at += part.length;
    }
    if (closed && text[this.at] === "\n") this.at += 1;
  }

  /** Where the lines end that belong together: at an empty one, or one that begins something else. */
  #paragraphEnd(text) {
    for (let at = this.at; ; ) {
      const end = text.indexOf("\n", at);
      if (end < 0) return text.length;
      const next = text.slice(end + 1).split("\n", 1)[0];
      if (!next.trim() || [FENCE, OPENS, ROW, RULE, MATH].some((kind) => kind.test(next)))
        return end + 1 < text.length ? end : text.length;
      at = end + 1;
    }
  }

  #block(text, live, found, from, fence) {
    const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`, "m");
    const rest = text.slice(from);
    const closed = closing.exec(rest);
    if (!closed && live) return;
    const code = closed ? rest.slice(0, closed.index) : rest;
    found.push(codeOf(code.replace(/\n$/, "") === "" ? 0 : code.replace(/\n$/, "").split("\n").length));
    this.at = closed ? from + closed.index + closed[0].length : text.length;
    if (text[this.at] === "\n") this.at += 1;
  }

  #formula(text, live, found) {
    const opening = MATH.exec(text.slice(this.at));
    const close = opening[1] === "$$" ? "$$" : "\\]";
    const end = text.indexOf(close, this.at + opening[0].length);
    if (end < 0 && live) return;
    found.push(gettext("A formula."));
    this.at = end < 0 ? text.length : end + close.length;
  }
}
