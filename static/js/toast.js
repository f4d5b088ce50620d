/* A line at the foot of the page that says what has been done, and lets it be undone. One at a time: a new one replaces it. */

import { h } from "#octavo/dom.js";

const SHOWN_MS = 8000;
let timer;

function place() {
  return (
    document.querySelector(".toast") ??
    document.body.appendChild(h("div", { class: "toast notice", role: "status", popover: "manual" }))
  );
}

/** `action`: {label, run}. It stays while the reader points at it or has the focus in it. */
export function toast(text, { action = null, kind = "" } = {}) {
  const element = place();
  clearTimeout(timer);
  element.className = `toast notice ${kind}`;
  const button = action
    ? h("button", {
        type: "button",
        class: "button small",
        text: action.label,
        onclick: () => {
          hide();
          action.run();
        },
      })
    : null;
  element.replaceChildren(h("span", { class: "notice-text", text }), ...(button ? [button] : []));
  if (!element.matches(":popover-open")) element.showPopover();
  element.onpointerenter = element.onfocusin = () => clearTimeout(timer);
  element.onpointerleave = element.onfocusout = () => wait();
  wait();
}

function wait() {
  clearTimeout(timer);
  timer = setTimeout(hide, SHOWN_MS);
}

function hide() {
  clearTimeout(timer);
  const element = document.querySelector(".toast");
  if (element?.matches(":popover-open")) element.hidePopover();
}
