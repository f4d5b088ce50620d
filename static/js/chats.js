/* What a reader does with chats beside asking. A feature of chat.js: joins the library with the sidebar, its search, the
   menus of conversations, tags and choosing several. Others find it as `workspace.library`. */

import { install as installChoosing } from "#octavo/choosing.js";
import { install as installMenus } from "#octavo/conversation-menu.js";
import { Library } from "#octavo/library.js";
import { install as installSearch } from "#octavo/search.js";
import { install as installTags } from "#octavo/tags.js";
import { Unread } from "#octavo/unread.js";

export function install(workspace) {
  const { page, session, sidebar } = workspace;
  const slug = page.tenant.slug;
  workspace.library = new Library({ session, starred: page.starred ?? [] });

  const unread = new Unread({
    slug,
    shown: () => !document.hidden,
    onChange: () => sidebar.changed(),
  });
  sidebar.unread = (id) => unread.has(id);
  sidebar.seen = (items, currentId) => unread.see(items, currentId);

  installMenus(workspace);
  installTags(workspace);
  installChoosing(workspace);
  installSearch(workspace);
}
