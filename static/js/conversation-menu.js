/* The menu of a conversation, at its row and beside its title: rename, star, tag, archive, delete, and what other
   features add (`workspace.conversationEntries`). All of it can be taken back. */

import { commands } from "#octavo/commands.js";
import { fill, gettext } from "#octavo/i18n.js";
import { openMenu } from "#octavo/menu.js";
import { renameInPlace } from "#octavo/rename.js";
import { failed, toast } from "#octavo/toast.js";

const LONGEST_TITLE = 120;

export function install(workspace) {
  const { library, sidebar } = workspace;
  const button = document.getElementById("conversation-menu");
  const heading = document.getElementById("title");

  const titleOf = (item) => item.title || gettext("Untitled");

  function rename(item) {
    const row = sidebar.isOpen ? sidebar.list.row(item.id) : null;
    const inRow = row && (item.id !== workspace.current?.id || row.contains(document.activeElement));
    const instead = inRow ? row.querySelector("a") : heading;
    if (!inRow && item.id !== workspace.current?.id) return;
    renameInPlace({
      instead,
      value: item.title ?? "",
      label: gettext("Title of this chat"),
      most: LONGEST_TITLE,
      save: (title) => library.rename(item.id, title).catch(failed),
      done: (focus) => focus && (inRow ? sidebar.list.focus(item.id) : button.focus()),
    });
  }

  const star = (item) => library.setStarred(item.id, !item.starred_at).catch(failed);

  async function archive(item, archived = !item.archived_at) {
    const title = titleOf(item);
    const said = archived ? gettext("“%(title)s” is archived.") : gettext("“%(title)s” is back in the list.");
    try {
      await library.setArchived(item.id, archived);
    } catch (error) {
      return failed(error);
    }
    toast(fill(said, { title }), { action: { label: gettext("Undo"), run: () => archive(library.item(item.id), !archived) } });
  }

  async function remove(item) {
    const title = titleOf(item);
    const shown = item.id === workspace.current?.id;
    try {
      if (shown) workspace.visit(null);
      await library.remove(item.id);
    } catch (error) {
      return failed(error);
    }
    toast(fill(gettext("“%(title)s” is deleted."), { title }), {
      action: { label: gettext("Undo"), run: () => restore(item, shown) },
    });
  }

  async function restore(item, show = false) {
    try {
      await library.restore(item.id);
    } catch (error) {
      return failed(error);
    }
    const empty = !workspace.current?.id && !workspace.current?.messages.length;
    if (show && empty && !workspace.composer.input.value) workspace.visit(item.id);
    else toast(fill(gettext("“%(title)s” is back."), { title: titleOf(item) }));
  }

  function entries(item) {
    if (item.deleted_at) return [{ label: gettext("Restore"), icon: "undo-2", run: () => restore(item) }];
    const own = [
      { label: gettext("Rename"), icon: "pencil", run: () => rename(item) },
      { label: item.starred_at ? gettext("Take the star off") : gettext("Star"), icon: "star", run: () => star(item) },
      { label: gettext("Tags"), icon: "tag", run: () => workspace.editTags([library.item(item.id)]) },
      item.archived_at
        ? { label: gettext("Take out of the archive"), icon: "archive-restore", run: () => archive(item) }
        : { label: gettext("Archive"), icon: "archive", run: () => archive(item) },
    ];
    const others = workspace.conversationEntries.map((entry) => entry(item)).filter(Boolean);
    const destroys = { label: gettext("Delete"), icon: "trash-2", kind: "bad", run: () => remove(item) };
    return [...own, ...(others.length ? [null, ...others] : []), null, destroys];
  }

  sidebar.place.addEventListener("click", (event) => {
    const more = event.target.closest(".more");
    if (!more) return;
    event.preventDefault();
    openMenu(more, entries(library.item(more.closest(".conversation").dataset.id)));
  });
  sidebar.place.addEventListener("keydown", (event) => {
    const id = event.target.closest("a[data-id]")?.dataset.id;
    if (!id || sidebar.selected) return;
    const item = library.item(id);
    if (event.key === "F2" && !item.deleted_at) rename(item);
    else if (event.key === "Delete" && !item.deleted_at) {
      const ids = sidebar.list.ids();
      const next = ids[ids.indexOf(id) + 1] ?? ids[ids.indexOf(id) - 1];
      remove(item);
      if (next) sidebar.list.focus(next);
    } else return;
    event.preventDefault();
  });

  // --- beside the title ----------------------------------------------------------------------------------------------

  button.addEventListener("click", () => openMenu(button, entries(library.item(workspace.current.id))));
  heading.addEventListener("dblclick", () => workspace.current?.id && rename(library.item(workspace.current.id)));
  const follow = () => {
    button.hidden = !workspace.current?.id;
  };
  workspace.on("shown", follow);
  workspace.on("changed", follow);

  const here = () => library.item(workspace.current.id);
  const when = () => Boolean(workspace.current?.id);
  const add = (command) => commands.add({ group: "conversations", when, ...command });
  add({ id: "rename", title: gettext("Rename this chat"), icon: "pencil", run: () => rename(here()) });
  add({ id: "star", title: gettext("Star this chat, or take the star off"), icon: "star", run: () => star(here()) });
  add({ id: "tag", title: gettext("Tag this chat"), icon: "tag", run: () => workspace.editTags([here()]) });
  add({ id: "archive", title: gettext("Archive this chat, or take it back"), icon: "archive", run: () => archive(here()) });
  add({ id: "delete", title: gettext("Delete this chat"), icon: "trash-2", run: () => remove(here()) });
}
