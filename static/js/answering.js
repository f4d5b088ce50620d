/* What a reader can do with messages: another answer, the rest of one, other words, a quotation, another branch. A feature
   of chat.js; the buttons are the messages' (footer.js), which find what they do in `workspace.acts`. */

import { commands } from "#octavo/commands.js";
import { gettext } from "#octavo/i18n.js";
import { beingAnswered } from "#octavo/refusals.js";
import { toast } from "#octavo/toast.js";
import { placeOf, shown } from "#octavo/tree.js";

/** A text as a quotation of Markdown. */
export const quotation = (text) =>
  text
    .trim()
    .split("\n")
    .map((line) => (line ? `> ${line}` : ">"))
    .join("\n");

export function install(workspace) {
  const { session, log, composer, acts } = workspace;
  const list = () => shown(workspace.current);
  const lastOf = (role) => list().findLast((message) => message.role === role);
  const isFree = () => session.has(workspace.current) && !session.live(workspace.current);

  /** While a conversation is on its way, the messages of the former one stand there for a moment: nothing is done with
      them, and no ids of theirs go to the one that is awaited. */
  const ofShown = (act) => (message, ...rest) => list().includes(message) ? act(message, ...rest) : undefined;

  /** Ask in the shown conversation, unless it is being answered; what is asked is at the end of what is shown. */
  function ask(work) {
    if (!isFree()) return toast(beingAnswered());
    workspace.refusal.hide();
    work(workspace.current);
    log.toEnd();
  }

  const ofMessages = {
    again: (turn) => ask((conversation) => session.answerAgain(conversation, turn)),
    retry: (turn) => ask((conversation) => session.askAgain(conversation, turn)),
    shorten: (turn) => edit(list().find((message) => message.id === turn.parent_id)),
    goOn: (turn) => ask((conversation) => session.goOn(conversation, turn)),

    edit: (question, text) => {
      if (isFree()) return ask((conversation) => session.edit(conversation, question, text));
      toast(beingAnswered());
      log.views.get(question)?.edit(text);
    },

    quote: (message, selected) => {
      const before = composer.input.value.trimEnd();
      composer.put(`${before ? `${before}\n\n` : ""}${quotation(selected || message.text)}\n\n`);
      composer.focus();
      composer.input.setSelectionRange(composer.input.value.length, composer.input.value.length);
      composer.input.scrollTop = composer.input.scrollHeight;
    },

    /** `button`: the one that was pressed. Its like on the message that is shown now has the focus, and stands in the same
        place, to be pressed again; without one the message's beginning stays where it was. */
    step: (message, by, button = null) => {
      const index = list().indexOf(message);
      const topOf = (element) => element.getBoundingClientRect().top;
      const buttonOf = (one) =>
        log.row(one).element.querySelector(`.branch [data-action="${button}"]:enabled`) ??
        log.row(one).element.querySelector(".branch :enabled");
      const offset = topOf(log.row(message).element) - topOf(log.scroller);
      const at = button ? topOf(buttonOf(message)) : 0;
      session.step(workspace.current, message, by);
      const now = list()[index];
      log.reveal(now.id, offset); // the reader looks at this message, and not at the end
      const next = button && buttonOf(now);
      if (!next) return;
      log.scroller.scrollTop += topOf(next) - at;
      next.focus({ preventScroll: true });
    },
  };
  for (const [name, act] of Object.entries(ofMessages)) acts[name] = ofShown(act);
  acts.begin = () => workspace.visit(null);

  function edit(question) {
    const row = log.row(question);
    row?.element.scrollIntoView({ block: "nearest" });
    row?.edit();
  }

  /** The message that the branch keys are about: the one with the focus, else the last one that has others beside it. */
  function branched() {
    const focused = document.activeElement?.closest(".message");
    const of = list().filter((message) => placeOf(message).of > 1);
    return of.find((message) => log.views.get(message)?.element === focused) ?? of.at(-1);
  }

  const canStep = (by) => {
    const message = branched();
    const { at, of } = message ? placeOf(message) : { at: 0, of: 1 };
    return at + by >= 0 && at + by < of;
  };

  const goesOn = () => {
    const turn = lastOf("assistant");
    return isFree() && turn?.text && ["incomplete", "cancelled", "failed"].includes(turn.status) ? turn : null;
  };

  commands.add({
    id: "edit-last",
    title: gettext("Edit your last message"),
    icon: "pencil",
    when: () => isFree() && Boolean(lastOf("user")),
    run: () => edit(lastOf("user")),
  });
  commands.add({
    id: "regenerate",
    title: gettext("Answer again"),
    icon: "refresh-cw",
    group: "chat",
    when: () => isFree() && Boolean(lastOf("assistant")),
    run: () => acts.again(lastOf("assistant")),
  });
  commands.add({
    id: "continue",
    title: gettext("Continue the answer"),
    icon: "arrow-down",
    group: "chat",
    when: () => Boolean(goesOn()),
    run: () => acts.goOn(goesOn()),
  });
  commands.add({
    id: "quote-last",
    group: "chat",
    title: gettext("Quote the last answer"),
    icon: "text-quote",
    when: () => Boolean(lastOf("assistant")?.text),
    run: () => acts.quote(lastOf("assistant"), ""),
  });
  for (const [id, by, title] of [
    ["previous-version", -1, gettext("Previous version of the message")],
    ["next-version", 1, gettext("Next version of the message")],
  ])
    commands.add({
      id,
      title,
      group: "chat",
      repeats: true,
      icon: by < 0 ? "chevron-left" : "chevron-right",
      when: () => canStep(by),
      run: () => acts.step(branched(), by),
    });
}
