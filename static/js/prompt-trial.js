/* A side chat with a draft: its own conversation, kept in this page alone, each answer under the text as it stands then.

   The whole of it goes along with each question, since the server keeps nothing. An answer that is cut off by a lost
   connection ends there: the server stops what nobody can receive. */

import { LIVE } from "#octavo/answer.js";
import { gettext } from "#octavo/i18n.js";
import { MessageView } from "#octavo/message.js";
import { Octavo } from "#octavo/octavo.js";
import { inWords } from "#octavo/refusals.js";
import { Turn } from "#octavo/tree.js";

const LONGEST_ANSWER = 512;

export class Trial {
  /** `draft()` returns (a promise of) the id of what is tried, saved; it throws {message}. */
  constructor(pane, { name, socket, draft }) {
    Object.assign(this, { name, draft });
    this.talk = pane.querySelector("#talk");
    this.form = pane.querySelector("#try");
    this.input = pane.querySelector("textarea");
    this.send = pane.querySelector(".send:not(.stop)");
    this.stop = pane.querySelector(".stop");
    this.again = pane.querySelector("#again");
    this.hint = this.talk.firstElementChild;
    this.views = [];
    this.octavo = new Octavo({ url: socket });
    this.input.addEventListener("input", () => this.#update());
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.send.disabled) this.form.requestSubmit();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    this.stop.addEventListener("click", () => this.#cancel());
    this.again.addEventListener("click", () => this.#startOver());
    this.octavo.connect();
    this.#update();
  }

  get answer() {
    const last = this.views.at(-1)?.message.last;
    return last && LIVE.has(last.status) ? last : null;
  }

  async #ask() {
    const text = this.input.value;
    if (!text.trim() || this.answer) return;
    const created_at = new Date().toISOString();
    this.#add({ id: this.views.length, role: "user", text, created_at, status: "completed" });
    const answer = {
      id: this.views.length,
      role: "assistant",
      text: "",
      created_at,
      asked_at: Date.now(),
      last_seq: -1,
      status: "sending",
    };
    this.#add(new Turn(answer));
    this.input.value = "";
    this.#update();
    try {
      const draft_id = await this.draft();
      if (!draft_id) throw { message: gettext("Write instructions first: there is nothing to try yet.") };
      if (answer !== this.answer) return;
      const input = this.views
        .map(({ message }) => message)
        .filter((message) => message.last !== answer && message.text && message.status !== "failed")
        .map(({ role, text }) => ({ role, content: text }));
      const fail = (error) => this.#fail(answer, error);
      this.response = this.octavo.respond(
        { input, draft_id, params: { max_tokens: LONGEST_ANSWER } },
        { answer, onChange: () => this.#update(), onRefused: fail, onLost: fail },
      );
      if (answer.stopping) this.response.cancel();
    } catch (error) {
      this.#fail(answer, error);
    }
  }

  #cancel() {
    const answer = this.answer;
    if (!answer) return;
    answer.stopping = true;
    if (this.response?.answer === answer) this.response.cancel();
    this.#update();
  }

  #startOver() {
    this.#cancel();
    this.views = [];
    this.talk.replaceChildren(this.hint);
    this.#update();
    this.input.focus();
  }

  #fail(answer, error) {
    if (!LIVE.has(answer.status)) return;
    answer.status = "failed";
    answer.error = { message: inWords(error) || gettext("This did not work."), code: "lost" };
    this.#update();
  }

  #add(message) {
    const view = new MessageView(message, { name: this.name });
    this.views.push(view);
    if (this.hint.isConnected) this.hint.remove();
    this.talk.append(view.element);
  }

  #update() {
    const busy = Boolean(this.answer);
    this.send.hidden = busy;
    this.stop.hidden = !busy;
    this.send.disabled = busy || !this.input.value.trim();
    this.again.hidden = this.views.length === 0;
    this.views.at(-1)?.update();
    this.talk.scrollTop = this.talk.scrollHeight;
  }
}
