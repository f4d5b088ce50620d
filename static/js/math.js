/* LaTeX in markdown: finds formulas and leaves them as tokens, whoever draws them. A plugin for markdown-it. Pure.

   Blocks: `$$ … $$`, `\[ … \]` and `\begin{align} … \end{align}` that have their lines to themselves and no blank line
   inside. In a line: `\( … \)`, `\[ … \]`, `$$ … $$`, and `$ … $` with the caution that money needs: "$5 and $10" is text. */

const PAIRS = [
  ["$$", "$$"],
  ["\\[", "\\]"],
];
const ENVIRONMENT =
  /^\\begin\{((?:equation|align|alignat|gather|multline|flalign|eqnarray|cases|matrix|pmatrix|bmatrix|array)\*?)\}/;
// A formula longer than this is none, and nobody looks further for its end.
const LONGEST = 4000;

/** Words and no sign of mathematics: brackets that were escaped, or prices. */
export function looksLikeMath(text) {
  return /[\\^_=<>+*/|{}≤≥±×÷→∈∑∫√]/.test(text) || !/\p{L}{3,}/u.test(text);
}

/** Where the formula that opens with a dollar at `at` ends (the place of its closing dollar), or -1. */
export function dollarEnd(text, at, end = text.length) {
  const before = text[at - 1] ?? "";
  const first = text[at + 1] ?? "";
  if (/[\p{L}\p{N}\\$]/u.test(before) || first === "" || /[\s$]/.test(first)) return -1;
  for (let i = at + 1; i < Math.min(end, at + LONGEST); i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "\n" && text[i + 1] === "\n") return -1;
    else if (text[i] === "$") {
      if (/\s/.test(text[i - 1]) || /[\p{Lu}\p{N}$]/u.test(text[i + 1] ?? "")) return -1;
      const inside = text.slice(at + 1, i);
      const price = /^[\d.,]+\s?\p{L}{2,}|^[\d.,]+\s.*\p{L}{3,}/u.test(inside) && !/[\\^_=]/.test(inside);
      return price || !looksLikeMath(inside) ? -1 : i;
    }
  }
  return -1;
}

/** The end of a formula in brackets or double dollars, or -1. */
export function pairEnd(text, from, close, end = text.length) {
  for (let i = from; i < Math.min(end, from + LONGEST); i += 1) {
    if (text.startsWith(close, i)) return i;
    if (text[i] === "\\") i += 1;
    else if (text[i] === "\n" && text[i + 1] === "\n") return -1;
  }
  return -1;
}

function inline(state, silent) {
  const { src, pos, posMax } = state;
  let open = "";
  let end = -1;
  if (src[pos] === "$") {
    open = src.startsWith("$$", pos) ? "$$" : "$";
    end = open === "$" ? dollarEnd(src, pos, posMax) : pairEnd(src, pos + 2, "$$", posMax);
  } else if (src[pos] === "\\" && (src[pos + 1] === "(" || src[pos + 1] === "[")) {
    open = src.slice(pos, pos + 2);
    end = pairEnd(src, pos + 2, open === "\\(" ? "\\)" : "\\]", posMax);
  }
  if (end === -1) return false;
  const tex = src.slice(pos + open.length, end);
  if (!tex.trim() || !looksLikeMath(tex)) return false;
  if (!silent) {
    const token = state.push("math", "", 0);
    token.content = tex.trim();
    token.markup = open;
    token.meta = { display: open === "$$" || open === "\\[" };
  }
  state.pos = end + (open === "$" ? 1 : 2);
  return true;
}

function block(state, startLine, endLine, silent) {
  const lineOf = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  if (state.sCount[startLine] - state.blkIndent >= 4) return false;
  const head = lineOf(startLine);
  const environment = ENVIRONMENT.exec(head);
  const [open, close] = environment
    ? ["", `\\end{${environment[1]}}`]
    : (PAIRS.find(([mark]) => head.startsWith(mark)) ?? []);
  if (close === undefined) return false;
  const lines = [];
  let line = startLine;
  let closed = false;
  for (; line < endLine && !closed; line += 1) {
    if (line > startLine && (state.isEmpty(line) || state.sCount[line] < state.blkIndent)) break;
    const text = (line === startLine ? head.slice(open.length) : lineOf(line)).trimEnd();
    closed = text.endsWith(close);
    lines.push(closed && !environment ? text.slice(0, -close.length) : text);
  }
  const tex = lines.join("\n").trim();
  const growing = !closed && state.env.live && line >= endLine;
  if (!(closed && tex) && !growing) return false;
  // What closes in the middle of a line and goes on after it is a formula in a paragraph.
  if (lines.slice(0, -1).some((text) => open && text.includes(close)) || (open && lines.at(-1).includes(close)))
    return false;
  if (silent) return true;
  const token = state.push("math_block", "", 0);
  token.block = true;
  token.content = growing ? tex.replace(/(?:\\|\$|\\end\{?[\w*]*)$/, "") : tex;
  token.map = [startLine, line];
  token.meta = { display: true, open: growing };
  state.line = line;
  return true;
}

export function math(md) {
  md.inline.ruler.before("escape", "math", inline);
  md.block.ruler.before("fence", "math_block", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}
