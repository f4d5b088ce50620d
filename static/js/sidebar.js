/* The list of conversations by day, in the sidebar. */

import { h } from "#octavo/dom.js";
import { dayGroup, exactTime } from "#octavo/format.js";
import { Sheet } from "#octavo/sheet.js";

export class Sidebar extends Sheet {
  /** `open(id)` shows a conversation, `more()` fetches the next part of the list. */
  constructor({ sidebar, list, toggles, veil, base, open, more }) {
    super({ sidebar, toggles, veil });
    Object.assign(this, { list, base, open });
    list.addEventListener("click", (event) => this.#clicked(event));
    this.end = h("div");
    new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && more(), {
      root: list,
      rootMargin: "240px",
    }).observe(this.end);
  }

  #clicked(event) {
    const link = event.target.closest("a[data-id]");
    if (
      !link ||
      event.defaultPrevented ||
      event.button ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      event.altKey
    )
      return;
    event.preventDefault();
    if (this.isSheet) this.show(false);
    this.open(link.dataset.id);
  }

  /** `items` in the order of the server: newest first. */
  render(items, currentId) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    const sections = [];
    let group = null;
    let entries = null;
    for (const item of items) {
      const name = dayGroup(item.updated_at);
      if (name !== group) {
        group = name;
        entries = h("ul");
        sections.push(h("section", {}, h("h2", { text: name }), entries));
      }
      entries.append(h("li", {}, this.#link(item, currentId)));
    }
    const none =
      items.length === 0
        ? h("p", { class: "none", text: "No conversations yet. Write a message to begin one." })
        : null;
    this.list.replaceChildren(...sections, ...(none ? [none] : []), this.end);
    if (focused) this.list.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus();
  }

  #link(item, currentId) {
    return h(
      "a",
      {
        href: `${this.base}c/${item.id}`,
        "data-id": item.id,
        "aria-current": item.id === currentId ? "page" : null,
        title: exactTime(item.updated_at),
      },
      h("span", { class: "title", text: item.title || "Untitled" }),
      item.running ? h("span", { class: "dot", role: "img", "aria-label": "is being answered" }) : null,
    );
  }
}
