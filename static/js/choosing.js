/* Choosing several conversations, to archive, tag or delete them at once. Shift chooses a range. */

import { commands } from "#octavo/commands.js";
import { h, icon } from "#octavo/dom.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { failed, toast } from "#octavo/toast.js";

export function install(workspace) {
  const { library, sidebar } = workspace;
  const bar = document.getElementById("chosen");
  const words = h("span", { class: "count", role: "status" });
  let last = null;

  const act = (label, name, run) =>
    h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick: run }, icon(name));

  function draw() {
    const chosen = sidebar.selected;
    bar.hidden = !chosen;
    sidebar.changed();
    if (!chosen) return;
    words.textContent = fill(ngettext("%(n)s chosen", "%(n)s chosen", chosen.size), { n: chosen.size });
    const { archived, deleted } = workspace.searching();
    const actions = deleted
      ? [act(gettext("Restore"), "undo-2", () => change({ deleted: false }, null))]
      : [
          act(gettext("Tags"), "tag", () => workspace.editTags(items())),
          archived
            ? act(gettext("Take out of the archive"), "archive-restore", () => change({ archived: false }, { archived: true }))
            : act(gettext("Archive"), "archive", () => change({ archived: true }, { archived: false })),
          act(gettext("Delete"), "trash-2", () => change({ deleted: true }, { deleted: false })),
        ];
    for (const button of actions) button.disabled = chosen.size === 0;
    bar.replaceChildren(words, ...actions, act(gettext("Stop choosing"), "x", stop));
  }

  const items = () => [...sidebar.selected].map((id) => library.item(id));

  function toggle(id, range) {
    const ids = sidebar.list.ids();
    const [from, to] = [ids.indexOf(last), ids.indexOf(id)].sort((a, b) => a - b);
    if (range && from >= 0) for (const one of ids.slice(from, to + 1)) sidebar.selected.add(one);
    else if (!sidebar.selected.delete(id)) sidebar.selected.add(id);
    last = id;
    draw();
  }

  async function change(what, undo) {
    const ids = [...sidebar.selected];
    const open = workspace.current?.id;
    stop();
    try {
      if (what.deleted && ids.includes(open)) workspace.visit(null);
      const changed = await library.changeMany(ids, what);
      const n = changed.length;
      const said = what.deleted
        ? ngettext("%(n)s chat is deleted.", "%(n)s chats are deleted.", n)
        : what.archived
          ? ngettext("%(n)s chat is archived.", "%(n)s chats are archived.", n)
          : ngettext("%(n)s chat is back.", "%(n)s chats are back.", n);
      const again = () => library.changeMany(changed.map((item) => item.id), undo).catch(failed);
      toast(fill(said, { n }), undo ? { action: { label: gettext("Undo"), run: again } } : {});
    } catch (error) {
      failed(error);
    }
  }

  function start() {
    if (!sidebar.isOpen) sidebar.show(true);
    sidebar.selected = new Set();
    last = null;
    draw();
    sidebar.list.draw();
    sidebar.list.move(0);
  }

  function stop() {
    sidebar.selected = null;
    draw();
  }

  sidebar.place.addEventListener(
    "click",
    (event) => {
      if (!sidebar.selected) return;
      const row = event.target.closest(".conversation");
      if (!row || event.target.closest(".more")) return;
      const box = event.target.matches("input[type=checkbox]");
      if (!box) event.preventDefault();
      event.stopPropagation();
      toggle(row.dataset.id, event.shiftKey);
    },
    true,
  );
  sidebar.sidebar.addEventListener("keydown", (event) => {
    if (!sidebar.selected || event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    stop();
  });
  workspace.on("changed", ({ kind, id }) => kind === "gone" && sidebar.selected?.delete(id) && draw());

  workspace.choosing = { start, stop };
  commands.add({ id: "choose", group: "conversations", title: gettext("Choose several chats"), icon: "list-checks", run: start });
}
