/* Where the reader writes: grows with the text, keeps a draft per conversation, sends, stops. */

import { byteLength, count } from "#octavo/format.js";

// What the frame around a text needs at most.
const FRAME_BYTES = 1024;
const NEAR = 0.8;

export class Composer {
  /** `form` holds textarea, .send, .stop, .limit; `onSend(text)`, `onStop()`; `maxBytes`: of a frame; `hindrance()`: why
      nothing can be sent now, in words, or "". */
  constructor(form, { tenant, maxBytes, onSend, onStop, hindrance = () => "" }) {
    this.form = form;
    this.input = form.querySelector("textarea");
    this.sendButton = form.querySelector(".send:not(.stop)");
    this.stopButton = form.querySelector(".stop");
    this.limit = form.parentElement.querySelector(".limit");
    Object.assign(this, {
      tenant,
      onSend,
      onStop,
      hindrance,
      maxBytes: maxBytes - FRAME_BYTES,
      answering: false,
      key: "new",
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.stopButton.addEventListener("click", () => this.onStop());
    this.input.addEventListener("input", () => {
      this.#keep();
      this.#grow();
    });
    this.input.addEventListener("keydown", (event) => {
      // An input method's Enter chooses a candidate and sends nothing.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    // What was written before this script had come.
    this.early = this.input.value;
    this.form.dataset.ready = "";
  }

  get #draft() {
    return `octavo:draft:${this.tenant}:${this.key}`;
  }

  /** Show the draft of a conversation (null: of the new one). */
  open(conversationId) {
    this.key = conversationId ?? "new";
    this.put((this.#storage((store) => store.getItem(this.#draft)) ?? "") + this.early);
    this.early = "";
  }

  /** The conversation that was new now has an id: what is being written goes with it. */
  rename(conversationId) {
    this.#storage((store) => store.removeItem(this.#draft));
    this.key = conversationId;
    this.#keep();
  }

  /** Keep a text as the draft of a conversation that is not shown, unless it has one. */
  keepFor(conversationId, text) {
    const name = `octavo:draft:${this.tenant}:${conversationId ?? "new"}`;
    this.#storage((store) => store.getItem(name) || store.setItem(name, text));
  }

  put(text) {
    this.input.value = text;
    this.#keep();
    this.#grow();
  }

  setAnswering(answering) {
    this.answering = answering;
    const stopHadFocus = document.activeElement === this.stopButton;
    this.stopButton.hidden = !answering;
    this.sendButton.hidden = answering;
    if (stopHadFocus && !answering) this.input.focus();
    this.#grow();
  }

  /** What else goes with a question has changed. */
  refresh() {
    this.#grow();
  }

  focus() {
    this.input.focus({ preventScroll: true });
  }

  #send() {
    const text = this.input.value;
    if (this.answering || !text.trim() || this.#over() || this.hindrance()) return;
    this.put("");
    this.onSend(text);
  }

  #over() {
    return byteLength(JSON.stringify(this.input.value)) > this.maxBytes;
  }

  #keep() {
    this.#storage((store) => {
      if (this.input.value) store.setItem(this.#draft, this.input.value);
      else store.removeItem(this.#draft);
    });
  }

  #storage(work) {
    try {
      return work(localStorage);
    } catch {
      return null; // switched off or full: the draft lives as long as the page
    }
  }

  #grow() {
    if (!CSS.supports("field-sizing", "content")) {
      this.input.style.height = "auto";
      this.input.style.height = `${this.input.scrollHeight}px`;
    }
    const bytes =
      this.input.value.length * 4 < this.maxBytes * NEAR ? 0 : byteLength(JSON.stringify(this.input.value));
    const over = bytes > this.maxBytes;
    this.limit.hidden = bytes < this.maxBytes * NEAR;
    this.limit.classList.toggle("over", over);
    const size = `${count(Math.ceil(bytes / 1024))} of ${count(Math.floor(this.maxBytes / 1024))} KB`;
    this.limit.textContent = over ? `${size}: too long to send, shorten it` : size;
    const hindrance = this.hindrance();
    this.sendButton.disabled = !this.input.value.trim() || over || Boolean(hindrance);
    this.sendButton.title = hindrance;
  }
}
