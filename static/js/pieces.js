/* Finds the code between fences in a text that is not markdown otherwise. Pure. */

const FENCE = /^(`{3,}|~{3,}(?!~))([^\n`]*)(?:\n|$)/gm;

/** A text in pieces: {text} and {code, info}, in their order. */
export function pieces(text) {
  const found = [];
  const lines = [...text.matchAll(FENCE)];
  const unclosed = new Set(); // what no later line closes is looked for once, however often it opens
  let at = 0;
  for (let opens = 0; opens < lines.length; opens += 1) {
    const [line, fence, info] = lines[opens];
    if (unclosed.has(fence)) continue;
    let closes = opens + 1;
    while (closes < lines.length && !(lines[closes][1] === fence && lines[closes][2].trim() === "")) closes += 1;
    if (closes === lines.length) {
      unclosed.add(fence);
      continue;
    }
    const { index } = lines[opens];
    const end = lines[closes];
    found.push({ text: text.slice(at, index) }, { code: text.slice(index + line.length, end.index), info: info.trim() });
    at = end.index + end[0].length;
    opens = closes;
  }
  found.push({ text: text.slice(at) });
  // A frame has its own distance: the line breaks around it are none to be shown.
  return found
    .map((piece, index) =>
      "code" in piece
        ? piece
        : {
            text: piece.text
              .replace(index > 0 ? /^\n+/ : /^$/, "")
              .replace(index < found.length - 1 ? /\n+$/ : /^$/, ""),
          },
    )
    .filter((piece) => "code" in piece || piece.text);
}
