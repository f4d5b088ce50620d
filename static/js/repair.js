/* Completes the markdown that a stream has cut off, for the picture only: `**bold` is bold before its end arrives, half
   a link is its text, half a table is a table, and the first characters of a list do not make a headline of the line
   above. Pure.

   `repairSource` mends what decides about blocks, before they are parsed; `repairInline` the text of the last one. */

import { dollarEnd, looksLikeMath, pairEnd } from "#octavo/math.js";

const FENCE = /^[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]+)*(`{3,}|~{3,})/;
// Quotes and list items that a line stands in.
const CONTAINERS = /^(?:[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t])))*[ \t]*/;
// A last line that will soon be something else: a list's marker, a rule, the underline of a heading, a row of a table.
const HALF_LINE = /^(?:[-*+=_#>|]{1,6}|(?:[-*_] ){1,3}|\d{1,3}[.)]?|[`~]{1,2}|[$\\]|\$\$|\\\[|:?-+:?)[ \t]*$/;
const HALF_RULE = /^[ \t]*\|?[ \t]*:?-*:?[ \t]*(?:\|[ \t:|-]*)?$/;

/** `first`: the text is the first block of its answer, where a lone number is likely all of it. */
export function repairSource(source, first = false) {
  const lines = source.split("\n");
  const last = lines.at(-1);
  if (openFence(lines)) return source;
  // The first line of a fence, its language half written: nothing is in it yet.
  const fence = FENCE.exec(last);
  if (fence && !last.slice(fence[0].length).includes("`")) return lines.slice(0, -1).join("\n");
  const inside = last.replace(CONTAINERS, "");
  const table = repairTable(lines, last, inside);
  if (table !== null) return table;
  const alone = first && lines.length === 1;
  if (!inside || (HALF_LINE.test(inside) && !(alone && /^\d/.test(last)))) {
    if (last.trim()) lines.pop();
    return lines.join("\n");
  }
  return source;
}

/** A row that begins a table, and the rule under it as far as it has come; null of other lines. */
function repairTable(lines, last, inside) {
  const before = lines.at(-2) ?? "";
  const head = before.replace(CONTAINERS, "");
  const aboveHead = (lines.at(-3) ?? "").replace(CONTAINERS, "");
  const isRule = head.startsWith("|") || (head.includes("|") && inside.includes("|"));
  if (isRule && inside && HALF_RULE.test(inside) && !aboveHead.includes("|")) {
    const given = cells(inside).map((cell) => (/^:?-+:?$/.test(cell) ? cell : cell.startsWith(":") ? ":-" : "-"));
    const rule = cells(head).map((_, index) => given[index] ?? "-");
    return [...lines.slice(0, -1), `${last.slice(0, last.length - inside.length)}|${rule.join("|")}|`].join("\n");
  }
  if (inside.startsWith("|") && !head.startsWith("|") && cells(inside).some(Boolean)) {
    const indent = last.slice(0, last.length - inside.length).replace(/[^>\s]/g, " ");
    const row = /(?<!\\)\|\s*$/.test(inside) ? last : `${last} |`;
    return [...lines.slice(0, -1), row, `${indent}|${cells(inside).map(() => "-").join("|")}|`].join("\n");
  }
  return null;
}

function cells(row) {
  return row
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim());
}

function openFence(lines) {
  let open = null;
  for (const line of lines.slice(0, -1)) {
    const mark = FENCE.exec(line)?.[1];
    if (!mark) continue;
    if (!open) open = mark;
    else if (mark[0] === open[0] && mark.length >= open.length && line.trim() === mark) open = null;
  }
  if (open === null) return false;
  const mark = FENCE.exec(lines.at(-1))?.[1];
  return !(mark && mark[0] === open[0] && mark.length >= open.length && lines.at(-1).trim() === mark);
}

/** A text without a last line that may become the definition of a link, whose address is not yet all there. */
export function withoutHalfDefinition(text) {
  const at = text.lastIndexOf("\n") + 1;
  return /^ {0,3}\[(?!\^)[^\]]{0,60}(?:\](?::.*)?)?$/.test(text.slice(at)) ? text.slice(0, at) : text;
}

/** A text that is one open fence at the margin and nothing else: {mark, head: its first line}; null of any other. */
export function openFenceOf(source) {
  const head = /^(`{3,}|~{3,})([^\n]*)\n/.exec(source);
  if (!head || (head[1][0] === "`" && head[2].includes("`")) || source.includes("\r")) return null;
  return closes(source.slice(head[0].length), head[1]) ? null : { mark: head[1], head: head[0] };
}

/** Whether a line of `code` ends what `mark` opened. */
export function closes(code, mark) {
  return new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`, "m").test(code);
}

/** Code whose last line may be the beginning of its closing fence, without that line. */
export function withoutHalfFence(code, mark) {
  const at = code.lastIndexOf("\n") + 1;
  const line = code.slice(at).trim();
  return line && line.length < mark.length && line === mark[0].repeat(line.length) ? code.slice(0, at) : code;
}

