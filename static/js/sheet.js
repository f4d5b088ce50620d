/* The sidebar of the frame: open, closed, or a sheet over the page on phones; remembers which on wide screens. */

const PHONE = "(width < 48rem)";
const KEY = "octavo:sidebar";

export class Sheet {
  constructor({ sidebar, toggles, veil }) {
    Object.assign(this, { sidebar, toggles });
    this.phone = matchMedia(PHONE);
    for (const toggle of toggles) toggle.addEventListener("click", () => this.show(sidebar.inert, true));
    veil.addEventListener("click", () => this.show(false));
    this.phone.addEventListener("change", () => this.#restore());
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
    this.sidebar.inert = !visible;
    for (const toggle of this.toggles) toggle.setAttribute("aria-expanded", String(visible));
    if (!remember || this.isSheet) return;
    try {
      localStorage.setItem(KEY, visible ? "open" : "closed");
    } catch {
      // It holds for this page, then.
    }
  }

  #restore() {
    let kept = null;
    try {
      kept = localStorage.getItem(KEY);
    } catch {
      // Storage is switched off: open on wide screens.
    }
    this.show(!this.isSheet && kept !== "closed");
  }
}
