/* Tags: a dialog for those of one or several conversations, and for renaming or removing a tag everywhere; and the tags of
   the shown conversation beside its title, each leading to all that have it. */

import { openDialog } from "#octavo/dialog.js";
import { h, icon } from "#octavo/dom.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { renameInPlace } from "#octavo/rename.js";
import { failed, toast } from "#octavo/toast.js";

const LONGEST_TAG = 40;
const same = (one, other) => one.toLocaleLowerCase() === other.toLocaleLowerCase();

/** Of the known tags those that begin with what is typed, then those that have it elsewhere. */
export function suggested(known, typed, taken) {
  const wanted = typed.trim().replace(/^#\s*/, "").toLocaleLowerCase();
  const free = known.filter((tag) => !taken.some((one) => same(one, tag.name)));
  const at = (tag) => tag.name.toLocaleLowerCase().indexOf(wanted);
  return free.filter((tag) => at(tag) >= 0).sort((a, b) => Math.sign(at(a)) - Math.sign(at(b)) || b.conversations - a.conversations);
}

export function install(workspace) {
  const { library } = workspace;
  const beside = document.getElementById("conversation-tags");

  function shown() {
    const tags = workspace.current?.id ? (library.item(workspace.current.id).tags ?? []) : [];
    beside.hidden = tags.length === 0;
    beside.replaceChildren(
      ...tags.map((tag) =>
        h("button", {
          type: "button",
          class: "tag",
          dir: "auto",
          text: tag,
          title: fill(gettext("Show all chats with the tag “%(tag)s”"), { tag }),
          onclick: () => workspace.showTag(tag),
        }),
      ),
    );
  }
  workspace.on("shown", shown);
  workspace.on("changed", (change) => change.kind === "list" && shown());

  workspace.editTags = async function editTags(items) {
    let known;
    try {
      known = await library.tags();
    } catch (error) {
      return failed(error);
    }
    const editor = new Editor(library, items, known);
    editor.open();
  };
}

class Editor {
  constructor(library, items, known) {
    Object.assign(this, { library, items, known });
    const many = items.length > 1;
    this.heading = many
      ? fill(ngettext("Tags of %(n)s chat", "Tags of %(n)s chats", items.length), { n: items.length })
      : fill(gettext("Tags of “%(title)s”"), { title: items[0].title || gettext("Untitled") });
    this.input = h("input", {
      type: "text", id: "new-tag", maxlength: LONGEST_TAG, autocomplete: "off", dir: "auto",
      "aria-describedby": "new-tag-error",
    });
    this.chips = h("ul", { class: "tags", "aria-label": gettext("Tags") });
    this.error = h("p", { class: "error", id: "new-tag-error", role: "alert", hidden: true });
    this.offers = h("ul", { class: "tag-offers", "aria-label": gettext("Your tags") });
    this.form = h(
      "form",
      { class: "tag-form" },
      h("label", { for: "new-tag", text: gettext("Add a tag") }),
      h("div", { class: "tag-line" }, this.input, h("button", { class: "button", text: gettext("Add") })),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#add(this.input.value);
    });
    this.input.addEventListener("input", () => this.#draw());
  }

  /** The tags that all of them have. */
  get taken() {
    const [first, ...others] = this.items.map((item) => item.tags ?? []);
    return first.filter((tag) => others.every((tags) => tags.some((one) => same(one, tag))));
  }

  open() {
    openDialog({
      title: this.heading,
      body: [this.chips, h("div", { class: "field" }, this.form, this.error), this.offers],
    });
    this.#draw();
    this.input.focus();
  }

  async #change(what) {
    const ids = this.items.map((item) => item.id);
    this.error.hidden = true;
    try {
      const changed = await this.library.changeMany(ids, what);
      if (changed.length) this.items = changed;
      this.known = await this.library.tags();
      return true;
    } catch (error) {
      this.error.textContent = error.message;
      this.error.hidden = false;
      return false;
    } finally {
      this.#draw();
    }
  }

  async #add(name) {
    if (!name.trim()) return this.input.focus();
    const kept = this.input.value;
    this.input.value = "";
    if (!(await this.#change({ add_tags: [name] }))) this.input.value = kept;
    this.input.focus();
  }

  #draw() {
    const { taken } = this;
    this.chips.hidden = !taken.length;
    this.chips.replaceChildren(
      ...taken.map((tag) => {
        const off = h("button", { type: "button", "aria-label": fill(gettext("Take off %(tag)s"), { tag }) }, icon("x"));
        off.addEventListener("click", async () => {
          await this.#change({ remove_tags: [tag] });
          this.input.focus();
        });
        return h("li", { class: "tag" }, h("span", { dir: "auto", text: tag }), off);
      }),
    );
    this.offers.replaceChildren(...suggested(this.known, this.input.value, taken).map((tag) => this.#offer(tag)));
  }

  #offer(tag) {
    const name = h("span", { class: "name", dir: "auto", text: tag.name });
    const n = tag.conversations;
    const add = h(
      "button",
      { type: "button", class: "offer", onclick: () => this.#add(tag.name) },
      icon("tag"),
      name,
      h("span", { class: "count", text: fill(ngettext("%(n)s chat", "%(n)s chats", n), { n }) }),
    );
    const rename = h(
      "button",
      { type: "button", class: "icon-button", "aria-label": fill(gettext("Rename the tag %(tag)s everywhere"), { tag: tag.name }) },
      icon("pencil"),
    );
    rename.addEventListener("click", () =>
      renameInPlace({
        instead: add,
        value: tag.name,
        label: gettext("New name of the tag"),
        most: LONGEST_TAG,
        save: (to) => this.#everywhere(() => this.library.renameTag(tag.name, to)),
      }),
    );
    const remove = h(
      "button",
      { type: "button", class: "icon-button", "aria-label": fill(gettext("Remove the tag %(tag)s everywhere"), { tag: tag.name }) },
      icon("trash-2"),
    );
    remove.addEventListener("click", () => this.#sure(remove, tag));
    return h("li", {}, add, rename, remove);
  }

  /** A tag that was on many chats cannot be brought back by one click: ask once, in its place. */
  #sure(button, tag) {
    const sure = h("button", { type: "button", class: "button small", text: gettext("Remove everywhere") });
    sure.addEventListener("click", () => this.#everywhere(() => this.library.removeTag(tag.name)));
    sure.addEventListener("blur", () => sure.isConnected && sure.replaceWith(button));
    button.replaceWith(sure);
    sure.focus();
  }

  async #everywhere(act) {
    this.error.hidden = true;
    try {
      const n = await act();
      toast(fill(ngettext("%(n)s chat was changed.", "%(n)s chats were changed.", n), { n }));
      this.known = await this.library.tags();
      this.items = this.items.map((item) => this.library.item(item.id));
    } catch (error) {
      this.error.textContent = error.message;
      this.error.hidden = false;
    }
    this.#draw();
    this.input.focus();
  }
}
