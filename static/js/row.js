/* One message's place in the log: rendered while it is near the reader, its plain text in a box of the same height else.

   The plain text stays in the page, so that the browser's own search and screen readers meet all of a conversation; what
   costs (markdown, highlighting, buttons) is there for what is near only. */

import { LIVE } from "#octavo/answer.js";
import { MessageView, plainMessage } from "#octavo/message.js";

export class Row {
  /** `given`: what a MessageView is given; `height`: about how high it will be. */
  constructor(message, given, height) {
    Object.assign(this, { message, given, height, view: null, leaf: null });
    this.length = message.text.length; // of the text that it shows
    this.element = this.#plain();
  }

  get loaded() {
    return this.view !== null;
  }

  /** What would be lost with its elements: an answer that grows, the reader's focus, selection, or writing. */
  get held() {
    const { element } = this;
    if (LIVE.has(this.message.status) || element.matches(":focus-within")) return true;
    if (element.querySelector("textarea, dialog[open]")) return true;
    const selection = getSelection();
    return !selection.isCollapsed && selection.containsNode(element, true);
  }

  load() {
    if (this.loaded) return;
    this.leaf?.open();
    this.view = new MessageView(this.message, this.given);
    this.#become(this.view.element);
  }

  /** `height`: as it is now. */
  unload(height) {
    if (!this.loaded) return;
    this.height = height;
    this.view = null;
    this.#become(this.#plain());
  }

  /** `length`: of the text that is to be shown, where not all of it is yet. */
  update(length = Infinity) {
    this.length = Math.min(length, this.message.text.length);
    if (this.view) return this.view.update(length);
    if (this.element.lastChild.textContent !== this.message.text) this.#become(this.#plain());
    this.element.dataset.id = this.message.id;
  }

  /** Put the message in other words; `text`: what was written already. */
  edit(text) {
    this.load();
    this.view.edit(text);
  }

  tick(now) {
    this.view?.tick(now);
  }

  #plain() {
    const element = plainMessage(this.message, this.given);
    element.style.blockSize = `${this.height}px`;
    return element;
  }

  #become(element) {
    element.classList.toggle("latest", this.element.classList.contains("latest"));
    this.element.replaceWith(element);
    this.element = element;
  }
}
