/* The markdown that answers are written in: markdown-it with formulas, boxes of tasks, footnote marks and notes, no HTML.

   `env` of a rendering: `references` (link definitions from elsewhere), `live` (the text still grows: its end is
   repaired), and what came out, in document order: `codes` {info, open} and `formulas` {tex, display, open}. What content
   says never becomes an attribute, except an address, a number of a list and classes from here. Pure. */

import MarkdownIt from "markdown-it";
import { math } from "#octavo/math.js";
import { repairInline, withoutHalfFence } from "#octavo/repair.js";

const TASK = /^\[([ xX])\][ \t]+/;
const ALERT = /^\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\][ \t]*(?:\n|$)/;
const NOTE = /^\[\^([a-z]{0,8}\d{1,3})\]/i;

export function grammar() {
  const md = new MarkdownIt({ html: false, linkify: true, typographer: false });
  md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  // links.js judges addresses, where it can say in the page what they are.
  md.validateLink = () => true;
  md.use(math);
  md.inline.ruler.before("link", "note", noteMark);
  md.block.ruler.before("reference", "note_text", noteText, { alt: [] });
  md.core.ruler.after("block", "repair", repairEnd);
  md.core.ruler.after("repair", "marks", marks);
  md.core.ruler.push("repair_math", openFormula);
  draw(md);
  return md;
}

/** `[^1]`, a footnote's mark. */
function noteMark(state, silent) {
  if (state.src[state.pos] !== "[") return false;
  const found = NOTE.exec(state.src.slice(state.pos, state.pos + 16));
  if (!found || /[[(:]/.test(state.src[state.pos + found[0].length] ?? "")) return false;
  if (!silent) state.push("note", "", 0).content = found[1];
  state.pos += found[0].length;
  return true;
}

/** `[^1]: text`, which would else be the definition of a link. */
function noteText(state, startLine, endLine, silent) {
  const lineOf = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  if (silent || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const head = lineOf(startLine);
  const found = NOTE.exec(head);
  if (!found || !/^:\s*\S/.test(head.slice(found[0].length))) return false;
  let line = startLine + 1;
  while (line < endLine && !state.isEmpty(line) && !NOTE.test(lineOf(line))) line += 1;
  const more = Array.from({ length: line - startLine - 1 }, (_, index) => lineOf(startLine + 1 + index));
  const open = state.push("paragraph_open", "p", 1);
  open.attrs = [["class", "note-text"]];
  open.map = [startLine, line];
  const inline = state.push("inline", "", 0);
  inline.content = [`${found[0]} ${head.slice(found[0].length + 1).trim()}`, ...more].join("\n");
  inline.map = open.map;
  inline.children = [];
  state.push("paragraph_close", "p", -1);
  state.line = line;
  return true;
}

/** The end of a text that still grows. */
function repairEnd(state) {
  const { tokens, env, src } = state;
  if (!env.live) return;
  let at = tokens.length - 1;
  while (at > 0 && (tokens[at].nesting !== 0 || (tokens[at].type === "inline" && !tokens[at].content))) at -= 1;
  const token = tokens[at];
  if (token?.type === "fence") {
    // The closing line belongs to the token's lines, and not to its content.
    const lines = token.content.split("\n").length - (token.content.endsWith("\n") ? 1 : 0);
    const closed = token.map[1] - token.map[0] === lines + 2 && /[`~]\s*$/.test(src);
    token.meta = { open: !closed };
    if (!closed) token.content = withoutHalfFence(token.content, token.markup);
  } else if (token?.type === "inline" && !/\n[ \t>]*\n$/.test(src)) {
    if (src.endsWith("\n") && /^(?:heading|td|th)_open$/.test(tokens[at - 1].type)) return;
    const { text, math: closed } = repairInline(token.content);
    token.content = text;
    if (closed) token.meta = { ...token.meta, open: true };
  }
}

function openFormula(state) {
  for (const token of state.tokens) {
    if (token.type !== "inline" || !token.meta?.open) continue;
    const formula = token.children.findLast((child) => child.type === "math");
    if (formula) formula.meta.open = true;
  }
}

/** The marks at the beginning of a text that stand for something: a task's box, a note's name. */
function marks(state) {
  state.tokens.forEach((token, index) => {
    if (token.type !== "inline") return;
    const outer = state.tokens[index - 2];
    const task = outer?.type === "list_item_open" && TASK.exec(token.content);
    const alert = outer?.type === "blockquote_open" && ALERT.exec(token.content);
    if (task) outer.attrSet("class", task[1] === " " ? "task" : "task done");
    if (alert) outer.attrSet("class", `alert ${alert[1].toLowerCase()}`);
    if (task || alert) token.content = token.content.slice((task || alert)[0].length);
  });
}

function draw(md) {
  const { rules } = md.renderer;
  const escape = md.utils.escapeHtml;

  rules.image = (tokens, index, options, env, self) => {
    const token = tokens[index];
    const name = self.renderInlineAsText(token.children ?? [], options, env);
    return `<a class="image" href="${escape(token.attrGet("src") ?? "")}">${escape(name)}</a>`;
  };
  const link = rules.link_open;
  rules.link_open = (tokens, index, options, env, self) => {
    tokens[index].attrs = [["href", tokens[index].attrGet("href") ?? ""]];
    return link ? link(tokens, index, options, env, self) : self.renderToken(tokens, index, options);
  };

  // Headings of an answer stand below the page's own two levels.
  for (const rule of ["heading_open", "heading_close"]) {
    rules[rule] = (tokens, index, options, env, self) => {
      tokens[index].tag = `h${Math.min(Number(tokens[index].tag[1]) + 2, 6)}`;
      return self.renderToken(tokens, index, options);
    };
  }

  // markdown-it aligns columns with style attributes, which the content security policy forbids.
  for (const rule of ["th_open", "td_open"]) {
    rules[rule] = (tokens, index, options, env, self) => {
      const align = /text-align:\s*(right|center)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
      tokens[index].attrs = align ? [["class", `align-${align}`]] : null;
      return self.renderToken(tokens, index, options);
    };
  }

  const code = (tokens, index, options, env) => {
    const { info, content, meta } = tokens[index];
    (env.codes ??= []).push({ info: md.utils.unescapeAll(info ?? "").trim(), open: meta?.open ?? false });
    return `<pre><code>${escape(content)}</code></pre>\n`;
  };
  rules.fence = code;
  rules.code_block = code;

  const formula = (tag) => (tokens, index, options, env) => {
    const { content, meta } = tokens[index];
    (env.formulas ??= []).push({ tex: content, display: meta.display, open: meta.open ?? false });
    return `<${tag} class="math">${escape(content)}</${tag}>`;
  };
  rules.math = formula("span");
  rules.math_block = formula("div");
  rules.note = (tokens, index) => `<sup class="ref">${escape(tokens[index].content)}</sup>`;
}
