/* Dialogs made by script: a heading, what is in it, and buttons. Escape and a click beside it close it; the focus goes back. */

import { h, icon } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";

let number = 0;

/** Show a dialog and return it. `body`: elements; `actions`: buttons for its foot; `onClose()` once it is gone.
    A form in it is the caller's; `dialog.close()` removes it. */
export function openDialog({ title, body, actions = [], className = "", onClose = null }) {
  const id = `dialog-${++number}`;
  const close = h("button", { type: "button", class: "icon-button", "aria-label": gettext("Close") }, icon("x"));
  const inside = h("div", { class: "dialog-body" }, ...body);
  const dialog = h(
    "dialog",
    { class: `dialog ${className}`, "aria-labelledby": id },
    h("header", {}, h("h2", { id, text: title, dir: "auto" }), close),
    inside,
    actions.length ? h("footer", {}, ...actions) : null,
  );
  close.addEventListener("click", () => dialog.close());
  // Where the press began counts: who marks text and lets go beside the dialog has not clicked there.
  let pressed = null;
  dialog.addEventListener("pointerdown", (event) => (pressed = event.target));
  dialog.addEventListener("click", (event) => event.target === dialog && pressed === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  // What scrolls has to be reached by the keyboard.
  if (inside.scrollHeight > inside.clientHeight && !inside.querySelector("a, button, input, select, textarea"))
    inside.tabIndex = 0;
  return dialog;
}
