/* A line at the foot of the page that says what has been done, and lets it be undone. One at a time: a new one replaces it. */

import { commands } from "#octavo/commands.js";
import { h } from "#octavo/dom.js";
import { fill, gettext } from "#octavo/i18n.js";

const SHOWN_MS = 8000;
// What can be undone stays longer: it has to be reached.
const UNDO_MS = 15_000;
let timer;

function place() {
  const element = document.querySelector(".toast") ?? h("div", { class: "toast notice", role: "status", popover: "manual" });
  // Behind a dialog that is open nothing can be clicked.
  const home = document.querySelector("dialog:modal") ?? document.body;
  if (element.parentElement !== home) home.append(element);
  return element;
}

/** `action`: {label, run}. It stays while the reader points at it or has the focus in it. */
export function toast(text, { action = null, kind = "" } = {}) {
  const element = place();
  clearTimeout(timer);
  element.className = `toast notice ${kind}`;
  const run = () => {
    hide();
    action.run();
  };
  const button = action
    ? h("button", { type: "button", class: "button small", text: action.label, onclick: run })
    : null;
  // By keyboard from anywhere, as long as it is there.
  if (action) commands.add({ id: "undo", title: action.label, icon: "history", run });
  else commands.remove("undo");
  // Shown first, so that screen readers hear what is put into it.
  if (!element.matches(":popover-open")) element.showPopover();
  element.replaceChildren(h("span", { class: "notice-text", text }), ...(button ? [button] : []));
  const ms = action ? UNDO_MS : SHOWN_MS;
  element.onpointerenter = element.onfocusin = () => clearTimeout(timer);
  element.onpointerleave = element.onfocusout = () => wait(ms);
  wait(ms);
}

/** Say that something could not be done, and why. */
export function failed(error) {
  toast(fill(gettext("That was not done. %(reason)s"), { reason: error.message }), { kind: "bad" });
}

function wait(ms) {
  clearTimeout(timer);
  timer = setTimeout(hide, ms);
}

function hide() {
  clearTimeout(timer);
  commands.remove("undo");
  const element = document.querySelector(".toast");
  if (element?.matches(":popover-open")) element.hidePopover();
}
