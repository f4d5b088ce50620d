/* Why what was asked for was not accepted, above the composer: until it is tried again, or its reason is gone. */

import { h, icon } from "#octavo/dom.js";
import { fill, gettext } from "#octavo/i18n.js";
import { inWords } from "#octavo/refusals.js";

/** How many seconds are left of the time that a refusal asks for. Pure. */
export const secondsLeft = (error, since, now) =>
  Math.max(0, Math.ceil(((error.retry_after_ms ?? 0) - (now - since)) / 1000));

export class Refusal {
  /** `element`: where it is said. */
  constructor(element, { now = () => Date.now() } = {}) {
    Object.assign(this, { element, now, error: null });
  }

  /** `again()` tries once more, where that can help; not before the time that the error names. */
  show(error, again) {
    this.hide();
    this.error = error;
    this.since = this.now();
    this.button = null;
    if (again && error.retryable) {
      this.button = h("button", { type: "button", class: "button small", "aria-live": "off" }); // each second is no news
      this.button.addEventListener("click", () => {
        this.hide();
        again();
      });
      this.clock = setInterval(() => this.#tick(), 250);
    }
    this.element.replaceChildren(
      icon("circle-alert"),
      h("span", { class: "notice-text", text: inWords(error) }),
      this.button ?? "",
    );
    this.element.hidden = false;
    this.#tick();
  }

  hide() {
    clearInterval(this.clock);
    this.error = null;
    this.element.hidden = true;
    this.element.replaceChildren();
  }

  /** Nothing is being answered here any more: who was told to wait for that need not. */
  answered() {
    if (this.error?.code === "conversation_busy") this.hide();
  }

  #tick() {
    if (!this.button) return;
    const left = secondsLeft(this.error, this.since, this.now());
    this.button.disabled = left > 0;
    const text = left ? fill(gettext("Try again in %(n)s s"), { n: left }) : gettext("Try again");
    if (this.button.textContent !== text) this.button.textContent = text;
    if (!left) clearInterval(this.clock);
  }
}
