/* Markdown as safe DOM, incrementally. Owns the rules of what may be rendered.

   HTML in the source is text, never markup; every block passes DOMPurify with a short list of tags and attributes;
   images become links, so that an answer cannot make a browser fetch something; links leave with noopener. */

import MarkdownIt from "markdown-it";
import DOMPurify from "dompurify";
import { BlockCutter } from "#octavo/blocks.js";
import { repair } from "#octavo/repair.js";
import { dressCode } from "#octavo/code.js";
import { h } from "#octavo/dom.js";

const md = new MarkdownIt({ html: false, linkify: true, typographer: false });
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

md.renderer.rules.image = (tokens, index) => {
  const escape = md.utils.escapeHtml;
  const token = tokens[index];
  return `<a href="${escape(token.attrGet("src") ?? "")}">Image: ${escape(token.content || "no description")}</a>`;
};

// Headings of an answer stand below the page's own two levels.
for (const rule of ["heading_open", "heading_close"]) {
  md.renderer.rules[rule] = (tokens, index, options, env, self) => {
    tokens[index].tag = `h${Math.min(Number(tokens[index].tag[1]) + 2, 6)}`;
    return self.renderToken(tokens, index, options);
  };
}

// markdown-it aligns columns with style attributes, which the content security policy forbids.
for (const rule of ["th_open", "td_open"]) {
  md.renderer.rules[rule] = (tokens, index, options, env, self) => {
    const align = /text-align:\s*(right|center)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
    tokens[index].attrs = align ? [["class", `align-${align}`]] : null;
    return self.renderToken(tokens, index, options);
  };
}

const ALLOWED = {
  ALLOWED_TAGS: [
    "p",
    "br",
    "strong",
    "em",
    "s",
    "code",
    "pre",
    "blockquote",
    "ul",
    "ol",
    "li",
    "a",
    "hr",
    "h3",
    "h4",
    "h5",
    "h6",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
  ],
  ALLOWED_ATTR: ["href", "title", "class", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Safe DOM of a markdown text. `references`: link definitions that stand elsewhere. */
export function render(source, { references = {}, live = false } = {}) {
  const html = md.render(source, { references: { ...references } });
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.rel = "noopener nofollow noreferrer";
    link.target = "_blank";
  }
  for (const table of fragment.querySelectorAll("table")) {
    const box = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) dressCode(pre, live);
  return fragment;
}

/** A growing markdown text in an element: blocks whose source has not changed keep their DOM. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.cutter = new BlockCutter(md);
    this.keys = [];
  }

  update(text, live = false) {
    const sources = this.cutter.update(text);
    const references = this.cutter.allReferences;
    const names = Object.keys(references).join("\n");
    sources.forEach((source, index) => {
      const growing = live && index === sources.length - 1;
      const shown = growing ? repair(source, index === 0) : source;
      // A definition that comes late makes links of brackets in blocks above it.
      const key = `${growing} ${source.includes("[") ? names : ""} ${shown}`;
      if (this.keys[index] === key) return;
      this.keys[index] = key;
      const block = this.element.children[index] ?? this.element.appendChild(h("div", { class: "block" }));
      block.replaceChildren(render(shown, { references, live: growing }));
    });
    while (this.element.children.length > sources.length) this.element.lastElementChild.remove();
    this.keys.length = sources.length;
  }
}
