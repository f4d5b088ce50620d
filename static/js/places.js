/* Where the reader was in each conversation of this tab, for coming back and for reloading the page.

   A place is a message and how far its top was from the view's; a conversation that was read at its end has none. Kept
   with the tab, and forgotten when the reader comes from somewhere else. */

const NAME = "octavo:places";
const MOST = 50;

export class Places {
  constructor(storage = () => globalThis.sessionStorage, entered = navigated()) {
    this.storage = storage;
    this.kept = new Map();
    if (entered) return;
    try {
      this.kept = new Map(JSON.parse(storage().getItem(NAME) ?? "[]"));
    } catch {
      // switched off, or not ours: nothing is known
    }
  }

  /** {id, offset} of a conversation, or undefined. */
  of(conversationId) {
    return this.kept.get(conversationId);
  }

  /** `place`: null where the end was read. */
  keep(conversationId, place) {
    if (!conversationId) return;
    this.kept.delete(conversationId);
    if (place) this.kept.set(conversationId, place);
    while (this.kept.size > MOST) this.kept.delete(this.kept.keys().next().value);
    try {
      this.storage().setItem(NAME, JSON.stringify([...this.kept]));
    } catch {
      // for as long as the page lives, then
    }
  }
}

/** Whether the page was opened by a link or an address, and neither reloaded nor gone back to. */
function navigated() {
  const [entry] = globalThis.performance?.getEntriesByType?.("navigation") ?? [];
  return entry?.type === "navigate";
}
