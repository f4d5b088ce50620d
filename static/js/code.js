/* Code blocks: a bar with the language, wrap, download and copy; colours; and long ones folded.

   A block that grows keeps its frame and gets what is new as text; it is coloured again only as often as that is cheap,
   and in full at its end. Code that was finished when it came is folded when it is long; what the reader watched grow,
   reads or has selected stays open, and what was opened or folded by hand stays so. The highlighter is loaded with the
   first block that has a language. */

import { cleanColours } from "#octavo/clean.js";
import { copyButton, h, icon } from "#octavo/dom.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { morph } from "#octavo/morph.js";
import { keep, recall } from "#octavo/settings.js";

// Longer code than this is coloured only at its end, or not at all.
const LIVE_LIMIT = 20_000;
const LIMIT = 100_000;
// So much is coloured at once; more waits until the browser has time.
const AT_ONCE = 4000;
// Growing code spends at most about a fifteenth of the time on its colours.
const SHARE = 15;
const PAUSE_MS = 120;
const FOLD_LINES = 30;
const REMEMBERED = 500;
const WRAP = "octavo:wrap";
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "none", "output", "console-output"]);
// Directions that make code read otherwise than it runs.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/;
const EXTENSIONS = Object.fromEntries(
  (
    "bash=sh c=c c++=cpp cpp=cpp cs=cs csharp=cs css=css csv=csv diff=diff go=go graphql=graphql haskell=hs html=html " +
    "ini=ini java=java javascript=js js=js json=json jsx=jsx julia=jl kotlin=kt latex=tex less=less lua=lua markdown=md " +
    "md=md mermaid=mmd objectivec=m patch=patch perl=pl php=php powershell=ps1 py=py python=py r=r rb=rb rs=rs ruby=rb " +
    "rust=rs scala=scala scss=scss sh=sh shell=sh sql=sql svg=svg swift=swift tex=tex toml=toml ts=ts tsx=tsx " +
    "typescript=ts vue=vue xml=xml yaml=yaml yml=yml zig=zig zsh=sh"
  )
    .split(" ")
    .map((pair) => pair.split("=")),
);
const NAMES = { dockerfile: "Dockerfile", makefile: "Makefile", make: "Makefile", cmake: "CMakeLists.txt" };

const states = new WeakMap();
const folds = new Map(); // of the source: whether the reader folded or opened it
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

