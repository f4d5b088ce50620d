/* A question that is put in other words, in its own place: Enter sends, Escape leaves it as it is. */

import { enterBreaks, fit } from "#octavo/box.js";
import { h } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";

export class Editor {
  /** `onSend(text)`, `onCancel()`, `onWrite(text)` with each change. */
  constructor(text, { onSend, onCancel, onWrite }) {
    Object.assign(this, { onSend, onCancel, onWrite });
    this.input = h("textarea", { "aria-label": gettext("Edit your message"), rows: "1", dir: "auto" });
    this.input.value = text;
    this.send = h("button", { type: "submit", class: "button primary small" }, gettext("Send"));
    const cancel = h("button", { type: "button", class: "button small", onclick: () => onCancel() }, gettext("Cancel"));
    const hint = gettext("The former one stays, and can be gone back to.");
    this.element = h(
      "form",
      { class: "editor" },
      this.input,
      h("div", { class: "editor-foot" }, h("span", { class: "hint" }, hint), cancel, this.send),
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.input.addEventListener("input", () => {
      this.onWrite(this.input.value);
      this.#changed();
    });
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.#changed();
  }

  focus() {
    this.input.focus();
    this.input.setSelectionRange(this.input.value.length, this.input.value.length);
  }

  #key(event) {
    // An input method's Enter chooses a candidate, and its Escape drops one.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation(); // which would stop an answer
      this.onCancel();
    } else if (event.key === "Enter" && event.target === this.input && this.#sends(event)) {
      event.preventDefault();
      event.stopPropagation();
      this.#submit();
    }
  }

  #sends({ shiftKey, metaKey, ctrlKey }) {
    return metaKey || ctrlKey || !(shiftKey || enterBreaks());
  }

  #submit() {
    if (this.input.value.trim()) this.onSend(this.input.value);
  }

  #changed() {
    this.send.disabled = !this.input.value.trim();
    fit(this.input);
  }
}
