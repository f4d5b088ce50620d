/* What can be done in the workspace by keyboard and palette, as commands. A feature of chat.js. */

import { enterBreaks } from "#octavo/box.js";
import { commands } from "#octavo/commands.js";
import { copy } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";
import { visitHit } from "#octavo/reveal.js";
import { installShell } from "#octavo/shell.js";
import { toast } from "#octavo/toast.js";
import { shown } from "#octavo/tree.js";

/** The last block of code in a text of markdown, or null. */
function lastCode(markdown) {
  const blocks = [...markdown.matchAll(/^ {0,3}(`{3,}|~{3,})[^\n]*\n([\s\S]*?)(?:^ {0,3}\1[`~]*[ \t]*$|$(?![\s\S]))/gm)];
  return blocks.at(-1)?.[2].replace(/\n$/, "") ?? null;
}

export function install(workspace) {
  const { session, sidebar, composer, visit } = workspace;
  const messages = () => (workspace.current ? shown(workspace.current) : []);
  const answers = () => messages().filter((message) => message.role === "assistant" && message.text);
  const lastAnswer = () => answers().at(-1)?.text;
  const code = () => {
    for (const message of answers().reverse()) {
      const found = lastCode(message.text);
      if (found !== null) return found;
    }
    return null;
  };

  installShell({ sheet: sidebar, sources: [conversationsOf(workspace)] });

  commands.add({
    id: "new-chat",
    title: gettext("New chat"),
    icon: "square-pen",
    group: "conversations",
    run: () => {
      visit(null);
      composer.focus();
    },
  });
  for (const [id, title, step] of [
    ["next-chat", gettext("Next conversation"), 1],
    ["previous-chat", gettext("Previous conversation"), -1],
  ])
    commands.add({
      id,
      title,
      icon: step > 0 ? "arrow-down" : "arrow-up",
      group: "conversations",
      repeats: true,
      when: () => Boolean(beside(workspace, step)),
      run: () => visit(beside(workspace, step).id),
    });
  commands.add({
    id: "write",
    title: gettext("Write a message"),
    icon: "square-pen",
    group: "chat",
    run: () => {
      if (sidebar.isSheet) sidebar.show(false);
      composer.focus();
    },
  });
  commands.add({
    id: "send",
    title: gettext("Send the message"),
    group: "chat",
    when: () => !enterBreaks(),
    hidden: enterBreaks,
    run: () => composer.send(),
  });
  commands.add({ id: "send-now", title: gettext("Send the message"), group: "chat", run: () => composer.send() });
  commands.add({ id: "break-line", title: gettext("Break the line"), group: "chat", hidden: enterBreaks });
  commands.add({
    id: "stop",
    title: gettext("Stop the answer"),
    icon: "x",
    group: "chat",
    when: () => Boolean(workspace.current && session.live(workspace.current)),
    run: () => session.stop(workspace.current),
  });
  commands.add({
    id: "copy-answer",
    title: gettext("Copy the last answer"),
    icon: "copy",
    group: "chat",
    when: () => Boolean(lastAnswer()),
    run: () => copied(lastAnswer(), gettext("The last answer is copied.")),
  });
  commands.add({
    id: "copy-code",
    title: gettext("Copy the last block of code"),
    icon: "copy",
    group: "chat",
    when: () => code() !== null,
    run: () => copied(code(), gettext("The last block of code is copied.")),
  });
}

async function copied(text, words) {
  try {
    await copy(text);
    toast(words);
  } catch {
    toast(gettext("The browser does not let this page copy. Select the text, and copy it yourself."), { kind: "bad" });
  }
}

/** The conversation before or behind the open one, as the list has them; from a new one on, the first. */
function beside({ session, current }, step) {
  const place = session.list.findIndex((item) => item.id === current?.id);
  if (place < 0) return step > 0 ? session.list[0] : undefined;
  return session.list[place + step];
}

/** The palette's source of conversations: what the list has, and what the server finds beyond it. */
function conversationsOf(workspace) {
  const { session, sidebar } = workspace;
  const entry = (item, hit = null) => ({
    id: item.id,
    label: item.title || gettext("Untitled"),
    icon: "message-square",
    // Where in its text, if it was not the title alone.
    detail: hit?.message?.snippet,
    run() {
      if (sidebar.isSheet) sidebar.show(false);
      return visitHit(workspace, item.id, hit);
    },
  });
  return {
    title: gettext("Conversations"),
    entries: () => session.list.filter((item) => item.id !== workspace.current?.id).map((item) => entry(item)),
    async search(query, signal) {
      const { items } = await workspace.library.search(query, {}, { signal });
      return items.map((hit) => entry(hit.conversation, hit));
    },
  };
}
