/* What a reader has chosen for this browser, kept by name. Where storage is switched off or full nothing is kept, and whoever
   asks gets what is so without a choice. */

/** The text that is kept, null for none. */
export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** `text`: null for nothing. */
export function keep(name, text) {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
  } catch {
    // It holds for this page, then.
  }
}

/** What is on unless it was switched off: {on}. */
export const onUnlessOff = (name) => ({
  get on() {
    return recall(name) !== "off";
  },
  set on(wanted) {
    keep(name, wanted ? "on" : "off");
  },
});
