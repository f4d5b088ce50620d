/* The sidebar: the list of conversations by day, or what a search or the archive shows in its place.

   `render(items, currentId)` may be called as often as something changes: it draws once a frame, and only rows in sight.
   `view` is what stands in the list's place: {groups(): groups of list.js, more(), foot(): elements}; null: the list. */

import { grouped, untilMidnight } from "#octavo/days.js";
import { h, onceAFrame } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";
import { ConversationList } from "#octavo/list.js";
import { Sheet } from "#octavo/sheet.js";

const SKELETON_AFTER_MS = 150;

export class Sidebar extends Sheet {
  /** `open(id, item)` shows a conversation, `more()` fetches the next part of the list; null: there is none. */
  constructor({ sidebar, list, toggles, veil, base, open, more }) {
    super({ sidebar, toggles, veil });
    Object.assign(this, { place: list, open, more });
    this.items = [];
    this.currentId = null;
    this.view = null;
    this.selected = null; // a Set of ids while several are chosen
    this.unread = () => false; // (id) => whether its answer has not been looked at
    this.seen = () => {}; // told what the list says: (items, currentId)
    this.changed = onceAFrame(() => this.#draw());
    this.list = new ConversationList({
      place: list,
      base,
      facts: () => ({ currentId: this.currentId, unread: this.unread, selected: this.selected }),
      nearEnd: () => this.#nearEnd(),
    });
    list.addEventListener("click", (event) => this.#clicked(event));
    list.addEventListener("keydown", (event) => this.#pressed(event));
    const atMidnight = () => {
      this.changed();
      setTimeout(atMidnight, untilMidnight() + 1000);
    };
    setTimeout(atMidnight, untilMidnight() + 1000);
    // A machine that slept over midnight has not heard its clock.
    document.addEventListener("visibilitychange", () => document.hidden || this.changed());
  }

  /** `items` in any order. */
  render(items, currentId) {
    const first = !this.drawn;
    this.items = items;
    this.currentId = currentId ?? null;
    this.drawn = true;
    if (first) this.#draw();
    else this.changed();
  }

  /** Show something else in the list's place, from its top; null: the list, where it was. */
  setView(view) {
    if (!this.view && view) this.top = this.place.scrollTop;
    const back = this.view && !view;
    this.view = view;
    this.#draw();
    this.place.scrollTop = back ? (this.top ?? 0) : 0;
    this.list.draw();
  }

  #draw() {
    this.seen(this.items, this.currentId);
    const groups = this.view ? this.view.groups() : grouped(this.items);
    this.list.show(groups);
    this.#drawEnd();
  }

  /** What stands under the last row. Of the list it is made anew only where it says something else: its button may have
      the focus. */
  #drawEnd() {
    const none = this.fetching || this.items.length ? "" : "none";
    const says = this.view ? "view" : this.broken ? "broken" : this.late ? "late" : none;
    if (says === this.says && says !== "view") return;
    this.says = says;
    if (says === "view") this.list.end(...this.view.foot());
    else if (says === "broken")
      this.list.end(h("p", { class: "none" }, gettext("Older chats could not be loaded."), this.#again()));
    else if (says === "late") this.list.end(skeleton());
    else if (says === "none")
      this.list.end(h("p", { class: "none", text: gettext("No conversations yet. Write a message to begin one.") }));
    else this.list.end();
  }

  async #nearEnd() {
    if (this.view) return this.view.more();
    if (this.fetching || this.broken) return;
    const fetching = this.more();
    if (!fetching) return this.#drawEnd();
    this.fetching = true;
    // Something else may stand in the list's place by then, and the list again later.
    const late = setTimeout(() => {
      this.late = true;
      this.#drawEnd();
    }, SKELETON_AFTER_MS);
    try {
      await fetching;
    } catch {
      this.broken = true;
    }
    clearTimeout(late);
    this.fetching = this.late = false;
    this.#drawEnd();
  }

  #again() {
    return h("button", {
      type: "button",
      class: "button small",
      text: gettext("Try again"),
      onclick: () => {
        this.broken = false;
        this.#nearEnd();
      },
    });
  }

  #clicked(event) {
    const link = event.target.closest("a[data-id]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
      return;
    event.preventDefault();
    if (this.isSheet) this.show(false);
    this.open(link.dataset.id);
  }

  #pressed(event) {
    if (event.defaultPrevented || !event.target.closest(".conversation")) return;
    if (event.target.matches("input:not([type=checkbox])") || event.metaKey || event.ctrlKey || event.altKey) return;
    const by = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.list.move(by);
  }
}

export function skeleton() {
  return h("div", { class: "skeleton", role: "status", "aria-label": gettext("Loading") }, h("i"), h("i"), h("i"));
}
