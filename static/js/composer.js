/* Where the reader writes: grows with the text, keeps a draft per conversation and in step with other tabs, says how much
   room is left and why something cannot be sent, sends, stops. */

import { enterBreaks, fit } from "#octavo/box.js";
import { h, icon } from "#octavo/dom.js";
import { byteLength, bytes, count } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { beingAnswered } from "#octavo/refusals.js";

// What the frame around a text needs at most.
const FRAME_BYTES = 1024;
const NEAR = 0.8;
// Tokens by how long a text is, as models with vocabularies of this size have them: rough, and said as "about".
const BYTES_OF_TOKEN = { ascii: 4, other: 2 };

/** A text and what has been written since; once, where another tab has put it there already. */
function before(text, written) {
  if (!written.trim()) return text;
  return written.includes(text) ? written : `${text}\n\n${written}`;
}

/** Under which name the draft of a conversation is kept. */
export const draftName = (whose, key) => `octavo:draft:${whose}:${key}`;

export class Composer {
  /** `form` holds textarea, .send and .stop, beside it .limit and .saying; `onSend(text)`, `onStop()`; `whose`: the
      drafts are (chat.js); `maxBytes`: of a frame; `context`: tokens that a prompt may have, null where nobody knows;
      `used()`: those that are taken already; `hindrance()`: why nothing can be sent now, in words, or ""; `onFile(file)`:
      take it along. */
  constructor(form, { whose, maxBytes, context, used, onSend, onStop, onFile, hindrance }) {
    this.form = form;
    this.input = form.querySelector("textarea");
    this.sendButton = form.querySelector(".send:not(.stop)");
    this.stopButton = form.querySelector(".stop");
    this.limit = form.parentElement.querySelector(".limit");
    this.saying = form.parentElement.querySelector(".saying");
    Object.assign(this, {
      whose,
      context,
      used,
      onSend,
      onStop,
      onFile,
      hindrance,
      maxBytes: maxBytes - FRAME_BYTES,
      answering: false,
      key: "new",
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.stopButton.addEventListener("click", () => this.onStop());
    this.input.addEventListener("input", () => {
      this.elsewhere = false;
      this.say("");
      this.#keep();
      this.#grow();
    });
    this.input.addEventListener("paste", (event) => this.#pasted(event));
    // What an input method is about to write is nobody else's to change.
    this.input.addEventListener("compositionstart", () => (this.composing = true));
    this.input.addEventListener("compositionend", () => (this.composing = false));
    addEventListener("storage", (event) => event.key === this.#name() && this.#follow(event.newValue));
    // A page that slept has heard of nothing.
    addEventListener("focus", () => this.#storage((store) => this.#follow(store.getItem(this.#name()))));
    // What was written before this script had come.
    this.early = this.input.value;
    this.input.enterKeyHint = enterBreaks() ? "enter" : "send";
    this.form.dataset.ready = "";
  }

  #name(key = this.key) {
    return draftName(this.whose, key ?? "new");
  }

  /** Show the draft of a conversation (null: of the new one). */
  open(conversationId) {
    this.key = conversationId ?? "new";
    this.say("");
    this.put((this.#storage((store) => store.getItem(this.#name())) ?? "") + this.early);
    this.early = "";
  }

  /** The conversation that was new now has an id: what is being written goes with it, unless another tab is writing it,
      for a new chat of its own. */
  rename(conversationId) {
    if (this.elsewhere) return this.open(conversationId);
    this.#storage((store) => store.removeItem(this.#name()));
    this.key = conversationId;
    this.#keep();
  }

  /** Keep a text as the draft of a conversation, before what that has. */
  keepFor(conversationId, text) {
    if ((conversationId ?? "new") === this.key) return this.giveBack(text);
    const name = this.#name(conversationId);
    this.#storage((store) => store.setItem(name, before(text, store.getItem(name) ?? "")));
  }

  /** A text comes back that was sent: before what has been written since. */
  giveBack(text) {
    this.put(before(text, this.input.value));
  }

  put(text) {
    this.elsewhere = false;
    this.input.value = text;
    this.#keep();
    this.#grow();
  }

  setAnswering(answering) {
    if (this.answering && !answering) this.say("");
    this.answering = answering;
    const stopHadFocus = document.activeElement === this.stopButton;
    this.stopButton.hidden = !answering;
    this.sendButton.hidden = answering;
    if (stopHadFocus && !answering) this.input.focus();
    this.#grow();
  }

  /** What else goes with a question has changed. */
  refresh() {
    if (this.hindered && !this.hindrance()) this.say("");
    this.#grow();
  }

  focus() {
    this.input.focus({ preventScroll: true });
  }

  /** Send what is written, or say in place why not. */
  send() {
    const text = this.input.value;
    const hindrance = this.hindrance();
    if (!text.trim()) {
      if (hindrance) this.#hinder(hindrance);
      return;
    }
    if (this.answering) {
      this.#hinder(beingAnswered());
    } else if (this.#size(text) > this.maxBytes) this.#tooLong(text, gettext("This text"));
    else if (hindrance) this.#hinder(hindrance);
    else {
      // An empty box disables the button, which would lose the focus. On a phone the keyboard goes away meanwhile.
      const pressed = this.sendButton.matches(enterBreaks() ? ":focus-visible" : ":focus");
      this.say("");
      this.put("");
      if (pressed) this.focus();
      this.onSend(text);
    }
  }

  /** A line above the box; `action`: {label, run}. Nothing: it goes. */
  say(words, action = null) {
    this.hindered = false;
    this.saying.hidden = !words;
    const button = action
      ? h("button", { type: "button", class: "button small", text: action.label, onclick: action.run })
      : "";
    if (words) this.saying.replaceChildren(icon("circle-alert"), h("span", { class: "notice-text", text: words }), button);
    else this.saying.replaceChildren();
  }

  #hinder(words) {
    this.say(words);
    this.hindered = true;
  }

  // --- too much ----------------------------------------------------------------------------------------------------

  #size(text) {
    // Nothing becomes more than six times as long, so most texts need no counting.
    return text.length * 6 < this.maxBytes * NEAR ? 0 : byteLength(JSON.stringify(text));
  }

  /** A text that no message can hold is not put into the box, and not lost: it may go along as a file. */
  #pasted(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const { value, selectionStart, selectionEnd } = this.input;
    const whole = value.slice(0, selectionStart) + text + value.slice(selectionEnd);
    if (!text || this.#size(whole) <= this.maxBytes) return;
    event.preventDefault();
    this.#tooLong(text, gettext("What you pasted"), true);
  }

  #tooLong(text, what, pasted = false) {
    const words = fill(gettext("%(what)s has %(size)s, and a message may have %(most)s."), {
      what,
      size: bytes(byteLength(text)),
      most: bytes(this.maxBytes),
    });
    const attach = {
      label: gettext("Attach it as a file instead"),
      run: () => {
        this.say("");
        if (!pasted) this.put("");
        this.onFile(new File([text], gettext("Pasted text") + ".txt", { type: "text/plain" }));
        this.focus();
      },
    };
    this.say(words, attach);
  }

  /** About how many tokens a text takes. */
  #tokens(text) {
    const ascii = text.replace(/[^\x00-\x7f]+/g, "").length;
    const other = ascii === text.length ? 0 : byteLength(text) - ascii;
    return Math.ceil(ascii / BYTES_OF_TOKEN.ascii + other / BYTES_OF_TOKEN.other);
  }

  // --- drafts ------------------------------------------------------------------------------------------------------

  #keep() {
    this.kept = this.#storage((store) => {
      if (this.input.value) store.setItem(this.#name(), this.input.value);
      else store.removeItem(this.#name());
      return true;
    });
  }

  /** Another tab has changed this draft: the last writer's words hold. What is written here is kept at each key, so nothing
      is lost but what another one has changed on purpose. */
  #follow(text) {
    if (this.composing || !this.kept || this.input.value === (text ?? "")) return;
    this.elsewhere = true;
    this.input.value = text ?? "";
    this.#grow();
  }

  #storage(work) {
    try {
      return work(localStorage);
    } catch {
      return null; // switched off or full: the draft lives as long as the page
    }
  }

