/* One box that finds what can be done and what can be opened: commands, and what the page's sources have.

   A source is {title, entries(), search(query, signal)}: `entries()` are known at once, `search` asks the server and may be
   left out; an entry is {id, label, icon, run, keys, detail}, the last [{text, marked}]. Without a query it shows what was
   used or opened last. A combobox with a list, as the ARIA patterns have it: the focus stays in the box, arrows move a mark in
   the list. */

import { KEYS, commands, matches, placeOf, wordsOf } from "#octavo/commands.js";
import { h, icon } from "#octavo/dom.js";
import { fuzzy } from "#octavo/fuzzy.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { keep, recall } from "#octavo/settings.js";

const SEARCH_AFTER_MS = 150;
const MOST_SHOWN = 40;
const MOST_RECENT = 6;
const RECENT = "octavo:recent";

let dialog = null;

/** `finds`: what it is for, in words. */
export function openPalette(sources, finds) {
  if (dialog) return;
  new Palette(sources, finds);
}

class Palette {
  constructor(sources, finds) {
    this.sources = sources;
    this.found = new Map(); // source -> what the server has found
    this.options = [];
    this.active = -1;
    this.input = h("input", {
      type: "text",
      role: "combobox",
      "aria-expanded": "true",
      "aria-controls": "palette-list",
      "aria-autocomplete": "list",
      "aria-label": finds,
      placeholder: finds,
      autocomplete: "off",
      spellcheck: "false",
      enterkeyhint: "go",
      maxlength: "200",
    });
    this.list = h("div", { class: "palette-list", id: "palette-list", role: "listbox", "aria-label": gettext("Found") });
    this.status = h("p", { class: "palette-status", role: "status" });
    const close = h(
      "button",
      { type: "button", class: "icon-button", "aria-label": gettext("Close"), onclick: () => dialog.close() },
      icon("x"),
    );
    dialog = h(
      "dialog",
      { class: "palette", "aria-label": finds },
      h("div", { class: "palette-box" }, icon("search"), this.input, close),
      this.list,
      this.status,
    );
    this.input.addEventListener("input", () => this.#typed());
    this.input.addEventListener("keydown", (event) => this.#pressed(event));
    this.list.addEventListener("pointermove", (event) => this.#pointed(event));
    // The focus stays in the box, whatever is pressed.
    this.list.addEventListener("pointerdown", (event) => event.preventDefault());
    this.list.addEventListener("click", (event) => this.#choose(event.target.closest("[role=option]")));
    dialog.addEventListener("pointerdown", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("keydown", (event) => {
      // The key that opened it closes it.
      if (!matches(KEYS.palette, event)) return;
      event.preventDefault();
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      this.searching?.abort();
      clearTimeout(this.timer);
      dialog.remove();
      dialog = null;
    });
    document.body.append(dialog);
    this.#show();
    dialog.showModal();
    this.input.focus();
  }

  get query() {
    return this.input.value.trim();
  }

  // --- finding -----------------------------------------------------------------------------------------------------

  #typed() {
    clearTimeout(this.timer);
    this.searching?.abort();
    this.failed = false;
    if (!this.query) this.found.clear();
    this.#show();
    const asked = this.sources.filter((source) => source.search);
    this.waiting = Boolean(this.query && asked.length);
    if (this.waiting) this.timer = setTimeout(() => this.#search(asked), SEARCH_AFTER_MS);
  }

  async #search(sources) {
    this.searching = new AbortController();
    const { signal } = this.searching;
    const { query } = this;
    await Promise.all(
      sources.map(async (source) => {
        try {
          this.found.set(source, await source.search(query, signal));
        } catch {
          if (!signal.aborted) this.failed = true;
        }
      }),
    );
    if (signal.aborted || !dialog) return;
    this.waiting = false;
    this.#show(true);
  }

  /** Groups of what fits, the best first: {title, entries}. */
  #groups() {
    const doable = commands
      .list()
      .filter((command) => command.run && command.id !== "palette" && !placeOf(command.keys))
      .map((command) => ({ ...command, label: command.title, run: () => used(command) }));
    if (!this.query) {
      const recent = new Set(lastUsed());
      return [
        ...this.sources.map((source) => ({ title: source.title, entries: source.entries().slice(0, MOST_RECENT) })),
        {
          title: gettext("Commands"),
          entries: [...doable].sort((one, other) => recent.has(other.id) - recent.has(one.id)),
        },
      ];
    }
    const fitting = (entries, found = []) => {
      const marked = entries.flatMap((entry) => {
        const fits = fuzzy(this.query, entry.label);
        return fits ? [{ ...entry, ...fits }] : [];
      });
      const known = new Set(marked.map((entry) => entry.id));
      // The server looks into texts as well: what it finds need not have the words in its title.
      const more = found.filter((entry) => !known.has(entry.id));
      return [
        ...marked.sort((one, other) => other.score - one.score),
        ...more.map((entry) => ({ score: 0, marks: [], ...entry, ...fuzzy(this.query, entry.label) })),
      ];
    };
    return [
      { title: gettext("Commands"), entries: fitting(doable) },
      ...this.sources.map((source) => ({
        title: source.title,
        entries: fitting(source.entries(), this.found.get(source)),
      })),
    ]
      .filter((group) => group.entries.length)
      .sort((one, other) => other.entries[0].score - one.entries[0].score);
  }

  // --- showing -----------------------------------------------------------------------------------------------------

  /** `keep`: what is marked stays marked, since more was found only. */
  #show(keep = false) {
    const marked = keep ? this.options[this.active]?.entry.id : null;
    const groups = this.#groups().filter((group) => group.entries.length);
    this.options = [];
    let left = MOST_SHOWN;
    const parts = groups.map((group, at) => {
      const entries = group.entries.slice(0, left);
      left -= entries.length;
      return h(
        "div",
        { role: "group", "aria-labelledby": `palette-group-${at}` },
        h("p", { class: "palette-title", id: `palette-group-${at}`, role: "presentation", text: group.title }),
        ...entries.map((entry) => this.#option(entry)),
      );
    });
    this.list.replaceChildren(...parts.filter((part) => part.childElementCount > 1));
    const place = this.options.findIndex(({ entry }) => entry.id === marked);
    this.#mark(place >= 0 ? place : this.options.length ? 0 : -1);
    this.list.hidden = this.options.length === 0;
    this.input.setAttribute("aria-expanded", String(this.options.length > 0));
    this.status.textContent = this.#said();
    this.status.classList.toggle("only-read", this.options.length > 0 && !this.failed);
  }

  #said() {
    if (this.failed) return gettext("The server could not be asked. Only what this page knows was searched.");
    const n = this.options.length;
    if (n) return fill(ngettext("%(n)s found.", "%(n)s found.", n), { n });
    return this.waiting ? gettext("Searching…") : fill(gettext("Nothing is called “%(query)s”."), { query: this.query });
  }

  #option(entry) {
    const words = wordsOf(entry.keys ?? "");
    const element = h(
      "div",
      { class: "palette-option", role: "option", id: `palette-${this.options.length}`, "aria-selected": "false" },
      icon(entry.icon ?? "arrow-right"),
      h(
        "span",
        { class: "palette-words" },
        h("span", { class: "palette-label", dir: "auto" }, ...pieces(entry.label, entry.marks ?? [])),
        entry.detail?.length
          ? h("span", { class: "palette-detail", dir: "auto" }, ...entry.detail.map(({ text, marked }) => (marked ? h("mark", { text }) : text)))
          : null,
      ),
      words.length ? h("span", { class: "keycaps" }, ...words.map((word) => h("kbd", { text: word }))) : null,
    );
    this.options.push({ entry, element });
    return element;
  }

  #mark(place) {
    this.options[this.active]?.element.setAttribute("aria-selected", "false");
    this.active = place;
    const { element } = this.options[place] ?? {};
    if (!element) return this.input.removeAttribute("aria-activedescendant");
    element.setAttribute("aria-selected", "true");
    this.input.setAttribute("aria-activedescendant", element.id);
    if (place === 0) this.list.scrollTop = 0;
    else element.scrollIntoView({ block: "nearest" });
  }

