/* Questions that the server has not acknowledged yet, kept in this browser: a page that is closed or reloaded while it is
   offline loses none. Each is kept under its idempotency key, so that asking it again asks nothing twice.

   `whose` they are: a person's in a team, since browsers are shared; `storage` a Storage, which may be missing or full:
   then nothing is kept. */

// An older one is not asked again by itself: its reader gets it back as a draft.
const FRESH_MS = 10 * 60_000;

export class Unsent {
  constructor(whose, { storage = defaultStorage(), now = () => Date.now() } = {}) {
    Object.assign(this, { prefix: `octavo:unsent:${whose}:`, storage, now });
  }

  /** `request`: the frame's fields, with its idempotency_key. `files`: what goes with it, as the page shows it. `at`: when
      it was first asked; to ask it again makes it no younger. */
  keep(request, files = [], at = this.now()) {
    this.#try((store) => store.setItem(this.prefix + request.idempotency_key, JSON.stringify({ request, files, at })));
  }

  /** It was stopped before anybody acknowledged it: it is not asked again by itself. */
  hold(key) {
    this.#try((store) => {
      const entry = JSON.parse(store.getItem(this.prefix + key));
      if (entry) store.setItem(this.prefix + key, JSON.stringify({ ...entry, held: true }));
    });
  }

  drop(key) {
    this.#try((store) => store.removeItem(this.prefix + key));
  }

  /** What an earlier page has left, oldest first: {request, files, at, fresh}. */
  left() {
    const found = [];
    this.#try((store) => {
      for (let i = 0; i < store.length; i += 1) {
        const name = store.key(i);
        if (!name.startsWith(this.prefix)) continue;
        try {
          const entry = JSON.parse(store.getItem(name));
          if (typeof entry.request.input === "string") found.push({ ...entry, fresh: !entry.held && this.now() - entry.at < FRESH_MS });
        } catch {
          // Not what this module wrote.
        }
      }
    });
    return found.sort((one, other) => one.at - other.at);
  }

  #try(work) {
    try {
      if (this.storage) work(this.storage);
    } catch {
      // Storage is full or switched off.
    }
  }
}

function defaultStorage() {
  try {
    return globalThis.localStorage;
  } catch {
    return null;
  }
}
