/* Thumbs under answers: pressed at once, taken back by pressing again, with a reason for whoever wants to give one. */

import { LIVE } from "#octavo/answer.js";
import { call } from "#octavo/calls.js";
import { openDialog } from "#octavo/dialog.js";
import { h, icon } from "#octavo/dom.js";
import { fill, gettext } from "#octavo/i18n.js";
import { toast } from "#octavo/toast.js";

const LONGEST = 2000;

/** The reasons that each rating knows (chatapp.feedback.models), in words. */
export const REASONS = {
  up: () => [
    ["correct", gettext("Correct")],
    ["clear", gettext("Clear")],
    ["complete", gettext("Complete")],
  ],
  down: () => [
    ["wrong", gettext("Not correct")],
    ["unhelpful", gettext("Not what was asked")],
    ["incomplete", gettext("Incomplete or cut")],
    ["style", gettext("Wrong tone or language")],
    ["unsafe", gettext("Unsafe or offensive")],
    ["slow", gettext("Too slow")],
  ],
};

export class Thumbs {
  constructor(workspace) {
    this.workspace = workspace;
    this.api = workspace.session.api;
    this.given = new Map(); // id of an answer -> {rating, reasons, comment, included}
    this.sent = new Map(); // id of an answer -> the last call about it
    this.thumbs = new WeakMap(); // an answer -> its buttons: new ones would lose the second press of a double click
  }

  /** What the server knows of a conversation. */
  take(conversation, ratings) {
    const known = new Map(ratings.map((one) => [one.message_id, one]));
    for (const { id } of conversation.messages) {
      if (known.has(id)) this.given.set(id, known.get(id));
      else this.given.delete(id);
    }
    if (this.workspace.current === conversation) for (const message of this.workspace.log.views.keys()) this.#draw(message);
  }

  /** Both buttons, for an answer of this team's that has ended; null for anything else. */
  of(message) {
    if (message.role !== "assistant" || !message.response_id || !message.text || LIVE.has(message.status)) return null;
    const rating = this.given.get(message.id)?.rating;
    if (!this.thumbs.has(message)) this.thumbs.set(message, this.#thumbs(message));
    const thumbs = this.thumbs.get(message);
    for (const button of thumbs.children) {
      const pressed = button.dataset.action === `thumb-${rating}`;
      button.setAttribute("aria-pressed", String(pressed));
      button.title = pressed ? gettext("Take this back") : button.getAttribute("aria-label");
    }
    return thumbs;
  }

  #thumbs(message) {
    const button = (kind, label) =>
      h(
        "button",
        {
          type: "button",
          class: "action thumb",
          "data-action": `thumb-${kind}`,
          "aria-label": label,
          onclick: () => this.#pressed(message, kind),
        },
        icon(`thumbs-${kind}`),
      );
    return h("span", { class: "thumbs" }, button("up", gettext("Good answer")), button("down", gettext("Bad answer")));
  }

  async #pressed(message, rating) {
    const { id } = message;
    const before = this.given.get(id);
    const takesBack = before?.rating === rating;
    if (takesBack) this.given.delete(id);
    else this.given.set(id, { rating, reasons: [], comment: "", included: false });
    this.#draw(message);
    // One after the other: two presses may not overtake each other on their way.
    const send = () => (takesBack ? call("DELETE", this.#address(id)) : call("PUT", this.#address(id), { rating }));
    const sent = (this.sent.get(id) ?? Promise.resolve()).then(send, send);
    this.sent.set(id, sent);
    const isLast = () => this.sent.get(id) === sent;
    try {
      await sent;
    } catch (error) {
      if (!isLast()) return;
      if (before) this.given.set(id, before);
      else this.given.delete(id);
      this.#draw(message);
      toast(error.message, { kind: "bad" });
      return;
    }
    if (!isLast()) return;
    if (takesBack) toast(gettext("Your rating is taken back."));
    else if (rating === "down") this.#ask(message, rating);
    else
      toast(gettext("Thank you. Your rating is saved."), {
        action: { label: gettext("Say why"), run: () => this.#ask(message, rating) },
      });
  }

  #address(id) {
    return `${this.api}/messages/${id}/rating`;
  }

  #draw(message) {
    this.workspace.log.touch(message);
  }

  #ask(message, rating) {
    const { id } = message;
    const chosen = new Set(this.given.get(id)?.reasons ?? []);
    const chips = REASONS[rating]().map(([name, label]) => {
      const chip = h("button", { type: "button", class: "chip", "aria-pressed": String(chosen.has(name)), text: label });
      chip.addEventListener("click", () => {
        if (!chosen.delete(name)) chosen.add(name);
        chip.setAttribute("aria-pressed", String(chosen.has(name)));
      });
      return chip;
    });
    const comment = h("textarea", { id: "feedback-comment", rows: "3", maxlength: LONGEST, dir: "auto" });
    const include = h("input", { type: "checkbox", id: "feedback-include" });
    const refusal = h("div", { class: "notice bad", role: "alert", hidden: true });
    const send = h("button", { type: "submit", form: "feedback-form", class: "button primary", text: gettext("Send") });
    const team = this.workspace.page.tenant.name;
    const form = h(
      "form",
      { id: "feedback-form", class: "stack" },
      h("div", { class: "chips", role: "group", "aria-label": gettext("Reasons") }, ...chips),
      h(
        "div",
        { class: "field" },
        h("label", { for: "feedback-comment", text: gettext("In your own words (optional)") }),
        comment,
      ),
      h(
        "div",
        { class: "field check" },
        include,
        h("label", { for: "feedback-include", text: gettext("Include this question and answer") }),
      ),
      h("p", {
        class: "quiet",
        text: fill(
          gettext(
            "The owners and admins of %(team)s see your rating, the reasons and your words, the model, and the assistant with its prompt version. They do not see your name. Your chat stays private unless you include this question and answer.",
          ),
          { team },
        ),
      }),
      refusal,
    );
    const dialog = openDialog({
      title: rating === "up" ? gettext("What was good?") : gettext("What was wrong?"),
      body: [form],
      actions: [h("button", { type: "button", class: "button", text: gettext("Not now"), onclick: () => dialog.close() }), send],
      className: "feedback-dialog",
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (send.disabled) return;
      send.disabled = true;
      refusal.hidden = true;
      try {
        const said = { rating, reasons: [...chosen], comment: comment.value, include: include.checked };
        this.given.set(id, await call("PUT", this.#address(id), said));
        dialog.close();
        this.#draw(message);
        toast(gettext("Thank you. Your team's admins can read it now."));
      } catch (error) {
        refusal.replaceChildren(icon("circle-alert"), h("span", { class: "notice-text", text: error.message }));
        refusal.hidden = false;
        send.disabled = false;
      }
    });
    chips[0].focus();
  }
}
