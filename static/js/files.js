/* Files that are to go with the next question: taken by button, drop or paste, sent up one after the other, looked after
   until they have been read, and taken off again. Kept per conversation, as drafts are.

   Knows the product's API and its own tray; `onChange()` says that what may be sent has changed. */

import { askUntil } from "#octavo/asking.js";
import { call, sendFile } from "#octavo/calls.js";
import { h, icon } from "#octavo/dom.js";
import { bytes, count, tokens } from "#octavo/format.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { inWords } from "#octavo/refusals.js";

const UNDERWAY = new Set(["uploading", "queued", "running"]);

/** Under which name the files of a conversation's draft are kept. */
export const filesName = (whose, key) => `octavo:files:${whose}:${key}`;

export class Files {
  /** `tray`, `room`, `live`: where chips, tokens and what screen readers hear stand; `most`, `mostBytes`: of files, and of
      one; `used()`: tokens that the conversation has; `show(file)`: somebody wants to read one. */
  constructor({ tray, room, live, api, whose, most, mostBytes, used, show, onChange }) {
    Object.assign(this, { tray, room, live, api, whose, most, mostBytes, used, show, onChange });
    this.key = "new";
    this.drafts = new Map(); // conversation -> its files
    this.refused = "";
    addEventListener("storage", (event) => this.#elsewhere(event));
  }

  get items() {
    if (!this.drafts.has(this.key)) this.drafts.set(this.key, []);
    return this.drafts.get(this.key);
  }

  /** Why a question cannot be sent now, in words; "" where it can. */
  get hindrance() {
    if (this.items.some((item) => UNDERWAY.has(item.state))) return gettext("Wait until the files have been read.");
    if (this.items.some((item) => item.state === "failed")) return gettext("Take off the file that cannot be read.");
    return this.#over() > 0 ? gettext("Take off a file: they do not fit.") : "";
  }

  /** What the files take of a prompt, as far as is known. */
  get tokens() {
    return this.#sum();
  }

  // --- which conversation ------------------------------------------------------------------------------------------

  open(conversationId) {
    this.key = conversationId ?? "new";
    this.refused = "";
    if (!this.drafts.has(this.key)) {
      for (const kept of this.#kept()) this.#watch(this.#place({ ...kept, state: "queued" }));
    }
    this.render();
  }

  /** The conversation that was new has an id now. */
  rename(conversationId) {
    const items = this.items;
    this.drafts.delete(this.key);
    this.#forget(items);
    this.key = conversationId;
    this.drafts.set(this.key, items);
    this.#keep(items);
  }

  /** What goes with the question that is sent now. */
  take() {
    const taken = this.items.filter((item) => item.state === "ready");
    this.#forget(this.items);
    this.drafts.set(this.key, []);
    this.#changed();
    return taken.map(({ id, name, bytes, kind, pages, tokens }) => ({ id, name, bytes, kind, pages, tokens }));
  }

  /** A question was not accepted: its files are there again. */
  putBack(conversationId, files) {
    const key = conversationId ?? "new";
    const there = this.drafts.get(key);
    const lost = files.filter((file) => !there?.some((item) => item.id === file.id));
    // Of a conversation that has not been open, what is kept is read when it is.
    if (there) this.drafts.set(key, [...lost.map((file) => ({ ...file, state: "ready" })), ...there]);
    this.#keep(lost, key);
    if (key === this.key) this.#changed();
  }

  // --- taking and sending up ---------------------------------------------------------------------------------------

  add(files) {
    this.refused = "";
    for (const file of files) {
      if (this.items.length >= this.most) {
        this.refused = fill(ngettext("A question may have %(n)s file.", "A question may have %(n)s files.", this.most), {
          n: count(this.most),
        });
        break;
      }
      const item = this.#place({ name: file.name, bytes: file.size, state: "uploading", progress: 0 });
      if (file.size === 0) this.#fail(item, gettext("The file is empty."));
      else if (file.size > this.mostBytes)
        this.#fail(
          item,
          fill(gettext("The file has %(size)s; at most %(most)s are taken."), {
            size: bytes(file.size),
            most: bytes(this.mostBytes),
          }),
        );
      else this.#upload(item, file);
    }
    this.#changed();
  }

  #place(item) {
    this.items.push(item);
    return item;
  }

