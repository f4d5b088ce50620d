/* Chats that leave and come: export, import, links for the team, and what readers say of answers. A feature of chat.js: it
   adds the entries and commands; the dialogs are fetched when they are opened. */

import { call } from "#octavo/calls.js";
import { commands } from "#octavo/commands.js";
import { h, icon } from "#octavo/dom.js";
import { Thumbs } from "#octavo/feedback.js";
import { exactTime } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { toast } from "#octavo/toast.js";
import { endOf } from "#octavo/tree.js";

export function install(workspace) {
  const { session } = workspace;
  const thumbs = new Thumbs(workspace);
  workspace.messageActions.push((message) => thumbs.of(message));
  const origin = new Origin();

  // --- export --------------------------------------------------------------------------------------------------------

  /** Markdown holds one branch: of the conversation that is shown, the one that is shown. */
  function save(item, format) {
    const leaf = item.id === workspace.current?.id ? endOf(workspace.current)?.id : null;
    const query = format === "md" && leaf ? `&leaf_id=${leaf}` : "";
    download(`${session.api}/conversations/${item.id}/export?format=${format}${query}`);
  }

  async function share(item) {
    const { openShare } = await import("#octavo/sharing.js");
    const shown = item.id === workspace.current?.id ? workspace.current : null;
    openShare(workspace, item, shown ? endOf(shown)?.id : null);
  }

  const openLists = async () => (await import("#octavo/sharing.js")).openShares(workspace);
  const openImport = async () => (await import("#octavo/importing.js")).openImport(workspace);

  workspace.conversationEntries.push(
    (item) => (item.id ? { label: gettext("Share with the team"), icon: "share-2", run: () => late(() => share(item)) } : null),
    (item) => (item.id ? { label: gettext("Export as Markdown"), icon: "download", run: () => save(item, "md") } : null),
    (item) => (item.id ? { label: gettext("Export as JSON"), icon: "download", run: () => save(item, "json") } : null),
  );

  const isKept = () => Boolean(workspace.current?.id);
  const add = (id, title, icon, run, when) => commands.add({ id, title, icon, run, group: "conversations", ...(when ? { when } : {}) });
  add("share", gettext("Share this conversation with the team"), "share-2", () => late(() => share(workspace.current)), isKept);
  add("export-markdown", gettext("Export this conversation as Markdown"), "download", () => save(workspace.current, "md"), isKept);
  add("export-json", gettext("Export this conversation as JSON"), "download", () => save(workspace.current, "json"), isKept);
  // All of them may be much: the browser saves them as they come.
  const all = (format) => h("a", { href: `${session.api}/conversations/export?format=${format}`, download: true }).click();
  add("export-all", gettext("Export all conversations as JSON"), "download", () => all("json"));
  add("export-all-markdown", gettext("Export all conversations as Markdown"), "download", () => all("md"));
  add("import", gettext("Import chats"), "upload", () => late(openImport));
  add("shared-by-you", gettext("Shared by you"), "share-2", () => late(openLists));
  menuItems();

  // --- what stands beside a conversation -------------------------------------------------------------------------------

  workspace.on("shown", async (conversation) => {
    origin.show(null);
    if (!conversation.id) return;
    try {
      const { imported, ratings } = await call("GET", `${session.api}/conversations/${conversation.id}/notes`);
      if (workspace.current === conversation) origin.show(imported);
      thumbs.take(conversation, ratings);
    } catch {
      // The conversation itself says what is wrong; without this it is whole.
    }
  });
}

/** Start what has to be fetched first. */
async function late(work) {
  try {
    await work();
  } catch {
    toast(gettext("This could not be loaded. Check your connection and try again."), { kind: "bad" });
  }
}

/** Save what an address answers with, under the name it gives; a refusal is said. */
async function download(address) {
  try {
    const reply = await fetch(address, { redirect: "manual" });
    if (!reply.ok) throw new Error(String(reply.status));
    const blob = await reply.blob();
    const url = URL.createObjectURL(blob);
    const link = h("a", { href: url, download: nameIn(reply.headers.get("Content-Disposition")) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch {
    toast(gettext("The export could not be made. Check your connection and try again."), { kind: "bad" });
  }
}

/** The name in a Content-Disposition header (RFC 6266), "" for none. */
export function nameIn(header) {
  const encoded = /filename\*=utf-8''([^;]+)/i.exec(header ?? "")?.[1];
  if (encoded) {
    try {
      return decodeURIComponent(encoded);
    } catch {
      return "";
    }
  }
  return /filename="((?:[^"\\]|\\.)*)"/.exec(header ?? "")?.[1].replace(/\\(.)/g, "$1") ?? "";
}

/** The account's menu leads to what is not about one conversation. */
function menuItems() {
  const before = document.querySelector("#account-menu a[href$='/accounts/data']");
  for (const [id, name] of [
    ["import", "upload"],
    ["shared-by-you", "share-2"],
  ])
    before?.before(
      h(
        "button",
        {
          type: "button",
          class: "item",
          onclick: () => {
            document.querySelector("#account-menu").hidePopover();
            commands.run(id);
          },
        },
        icon(name),
        commands.get(id).title,
      ),
    );
}

/** Says in the bar that a conversation was said elsewhere. */
class Origin {
  constructor() {
    this.element = h("span", { class: "origin", hidden: true });
    document.getElementById("title")?.after(this.element);
  }

  show(imported) {
    this.element.hidden = !imported;
    if (!imported) return;
    this.element.textContent =
      imported.source === "share" ? gettext("Copied from a shared conversation") : fill(gettext("Imported from %(name)s"), imported);
    this.element.title = exactTime(imported.at);
  }
}
