/* What can be done with conversations as a whole: renamed, starred, archived, deleted and asked back, tagged, searched.

   Speaks with the product's API and keeps every list of this browser in step: the session's, loaded conversations, and
   those of other tabs. What is changed shows at once, and is taken back with a reason where the server refuses.
   `onChange(listener)`: listener({id, item}) with the new item, or {id, deleted: true}. Knows no DOM but the CSRF token. */

import { fill, gettext } from "#octavo/i18n.js";

const FACTS = ["title", "updated_at", "running", "starred_at", "archived_at", "deleted_at", "tags"];

const token = () => globalThis.document?.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

export class Library {
  constructor({ session, slug, starred = [], failed = () => {} }) {
    Object.assign(this, { session, failed });
    this.listeners = [];
    this.others = new Map(); // items that are not in the session's list
    this.channel = new BroadcastChannel(`octavo library ${slug}`);
    this.channel.addEventListener("message", ({ data }) => (data.item ? this.#apply(data.item) : this.#drop(data.id, data)));
    this.#merge(starred);
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  /** What is known of a conversation: an item of a list, or what was loaded of it. */
  item(id) {
    return (
      this.session.list.find((item) => item.id === id) ?? this.others.get(id) ?? this.session.loaded.get(id) ?? { id }
    );
  }

  /** Items that other lists have (search, the archive): so that `item` knows them. */
  learn(items) {
    for (const item of items) if (!this.session.list.some((one) => one.id === item.id)) this.others.set(item.id, item);
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
    this.#drop(id, {});
    try {
      await this.send("DELETE", `/conversations/${id}`);
      this.channel.postMessage({ id, deleted: true });
    } catch (error) {
      if (error.status === 404) return; // it was gone
      this.#apply({ ...before, deleted_at: null });
      throw error;
    }
  }

  async restore(id) {
    return this.#take(await this.send("POST", `/conversations/${id}/restore`));
  }

  /** The same for several. Returns those that were changed. */
  async changeMany(ids, what) {
    const changed = [];
    for (let at = 0; at < ids.length; at += 100) {
      const { items } = await this.send("POST", "/conversations/changes", { ids: ids.slice(at, at + 100), ...what });
      for (const item of items) {
        if (item.deleted_at) {
          this.#drop(item.id, {});
          this.channel.postMessage({ id: item.id, deleted: true });
        } else this.#take(item);
      }
      changed.push(...items);
    }
    return changed;
  }

  async #change(id, sent, shown) {
    const item = this.item(id);
    const before = Object.fromEntries(Object.keys(shown).map((name) => [name, item[name] ?? null]));
    this.#apply({ id, ...shown });
    try {
      return this.#take(await this.send("PATCH", `/conversations/${id}`, sent));
    } catch (error) {
      this.#apply({ id, ...before });
      throw error;
    }
  }

  // --- reading -----------------------------------------------------------------------------------------------------

  /** `wanted`: {starred, archived, deleted, tag, assistant_id}; what is false or empty is left out. */
  list(wanted, { cursor = "", signal } = {}) {
    return this.send("GET", `/conversations${query({ ...wanted, cursor })}`, undefined, signal);
  }

  search(text, wanted, { cursor = "", signal } = {}) {
    return this.send("GET", `/conversations/search${query({ q: text, ...wanted, cursor })}`, undefined, signal);
  }

  async tags() {
    return (await this.send("GET", "/tags")).items;
  }

  async renameTag(name, to) {
    const { conversations } = await this.send("PATCH", "/tags", { name, to });
    await this.session.refreshList();
    return conversations;
  }

  async removeTag(name) {
    const { conversations } = await this.send("DELETE", `/tags${query({ name })}`);
    await this.session.refreshList();
    return conversations;
  }

  async send(method, path, body, signal) {
    const headers = { Accept: "application/json" };
    if (method !== "GET") headers["X-CSRFToken"] = token();
    if (body) headers["Content-Type"] = "application/json";
    let reply;
    try {
      const options = { method, headers, body: body && JSON.stringify(body), signal, redirect: "manual" };
      reply = await fetch(`${this.session.api}${path}`, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw Object.assign(new Error(gettext("The server cannot be reached. Try again.")), { status: 0 });
    }
    const said = await reply.json().catch(() => null);
    if (reply.ok && said) return said;
    const message = said?.error?.message ?? fill(gettext("The server answered %(status)s."), { status: reply.status });
    throw Object.assign(new Error(message), { status: reply.status });
  }

  // --- keeping in step ---------------------------------------------------------------------------------------------

  #take(item) {
    this.#apply(item);
    this.channel.postMessage({ item });
    return item;
  }

  #apply(change) {
    const { session } = this;
    const facts = Object.fromEntries(FACTS.filter((name) => name in change).map((name) => [name, change[name]]));
    const listed = session.list.find((item) => item.id === change.id);
    const loaded = session.loaded.get(change.id);
    if (loaded) Object.assign(loaded, facts);
    if (listed) Object.assign(listed, facts);
    else {
      const other = { ...this.others.get(change.id), ...change };
      // Whole items come into the list; only what is known of one does not make it whole.
      if (other.updated_at && !other.archived_at && !other.deleted_at) {
        this.others.delete(change.id);
        session.list = [...session.list, other];
      } else this.others.set(change.id, other);
    }
    this.#tell({ id: change.id, item: this.item(change.id) });
  }

  #drop(id, { deleted = false }) {
    const { session } = this;
    const item = this.item(id);
    session.list = session.list.filter((one) => one.id !== id);
    this.others.set(id, { ...item, id, deleted_at: new Date().toISOString() });
    this.#tell({ id, deleted: true, elsewhere: deleted });
  }

  #tell(change) {
    this.session.notify({ kind: "list" });
    for (const listener of this.listeners) listener(change);
  }

  #merge(starred) {
    const known = new Set(this.session.list.map((item) => item.id));
    this.session.list = [...this.session.list, ...starred.filter((item) => !known.has(item.id))];
  }
}

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== false && value != null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