/** A frame for code. `info`: what stands behind the fence; `open`: it still grows; `fold`: long code may be folded. */
export function codeFrame(source, { info = "", open = false, fold = true } = {}) {
  const [language = "", ...more] = info.split(/[\s{,]+/);
  const label = language.replace(/:.*/, "").slice(0, 24);
  const wrap = h(
    "button",
    { type: "button", class: "wrap", "aria-pressed": String(wraps()), title: gettext("Wrap long lines") },
    icon("wrap-text"),
    h("span", { class: "only-read", text: gettext("Wrap long lines") }),
  );
  const download = h(
    "button",
    { type: "button", class: "download", title: gettext("Download") },
    icon("download"),
    h("span", { class: "only-read", text: gettext("Download") }),
  );
  const code = h("code", { text: source });
  // A wide block scrolls by keyboard.
  const pre = h("pre", { tabindex: "0", role: "group", "aria-label": gettext("Code") }, code);
  const bar = h("div", { class: "code-bar" });
  const frame = h("div", { class: "code", dir: "ltr" }, bar, pre);
  const copy = copyButton(() => text(states.get(frame).source));
  bar.append(
    h("span", { class: "code-name", text: PLAIN.has(label.toLowerCase()) ? gettext("text") : label }),
    h("span", { class: "code-tools" }, wrap, download, copy),
  );
  wrap.addEventListener("click", () => setWrap(wrap));
  download.addEventListener("click", () => save(states.get(frame)));
  const file = [language.split(":")[1], ...more].find((word) => /^(?:title=)?["']?[\w./-]+\.\w{1,10}["']?$/.test(word ?? ""));
  states.set(frame, { source, language: label.toLowerCase(), info, open, fold, file, watched: open, painted: "", cost: 0, at: 0 });
  return frame;
}

/** Frame a `pre` of a page that is not an answer, at once. */
export function dressCode(pre) {
  const code = pre.firstElementChild ?? pre;
  const info = /(?:^|\s)language-(\S+)/.exec(code.className)?.[1] ?? "";
  const frame = codeFrame(code.textContent, { info, fold: false });
  pre.replaceWith(frame);
  finish(frame);
}

/** For morph: the frame that stands there takes over what the new one would show. */
export function keepCode(old, next) {
  const wanted = states.get(next);
  const state = states.get(old);
  if (!wanted || !state) return wanted || state ? false : undefined;
  if (wanted.info !== state.info) return false;
  growCode(old, wanted.source, wanted.open);
  return true;
}

/** More code in a frame. */
export function growCode(frame, source, open) {
  const state = states.get(frame);
  const code = frame.querySelector("code");
  if (source !== state.source) {
    if (source.startsWith(state.source)) {
      const rest = source.slice(state.source.length);
      if (code.lastChild?.nodeType === Node.TEXT_NODE) code.lastChild.appendData(rest);
      else code.append(rest);
    } else {
      code.textContent = source;
      state.painted = "";
    }
    state.source = source;
    state.done = false;
  }
  if (open !== state.open) state.done = false;
  state.open = open;
  if (!state.done && frame.isConnected) finish(frame);
}

/** Everything under `root` that was put there and is not yet coloured and folded. */
export function finishCode(root) {
  for (const frame of root.querySelectorAll(".code")) if (states.get(frame) && !states.get(frame).done) finish(frame);
}

function finish(frame) {
  const state = states.get(frame);
  state.done = !state.open;
  foldIfLong(frame, state);
  colour(frame, state);
  if (state.done && TURNING.test(state.source) && !frame.querySelector(".turning")) {
    const warning = gettext("This code has hidden characters that change the direction of text.");
    frame.querySelector("pre").before(h("p", { class: "turning", text: warning }));
  }
}

// --- colours ---

function colour(frame, state) {
  const { source, language, open } = state;
  if (PLAIN.has(language)) return;
  if (source.length > (open ? LIVE_LIMIT : LIMIT)) {
    // What was coloured while it was short is not the picture of the whole.
    if (!open && state.painted) frame.querySelector("code").textContent = source;
    return;
  }
  if (!highlighter) {
    if (!state.waiting) load().then(() => ((state.waiting = false), highlighter && colour(frame, state)));
    state.waiting = true;
    return;
  }
  if (!highlighter.getLanguage(language)) return;
  if (open) {
    const rest = state.at + Math.max(PAUSE_MS, state.cost * SHARE) - performance.now();
    if (rest <= 0) paint(frame, state);
    else state.timer ??= setTimeout(() => ((state.timer = null), colour(frame, state)), rest);
  } else if (source.length <= AT_ONCE) paint(frame, state);
  else if (frame.classList.contains("folded")) paint(frame, state, headOf(source));
  else whenIdle(() => paint(frame, state));
}

function whenIdle(work) {
  if (window.requestIdleCallback) requestIdleCallback(work, { timeout: 1000 });
  else setTimeout(work, 50);
}

/** The lines of folded code that are seen. */
const headOf = (source) => source.split("\n", FOLD_LINES).join("\n");

/** `head`: the beginning of the source that is coloured; the rest stays plain. */
function paint(frame, state, head = state.source) {
  const { source, language } = state;
  if (state.painted === head) return;
  const began = performance.now();
  const { value } = highlighter.highlight(head, { language, ignoreIllegals: true });
  const coloured = cleanColours(value);
  coloured.append(source.slice(head.length));
  coloured.normalize();
  morph(frame.querySelector("code"), coloured);
  state.painted = head;
  state.at = performance.now();
  state.cost = state.at - began;
}

// --- long code ---

const lines = (source) => text(source).split("\n").length;

function foldIfLong(frame, state) {
  const button = frame.querySelector(".code-more");
  if (state.open || !state.fold || lines(state.source) <= FOLD_LINES) {
    button?.remove();
    frame.classList.remove("folded");
    return;
  }
  const byHand = folds.get(state.source);
  if (byHand === undefined && button) return; // decided already
  setFolded(frame, state, byHand ?? !(state.watched && isBeingRead(frame)));
}

function isBeingRead(frame) {
  const { top, bottom } = frame.getBoundingClientRect();
  if (bottom > 0 && top < window.innerHeight) return true;
  if (frame.contains(document.activeElement)) return true;
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.containsNode(frame, true));
}

function setFolded(frame, state, folded) {
  frame.classList.toggle("folded", folded);
  const button = frame.querySelector(".code-more") ?? h("button", { type: "button", class: "code-more" });
  const n = lines(state.source);
  button.textContent = folded
    ? fill(ngettext("Show all %(n)s line", "Show all %(n)s lines", n), { n })
    : gettext("Show less");
  button.setAttribute("aria-expanded", String(!folded));
  if (button.parentElement) return;
  frame.append(button);
  button.addEventListener("click", () => {
    const fold = !frame.classList.contains("folded");
    if (folds.size >= REMEMBERED) folds.delete(folds.keys().next().value);
    folds.set(state.source, fold);
    // The view may be following the end of the text; now the reader is here.
    frame.dispatchEvent(new CustomEvent("reading", { bubbles: true }));
    setFolded(frame, state, fold);
    if (!fold) colour(frame, state);
    if (fold) frame.scrollIntoView({ block: "nearest" });
  });
}

// --- the bar ---

const text = (source) => source.replace(/\n$/, "");

const wraps = () => recall(WRAP) === "1";

function applyWrap(on) {
  document.documentElement.toggleAttribute("data-wrap", on);
  for (const button of document.querySelectorAll(".code .wrap")) button.setAttribute("aria-pressed", String(on));
}

/** All blocks at once; the one whose button was pressed stays where it is. */
function setWrap(button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  keep(WRAP, on ? "1" : "0");
  button.dispatchEvent(new CustomEvent("reading", { bubbles: true }));
  const before = button.getBoundingClientRect().top;
  applyWrap(on);
  const moved = button.getBoundingClientRect().top - before;
  let scroller = button.parentElement;
  while (scroller && !/auto|scroll/.test(getComputedStyle(scroller).overflowY)) scroller = scroller.parentElement;
  (scroller ?? document.scrollingElement).scrollTop += moved;
}

function save({ source, language, file }) {
  const given = file?.replace(/^title=/, "").replace(/["']/g, "").split("/").at(-1);
  const name = given || NAMES[language] || `code.${EXTENSIONS[language] ?? "txt"}`;
  const url = URL.createObjectURL(new Blob([text(source), "\n"], { type: "text/plain" }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

applyWrap(wraps());
