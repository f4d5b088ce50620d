/* The quiet line under a message: what can be done with it, which of several it is, when it was, and what it took. */

import { copyButton, h, icon } from "#octavo/dom.js";
import { exactTime, figures, figuresMeaning, relativeTime } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { placeOf } from "#octavo/tree.js";

export class Footer {
  /** `acts`: what its buttons do, none for a message that is only read; `makers`: functions that give further elements for a message, or null. */
  constructor(message, { acts, makers, edit, text }) {
    Object.assign(this, { message, acts, makers, showing: text });
    this.figures = h("span", { class: "figures" });
    this.time = h("time");
    this.copy = copyButton(() => this.message.text, { class: "action", "data-action": "copy", title: gettext("Copy") });
    this.quote = iconAction("quote", gettext("Quote"), "text-quote", () => acts.quote(this.message, this.#selected()));
    // A press on it must not take away what is selected.
    this.quote.addEventListener("mousedown", (event) => event.preventDefault());
    this.own =
      message.role === "user"
        ? iconAction("edit", gettext("Edit"), "pencil", edit)
        : iconAction("regenerate", gettext("Answer again"), "refresh-cw", () => acts.again(this.message));
    this.branch = new Branch((by, button) => acts.step(this.message, by, button));
    this.actions = h("span", { class: "actions" });
    this.element = h(
      "footer",
      {},
      h("span", { class: "buttons" }, this.copy, ...(acts ? [this.quote, this.own] : []), this.actions),
      this.branch.element,
      this.time,
      this.figures,
    );
  }

  update(hidden) {
    const { message } = this;
    this.element.hidden = hidden;
    if (hidden) return;
    this.copy.hidden = this.quote.hidden = message.text === "";
    this.branch.show(placeOf(message));
    this.figures.textContent = figures(message.usage, message.timing);
    this.figures.title = figuresMeaning(message.usage);
    this.#showActions();
  }

  #showActions() {
    const focused = this.actions.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    const made = this.makers.map((make) => make(this.message)).filter(Boolean);
    const before = [...this.actions.children];
    // What is put in again is out for a moment: a press that has begun on it would be lost.
    if (made.length === before.length && made.every((one, at) => one === before[at])) return;
    this.actions.replaceChildren(...made);
    if (focused) this.actions.querySelector(`[data-action="${CSS.escape(focused)}"]`)?.focus();
  }

  tick(now) {
    const { created_at } = this.message;
    if (!created_at) return;
    const words = relativeTime(created_at, now);
    if (this.time.textContent !== words) this.time.textContent = words; // each second, and it seldom changes
    if (this.time.dateTime === created_at) return;
    this.time.dateTime = created_at;
    this.time.title = exactTime(created_at);
  }

  /** What the reader has selected of this message, "" for nothing. */
  #selected() {
    const selection = getSelection();
    const within = (node) => node && this.showing.contains(node);
    return within(selection.anchorNode) && within(selection.focusNode) ? selection.toString() : "";
  }
}

/** "‹ 2/3 ›": arrow keys walk, too. */
class Branch {
  constructor(step) {
    this.count = h("span", { class: "count" });
    this.back = iconAction("previous", gettext("Previous version"), "chevron-left", () => step(-1, "previous"));
    this.on = iconAction("next", gettext("Next version"), "chevron-right", () => step(1, "next"));
    this.element = h("span", { class: "branch", role: "group" }, this.back, this.count, this.on);
    this.element.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      (getComputedStyle(this.element).direction === "rtl" ? -by : by) < 0 ? this.back.click() : this.on.click();
    });
  }

  show({ at, of }) {
    this.element.hidden = of < 2;
    if (of < 2) return;
    this.count.textContent = `${at + 1}/${of}`;
    this.element.setAttribute("aria-label", fill(gettext("Version %(n)s of %(all)s"), { n: at + 1, all: of }));
    this.back.disabled = at === 0;
    this.on.disabled = at === of - 1;
  }
}

/** A button that is an icon, named for those who cannot see it and for those who point at it. */
function iconAction(name, label, image, run) {
  const properties = { type: "button", class: "action", "data-action": name, "aria-label": label, title: label };
  return h("button", { ...properties, onclick: run }, icon(image));
}
