/* The workspace: wires session, socket and views together, and keeps the address in step with what is shown.

   What else a reader can do here comes as features: modules with `install(workspace)`, called once before anything is
   shown. A feature adds commands (commands.js), a button to the footer of messages (`messageActions`), an entry to the
   menu of a conversation (`conversationEntries`), and hears what happens (`on`). */

import { h, icon, useSprite } from "#octavo/dom.js";
import { install as installAnswering } from "#octavo/answering.js";
import { install as installChats } from "#octavo/chats.js";
import { install as installChoices } from "#octavo/choices.js";
import { install as installConnection } from "#octavo/connection.js";
import { install as installAnnounce } from "#octavo/announce.js";
import { install as installKeys } from "#octavo/keys.js";
import { install as installMemory } from "#octavo/memory.js";
import { install as installMoving } from "#octavo/moving.js";
import { install as installUpdates } from "#octavo/updates.js";
import { Composer, draftName } from "#octavo/composer.js";
import { Files, Preview, acceptFiles, filesName } from "#octavo/files.js";
import { fill, gettext } from "#octavo/i18n.js";
import { Leftovers } from "#octavo/leftovers.js";
import { Log } from "#octavo/log.js";
import { Octavo } from "#octavo/octavo.js";
import { Refusal } from "#octavo/refusal.js";
import { Session, branchName } from "#octavo/session.js";
import { Sidebar } from "#octavo/sidebar.js";
import { shown } from "#octavo/tree.js";

const $ = (id) => document.getElementById(id);
const page = JSON.parse($("page").textContent);
const base = `/t/${page.tenant.slug}/`;
// What is kept in this browser, in whose name: others may use it too, and have other teams.
const whose = `${page.tenant.slug}:${page.reader}`;
const leftovers = new Leftovers(whose, (id) => [branchName(id), draftName(whose, id), filesName(whose, id)]);
useSprite(page.icons);

const session = new Session({
  api: `/api/t/${page.tenant.slug}`,
  whose,
  conversations: page.conversations,
  notify,
});
let current = page.conversation ? session.adopt(page.conversation) : session.fresh();

const preview = new Preview($("preview"), session.api);
const showFile = (file) => preview.show(file);
const files = new Files({
  tray: $("files"),
  room: $("room"),
  live: $("live"),
  api: session.api,
  whose,
  most: page.files.most,
  mostBytes: page.files.most_bytes,
  used: () => {
    const usage = shown(current).findLast((message) => message.usage?.prompt_tokens)?.usage;
    return usage ? usage.prompt_tokens + (usage.completion_tokens ?? 0) : 0;
  },
  show: showFile,
  onChange: () => composer.refresh(),
});
const messageActions = [];
const acts = {}; // what can be done with a message; answering.js fills it
const refusal = new Refusal($("refusal"));
const log = new Log({
  scroller: $("scroller"),
  log: $("log"),
  jump: $("jump"),
  empty: $("empty"),
  message: {
    name: page.assistant,
    acts,
    limit: page.choices.params.max_tokens.most,
    showFile,
    actions: messageActions,
  },
});
/** Why nothing can be asked now, in words; "" where it can. */
function hindrance() {
  if (session.has(current)) return files.hindrance;
  return session.gone.has(current.id)
    ? gettext("This conversation was deleted. Your text stays here.")
    : gettext("This conversation is not loaded. Your text stays here.");
}

const composer = new Composer($("composer"), {
  whose,
  maxBytes: page.max_frame_bytes,
  context: page.context_tokens,
  used: () => files.used() + files.tokens,
  onFile: (file) => files.add([file]),
  onSend: (text) => {
    refusal.hide();
    session.ask(current, text, undefined, files.take());
    log.toEnd();
  },
  onStop: () => session.stop(current),
  hindrance,
});
acceptFiles({
  place: document.querySelector("main"),
  input: composer.input,
  button: $("attach"),
  picker: $("picker"),
  take: (chosen) => {
    refusal.hide();
    files.add(chosen);
  },
});
const sidebar = new Sidebar({
  sidebar: $("sidebar"),
  list: $("conversations"),
  toggles: document.querySelectorAll("[data-toggle-sidebar]"),
  veil: $("veil"),
  base,
  open: (id) => visit(id),
  more: () => (session.next ? session.moreOfList() : null),
});
const octavo = new Octavo({
  url: `/ws/ui?tenant=${encodeURIComponent(page.tenant.slug)}`,
  onState: (state, code) => tell("connection", state, code),
  patient: true,
});

