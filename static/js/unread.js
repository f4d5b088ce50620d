/* Which conversations have an answer that nobody has looked at: one ended while another was shown. All tabs of the browser
   share it, and it outlives them. `see(items, currentId)` is told what the list says whenever that changes. */

const MOST = 200;

export class Unread {
  /** `shown()`: whether the reader looks at the page at all; `onChange()`: another tab has changed it. */
  constructor({ slug, storage = globalThis.localStorage, shown = () => true, onChange = () => {} }) {
    Object.assign(this, { key: `octavo:unread:${slug}`, storage, shown });
    this.#read();
    globalThis.addEventListener?.("storage", (event) => {
      if (event.key !== this.key) return;
      this.#read();
      onChange();
    });
  }

  has(id) {
    return this.ids.has(id);
  }

  see(items, currentId) {
    let changed = false;
    for (const item of items) {
      if (item.running) {
        if (!this.running.has(item.id)) changed = Boolean(this.running.add(item.id));
      } else if (this.running.delete(item.id)) {
        changed = true;
        if (item.id !== currentId || !this.shown()) this.ids.add(item.id);
      }
    }
    if (currentId && this.shown() && this.ids.delete(currentId)) changed = true;
    if (changed) this.#write();
    return changed;
  }

  #read() {
    let kept = {};
    try {
      kept = JSON.parse(this.storage.getItem(this.key) ?? "{}") ?? {};
    } catch {
      // Switched off, or not ours: it holds for this page.
    }
    this.ids = new Set(Array.isArray(kept.unread) ? kept.unread : []);
    this.running = new Set(Array.isArray(kept.running) ? kept.running : []);
  }

  #write() {
    const newest = (ids) => [...ids].slice(-MOST);
    try {
      this.storage.setItem(this.key, JSON.stringify({ unread: newest(this.ids), running: newest(this.running) }));
    } catch {
      // As above.
    }
  }
}
