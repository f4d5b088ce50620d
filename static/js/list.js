/* Conversations in groups, of which only those in sight are in the document: ten thousand cost what fifty do.

   `show(groups)` says what there is: [{key, name, items}]; an item with a `hit` of a search is a taller row. Rows are kept
   by the id of their conversation and changed where they are; scrolling draws those that come into sight. There are two
   heights of rows, so the place of each is known without drawing it. */

import { h, icon, onceAFrame } from "#octavo/dom.js";
import { exactTime } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";

const AROUND_PX = 400;
const GUESS_PX = { row: 36, hit: 76, heading: 36 };
const kindOf = (item) => (item.hit?.message ? "hit" : "row");

export class ConversationList {
  /** `facts()`: {currentId, unread, selected: a Set or null}. `nearEnd()`: the reader comes to the end of what there is. */
  constructor({ place, base, facts, nearEnd }) {
    Object.assign(this, { place, base, facts, nearEnd });
    this.groups = [];
    this.views = new Map(); // key of a group -> {section, heading, list, rows: id -> row}
    this.heights = { ...GUESS_PX };
    this.active = null; // the row that Tab leads to
    this.foot = h("div", { class: "list-foot" });
    this.later = onceAFrame(() => this.draw());
    place.replaceChildren(this.foot);
    place.addEventListener("scroll", () => this.later(), { passive: true });
    place.addEventListener("focusin", (event) => this.#focused(event));
    new ResizeObserver(() => this.draw()).observe(place);
  }

  show(groups) {
    this.groups = groups;
    this.draw();
  }

  draw() {
    const { scrollTop, clientHeight } = this.place;
    const facts = this.facts();
    const keys = new Set();
    let top = 0;
    let before = null;
    for (const group of this.groups) {
      keys.add(group.key);
      const view = this.views.get(group.key) ?? this.#section(group);
      if (view.heading.textContent !== group.name) view.heading.textContent = group.name;
      view.heading.hidden = !group.name;
      if ((before ? before.nextSibling : this.place.firstChild) !== view.section)
        this.place.insertBefore(view.section, before ? before.nextSibling : this.place.firstChild);
      before = view.section;
      top += group.name ? this.heights.heading : 0;
      const { from, to, before: above, after } = this.#window(group.items, scrollTop - AROUND_PX - top, scrollTop + clientHeight + AROUND_PX - top);
      view.list.style.paddingBlockStart = `${above}px`;
      view.list.style.paddingBlockEnd = `${after}px`;
      this.#rows(view, group.items, from, to, facts);
      top += this.#heightOf(group.items);
    }
    for (const [key, view] of this.views) {
      if (keys.has(key)) continue;
      view.section.remove();
      this.views.delete(key);
    }
    this.#tabStop();
    this.#measure();
    if (top - scrollTop - clientHeight < 2 * AROUND_PX) this.nearEnd();
  }

  /** Elements under the last row: that more is on its way, or why not. */
  end(...elements) {
    this.foot.replaceChildren(...elements);
  }

  row(id) {
    return this.place.querySelector(`.conversation[data-id="${CSS.escape(id)}"]`);
  }

  /** Ids in the order in which they are shown. */
  ids() {
    return this.groups.flatMap((group) => group.items.map((item) => item.id));
  }

  /** Bring a row into sight and give it the focus. */
  focus(id) {
    let top = 0;
    for (const group of this.groups) {
      top += group.name ? this.heights.heading : 0;
      const at = group.items.findIndex((item) => item.id === id);
      if (at >= 0) {
        const begin = top + this.#heightOf(group.items.slice(0, at));
        const height = this.heights[kindOf(group.items[at])];
        const { scrollTop, clientHeight } = this.place;
        if (begin < scrollTop) this.place.scrollTop = begin - this.heights.heading;
        else if (begin + 2 * height > scrollTop + clientHeight) this.place.scrollTop = begin + 2 * height - clientHeight;
        this.active = id;
        this.draw();
        this.row(id)?.querySelector("a")?.focus({ preventScroll: true });
        return;
      }
      top += this.#heightOf(group.items);
    }
  }

  /** Move the focus by rows from the one that has it; ±Infinity: to an end. */
  move(by) {
    const ids = this.ids();
    if (!ids.length) return;
    const at = ids.indexOf(document.activeElement?.closest?.(".conversation")?.dataset.id);
    this.focus(ids[clamp(at < 0 ? 0 : at + by, 0, ids.length - 1)]);
  }

  #section(group) {
    const heading = h("h2", { text: group.name });
    const list = h("ul");
    const view = { section: h("section", { "data-group": group.key }, heading, list), heading, list, rows: new Map() };
    this.views.set(group.key, view);
    return view;
  }

