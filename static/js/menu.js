/* A menu at a button: what can be done with one thing. Arrow keys move in it, Escape closes it, the focus goes back. */

import { h, icon } from "#octavo/dom.js";

const GAP_PX = 4;
let open = null;

/** `entries`: {label, icon, run, kind} or null for a line between them; `kind` "bad" is for what destroys. */
export function openMenu(anchor, entries) {
  const again = open?.anchor === anchor;
  closeMenu();
  if (again) return;
  const items = entries.map((entry) =>
    entry
      ? h(
          "button",
          { type: "button", role: "menuitem", tabindex: "-1", class: `item ${entry.kind ?? ""}`, onclick: () => choose(entry) },
          icon(entry.icon),
          h("span", { class: "name", text: entry.label }),
        )
      : h("hr", { role: "separator" }),
  );
  const name = anchor.getAttribute("aria-label") ?? anchor.textContent.trim();
  const menu = h("div", { class: "menu", role: "menu", "aria-label": name, popover: "auto" }, ...items);
  menu.addEventListener("keydown", (event) => moved(event, menu));
  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    anchor.setAttribute("aria-expanded", "false");
    if (menu.contains(document.activeElement) || document.activeElement === document.body) anchor.focus();
    menu.remove();
    if (open?.menu === menu) open = null;
  });
  // Within the part of the page that it belongs to; behind a dialog it could not be used.
  (anchor.closest("dialog, main, aside, nav") ?? document.body).append(menu);
  open = { anchor, menu };
  anchor.setAttribute("aria-haspopup", "menu");
  anchor.setAttribute("aria-expanded", "true");
  menu.showPopover();
  put(menu, anchor);
  menu.querySelector(".item")?.focus();
}

function closeMenu() {
  if (open?.menu.matches(":popover-open")) open.menu.hidePopover();
}

function choose(entry) {
  closeMenu();
  entry.run();
}

function put(menu, anchor) {
  const at = anchor.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  const below = at.bottom + GAP_PX + height <= innerHeight;
  menu.style.inset = "auto";
  menu.style.top = `${Math.max(GAP_PX, below ? at.bottom + GAP_PX : at.top - GAP_PX - height)}px`;
  menu.style.left = `${Math.max(GAP_PX, Math.min(at.left, innerWidth - width - GAP_PX))}px`;
}

function moved(event, menu) {
  const items = [...menu.querySelectorAll(".item")];
  const at = items.indexOf(document.activeElement);
  const next = {
    ArrowDown: items[(at + 1) % items.length],
    ArrowUp: items[(at - 1 + items.length) % items.length],
    Home: items[0],
    End: items.at(-1),
  }[event.key];
  if (event.key === "Tab") closeMenu();
  const to = next ?? named(event, items, at);
  if (!to) return;
  event.preventDefault();
  to.focus();
}

/** A letter leads to the next entry that begins with it. */
function named(event, items, at) {
  if (event.key.length !== 1 || event.key === " " || event.ctrlKey || event.metaKey || event.altKey) return null;
  const from = [...items.slice(at + 1), ...items.slice(0, at + 1)];
  return from.find((item) => item.textContent.trim().toLowerCase().startsWith(event.key.toLowerCase()));
}