/** The text of a block that still grows; `math`: whether a formula at its end was closed here. */
export function repairInline(content) {
  let text = content
    .replace(/^\[[ xX]?\]?$/, "") // half a box of a task
    .replace(/\[\^[\w-]*$/, "")
    .replace(/!\[[^\]\n]*(?:\](?:\([^)\n]*)?)?$/, "")
    .replace(/\[([^[\]\n]*)\]\([^)\n]*$/, "$1")
    .replace(/(?<=^|[\s(*_~"'])\[(?=\S)([^[\]\n]{1,200})\]?$/, "$1")
    .replace(/<(?=(?:https?|mailto):[^\s<>]*$)/, "")
    .replace(/&(?:a(?:mp?)?|l(?:t)?|g(?:t)?|q(?:u(?:ot?)?)?|n(?:b(?:sp?)?)?|#(?:x[\da-f]*|\d*))$/i, (found) =>
      /^&(?:[A-Z])/.test(found) ? found : "",
    )
    .replace(/(?<!\\)((?:\\\\)*)\\$/, "$1");
  const open = [];
  let i = 0;
  while (i < text.length) {
    const char = text[i];
    const formula = formulaAt(text, i);
    if (formula) {
      if (formula.end !== -1) {
        i = formula.end;
        continue;
      }
      const tex = text.slice(i + formula.open.length);
      if (!tex.trim()) return { text: closeAll(text.slice(0, i), open), math: false };
      if (looksLikeMath(tex)) {
        const whole = tex.replace(/(?:\\|\$|\s)+$/, "");
        return { text: closeAll(text.slice(0, i) + formula.open + whole + formula.close, open), math: true };
      }
      i += formula.open.length;
    } else if (char === "\\") i += 2;
    else if (char === "`") {
      const run = /^`+/.exec(text.slice(i))[0];
      const close = findRun(text, run, i + run.length);
      if (close === -1) {
        const rest = text.slice(i + run.length);
        // ``a`: the end of the code has come by half.
        const bare = rest.trimEnd().replace(run.length > 1 ? new RegExp(`\`{1,${run.length - 1}}$`) : /$^/, "");
        return { text: closeAll(bare.trim() ? text.slice(0, i) + run + bare + run : text.slice(0, i), open), math: false };
      }
      i = close + run.length;
    } else if (char === "*" || char === "_" || char === "~") {
      const run = new RegExp(`^\\${char}+`).exec(text.slice(i))[0];
      mark(text, i, run, open);
      i += run.length;
    } else i += 1;
  }
  return { text: closeAll(text, open), math: false };
}

/** A formula that opens here: where it ends (-1: not yet), or null where none does. */
function formulaAt(text, i) {
  if (text.startsWith("\\(", i) || text.startsWith("\\[", i) || text.startsWith("$$", i)) {
    const open = text.slice(i, i + 2);
    const close = { "\\(": "\\)", "\\[": "\\]", $$: "$$" }[open];
    const end = pairEnd(text, i + 2, close);
    return { open, close, end: end === -1 ? -1 : end + 2 };
  }
  if (text[i] !== "$") return null;
  const end = dollarEnd(text, i);
  if (end !== -1) return { open: "$", close: "$", end: end + 1 };
  // One dollar alone is a formula only where nothing else has these signs.
  const rest = text.slice(i + 1);
  const likely = /^[^\s\d$][^$]*$/.test(rest) && /[\\^{]|_\{/.test(rest) && !/[\p{L}\p{N}\\$]/u.test(text[i - 1] ?? "");
  return likely && dollarEnd(`${text.trimEnd()}$`, i) !== -1 ? { open: "$", close: "$", end: -1 } : null;
}

function findRun(text, run, from) {
  for (let i = text.indexOf(run, from); i !== -1; i = text.indexOf(run, i + 1)) {
    if (text[i - 1] !== "`" && text[i + run.length] !== "`") return i;
  }
  return -1;
}

function mark(text, at, run, open) {
  const before = text[at - 1] ?? " ";
  const after = text[at + run.length] ?? "";
  const canClose = !/\s/.test(before);
  const canOpen = after !== "" ? !/\s/.test(after) : !canClose || !/\w/.test(before);
  if (run[0] === "~" && run.length !== 2) return;
  const inside = open.findLastIndex((entry) => entry[0] === run[0] && entry.length <= run.length);
  if (canClose && inside !== -1) open.splice(inside);
  else if (canOpen && run.length <= 3 && !(run[0] === "_" && /\w/.test(before))) open.push(run);
}

/** A shorter run of the same character at the end of a text, behind something. */
function half(run) {
  return run.length > 1 ? new RegExp(`(?<=[^\\s\\${run[0]}])\\${run[0]}{1,${run.length - 1}}$`) : /$^/;
}

function closeAll(text, open) {
  while (open.length) {
    const run = open.pop();
    // `**bold*`: half of the closing run is there.
    const bare = text.trimEnd().replace(half(run), "");
    // Nothing stands in it yet: it is better not there.
    if (bare.endsWith(run)) text = bare.slice(0, -run.length);
    else text = bare + run;
  }
  return text;
}