  #heightOf(items) {
    const hits = items[0]?.hit ? items.reduce((sum, item) => sum + (kindOf(item) === "hit"), 0) : 0;
    return hits * this.heights.hit + (items.length - hits) * this.heights.row;
  }

  /** Which of a group's items lie between two heights of it, and how high those before and after are together. */
  #window(items, top, bottom) {
    const { row } = this.heights;
    let from = clamp(Math.floor(top / row), 0, items.length);
    let to = clamp(Math.ceil(bottom / row), from, items.length);
    if (items[0]?.hit) {
      let height = 0;
      from = to = 0;
      for (const [at, item] of items.entries()) {
        if (height < bottom) to = at + 1;
        height += this.heights[kindOf(item)];
        if (height < top) from = at + 1;
      }
      from = Math.min(from, to);
    }
    return { from, to, before: this.#heightOf(items.slice(0, from)), after: this.#heightOf(items.slice(to)) };
  }

  #rows(view, items, from, to, facts) {
    const kept = new Set();
    let before = null;
    for (let at = from; at < to; at++) {
      const item = items[at];
      kept.add(item.id);
      let row = view.rows.get(item.id);
      if (!row) view.rows.set(item.id, (row = new Row(this.base)));
      row.update(item, facts);
      const place = before ? before.nextSibling : view.list.firstChild;
      if (place !== row.element) view.list.insertBefore(row.element, place);
      before = row.element;
    }
    for (const [id, row] of view.rows) {
      if (kept.has(id)) continue;
      row.element.remove();
      view.rows.delete(id);
    }
  }

  /** Tab leads to one row: where the reader was, else the shown conversation, else the first. */
  #tabStop() {
    const wanted = this.active && this.row(this.active) ? this.active : this.facts().currentId;
    const rows = [...this.place.querySelectorAll(".conversation")];
    const stop = rows.find((row) => row.dataset.id === wanted) ?? rows[0];
    for (const row of rows) {
      const index = row === stop ? "0" : "-1";
      for (const one of row.querySelectorAll("a, .more, input[type=checkbox]"))
        if (one.getAttribute("tabindex") !== index) one.setAttribute("tabindex", index);
    }
  }

  #focused(event) {
    const id = event.target.closest?.(".conversation")?.dataset.id;
    if (!id || id === this.active) return;
    this.active = id;
    this.#tabStop();
  }

  /** Rows are as high as their style says, which follows the reader's size of type. */
  #measure() {
    const found = {
      row: this.place.querySelector(".conversation:is(:not(.hit), .only-title)")?.getBoundingClientRect().height,
      hit: this.place.querySelector(".conversation.hit:not(.only-title)")?.getBoundingClientRect().height,
      heading: this.place.querySelector("h2:not([hidden])")?.getBoundingClientRect().height,
    };
    const differs = (one, other) => Math.abs(one - other) > 0.05;
    const other = Object.entries(found).filter(([name, height]) => height && differs(height, this.heights[name]));
    if (!other.length) return;
    Object.assign(this.heights, Object.fromEntries(other));
    this.later();
  }
}

const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

class Row {
  constructor(base) {
    this.base = base;
    this.title = h("span", { class: "title", dir: "auto" });
    this.link = h("a", {}, this.title);
    this.more = h("button", { type: "button", class: "more", "aria-haspopup": "menu", "aria-expanded": "false" }, icon("ellipsis"));
    this.element = h("li", { class: "conversation" }, this.link, this.more);
    this.shown = "";
  }

  update(item, { currentId, unread, selected }) {
    const state = item.running ? "running" : unread(item.id) ? "unread" : "";
    const shown = JSON.stringify([
      item.title, item.updated_at, state, item.id === currentId, selected?.has(item.id) ?? null, item.hit ?? null,
    ]);
    if (shown === this.shown) return;
    this.shown = shown;
    const title = item.title || gettext("Untitled");
    this.element.dataset.id = this.link.dataset.id = item.id;
    this.element.className = ["conversation", state, item.hit && "hit", item.hit && kindOf(item) === "row" && "only-title"]
      .filter(Boolean)
      .join(" ");
    const place = item.hit?.message ? `#message-${item.hit.message.message_id}` : "";
    this.link.href = `${this.base}c/${item.id}${place}`;
    this.link.title = `${title}\n${exactTime(item.updated_at)}`;
    if (item.id === currentId) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
    this.title.replaceChildren(...(item.hit ? pieces(item.hit.title) : [title]));
    this.link.replaceChildren(...this.#parts(item, state));
    this.more.setAttribute("aria-label", fill(gettext("More about “%(title)s”"), { title }));
    this.#choice(title, selected && selected.has(item.id));
  }

  #parts(item, state) {
    const parts = [this.title];
    if (state === "running") parts.push(h("span", { class: "dot", role: "img", "aria-label": gettext("is being answered") }));
    if (state === "unread") parts.push(h("span", { class: "dot new", role: "img", "aria-label": gettext("has a new answer") }));
    if (item.hit?.message) parts.push(h("span", { class: "snippet", dir: "auto" }, ...pieces(item.hit.message.snippet)));
    return parts;
  }

  #choice(title, chosen) {
    const choosing = chosen !== null && chosen !== undefined;
    this.element.classList.toggle("chosen", Boolean(chosen));
    if (!choosing) {
      this.box?.remove();
      this.box = null;
      return;
    }
    if (!this.box) {
      this.box = h("input", { type: "checkbox", "aria-label": fill(gettext("Choose “%(title)s”"), { title }) });
      this.element.prepend(this.box);
    }
    this.box.checked = chosen;
  }
}

const pieces = (parts) => parts.map(({ text, marked }) => (marked ? h("mark", { text }) : text));