// --- features ------------------------------------------------------------------------------------------------------

const listeners = [];
/** What features work with. `on("shown", (conversation) => …)`: another conversation is shown; `on("changed", (change) => …)`:
    what the session reports; `on("connection", (state, code) => …)`. `catchUp()`: load what the server has of it. */
const workspace = {
  page,
  base,
  session,
  log,
  composer,
  files,
  sidebar,
  octavo,
  messageActions, // (message) => an element or null
  acts,
  refusal,
  conversationEntries: [], // (conversation or item of the list) => an entry of menu.js or null
  get current() {
    return current;
  },
  visit,
  redraw,
  on(name, listener) {
    listeners.push({ name, listener });
  },
};

function tell(name, ...what) {
  for (const one of listeners) if (one.name === name) one.listener(...what);
}

// --- who answers ----------------------------------------------------------------------------------------------------

const choices = $("assistants");
/** A new chat may choose; one that has begun says who answers, where somebody was chosen. */
function choose(conversation) {
  if (!choices || conversation.id || conversation.messages.length) return;
  const chosen = page.assistants.find((one) => one.id === choices.querySelector("input:checked")?.value);
  // The default one is nobody's choice: should the team make another one the default, that one answers.
  conversation.assistant_id = chosen && !chosen.default ? chosen.id : null;
  conversation.assistant = conversation.assistant_id ? { name: chosen.name, instead_of: null } : null;
}
choices?.addEventListener("change", () => {
  choose(current);
  update();
  composer.focus();
});

function showAssistant() {
  const { assistant } = current;
  $("assistant").hidden = !assistant?.name;
  $("assistant").textContent = assistant?.name ?? "";
  $("assistant").title = assistant?.instead_of
    ? fill(gettext("%(archived)s was archived; %(name)s answers instead."), {
        archived: assistant.instead_of,
        name: assistant.name,
      })
    : "";
}

// --- what is shown -------------------------------------------------------------------------------------------------

function show(conversation) {
  current = conversation;
  choose(conversation);
  refusal.hide();
  log.show(conversation);
  if (conversation.id) leftovers.there([conversation]);
  files.open(conversation.id);
  composer.open(conversation.id);
  update();
  if (!sidebar.isSheet) composer.focus();
  tell("shown", conversation);
}

function showTitle() {
  const title = current.title || gettext("New chat");
  if ($("title").textContent !== title) $("title").textContent = title;
  const whole = `${title} · ${page.tenant.name}`;
  if (document.title !== whole) document.title = whole;
}

function update() {
  showTitle();
  showAssistant();
  composer.setAnswering(Boolean(session.live(current)));
  sidebar.render(session.list, current.id);
}

/** Show a conversation (null: a new one), and put its address in the bar unless the browser already has. */
async function visit(id, push = true) {
  if (push) history.pushState({}, "", id ? `${base}c/${id}` : base);
  if (!id) return show(session.fresh());
  const known = session.loaded.get(id);
  if (known) {
    show(known);
    session.load(id).then(
      () => current === known && redraw(),
      () => {},
    );
    return;
  }
  const awaited = { id, title: session.list.find((item) => item.id === id)?.title, messages: [] };
  current = awaited;
  log.wait();
  files.open(id);
  composer.open(id);
  update();
  try {
    const conversation = await session.load(id);
    if (current === awaited) show(conversation);
  } catch (error) {
    if (error.status === 404 || error.status === 410) leftovers.gone(id);
    if (current === awaited) log.say(unreachable(id, error));
  }
}

function redraw() {
  if (!log.conversation) return update(); // it is on its way, or gone
  log.refresh();
  for (const message of log.views.keys()) log.touch(message);
  update();
}

