/* What this browser keeps about a conversation (drafts, files, the chosen branch) goes once the conversation has. Not at
   once: until the night a deletion can be undone, and what was being written stays with its reader until then. Pure.

   `whose`: a person's in a team, as of drafts; `names(id)`: under which names things are kept about a conversation. */

const LONGEST_UNDO_MS = 24 * 3_600_000;

export class Leftovers {
  constructor(whose, names, { storage = () => globalThis.localStorage, now = () => Date.now() } = {}) {
    Object.assign(this, { name: `octavo:gone:${whose}`, names, storage, now });
  }

  /** A conversation was deleted, here or anywhere. */
  gone(id) {
    const ids = this.#read();
    ids[id] ??= this.now();
    this.#write(ids);
  }

  /** These are there: some may have been asked back. */
  there(items) {
    const ids = this.#read();
    const back = items.filter((item) => item.id in ids);
    for (const { id } of back) delete ids[id];
    if (back.length) this.#write(ids);
  }

  /** Drop what is kept about those that were deleted long enough ago. */
  sweep() {
    const ids = this.#read();
    const old = Object.keys(ids).filter((id) => !(this.now() - ids[id] < LONGEST_UNDO_MS));
    for (const id of old) {
      for (const name of this.names(id)) this.#try((store) => store.removeItem(name));
      delete ids[id];
    }
    if (old.length) this.#write(ids);
  }

  #read() {
    const ids = this.#try((store) => JSON.parse(store.getItem(this.name)));
    return ids && typeof ids === "object" && !Array.isArray(ids) ? ids : {};
  }

  #write(ids) {
    this.#try((store) =>
      Object.keys(ids).length ? store.setItem(this.name, JSON.stringify(ids)) : store.removeItem(this.name),
    );
  }

  #try(work) {
    try {
      return work(this.storage());
    } catch {
      return null; // switched off, full, or not ours: then it is as if nothing was kept
    }
  }
}
