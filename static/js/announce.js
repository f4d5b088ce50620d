/* Says answers to screen readers while they come: sentence by sentence, no faster than they are spoken, and how they end.
   A feature of chat.js.

   The log itself is silent (aria-live="off"): its elements change many times a second. What is to be heard is put into one
   polite live region, a few sentences at a time. */

import { LIVE } from "#octavo/answer.js";
import { h } from "#octavo/dom.js";
import { gettext, language } from "#octavo/i18n.js";
import { Sentences } from "#octavo/sentences.js";
import { speaking } from "#octavo/speaking.js";

// How often a growing answer is looked at, and how long a character takes to be spoken (about 180 words a minute).
const LOOK_MS = 500;
const CHARACTER_MS = 60;
const LEAST_MS = 800;
// Sentences that wait are said together, up to this many characters: fewer interruptions for who reads elsewhere.
const MOST_TOGETHER = 240;

export function install(workspace) {
  const region = h("div", { class: "only-read", role: "status", "aria-live": "polite", id: "spoken" });
  document.querySelector("main").append(region);
  const queue = [];
  let reading = null; // {message, sentences}
  let pause = 0;
  let look = 0;

  const endings = {
    completed: gettext("The answer is complete."),
    incomplete: gettext("The answer was cut."),
    cancelled: gettext("The answer was stopped."),
    failed: gettext("The answer failed."),
  };

  function silence() {
    clearTimeout(pause);
    clearTimeout(look);
    pause = look = 0;
    queue.length = 0;
    reading = null;
  }

  function begin(message) {
    silence();
    reading = { message, sentences: new Sentences(language()) };
  }

  function take() {
    look = 0;
    if (!reading) return;
    const { message, sentences } = reading;
    const live = LIVE.has(message.status);
    const found = sentences.take(message.text, live);
    if (speaking.on && message.status !== "cancelled") queue.push(...found);
    if (!live) {
      // Who stopped it does not want to hear the rest, nor to wait for the word that it is so.
      if (message.status === "cancelled") {
        queue.length = 0;
        clearTimeout(pause);
        pause = 0;
      }
      queue.push(endings[message.status] ?? "");
      reading = null;
      workspace.log.log.removeAttribute("aria-busy");
    }
    if (!pause) say();
  }

  function say() {
    pause = 0;
    let words = queue.shift();
    if (words === undefined) return;
    while (queue.length && words.length + queue[0].length < MOST_TOGETHER) words += ` ${queue.shift()}`;
    region.textContent = words;
    pause = setTimeout(say, Math.max(LEAST_MS, words.length * CHARACTER_MS));
  }

  workspace.on("shown", () => {
    silence();
    region.textContent = "";
    const message = workspace.session.live(workspace.current);
    workspace.log.log.toggleAttribute("aria-busy", false);
    if (!message) return;
    // What stands there already can be read; what comes is heard.
    begin(message);
    reading.sentences.take(message.text, true);
  });

  workspace.on("changed", ({ kind, conversation, message }) => {
    if (kind !== "message" || conversation !== workspace.current || message.role !== "assistant") return;
    if (LIVE.has(message.status) && reading?.message !== message) begin(message);
    if (reading?.message !== message) return;
    if (LIVE.has(message.status)) workspace.log.log.setAttribute("aria-busy", "true");
    if (!LIVE.has(message.status)) {
      clearTimeout(look);
      take();
    } else look ||= setTimeout(take, LOOK_MS);
  });
}