  // --- choosing ----------------------------------------------------------------------------------------------------

  #pressed(event) {
    if (event.isComposing || event.keyCode === 229) return;
    const { length } = this.options;
    const moves = {
      ArrowDown: (this.active + 1) % length,
      ArrowUp: (this.active - 1 + length) % length,
      PageDown: Math.min(this.active + 8, length - 1),
      PageUp: Math.max(this.active - 8, 0),
    };
    if (event.key in moves && !event.altKey) {
      event.preventDefault();
      if (length) this.#mark(moves[event.key]);
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.#choose(this.options[this.active]?.element);
    }
  }

  #pointed(event) {
    const place = this.options.findIndex(({ element }) => element === event.target.closest("[role=option]"));
    if (place >= 0 && place !== this.active) this.#mark(place);
  }

  #choose(element) {
    const chosen = this.options.find((option) => option.element === element);
    if (!chosen) return;
    // First, so that the focus is back where it was before the command moves it.
    dialog.close();
    chosen.entry.run();
  }
}

/** A text with its marked letters. */
function pieces(text, marks) {
  const parts = [];
  let at = 0;
  for (const [from, to] of marks) {
    parts.push(text.slice(at, from), h("mark", { text: text.slice(from, to) }));
    at = to;
  }
  return [...parts, text.slice(at)].filter((part) => part !== "");
}

// --- what was used last --------------------------------------------------------------------------------------------

const lastUsed = () => JSON.parse(recall(RECENT) ?? "[]");

function used(command) {
  const others = lastUsed().filter((id) => id !== command.id);
  keep(RECENT, JSON.stringify([command.id, ...others].slice(0, MOST_RECENT)));
  commands.run(command.id);
}
