/* One message on the page: who, text, how it stands, and the quiet footer. Given a message, it shows it; it changes none. */

import { LIVE } from "#octavo/answer.js";
import { copyButton, h, icon } from "#octavo/dom.js";
import { sentFiles } from "#octavo/files.js";
import { count, exactTime, figures, place, relativeTime } from "#octavo/format.js";
import { MarkdownView } from "#octavo/markdown.js";

const QUIET_MS = 1000;

export class MessageView {
  /** `retry(message)` asks the question of a failed answer again; `showFile(file)` opens one of a question's.
      `actions`: functions that give an element for the footer of a message, or null; asked again when it changes. */
  constructor(message, { name, retry, showFile, actions = [] }) {
    this.message = message;
    this.retry = retry;
    this.makers = actions;
    const isUser = message.role === "user";
    this.text = h("div", { class: isUser ? "text plain" : "text markdown" });
    this.markdown = isUser ? null : new MarkdownView(this.text);
    this.state = h("p", { class: "state", hidden: true });
    this.notice = h("div", { class: "notice", hidden: true });
    this.figures = h("span", { class: "figures" });
    this.time = h("time");
    this.copy = copyButton(() => this.message.text, { class: "action" });
    this.actions = h("span", { class: "actions" });
    this.footer = h("footer", {}, this.copy, this.actions, this.time, this.figures);
    this.element = h(
      "article",
      { class: `message ${message.role}`, "data-id": message.id },
      h("h2", { class: "who", text: isUser ? "You" : name }),
      message.files?.length ? sentFiles(message.files, showFile) : null,
      this.text,
      this.state,
      this.notice,
      this.footer,
    );
    this.update();
  }

  update() {
    const { message } = this;
    const live = LIVE.has(message.status);
    this.element.dataset.id = message.id;
    if (message.role === "assistant") this.element.dataset.status = message.status;
    this.element.classList.toggle("running", live && message.text !== "");
    if (this.markdown) this.markdown.update(message.text, live);
    else if (this.text.textContent !== message.text) this.text.textContent = message.text;
    this.text.hidden = message.text === "";
    this.footer.hidden = live;
    this.copy.hidden = message.text === "";
    if (!live) this.#showActions();
    this.figures.textContent = live ? "" : figures(message.usage, message.timing);
    this.#showNotice(live);
    this.tick();
  }

  #showActions() {
    const focused = this.actions.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    const made = this.makers.map((make) => make(this.message)).filter(Boolean);
    this.actions.replaceChildren(...made);
    if (focused) this.actions.querySelector(`[data-action="${CSS.escape(focused)}"]`)?.focus();
  }

  /** What changes with the clock: the time of the message, and how long an answer has been waited for. */
  tick(now = Date.now()) {
    const { message } = this;
    if (message.created_at) {
      this.time.textContent = relativeTime(message.created_at, now);
      if (this.time.dateTime !== message.created_at) {
        this.time.dateTime = message.created_at;
        this.time.title = exactTime(message.created_at);
      }
    }
    const waiting = LIVE.has(message.status) && message.text === "";
    this.state.hidden = !(waiting || (message.stopping && LIVE.has(message.status)));
    if (!this.state.hidden) this.state.textContent = this.#stateText(now);
  }

  #stateText(now) {
    const { message } = this;
    if (message.stopping) return "Stopping…";
    const waited = now - (message.asked_at ?? Date.parse(message.created_at));
    if (message.status === "running") return "Reading your message…";
    if (waited < QUIET_MS || message.position === undefined)
      return message.status === "sending" && waited > QUIET_MS ? "Sending…" : "…";
    return `${place(message.position)} · ${Math.floor(waited / 1000)} s`;
  }

  #showNotice(live) {
    const { message } = this;
    let notice = null;
    if (live || message.role !== "assistant") notice = null;
    else if (message.status === "failed") {
      const text = message.error?.message ?? "The answer broke off and nothing says why.";
      notice = { kind: "bad", icon: "circle-alert", text, retry: message.error?.code !== "lost" };
    } else if (message.status === "cancelled") {
      notice = {
        kind: "quiet",
        text: message.text ? "You stopped this answer." : "You stopped this answer before it began.",
      };
    } else if (message.status === "incomplete") {
      const tokens = message.usage?.completion_tokens;
      const limit = tokens
        ? `The answer was cut at ${count(tokens)} tokens, the limit.`
        : "The answer was cut at the limit.";
      notice = { kind: "warn", icon: "circle-alert", text: `${limit} Ask it to go on for the rest.` };
    } else if (message.text.trim() === "") {
      notice = { kind: "", icon: "circle-alert", text: "The model answered with nothing.", retry: true };
    }
    this.notice.hidden = notice === null;
    if (!notice) return;
    this.notice.className = `notice ${notice.kind}`;
    this.notice.replaceChildren(
      ...(notice.icon ? [icon(notice.icon)] : []),
      h("span", { class: "notice-text", text: notice.text }),
    );
    if (notice.retry) {
      const retry = h(
        "button",
        { type: "button", class: "button small", onclick: () => this.retry(message) },
        "Ask again",
      );
      this.notice.append(retry);
    }
  }
}
