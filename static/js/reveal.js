/* Brings a message into sight and marks it, and words in it, for a while: where a search has led. Marks are ranges that
   the browser paints (CSS.highlights): the message's own elements stay as they are. */

import { leafThrough, shownAs } from "#octavo/tree.js";

const SHOWN_MS = 6000;
let timer;

/** Show a conversation at what a search has found in it. `hit`: the search's; without one, or with its title alone, where it
    opens by itself. */
export async function visitHit(workspace, id, hit) {
  await workspace.visit(id);
  if (!hit?.message || workspace.current?.id !== id) return;
  const words = hit.message.snippet.filter((part) => part.marked).map((part) => part.text);
  reveal(workspace, hit.message.message_id, words);
}

/** `words`: as they stand in the text. Says whether the message is there; one of another branch brings that along. */
export function reveal({ log, session, current }, messageId, words) {
  const message = current?.messages.find((one) => one.id === messageId);
  if (!message) return false;
  const leaf = leafThrough(current, message);
  if (leaf !== (current.leaf ?? null)) {
    current.leaf = leaf;
    session.notify({ kind: "branch", conversation: current, message });
  }
  const seen = shownAs(message);
  if (!log.reveal(seen.id, log.scroller.clientHeight / 3)) return false;
  mark(log.row(seen).element, words);
  return true;
}

function mark(element, words) {
  clearTimeout(timer);
  document.querySelector(".message.found")?.classList.remove("found");
  element.classList.add("found");
  const text = element.querySelector(".text") ?? element;
  globalThis.CSS?.highlights?.set("found", new Highlight(...ranges(text, words)));
  timer = setTimeout(() => {
    element.classList.remove("found");
    globalThis.CSS?.highlights?.delete("found");
  }, SHOWN_MS);
}

function ranges(element, words) {
  const wanted = [...new Set(words.map((word) => word.toLowerCase()))].filter(Boolean);
  const found = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue; // some letters are longer in small: places would be wrong
    for (const word of wanted)
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        found.push(range);
      }
  }
  return found;
}
