/* What every framed page lets a reader do by keyboard: the palette, the help, the sidebar, the colours; and elements with
   data-command="<id>", which start a command when they are clicked. */

import { ariaOf, commands, pressed, wordsOf } from "#octavo/commands.js";
import { openHelp } from "#octavo/help.js";
import { gettext } from "#octavo/i18n.js";
import { openPalette } from "#octavo/palette.js";

const isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

const choose = (theme) => document.querySelector(`[data-theme-choice="${theme}"]`)?.click();

/** `sheet`: the frame's sidebar; `sources`: what the palette finds beside commands (palette.js); `finds` says it in words. */
export function installShell({ sheet, sources = [], finds = gettext("Find a conversation or a command") }) {
  commands.add({
    id: "palette",
    title: finds,
    icon: "search",
    run: () => openPalette(sources, finds),
  });
  commands.add({
    id: "help",
    title: gettext("Keyboard shortcuts"),
    icon: "keyboard",
    run: openHelp,
  });
  commands.add({
    id: "sidebar",
    title: gettext("Show or hide the sidebar"),
    icon: "panel-left",
    run: () => sheet.show(!sheet.isOpen, true),
  });
  commands.add({
    id: "theme",
    title: gettext("Switch between light and dark"),
    icon: "moon",
    run: () => choose(isDark() ? "light" : "dark"),
  });
  commands.add({
    id: "theme-auto",
    title: gettext("Light or dark as the system is"),
    icon: "monitor",
    when: () => Boolean(document.documentElement.dataset.theme),
    run: () => choose("auto"),
  });
  for (const element of document.querySelectorAll("[data-command]")) {
    const { keys } = commands.get(element.dataset.command) ?? {};
    if (!keys) continue;
    element.setAttribute("aria-keyshortcuts", ariaOf(keys));
    const name = element.getAttribute("aria-label") ?? element.textContent.trim();
    element.title = `${name} (${wordsOf(keys).join("+")})`;
  }
  document.addEventListener("keydown", (event) => {
    // A menu that is open takes Escape for itself.
    if (event.key === "Escape" && document.querySelector(".menu:popover-open")) return;
    pressed(event);
  });
  document.addEventListener("close", caretBack, true);
  document.addEventListener("click", (event) => {
    const { command } = event.target.closest?.("[data-command]")?.dataset ?? {};
    if (!command) return;
    const menu = event.target.closest(".menu:popover-open");
    menu?.hidePopover();
    commands.run(command);
  });
}

/** A dialog that closes gives back the focus, but Chromium may leave the caret behind in it: what is typed next would be
    lost, in a box that has the focus. */
function caretBack() {
  const field = document.activeElement;
  if (field?.selectionStart == null) return; // no box, or one without a caret
  field.setSelectionRange(field.selectionStart, field.selectionEnd, field.selectionDirection);
}
