/* Finds the code between fences in a text that is not markdown otherwise. Pure. */

const FENCE = /^(`{3,}|~{3,})([^\n`]*)\n([\s\S]*?)^\1[ \t]*(?:\n|$)/gm;

/** A text in pieces: {text} and {code, info}, in their order. */
export function pieces(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(FENCE)) {
    found.push({ text: text.slice(at, match.index) }, { code: match[3], info: match[2].trim() });
    at = match.index + match[0].length;
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
