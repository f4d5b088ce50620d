/* Brings a message into sight and marks it, and words in it, for a while: where a search has led. Marks are ranges that
   the browser paints (CSS.highlights): the message's own elements stay as they are. */

const SHOWN_MS = 6000;
let timer;

/** `words`: as they stand in the text. Says whether the message is there. */
export function reveal({ log, current }, messageId, words) {
  const message = current?.messages.find((one) => one.id === messageId);
  if (!message) return false;
  log.following = false;
  log.reveal?.(message.id); // where messages out of sight are not drawn
  const element = log.views.get(message)?.element;
  if (!element) return false;
  element.scrollIntoView({ block: "center" });
  mark(element, words);
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
