/* What the keyboard does in the workspace, as commands. A feature of chat.js. */

import { commands, pressed } from "#octavo/commands.js";
import { gettext } from "#octavo/i18n.js";

export function install(workspace) {
  const { session, sidebar, composer, visit } = workspace;
  commands.add({
    id: "new-chat",
    title: gettext("New chat"),
    icon: "square-pen",
    keys: "Mod+Shift+O",
    run: () => {
      visit(null);
      composer.focus();
    },
  });
  commands.add({
    id: "stop",
    title: gettext("Stop the answer"),
    icon: "x",
    keys: "Escape",
    when: () => Boolean(workspace.current && session.live(workspace.current)),
    run: () => session.stop(workspace.current),
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.querySelector(".menu:popover-open, dialog[open]")) return;
    if (event.key === "Escape" && sidebar.isSheet && sidebar.isOpen) {
      event.preventDefault();
      sidebar.show(false);
    } else pressed(event);
  });
}