function unreachable(id, error) {
  const gone = error.status === 404 || error.status === 410;
  return h(
    "div",
    { class: "notice bad" },
    icon("circle-alert"),
    h("span", {
      class: "notice-text",
      text:
        error.status === 410
          ? gettext("This conversation was deleted, in another tab or on another device.")
          : gone
            ? gettext("This conversation does not exist, or you may not see it.")
            : gettext("This conversation could not be loaded."),
    }),
    gone
      ? h("button", { type: "button", class: "button small", onclick: () => visit(null) }, gettext("New chat"))
      : h("button", { type: "button", class: "button small", onclick: () => visit(id, false) }, gettext("Try again")),
  );
}

/** What the session reports. */
function notify(change) {
  reported(change);
  tell("changed", change);
}

function reported(change) {
  if (change.kind === "list") {
    leftovers.there(session.list);
    return sidebar.render(session.list, current.id);
  }
  if (change.kind === "accepted" && change.isNew) {
    if (change.conversation === current) {
      history.pushState({}, "", `${base}c/${current.id}`);
      composer.rename(current.id);
      files.rename(current.id);
    }
    session.refreshList().catch(() => {});
  }
  if (change.kind === "gone") {
    leftovers.gone(change.id);
    if (change.id !== current.id) return;
    current = { id: change.id, title: current.title, messages: [] }; // nothing in it to be answered again
    log.say(unreachable(change.id, { status: 410 }));
    composer.refresh();
    return update();
  }
  if (change.kind === "rejected") return refused(change);
  if (change.conversation !== current) return;
  if (change.kind === "branch") redraw();
  if (change.kind === "message") {
    if (log.views.has(change.message)) log.touch(change.message);
    else if (shown(current).includes(change.message)) log.refresh();
    if (!session.live(current)) refusal.answered();
  }
  if (change.kind === "accepted") for (const message of log.views.keys()) log.touch(message);
  // With every piece of an answer: what stays the same is left alone, since setting it is work for the browser too.
  const answering = Boolean(session.live(current));
  if (answering !== composer.answering) composer.setAnswering(answering);
  showTitle();
}

/** Questions that an earlier page could not send: asked again, or given back to where they were written. */
async function askLeft() {
  const isNew = (conversation) => !conversation.id && conversation.messages.length === 0;
  const found = (id) => (id ? (session.loaded.get(id) ?? session.load(id)) : isNew(current) ? current : session.fresh());
  for (const { request, files: taken } of await session.askLeft(found)) {
    files.putBack(request.conversation_id, taken);
    composer.keepFor(request.conversation_id, request.input);
  }
  if (!composer.input.value) composer.open(current.id);
  redraw();
}

/** It was not accepted: a question goes back to where it was written, with the reason. */
function refused({ conversation, text, files: taken, edited, again, error }) {
  if (!edited) files.putBack(conversation.id, taken ?? []);
  if (conversation !== current) {
    if (text !== null) composer.keepFor(conversation.id, text);
    return;
  }
  redraw();
  if (edited) log.views.get(edited)?.edit(text);
  else if (text !== null) composer.giveBack(text);
  if (error.code === "conversation_busy") workspace.catchUp(); // so that there is something to wait for, and a Stop
  if (text === null) refusal.show(error, again);
  else refusal.show(error, edited ? null : () => composer.form.requestSubmit());
}

// --- the page ------------------------------------------------------------------------------------------------------

addEventListener("popstate", () => {
  const id = /\/c\/([^/]+)\/?$/.exec(location.pathname)?.[1] ?? null;
  visit(id, false);
});
for (const link of document.querySelectorAll("[data-new-chat]")) {
  link.addEventListener("click", (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    if (sidebar.isSheet) sidebar.show(false);
    if (current.id || current.messages.length) visit(null);
    composer.focus();
  });
}
setInterval(() => log.tick(), 1000);

const features = [
  installConnection,
  installUpdates,
  installChoices,
  installAnswering,
  installAnnounce,
  installMemory,
  installKeys,
  installChats,
  installMoving,
];
for (const install of features) install(workspace);
show(current);
session.attach(octavo);
octavo.connect();
leftovers.there(session.list);
leftovers.sweep();
askLeft();

export { log, octavo, session };
