/* What can be done with conversations as a whole: renamed, starred, archived, deleted and asked back, tagged, searched.

   Speaks with the product's API, and tells the session what has come of it: other tabs and devices hear it from the server.
   What is changed shows at once, and is taken back with a reason where the server refuses. Knows no DOM. */

import { call } from "#octavo/calls.js";

export class Library {
  /** `starred`: items that may be too old for the beginning of the session's list. */
  constructor({ session, starred = [] }) {
    this.session = session;
    this.others = new Map(); // what is known of conversations beside the session's list: archived, deleted, found
    const known = new Set(session.list.map((item) => item.id));
    session.list = [...session.list, ...starred.filter((item) => !known.has(item.id))];
  }

  /** What is known of a conversation: an item of a list, or what was loaded of it. */
  item(id) {
    const { list, loaded } = this.session;
    return list.find((item) => item.id === id) ?? this.others.get(id) ?? loaded.get(id) ?? { id };
  }

  /** Items that other lists have (a search, the archive): so that `item` knows them. */
  learn(items) {
    for (const item of items) this.others.set(item.id, item);
  }

  // --- changes -----------------------------------------------------------------------------------------------------

  rename(id, title) {
    return this.#change(id, { title }, { title });
  }

  setStarred(id, starred) {
    return this.#change(id, { starred }, { starred_at: starred ? new Date().toISOString() : null });
  }

  setArchived(id, archived) {
    return this.#change(id, { archived }, { archived_at: archived ? new Date().toISOString() : null });
  }

  async remove(id) {
    const before = { ...this.item(id) };
    this.#drop(id);
    try {
      await this.#send("DELETE", `/conversations/${id}`);
    } catch (error) {
      if (error.status === 404) return; // it was gone
      this.#take(before);
      throw error;
    }
  }

  async restore(id) {
    return this.#take(await this.#send("POST", `/conversations/${id}/restore`));
  }

  /** The same for several. Returns those that were changed. */
  async changeMany(ids, what) {
    const changed = [];
    for (let at = 0; at < ids.length; at += 100) {
      const { items } = await this.#send("POST", "/conversations/changes", { ids: ids.slice(at, at + 100), ...what });
      for (const item of items) {
        if (item.deleted_at) this.#drop(item.id);
        else this.#take(item);
      }
      changed.push(...items);
    }
    return changed;
  }

  async #change(id, sent, shown) {
    const before = { ...this.item(id) };
    this.#take({ ...before, ...shown });
    try {
      return this.#take(await this.#send("PATCH", `/conversations/${id}`, sent));
    } catch (error) {
      this.#take({ ...before });
      throw error;
    }
  }

  // --- reading -----------------------------------------------------------------------------------------------------

  /** `wanted`: {starred, archived, deleted, tag, assistant_id}; what is false or empty is left out. */
  list(wanted, { cursor = "", signal } = {}) {
    return this.#send("GET", `/conversations${query({ ...wanted, cursor })}`, undefined, signal);
  }

  search(text, wanted, { cursor = "", signal } = {}) {
    return this.#send("GET", `/conversations/search${query({ q: text, ...wanted, cursor })}`, undefined, signal);
  }

  async tags() {
    return (await this.#send("GET", "/tags")).items;
  }

  async renameTag(name, to) {
    const { conversations } = await this.#send("PATCH", "/tags", { name, to });
    await this.session.refreshList();
    return conversations;
  }

  async removeTag(name) {
    const { conversations } = await this.#send("DELETE", `/tags${query({ name })}`);
    await this.session.refreshList();
    return conversations;
  }

  #send(method, path, body, signal) {
    return call(method, `${this.session.api}${path}`, body, signal);
  }

  // --- keeping in step ---------------------------------------------------------------------------------------------

  #take(given) {
    const { messages, ...item } = given; // of one that was loaded, these are its own affair
    this.others.set(item.id, item);
    if (item.updated_at) this.session.hear(item);
    return item;
  }

  #drop(id) {
    this.others.set(id, { ...this.item(id), deleted_at: new Date().toISOString() });
    this.session.forget(id);
  }
}

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== false && value != null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
