/* The reading column: the messages of the shown conversation, and where the reader is in it.

   Messages that change are drawn once a frame, however many events came. The view follows the end while the reader is
   there; otherwise nothing moves, and a button leads back. */

import { h } from "#octavo/dom.js";
import { MessageView } from "#octavo/message.js";
import { shown } from "#octavo/tree.js";

// So near to the end a reader is at the end.
const NEAR_PX = 48;
const SKELETON_AFTER_MS = 150;

export class Log {
  /** `message`: what each MessageView is given. */
  constructor({ scroller, log, jump, empty, message }) {
    Object.assign(this, { scroller, log, jump, empty, given: message });
    this.views = new Map();
    this.changed = new Set();
    this.following = true;
    this.top = 0;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.following && this.toEnd()).observe(log);
  }

  show(conversation) {
    clearTimeout(this.loading);
    this.conversation = conversation;
    this.views.clear();
    this.log.replaceChildren();
    this.refresh();
    this.toEnd();
  }

  /** A conversation is on its way; bars stand for it if it takes long. */
  wait() {
    clearTimeout(this.loading);
    this.conversation = null;
    this.loading = setTimeout(() => {
      this.views.clear();
      this.empty.hidden = true;
      this.log.replaceChildren(
        h(
          "div",
          { class: "skeleton", role: "status", "aria-label": "Loading" },
          ...Array.from({ length: 6 }, () => h("i")),
        ),
      );
    }, SKELETON_AFTER_MS);
  }

  /** Something other than a conversation: what went wrong, and a way on. */
  say(element) {
    clearTimeout(this.loading);
    this.conversation = null;
    this.views.clear();
    this.empty.hidden = true;
    this.log.replaceChildren(element);
  }

  /** Messages came or went. */
  refresh() {
    const path = shown(this.conversation);
    const views = new Map();
    let before = null;
    for (const message of path) {
      const view = this.views.get(message) ?? new MessageView(message, this.given);
      views.set(message, view);
      const place = before ? before.nextSibling : this.log.firstChild;
      if (place !== view.element) this.log.insertBefore(view.element, place);
      view.element.classList.toggle("latest", message === path.at(-1));
      before = view.element;
    }
    while (before ? before.nextSibling : this.log.firstChild)
      (before ? before.nextSibling : this.log.firstChild).remove();
    this.views = views;
    this.empty.hidden = path.length > 0;
    this.log.hidden = path.length === 0;
    if (this.following) this.toEnd();
    this.#showJump();
  }

  /** Draw a message again with the next frame. */
  touch(message) {
    if (!this.views.has(message)) return;
    if (this.changed.size === 0) this.#nextFrame(() => this.#draw());
    this.changed.add(message);
  }

  #nextFrame(work) {
    // A hidden tab has no frames; its page still has to be right.
    if (document.hidden) setTimeout(work, 100);
    else requestAnimationFrame(work);
  }

  #draw() {
    const changed = [...this.changed];
    this.changed.clear();
    for (const message of changed) this.views.get(message)?.update();
    if (this.following) this.toEnd();
    else this.#showJump();
  }

  tick() {
    const now = Date.now();
    for (const view of this.views.values()) view.tick(now);
  }

  toEnd() {
    this.following = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
    this.#showJump();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    // Growth from below is not the reader's doing: only going up leaves the end.
    if (atEnd) this.following = true;
    else if (scrollTop < this.top) this.following = false;
    this.top = scrollTop;
    this.#showJump();
  }

  #showJump() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.jump.hidden = this.following || scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }
}
