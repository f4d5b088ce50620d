/* One message on the page: who, text, how it stands, and the quiet footer. Given a message, it shows it; it changes none.

   An answer is given as a Turn (tree.js): one message with one text, of however many parts. `update` may be called at any
   time, any number of times; a message that is being edited stays as it is written. */

import { LIVE } from "#octavo/answer.js";
import { h, icon } from "#octavo/dom.js";
import { Editor } from "#octavo/editor.js";
import { sentFiles } from "#octavo/files.js";
import { Footer } from "#octavo/footer.js";
import { count, place } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { MarkdownView } from "#octavo/markdown.js";
import { PlainView } from "#octavo/plain.js";
import { inWords } from "#octavo/refusals.js";

const QUIET_MS = 1000;

const whose = (message, name) => h("h2", { class: "who", text: message.role === "user" ? gettext("You") : name });

/** A message as it stands far away from the reader: who and the text as it came, which the browser finds and speaks. */
export function plainMessage(message, { name }) {
  return h(
    "article",
    { class: `message ${message.role} unloaded`, "data-id": message.id },
    whose(message, name),
    h("div", { class: "text plain", dir: "auto", text: message.text }),
  );
}

export class MessageView {
  /** `name`: who answers; `acts`: what can be done with it (answering.js), nothing to be only read; `limit`: how many tokens the team's answers may
      have; `showFile(file)` opens one of a question's. `actions`: functions that give an element for the footer of a
      message, or null; asked again when it changes. */
  constructor(message, { name, acts, limit, showFile, actions = [] }) {
    Object.assign(this, { message, acts, limit });
    const isUser = message.role === "user";
    this.text = h("div", { class: isUser ? "text plain" : "text markdown" });
    this.view = isUser ? new PlainView(this.text) : new MarkdownView(this.text);
    this.state = h("p", { class: "state", hidden: true });
    this.notice = h("div", { class: "notice", hidden: true });
    this.footer = new Footer(message, { acts, makers: actions, edit: () => this.edit(), text: this.text });
    this.editor = null;
    this.element = h(
      "article",
      { class: `message ${message.role}`, "data-id": message.id },
      whose(message, name),
      message.files?.length ? sentFiles(message.files, showFile) : null,
      this.text,
      this.state,
      this.notice,
      this.footer.element,
    );
    this.update();
    if (message.editing !== undefined) this.#openEditor(message.editing);
  }

  /** `length`: show no more of the text than this, for now. */
  update(length = Infinity) {
    const { message } = this;
    const text = length < message.text.length ? message.text.slice(0, length) : message.text;
    const live = LIVE.has(message.status);
    this.element.dataset.id = message.id;
    if (message.role === "assistant") this.element.dataset.status = message.status;
    this.element.classList.toggle("running", live && message.text !== "");
    // What is not yet shown is still to come, for the reader's eye: its end is mended like that of a growing text.
    this.view.update(text, live || text.length < message.text.length);
    this.text.hidden = message.text === "" || this.editor !== null;
    this.footer.update(live || this.editor !== null);
    this.#showNotice(live);
    this.tick();
  }

  /** What changes with the clock: the time of the message, and how long an answer has been waited for. */
  tick(now = Date.now()) {
    const { message } = this;
    this.footer.tick(now);
    const live = LIVE.has(message.status);
    // What goes on with an answer is waited for below the text that there is.
    const waiting = live && (message.last ?? message).text === "";
    this.state.hidden = !(waiting || (message.stopping && live));
    if (!this.state.hidden) this.state.textContent = this.#stateText(now);
  }

