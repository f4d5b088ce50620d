/* What may come out of markdown: DOMPurify's work, with the short list of what our own grammar makes.

   Content brings no id, name, form, style, data or aria attribute; its classes are the grammar's own. Whatever a frame
   adds (buttons, boxes, roles) is made by script afterwards. */

import DOMPurify from "dompurify";
import { checkLink, unsaid, withoutHidden } from "#octavo/links.js";
import { h } from "#octavo/dom.js";
import { fill, gettext } from "#octavo/i18n.js";

const TEXT = {
  ALLOWED_TAGS: [
    ...["p", "br", "strong", "em", "s", "sup", "code", "pre", "blockquote", "ul", "ol", "li", "a", "hr", "span", "div"],
    ...["h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
  ],
  ALLOWED_ATTR: ["href", "class", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const CLASSES = new Set(
  "image align-right align-center math ref note-text task done alert note tip important warning caution".split(" "),
);

const COLOURS = {
  ALLOWED_TAGS: ["span"],
  ALLOWED_ATTR: ["class"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** A purifier with rules that are read once: reading them costs more than cleaning a short block. */
function purifier(rules) {
  const made = DOMPurify(window);
  made.setConfig(rules);
  return made;
}

/** The safe tree of HTML that the grammar rendered. */
export function cleanText(html) {
  const fragment = purifiers.text.sanitize(html);
  for (const element of fragment.querySelectorAll("[class]")) {
    const kept = [...element.classList].filter((name) => CLASSES.has(name));
    if (kept.length) element.className = kept.join(" ");
    else element.removeAttribute("class");
  }
  for (const link of fragment.querySelectorAll("a")) cleanLink(link);
  return fragment;
}

/** The safe tree of HTML that the highlighter made. */
export function cleanColours(html) {
  return purifiers.colours.sanitize(html);
}

function cleanLink(link) {
  const found = checkLink(link.getAttribute("href"));
  if (link.classList.contains("image")) {
    const name = link.textContent.trim();
    link.textContent = name ? fill(gettext("Image: %(name)s"), { name }) : gettext("Image");
  }
  if (!found) {
    link.replaceWith(...link.childNodes);
    return;
  }
  const texts = document.createTreeWalker(link, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = withoutHidden(texts.currentNode.data);
  const more = unsaid(found, link.textContent);
  link.href = found.href;
  link.rel = "noopener nofollow noreferrer";
  link.target = "_blank";
  if (!link.textContent.trim()) link.append(found.host);
  else if (more) link.append(h("span", { class: "leads", text: ` (${more})` }));
}

const MATH = {
  ALLOWED_TAGS: [
    ...["math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mfrac", "msqrt", "mroot", "mstyle", "mpadded"],
    ...["mphantom", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "none"],
    ...["mtable", "mtr", "mtd", "menclose"],
  ],
  ALLOWED_ATTR: [
    ...["display", "displaystyle", "scriptlevel", "class", "form", "fence", "separator", "stretchy", "symmetric"],
    ...["largeop", "movablelimits", "accent", "accentunder", "linethickness", "mathvariant", "columnalign"],
    ...["width", "height", "depth", "voffset", "lspace", "rspace", "minsize", "maxsize", "notation"],
  ],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  IN_PLACE: true,
};
const purifiers = { text: purifier(TEXT), colours: purifier(COLOURS), math: purifier(MATH) };

const SIZES = ["width", "height", "depth", "voffset", "lspace", "rspace", "minsize", "maxsize", "linethickness"];
// What a formula's layout needs and cannot say in attributes. Nothing that leaves its place.
const STYLES = [
  ...["padding-top", "padding-right", "padding-bottom", "padding-left", "border-top", "border-right", "border-bottom"],
  ...["border-left", "text-align", "width", "height", "math-depth", "font-weight", "font-style"],
];
const EM_PER_UNIT = { em: 1, ex: 0.45, pt: 0.1, px: 0.0625, cm: 2.8, mm: 0.28, in: 7.2, pc: 1.2, mu: 1 / 18 };

/** Formulas are drawn by script with inline styles; this leaves the tree with what it needs of them, set by CSSOM.
    `root`: its math element; one of another name is refused with an error. */
export function cleanMath(root) {
  const styles = new Map();
  for (const element of [root, ...root.querySelectorAll("[style]")]) {
    const given = element.style;
    const kept = STYLES.map((name) => [name, given.getPropertyValue(name)]).filter(([, value]) => fits(value));
    // Colours are mixed with the text's own, so that none vanishes on either theme.
    if (given.color) kept.push(["color", `color-mix(in srgb, ${given.color} 64%, var(--text-1))`]);
    styles.set(element, kept);
    element.removeAttribute("style");
  }
  purifiers.math.sanitize(root, { IN_PLACE: true });
  for (const element of [root, ...root.querySelectorAll("*")]) {
    for (const name of SIZES) {
      const value = element.getAttribute(name);
      if (value !== null && !fits(value)) element.removeAttribute(name);
    }
    const kept = [...element.classList].filter((name) => /^(?:tml-|upstrike|downstrike|sout|menclose|math)/.test(name));
    if (kept.length) element.className = kept.join(" ");
    else element.removeAttribute("class");
    for (const [name, value] of styles.get(element) ?? []) element.style.setProperty(name, value);
  }
}

/** Every length in a value is of an ordinary size. */
function fits(value) {
  if (!value) return false;
  return [...value.matchAll(/(-?\d*\.?\d+)([a-z]+)/gi)].every(([, number, unit]) => {
    const em = Number(number) * (EM_PER_UNIT[unit.toLowerCase()] ?? 1);
    return em >= -2 && em <= 40;
  });
}
