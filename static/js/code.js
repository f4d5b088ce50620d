/* Code blocks: a bar with the language and a copy button, and colours. The highlighter is loaded with the first one. */

import DOMPurify from "dompurify";
import { copyButton, h } from "#octavo/dom.js";

// Colouring a growing block again at every frame is cheap up to here; a longer one gets its colours at its end.
const LIVE_LIMIT = 4000;
const LIMIT = 100_000;
const LANGUAGE = /(?:^|\s)language-(\S+)/;

let highlighter = null;
let loading = null;

function load() {
  loading ??= import("highlight.js").then(
    (module) => {
      highlighter = module.default;
    },
    () => {
      loading = null; // plain code then; the next block tries again
    },
  );
  return loading;
}

function paint(code, language) {
  if (!highlighter.getLanguage(language)) return;
  const { value } = highlighter.highlight(code.textContent, { language, ignoreIllegals: true });
  const safe = DOMPurify.sanitize(value, {
    ALLOWED_TAGS: ["span"],
    ALLOWED_ATTR: ["class"],
    RETURN_DOM_FRAGMENT: true,
  });
  code.replaceChildren(safe);
}

/** Put a `pre` of rendered markdown into its frame. `live`: it still grows. */
export function dressCode(pre, live) {
  const code = pre.firstElementChild ?? pre;
  const language = LANGUAGE.exec(code.className)?.[1] ?? "";
  const bar = h(
    "div",
    { class: "code-bar" },
    h("span", { text: language || "code" }),
    copyButton(() => code.textContent.replace(/\n$/, "")),
  );
  const frame = h("div", { class: "code" }, bar);
  pre.replaceWith(frame);
  frame.append(pre);
  pre.tabIndex = 0; // a wide one scrolls by keyboard
  const size = code.textContent.length;
  if (!language || size > (live ? LIVE_LIMIT : LIMIT)) return;
  if (highlighter) paint(code, language);
  else load().then(() => highlighter && paint(code, language));
}