  #stateText(now) {
    const { message } = this;
    if (message.stopping) return gettext("Stopping…");
    const waited = now - (message.asked_at ?? Date.parse((message.last ?? message).created_at));
    if (message.status === "running") return gettext("Reading your message…");
    if (waited < QUIET_MS || message.position === undefined)
      return message.status === "sending" && waited > QUIET_MS ? gettext("Sending…") : "…";
    return `${place(message.position)} · ${fill(gettext("%(n)s s"), { n: Math.floor(waited / 1000) })}`;
  }

  // --- editing -----------------------------------------------------------------------------------------------------

  /** Put the message in other words; `text`: what was written already. It is kept with the message until it is sent or given
      up, should the view go meanwhile. */
  edit(text = this.message.text) {
    this.#openEditor(text);
    this.editor.focus();
  }

  #openEditor(text) {
    if (!this.editor) {
      this.message.editing = text;
      this.editor = new Editor(text, {
        onWrite: (written) => (this.message.editing = written),
        onSend: (written) => {
          this.#closeEditor();
          this.acts.edit(this.message, written);
        },
        onCancel: () => {
          this.#closeEditor();
          this.footer.own.focus();
        },
      });
      this.text.before(this.editor.element);
      this.element.classList.add("editing");
      this.update();
    }
  }

  #closeEditor() {
    this.editor.element.remove();
    this.editor = null;
    delete this.message.editing;
    this.element.classList.remove("editing");
    this.update();
  }

  // --- how it ended ------------------------------------------------------------------------------------------------

  #showNotice(live) {
    const notice = live || this.message.role !== "assistant" ? null : this.#ending();
    this.notice.hidden = notice === null;
    const key = JSON.stringify(notice);
    if (!notice || key === this.noticed) return;
    this.noticed = key;
    this.notice.className = `notice ${notice.kind}`;
    const buttons = (this.acts ? notice.ways : []).map((way) =>
      h("button", { type: "button", class: "button small", onclick: () => this.acts[way](this.message) }, NAMES[way]()),
    );
    this.notice.replaceChildren(
      ...(notice.icon ? [icon(notice.icon)] : []),
      h("span", { class: "notice-text", text: notice.text }),
      ...buttons,
    );
  }

  /** {kind, icon, text, ways}: what there is to say about the end of an answer, and what can be done; null: nothing. */
  #ending() {
    const { message } = this;
    const { status, text } = message;
    const mark = "circle-alert";
    if (status === "failed") {
      const { error, said, last } = message;
      const ways = waysOn(error?.code, said && said === last);
      const why = inWords(error) || gettext("The answer broke off and nothing says why.");
      return { kind: "bad", icon: mark, text: why, ways };
    }
    if (status === "cancelled")
      return text
        ? { kind: "quiet", text: gettext("You stopped this answer."), ways: ["goOn"] }
        : { kind: "quiet", text: gettext("You stopped this answer before it began."), ways: ["retry"] };
    if (status === "incomplete") return { kind: "warn", icon: mark, text: this.#cut(), ways: ["goOn"] };
    if (text.trim() === "")
      return { kind: "", icon: mark, text: gettext("The model answered with nothing."), ways: ["retry"] };
    return null;
  }

  #cut() {
    const tokens = this.message.last.usage?.completion_tokens;
    if (!tokens) return gettext("The answer was cut at its limit.");
    if (this.message.parts.length > 1)
      return fill(gettext("The answer was cut once more, after another %(n)s tokens."), { n: count(tokens) });
    const words =
      tokens === this.limit
        ? gettext("The answer was cut at %(n)s tokens, your team's limit.")
        : gettext("The answer was cut at %(n)s tokens, its limit.");
    return fill(words, { n: count(tokens) });
  }
}

/** What can come of an answer that failed; `begun`: it has text to go on with. */
function waysOn(code, begun) {
  if (code === "lost") return [];
  // The same question again is as long again.
  if (code === "context_length_exceeded" || code === "context_too_long") return ["shorten", "begin"];
  return begun ? ["goOn", "retry"] : ["retry"];
}

const NAMES = {
  goOn: () => gettext("Continue"),
  retry: () => gettext("Ask again"),
  shorten: () => gettext("Edit"),
  begin: () => gettext("New chat"),
};