  async #upload(item, file) {
    item.sending = new AbortController();
    try {
      const onProgress = (part) => {
        item.progress = part;
        this.#draw(item);
      };
      this.#apply(item, await sendFile(`${this.api}/files`, file, { onProgress, signal: item.sending.signal }));
      // It may be another conversation's by now that is open.
      for (const [key, items] of this.drafts) if (items.includes(item)) this.#keep([item], key);
      this.#watch(item);
    } catch (error) {
      if (item.gone) return;
      this.#fail(item, error.code ? error.message : unsaid(error.status));
    }
    this.#changed();
  }

  #fail(item, message) {
    Object.assign(item, { state: "failed", error: { message } });
    this.live.textContent = `${item.name}: ${message}`;
  }

  #apply(item, data) {
    const { id, name, bytes, state, kind, pages, tokens, context_tokens, error } = data;
    const before = item.state;
    Object.assign(item, { id, name, bytes, state, kind, pages, tokens, error });
    if (context_tokens) this.context = context_tokens;
    if (before !== state && state === "ready") this.live.textContent = fill(gettext("%(name)s is ready, %(facts)s."), { name, facts: about(item) });
    if (state === "failed") this.live.textContent = fill(gettext("%(name)s cannot be read. %(reason)s"), { name, reason: inWords(error) });
  }

  /** Ask how the reading goes until it is over. A file that is gone by now is taken off. */
  async #watch(item) {
    try {
      await askUntil({
        ask: () => call("GET", `${this.api}/files/${item.id}`),
        isOver: (data) => {
          if (item.gone) return true;
          this.#apply(item, data);
          this.#changed();
          return !UNDERWAY.has(item.state);
        },
        unwanted: () => item.gone || !UNDERWAY.has(item.state),
      });
    } catch (error) {
      if (item.gone) return;
      if (error.status === 404) return this.#drop(item);
      this.#fail(item, unread(error.status));
      this.#changed();
    }
  }

  remove(item) {
    this.#drop(item);
    item.sending?.abort();
    // One that was sent before stays with its message; the server knows.
    if (item.id) call("DELETE", `${this.api}/files/${item.id}`).catch(() => {});
  }

  #drop(item) {
    item.gone = true;
    for (const [key, items] of this.drafts) {
      if (!items.includes(item)) continue;
      this.drafts.set(
        key,
        items.filter((other) => other !== item),
      );
      this.#forget([item], key);
    }
    this.#changed();
  }

  // --- keeping -----------------------------------------------------------------------------------------------------

  #name(key = this.key) {
    return filesName(this.whose, key);
  }

  /** Only what this page has changed itself: another tab may have files of its own for the same conversation. */
  #keep(items, key = this.key) {
    const kept = this.#kept(key);
    const more = items.filter((item) => item.id && !kept.some((other) => other.id === item.id));
    // As they stand here, and not as they happened to come through.
    const order = (this.drafts.get(key) ?? []).map((item) => item.id);
    const all = [...kept, ...more.map(({ id, name, bytes }) => ({ id, name, bytes }))];
    this.#write(all.sort((one, other) => order.indexOf(one.id) - order.indexOf(other.id)), key);
  }

  #forget(items, key = this.key) {
    this.#write(
      this.#kept(key).filter((kept) => !items.some((item) => item.id === kept.id)),
      key,
    );
  }

  #write(kept, key) {
    try {
      if (kept.length) localStorage.setItem(this.#name(key), JSON.stringify(kept));
      else localStorage.removeItem(this.#name(key));
    } catch {
      // Switched off or full: they are here as long as the page.
    }
  }

  #kept(key = this.key) {
    try {
      return parsed(localStorage.getItem(this.#name(key)));
    } catch {
      return []; // switched off
    }
  }

  /** Another tab has attached, sent or taken off files of a conversation that is known here: so they are, or go, here too. */
  #elsewhere(event) {
    const key = [...this.drafts.keys()].find((known) => this.#name(known) === event.key);
    if (key === undefined) return;
    const [before, after] = [parsed(event.oldValue), parsed(event.newValue)];
    const has = (files, id) => files.some((file) => file.id === id);
    const items = this.drafts.get(key);
    const stay = items.filter((item) => !item.id || !has(before, item.id) || has(after, item.id));
    for (const item of items) if (!stay.includes(item)) item.gone = true;
    const come = after.filter((file) => !has(items, file.id)).map((file) => ({ ...file, state: "queued" }));
    this.drafts.set(key, [...stay, ...come]);
    for (const item of come) this.#watch(item);
    if (key === this.key) this.#changed();
  }

  // --- showing -----------------------------------------------------------------------------------------------------

  /** How many tokens are too many, as far as is known; 0 or less: they fit. */
  #over() {
    if (!this.context || !this.items.length) return 0;
    return this.#sum() + this.used() + 1 - this.context;
  }

  #sum() {
    return this.items.reduce((sum, item) => sum + (item.tokens ?? 0), 0);
  }

  #changed() {
    this.render();
    this.onChange();
  }

  render() {
    this.tray.replaceChildren(...this.items.map((item) => (item.view = this.#chip(item))));
    this.tray.hidden = this.items.length === 0;
    const words = this.refused || this.#room();
    this.room.hidden = !words;
    this.room.textContent = words;
    this.room.classList.toggle("over", Boolean(this.refused) || this.#over() > 0);
  }

  #room() {
    const sum = this.#sum();
    if (!this.items.length || !sum) return "";
    const files = this.items.length;
    const over = this.#over();
    const values = { taken: tokens(sum), over: count(over), context: count(this.context ?? 0), rest: count(-over) };
    if (!this.context) return fill(ngettext("The file takes %(taken)s.", "The files take %(taken)s.", files), values);
    if (over > 0)
      return fill(
        ngettext(
          "The file takes %(taken)s: %(over)s more than fit into the %(context)s that can be read at once. Take off a file, or attach a part of it.",
          "The files take %(taken)s: %(over)s more than fit into the %(context)s that can be read at once. Take off a file, or attach a part of it.",
          files,
        ),
        values,
      );
    return fill(
      ngettext(
        "The file takes %(taken)s; there is room for %(rest)s more.",
        "The files take %(taken)s; there is room for %(rest)s more.",
        files,
      ),
      values,
    );
  }

  #draw(item) {
    const bar = item.view?.querySelector("progress");
    if (bar) bar.value = item.progress;
  }

  #chip(item) {
    const failed = item.state === "failed";
    const name = h("span", { class: "file-name", text: item.name, dir: "auto" });
    const facts = h("span", { class: "file-facts", text: failed ? inWords(item.error) : about(item) });
    const body =
      item.state === "ready"
        ? h("button", { type: "button", class: "file-body", onclick: () => this.show(item) }, name, facts)
        : h("span", { class: "file-body" }, name, facts);
    if (item.state === "ready") body.title = fill(gettext("Read what stands in %(name)s"), { name: item.name });
    return h(
      "li",
      { class: `file ${failed ? "bad" : item.state}`, "data-state": item.state },
      icon(failed ? "circle-alert" : "file-text"),
      body,
      item.state === "uploading"
        ? h("progress", { max: 1, value: item.progress ?? 0, "aria-label": fill(gettext("Sending %(name)s"), { name: item.name }) })
        : null,
      h(
        "button",
        {
          type: "button",
          class: "file-off",
          "aria-label": fill(gettext("Take off %(name)s"), { name: item.name }),
          onclick: () => {
            this.remove(item);
            (this.tray.querySelector(".file-off") ?? this.tray.closest("form").querySelector("textarea")).focus();
          },
        },
        icon("x"),
      ),
    );
  }
}