  // --- showing -----------------------------------------------------------------------------------------------------

  #grow() {
    const { input } = this;
    fit(input);
    const size = this.#size(input.value);
    const over = size > this.maxBytes;
    const words = this.#room(input.value, size);
    this.limit.hidden = !words;
    this.limit.classList.toggle("over", over);
    if (this.limit.textContent !== words) this.limit.textContent = words;
    const hindrance = this.hindrance();
    this.sendButton.disabled = !input.value.trim() || over || Boolean(hindrance);
    this.sendButton.title = hindrance;
  }

  /** How near the text is to a limit, in words; "" where there is room. */
  #room(text, size) {
    if (size >= this.maxBytes * NEAR) {
      const values = { size: bytes(size), most: bytes(this.maxBytes) };
      return size > this.maxBytes
        ? fill(gettext("%(size)s of %(most)s: too long to send, shorten it"), values)
        : fill(gettext("%(size)s of the %(most)s that a message may have"), values);
    }
    // Counting is not worth it while even one token a byte would fit.
    if (!this.context || text.length < 200) return "";
    const taken = this.used();
    const tokens = this.#tokens(text);
    if (taken + tokens < this.context * NEAR) return "";
    const values = { tokens: count(tokens), room: count(Math.max(0, this.context - taken)) };
    return taken + tokens > this.context
      ? fill(gettext("About %(tokens)s tokens, and there is room for %(room)s: it may be refused"), values)
      : fill(gettext("About %(tokens)s of the %(room)s tokens that there is room for"), values);
  }
}
