/* Completes the markdown that a stream has cut off, for the picture only: `**bold` is bold before its end arrives, half
   a link is its text, and the first characters of a list do not make a headline of the line above. Pure. */

const FENCE = /^[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]+)*(`{3,}|~{3,})/;
// A last line that will soon be something else: a list's marker, a rule, the underline of a heading.
const HALF_LINE = /^[ \t]*(?:[-*+=_#>]{1,6}|\d{1,3}[.)]?|[`~]{1,2})[ \t]*$/;

/** `first`: the text is the first block of its answer, where a lone number is likely all of it. */
export function repair(source, first = false) {
  const lines = source.split("\n");
  if (openFence(lines))
    return /^[ \t]*[`~]{1,2}$/.test(lines.at(-1)) ? lines.slice(0, -1).join("\n") : source;
  if (HALF_LINE.test(lines.at(-1)) && !(first && lines.length === 1)) lines.pop();
  const text = lines.join("\n");
  const from = text.lastIndexOf("\n\n") + 1;
  return text.slice(0, from) + repairInline(text.slice(from));
}

function openFence(lines) {
  let open = null;
  for (const line of lines) {
    const mark = FENCE.exec(line)?.[1];
    if (!mark) continue;
    if (!open) open = mark;
    else if (mark[0] === open[0] && mark.length >= open.length && line.trim() === mark) open = null;
  }
  return open !== null;
}

function repairInline(text) {
  text = text.replace(/!\[[^\]\n]*(?:\](?:\([^)\n]*)?)?$/, "").replace(/\[([^[\]\n]*)\]\([^)\n]*$/, "$1");
  const open = [];
  let i = 0;
  while (i < text.length) {
    const char = text[i];
    if (char === "\\") i += 2;
    else if (char === "`") {
      const run = /^`+/.exec(text.slice(i))[0];
      const close = findRun(text, run, i + run.length);
      if (close === -1) {
        const rest = text.slice(i + run.length);
        return closeAll(rest.trim() ? `${text.trimEnd()}${run}` : text.slice(0, i), open);
      }
      i = close + run.length;
    } else if (char === "*" || char === "_" || char === "~") {
      const run = new RegExp(`^\\${char}+`).exec(text.slice(i))[0];
      mark(text, i, run, open);
      i += run.length;
    } else i += 1;
  }
  return closeAll(text, open);
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
