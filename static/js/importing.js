/* The dialog that imports chats: a file is chosen or dropped, looked at, and only then brought; afterwards it can be undone. */

import { call, sendFile } from "#octavo/calls.js";
import { openDialog } from "#octavo/dialog.js";
import { h, icon } from "#octavo/dom.js";
import { bytes, count, exactTime, relativeTime } from "#octavo/format.js";
import { fill, gettext, language, ngettext } from "#octavo/i18n.js";
import { toast } from "#octavo/toast.js";

const SOURCES = { octavo: "Octavo", chatgpt: "ChatGPT", open_webui: "Open WebUI" };

export const chats = (n) => fill(ngettext("%(n)s chat", "%(n)s chats", n), { n: count(n) });
export const messages = (n) => fill(ngettext("%(n)s message", "%(n)s messages", n), { n: count(n) });

/** What an import leaves out, each with how often, as sentences. */
export function leftOut(counts) {
  const words = {
    files: (n) => ngettext("%(n)s file: its name is kept, its content was not in the export", "%(n)s files: their names are kept, their contents were not in the export", n),
    images: (n) => ngettext("%(n)s image", "%(n)s images", n),
    parts: (n) => ngettext("%(n)s part that is no text", "%(n)s parts that are no text", n),
    tools: (n) => ngettext("%(n)s step of a tool", "%(n)s steps of tools", n),
    thoughts: (n) => ngettext("%(n)s thought of the model", "%(n)s thoughts of the model", n),
    system: (n) => ngettext("%(n)s system message", "%(n)s system messages", n),
    cut: (n) => ngettext("the rest of %(n)s message that is too long", "the rest of %(n)s messages that are too long", n),
  };
  return Object.entries(counts)
    .filter(([, n]) => n > 0)
    .map(([name, n]) => fill(words[name]?.(n) ?? `%(n)s ${name}`, { n: count(n) }));
}

export function openImport(workspace) {
  return new ImportDialog(workspace).open();
}

class ImportDialog {
  constructor(workspace) {
    this.workspace = workspace;
    this.address = `${workspace.session.api}/imports`;
    this.place = h("div", { class: "stack", "aria-live": "polite" });
    this.foot = h("div", { class: "import-foot" });
    this.mostBytes = Infinity;
    this.latest = null;
  }

  async open() {
    this.abort = new AbortController();
    this.dialog = openDialog({
      title: gettext("Import chats"),
      body: [this.place, this.foot],
      className: "import-dialog",
      onClose: () => this.abort.abort(),
    });
    // A file that is dropped beside the field is meant for it as well, and never opened by the browser.
    this.dialog.addEventListener("dragover", (event) => event.preventDefault());
    this.dialog.addEventListener("drop", (event) => {
      event.preventDefault();
      const file = event.dataTransfer.files[0];
      if (file && this.picking) this.#look(file);
    });
    this.#pick();
    try {
      const { items, most_bytes: most } = await call("GET", this.address);
      this.mostBytes = most;
      this.latest = items[0] ?? null;
      if (this.picking) this.#showLatest();
    } catch {
      // Without it there is no undo of earlier ones here, and the rest works.
    }
  }

