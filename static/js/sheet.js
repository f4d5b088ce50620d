/* The sidebar of the frame: open, closed, or a sheet over the page on phones; remembers which on wide screens.

   A sheet takes the focus, and the page behind it is inert until it is gone: by Escape, a touch beside it, or a swipe. */

import { keep, recall } from "#octavo/settings.js";

const PHONE = "(width < 48rem)";
const KEY = "octavo:sidebar";
// A swipe is so long, and so much more along the line than across it.
const SWIPE_PX = 56;
const STRAIGHT = 2;

export class Sheet {
  constructor({ sidebar, toggles, veil }) {
    Object.assign(this, { sidebar, toggles });
    this.page = document.querySelector("main");
    this.phone = matchMedia(PHONE);
    for (const toggle of toggles) toggle.addEventListener("click", () => this.show(sidebar.inert, true));
    veil.addEventListener("click", () => this.show(false));
    this.phone.addEventListener("change", () => this.#restore());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || !this.isSheet || !this.isOpen) return;
      if (document.querySelector(".menu:popover-open, dialog:modal")) return;
      event.preventDefault();
      this.show(false);
    });
    this.#swiped();
    this.#restore();
    document.documentElement.dataset.framed = "";
  }

  get isSheet() {
    return this.phone.matches;
  }

  get isOpen() {
    return !this.sidebar.inert;
  }

  show(visible, remember = false) {
    const held = this.sidebar.contains(document.activeElement) || (this.page.inert && document.activeElement === document.body);
    this.sidebar.inert = !visible;
    this.page.inert = visible && this.isSheet;
    for (const toggle of this.toggles) toggle.setAttribute("aria-expanded", String(visible));
    // A frame later, since what fades in is invisible at first, and cannot have it.
    if (visible && this.isSheet)
      requestAnimationFrame(() => requestAnimationFrame(() => this.sidebar.querySelector("a, button")?.focus({ preventScroll: true })));
    // What is hidden cannot keep the focus.
    else if (!visible && held) this.toggles[0]?.focus({ preventScroll: true });
    if (remember && !this.isSheet) keep(KEY, visible ? "open" : "closed");
  }

  /** Towards the end of the line opens, towards its start closes; what scrolls sideways itself keeps its swipes. */
  #swiped() {
    let from = null;
    document.addEventListener(
      "touchstart",
      (event) => {
        const [touch, other] = event.touches;
        const isOurs = this.isSheet && !other && !document.querySelector("dialog:modal") && !scrolls(event.target);
        from = isOurs ? { x: touch.clientX, y: touch.clientY } : null;
      },
      { passive: true },
    );
    document.addEventListener(
      "touchend",
      (event) => {
        if (!from) return;
        const [touch] = event.changedTouches;
        const rtl = getComputedStyle(document.documentElement).direction === "rtl" ? -1 : 1;
        const along = (touch.clientX - from.x) * rtl;
        const across = Math.abs(touch.clientY - from.y);
        from = null;
        if (Math.abs(along) < SWIPE_PX || Math.abs(along) < across * STRAIGHT) return;
        if (along > 0 !== this.isOpen) this.show(along > 0);
      },
      { passive: true },
    );
  }

  #restore() {
    this.show(!this.isSheet && recall(KEY) !== "closed");
  }
}

/** Whether a touch there moves a wide table or line of code, marks text, or moves a control. */
function scrolls(element) {
  if (element.closest?.("input, textarea, select") || getSelection()?.isCollapsed === false) return true;
  for (let one = element; one && one !== document.body; one = one.parentElement)
    if (one.scrollWidth > one.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(one).overflowX)) return true;
  return false;
}
