/* A box that people write a message into: how its Enter works, and how high it is. */

/** On a screen keyboard there is one Enter, and people want lines; a button sends. */
export const enterBreaks = () => matchMedia("(hover: none) and (pointer: coarse)").matches;

/** As high as its text, where the browser does not see to that (`field-sizing`). */
export function fit(input) {
  if (CSS.supports("field-sizing", "content")) return;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}