function parsed(kept) {
  try {
    return JSON.parse(kept ?? "[]");
  } catch {
    return [];
  }
}

/** "3 pages, 1,204 tokens", with what is known; before that, what happens to it. */
function about(file) {
  if (file.state === "uploading") return gettext("Sending…");
  if (UNDERWAY.has(file.state)) return gettext("Reading…");
  const parts = [];
  if (file.pages) parts.push(fill(ngettext("%(n)s page", "%(n)s pages", file.pages), { n: count(file.pages) }));
  else parts.push(bytes(file.bytes));
  if (file.tokens != null) parts.push(tokens(file.tokens));
  return parts.join(gettext(", "));
}

/** Why a file was not taken, where the server does not say it. */
function unsaid(status) {
  if (status === 0) return gettext("The connection broke. Take it off and attach it again.");
  if (status === 413) return gettext("The file is too large.");
  if (status === 401 || status === 403) return gettext("You are logged out, or may not attach files. Load the page again.");
  return gettext("The server did not take the file. Take it off and attach it again.");
}

/** Why it is not known whether a file was read. It is asked again by the next page. */
function unread(status) {
  if (status === 401 || status === 403) return unsaid(status);
  return gettext("The server does not say whether it could read the file. Load the page again.");
}

/** The files of a message that was sent: chips that open. */
export function sentFiles(files, show) {
  return h(
    "ul",
    { class: "files", "aria-label": gettext("Files") },
    ...files.map((file) =>
      h(
        "li",
        { class: "file" },
        icon("file-text"),
        h(
          "button",
          { type: "button", class: "file-body", title: fill(gettext("Read what stands in %(name)s"), { name: file.name }), onclick: () => show(file) },
          h("span", { class: "file-name", text: file.name, dir: "auto" }),
          h("span", { class: "file-facts", text: about(file) }),
        ),
      ),
    ),
  );
}

