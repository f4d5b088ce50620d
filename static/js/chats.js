/* What a reader does with chats beside asking. A feature of chat.js: joins the library with the sidebar, its search, the
   menus of conversations, tags and choosing several. Others find it as `workspace.library`. */

import { install as installChoosing } from "#octavo/choosing.js";
import { install as installMenus } from "#octavo/conversation-menu.js";
import { gettext } from "#octavo/i18n.js";
import { Library } from "#octavo/library.js";
import { install as installSearch } from "#octavo/search.js";
import { install as installTags } from "#octavo/tags.js";
import { failed, toast } from "#octavo/toast.js";
import { Unread } from "#octavo/unread.js";

export function install(workspace) {
  const { page, session, sidebar } = workspace;
  const slug = page.tenant.slug;
  const library = new Library({ session, slug, starred: page.starred ?? [] });
  workspace.library = library;

  const unread = new Unread({
    slug,
    shown: () => !document.hidden,
    onChange: () => sidebar.changed(),
  });
  sidebar.unread = (id) => unread.has(id);
  sidebar.seen = (items, currentId) => unread.see(items, currentId);

  library.onChange((change) => {
    if (change.id !== workspace.current?.id) return;
    workspace.update();
    if (change.elsewhere)
      toast(gettext("This chat was deleted in another tab."), {
        action: { label: gettext("Undo"), run: () => library.restore(change.id).catch(failed) },
      });
  });

  installMenus(workspace);
  installTags(workspace);
  installChoosing(workspace);
  installSearch(workspace);
}
