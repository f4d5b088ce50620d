/* The editor of a prompt: what the text takes in the engine, a draft that saves itself, and a side chat that tries it.

   Promises: figures are those of the text as it stands, never of an older one; a draft that somebody else has changed is
   not overwritten before the reader has said so; the side chat answers under exactly the text that stands there. */

import { call } from "#octavo/calls.js";
import { useSprite } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";
import { measurePanel } from "#octavo/prompt-measure.js";
import { Trial } from "#octavo/prompt-trial.js";

const SAVE_AFTER_MS = 1500;

const page = JSON.parse(document.querySelector("#editor").textContent);
useSprite(page.icons);
const form = document.querySelector("#draft");

/** The working draft as this page has it. `id` is what the side chat tries: the draft, or the published version. */
class Draft {
  constructor() {
    this.text = form.elements.text;
    this.revision = form.elements.revision;
    this.note = document.querySelector("#saved");
    this.conflict = document.querySelector("#conflict");
    this.id = page.draft ?? page.published;
    this.stored = page.unsaved ? null : this.text.value;
    this.text.addEventListener("input", () => this.#later());
    form.addEventListener("submit", () => {
      this.leaving = true;
      clearTimeout(this.timer);
    });
    addEventListener("beforeunload", (event) => {
      if (this.dirty && !this.leaving) event.preventDefault();
    });
    addEventListener("pageshow", () => (this.leaving = false));
  }

  get dirty() {
    return this.stored !== this.text.value;
  }

  #later() {
    clearTimeout(this.timer);
    if (!this.dirty || this.blocked) return;
    this.note.textContent = gettext("not saved yet");
    this.timer = setTimeout(() => this.save().catch(() => {}), SAVE_AFTER_MS);
  }

  /** Returns once what stands there is kept; one request at a time, and what was typed meanwhile goes with the next. */
  async save() {
    clearTimeout(this.timer);
    while (this.dirty && !this.blocked) {
      this.saving ??= this.#send().finally(() => (this.saving = null));
      await this.saving;
    }
    if (this.blocked) throw { message: this.conflict.textContent };
    return this.id;
  }

  async #send() {
    const text = this.text.value;
    this.note.textContent = gettext("saving…");
    try {
      const saved = await call("PUT", `${page.api}/${page.assistant}/draft`, { text, revision: Number(this.revision.value) });
      this.stored = text;
      this.id = saved.id;
      this.revision.value = saved.revision;
      this.#show(saved);
      this.note.textContent = gettext("saved just now");
    } catch (error) {
      this.note.textContent = gettext("not saved");
      if (error.status === 409) this.#tell(error);
      throw error;
    }
  }

  /** What only makes sense with a draft appears with it. */
  #show({ id, revision }) {
    for (const field of document.querySelectorAll("#discard [name=revision]")) field.value = revision;
    for (const element of document.querySelectorAll("[data-with-draft]")) {
      element.hidden = false;
      if (element.href) element.href = element.href.replace(/[^/]+$/, id);
    }
    const label = this.text.labels[0];
    label.textContent = label.dataset.draft;
  }

  /** Somebody else was faster: nothing is sent any more until the reader has decided. */
  #tell(error) {
    this.blocked = true;
    this.conflict.hidden = false;
    // The server answers this with what mine would change of theirs.
    const compare = Object.assign(document.createElement("button"), {
      type: "submit",
      name: "action",
      value: "save",
      className: "button small",
      textContent: gettext("See the difference"),
    });
    const take = Object.assign(document.createElement("a"), {
      href: location.pathname,
      className: "button small",
      textContent: gettext("Take theirs"),
    });
    take.addEventListener("click", () => (this.leaving = true));
    const said = Object.assign(document.createElement("span"), { className: "notice-text", textContent: error.message });
    this.conflict.replaceChildren(said, compare, take);
  }
}

if (form) {
  const draft = new Draft();
  const panel = measurePanel(document.querySelector("#measure"), (text) => call("POST", `${page.api}/measure`, { text }));
  panel(form.elements.text.value, true);
  form.elements.text.addEventListener("input", () => panel(form.elements.text.value));
  // Enter in the reason means the button that the reason is for.
  form.elements.note.addEventListener("keydown", (event) => {
    const publish = document.querySelector("#publish");
    if (event.key !== "Enter" || event.isComposing || !publish) return;
    event.preventDefault();
    form.requestSubmit(publish);
  });
  const trying = document.querySelector("#trying");
  if (trying) new Trial(trying, { name: page.name, socket: page.socket, draft: () => draft.save() });
}