/** A dialog that shows what was read of a file, as text and as nothing else, and saves the file as it came. */
export class Preview {
  constructor(dialog, api) {
    Object.assign(this, { dialog, api });
    this.title = dialog.querySelector("h2");
    this.facts = dialog.querySelector(".facts");
    this.text = dialog.querySelector("pre");
    this.save = dialog.querySelector("a");
    dialog.querySelector("[data-closes]").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }

  async show(file) {
    this.title.textContent = file.name;
    this.facts.textContent = about({ ...file, state: "ready" });
    this.save.href = `${this.api}/files/${file.id}/content`;
    this.text.textContent = gettext("Loading…");
    this.dialog.showModal();
    this.file = file.id;
    let said;
    try {
      said = (await call("GET", `${this.api}/files/${file.id}/text`)).text;
    } catch (error) {
      said =
        error.status === 404
          ? gettext("This file is not there any more.")
          : error.code
            ? error.message
            : gettext("The text could not be loaded. Close this and try again.");
    }
    if (this.file === file.id) this.text.textContent = said;
  }
}

/** Files that are dropped anywhere on `place`, pasted into `input`, or chosen by `button` go to `take(files)`. */
export function acceptFiles({ place, input, button, picker, take }) {
  button.addEventListener("click", () => picker.click());
  picker.addEventListener("change", () => {
    take([...picker.files]);
    picker.value = ""; // the same file may be chosen again
    input.focus();
  });
  input.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    // A copied table is text and a picture at once: the text is meant.
    if (!files.length || event.clipboardData.getData("text/plain")) return;
    event.preventDefault();
    take(files);
  });
  let depth = 0;
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  const over = (on) => place.classList.toggle("dropping", on);
  place.addEventListener("dragenter", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    depth += 1;
    over(true);
  });
  place.addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
  });
  place.addEventListener("dragleave", (event) => {
    if (!carries(event)) return;
    depth = Math.max(0, depth - 1);
    over(depth > 0);
  });
  place.addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    depth = 0;
    over(false);
    take([...event.dataTransfer.files]);
    input.focus();
  });
}