  #fill(elements, buttons = []) {
    this.picking = false;
    this.place.replaceChildren(...elements);
    this.foot.replaceChildren(...buttons);
  }

  // --- choosing ------------------------------------------------------------------------------------------------------

  #pick(refusal = "") {
    const picker = h("input", { type: "file", accept: ".json,.zip,application/json,application/zip", hidden: true });
    picker.addEventListener("change", () => picker.files[0] && this.#look(picker.files[0]));
    const choose = h("button", { type: "button", class: "button primary" }, icon("upload"), gettext("Choose a file"));
    choose.addEventListener("click", () => picker.click());
    const zone = h("div", { class: "drop-zone" }, choose, h("p", { class: "quiet", text: gettext("or drop it here") }), picker);
    for (const name of ["dragenter", "dragover"]) zone.addEventListener(name, () => zone.classList.add("over"));
    for (const name of ["dragleave", "drop"]) zone.addEventListener(name, () => zone.classList.remove("over"));
    this.#fill([
      ...(refusal ? [this.#notice("bad", refusal)] : []),
      zone,
      h(
        "ul",
        { class: "quiet formats" },
        h("li", {}, h("strong", { text: "ChatGPT" }), " – ", gettext("conversations.json, or the zip file that it came in")),
        h("li", {}, h("strong", { text: "Open WebUI" }), " – ", gettext("the file of “Export chats”")),
        h("li", {}, h("strong", { text: "Octavo" }), " – ", gettext("an export as JSON")),
      ),
      h("p", { class: "quiet", text: gettext("You see what is in the file before anything is imported. What you import is yours alone.") }),
    ]);
    this.picking = true;
    this.#showLatest();
    choose.focus();
  }

  #showLatest() {
    this.place.querySelector(".latest")?.remove();
    if (!this.latest) return;
    const { latest } = this;
    const what = fill(gettext("Your last import, %(when)s: %(chats)s from %(source)s."), {
      when: relativeTime(latest.created_at),
      chats: chats(latest.conversations),
      source: SOURCES[latest.source] ?? latest.source,
    });
    const undo = h("button", { type: "button", class: "button small", text: gettext("Undo") });
    undo.addEventListener("click", () => this.#undo(latest.id, undo));
    this.place.append(
      h("div", { class: "notice latest" }, h("span", { class: "notice-text", text: what, title: exactTime(latest.created_at) }), undo),
    );
  }

  #notice(kind, ...texts) {
    return h(
      "div",
      { class: `notice ${kind}`, role: kind === "bad" ? "alert" : null },
      icon(kind === "good" ? "check" : "circle-alert"),
      h("div", { class: "notice-text" }, ...texts.map((text) => h("p", { text }))),
    );
  }

  #busy(words) {
    const bar = h("progress", { "aria-label": words });
    const said = h("p", { text: words });
    this.#fill([said, bar]);
    return (part) => {
      // Sent is not yet read.
      if (part < 1) bar.value = part;
      else bar.removeAttribute("value");
    };
  }

  async #send(file, query, words) {
    const onProgress = this.#busy(words);
    return sendFile(`${this.address}?${query}`, file, { onProgress, signal: this.abort.signal });
  }

  // --- looking -------------------------------------------------------------------------------------------------------

  async #look(file, again = false) {
    if (file.size > this.mostBytes) {
      const told = { name: file.name, size: bytes(file.size), most: bytes(this.mostBytes) };
      return this.#pick(fill(gettext("%(name)s has %(size)s; a file may have %(most)s. Export your chats in parts."), told));
    }
    try {
      const found = await this.#send(file, `dry_run=true&again=${again}`, fill(gettext("Looking at %(name)s…"), file));
      this.#offer(file, found, again);
    } catch (error) {
      if (!this.abort.signal.aborted) this.#pick(error.message);
    }
  }

  #offer(file, found, again) {
    const bring = h("button", { type: "button", class: "button primary" });
    bring.textContent = found.conversations ? fill(gettext("Import %(chats)s"), { chats: chats(found.conversations) }) : gettext("Nothing to import");
    bring.disabled = found.conversations === 0;
    bring.addEventListener("click", () => this.#bring(file, again));
    const back = h("button", { type: "button", class: "button", text: gettext("Choose another file"), onclick: () => this.#pick() });
    this.#fill([...this.#summary(found), ...this.#already(file, found, again), ...this.#losses(found)], [back, bring]);
    (bring.disabled ? back : bring).focus();
  }

  #summary(found) {
    const { conversations, messages: said, oldest, newest, titles, source } = found;
    const days = new Intl.DateTimeFormat(language(), { dateStyle: "medium" });
    const date = (at) => days.format(new Date(at));
    const parts = [
      h("p", { class: "import-total" }, h("strong", { text: chats(conversations) }), " · ", messages(said), " · ", SOURCES[source] ?? source),
    ];
    if (oldest) parts.push(h("p", { class: "quiet", text: fill(gettext("Last used between %(oldest)s and %(newest)s."), { oldest: date(oldest), newest: date(newest) }) }));
    if (titles.length) {
      const rest = conversations - titles.length;
      parts.push(
        h(
          "ul",
          { class: "titles", tabindex: "0", role: "group", "aria-label": gettext("Titles") },
          ...titles.map((title) => h("li", { text: title, dir: "auto" })),
          ...(rest > 0 ? [h("li", { class: "quiet", text: fill(gettext("and %(chats)s more"), { chats: chats(rest) }) })] : []),
        ),
      );
    }
    return parts;
  }

  #already(file, found, again) {
    if (!found.already) return [];
    const words = fill(
      ngettext("%(n)s chat of this file is here already and is passed over.", "%(n)s chats of this file are here already and are passed over.", found.already),
      { n: count(found.already) },
    );
    const anyway = h("button", { type: "button", class: "button small", text: gettext("Import them again"), onclick: () => this.#look(file, true) });
    const box = this.#notice("", words);
    if (!again) box.append(anyway);
    return [box];
  }

  #losses(found) {
    const parts = [];
    if (found.too_old) {
      const told = { n: count(found.too_old), days: count(found.retention_days) };
      const words = ngettext(
        "Your team keeps chats for %(days)s days: %(n)s of these was last used before that and will be deleted tonight.",
        "Your team keeps chats for %(days)s days: %(n)s of these were last used before that and will be deleted tonight.",
        found.too_old,
      );
      parts.push(this.#notice("warn", fill(words, told)));
    }
    const lost = leftOut(found.left_out);
    if (lost.length) parts.push(h("div", { class: "losses" }, h("p", { text: gettext("Not imported, since chats here have no place for it:") }), h("ul", {}, ...lost.map((text) => h("li", { text })))));
    if (found.refused_count) {
      const words = fill(ngettext("%(n)s chat cannot be imported:", "%(n)s chats cannot be imported:", found.refused_count), { n: count(found.refused_count) });
      parts.push(
        h(
          "div",
          { class: "losses" },
          h("p", { text: words }),
          h("ul", {}, ...found.refused.map(({ title, why }) => h("li", { dir: "auto" }, h("strong", { text: title || gettext("Untitled") }), ` – ${why}`))),
        ),
      );
    }
    return parts;
  }

  // --- bringing ------------------------------------------------------------------------------------------------------

  async #bring(file, again) {
    try {
      const done = await this.#send(file, `again=${again}`, gettext("Importing. Each chat comes whole, or not at all…"));
      this.workspace.session.refreshList().catch(() => {});
      this.#report(done);
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.workspace.session.refreshList().catch(() => {});
      this.#pick(error.message);
    }
  }

  #report(done) {
    const undo = h("button", { type: "button", class: "button", text: gettext("Undo") });
    undo.addEventListener("click", () => this.#undo(done.import_id, undo));
    const close = h("button", { type: "button", class: "button primary", text: gettext("Done"), onclick: () => this.dialog.close() });
    const told = fill(gettext("%(chats)s with %(messages)s are here now, among the days when they were last used."), {
      chats: chats(done.conversations),
      messages: messages(done.messages),
    });
    this.#fill([this.#notice("good", told), ...this.#losses(done)], [...(done.import_id ? [undo] : []), close]);
    close.focus();
  }

  async #undo(id, button) {
    button.disabled = true;
    try {
      const { conversation_ids: gone, kept } = await call("DELETE", `${this.address}/${id}`);
      this.#forget(gone);
      if (this.latest?.id === id) this.latest = null;
      const words = fill(ngettext("%(n)s imported chat is deleted.", "%(n)s imported chats are deleted.", gone.length), { n: count(gone.length) });
      const stay = kept ? ` ${fill(ngettext("%(n)s that you went on with stays.", "%(n)s that you went on with stay.", kept), { n: count(kept) })}` : "";
      toast(words + stay);
      this.#pick();
    } catch (error) {
      button.disabled = false;
      this.place.prepend(this.#notice("bad", error.message));
    }
  }

  #forget(gone) {
    const { session, current, visit } = this.workspace;
    if (gone.includes(current?.id)) visit(null);
    for (const id of gone) session.forget(id);
    session.refreshList().catch(() => {});
  }
}
