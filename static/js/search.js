/* Search in titles and messages, filters, the archive and what was deleted: what stands in the list's place in the sidebar.

   What was found stays until something else has been: nothing flickers while somebody types, and an older request never
   wins. The server bounds its work, so a search may have to be gone on with; that is done here until something is there. */

import { commands } from "#octavo/commands.js";
import { byDay } from "#octavo/days.js";
import { h, icon } from "#octavo/dom.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { openMenu } from "#octavo/menu.js";
import { reveal, visitHit } from "#octavo/reveal.js";
import { skeleton } from "#octavo/sidebar.js";

const PAUSE_MS = 180;
const ENOUGH = 15;
const LATE_MS = 150;
const PATIENCE_MS = 250;
const NOTHING = { text: "", starred: false, archived: false, deleted: false, tag: "", assistant_id: "" };

export function install(workspace) {
  const { page, library, sidebar } = workspace;
  const form = document.getElementById("search");
  const input = form.querySelector("input");
  const filter = document.getElementById("search-filter");
  const clear = document.getElementById("search-clear");
  const chips = document.getElementById("search-chips");
  const status = document.getElementById("search-status");
  let wanted = { ...NOTHING };
  let found = null; // {items, next, fetching, failed, late, wanted, signal}
  let timer;
  let request = null;

  workspace.searching = () => wanted;
  workspace.showTag = (tag) => {
    if (!sidebar.isOpen) sidebar.show(true);
    want({ ...NOTHING, tag });
  };

  const isActive = () => Object.keys(NOTHING).some((name) => wanted[name] !== NOTHING[name]);

  function want(change, pause = 0) {
    wanted = { ...wanted, ...change };
    if (input.value.trim() !== wanted.text) input.value = wanted.text;
    clear.hidden = !input.value;
    drawChips();
    clearTimeout(timer);
    request?.abort();
    if (sidebar.selected) workspace.choosing.stop();
    if (!isActive()) {
      found = null;
      status.textContent = "";
      sidebar.setView(null);
    } else timer = setTimeout(begin, pause);
  }

  async function begin() {
    request = new AbortController();
    const { signal } = request;
    const next = { items: [], next: "", wanted: { ...wanted }, signal, fetching: true, failed: null, late: false };
    const late = setTimeout(() => {
      next.late = true;
      // Nothing of before is kept for long where it answers another question.
      found = next;
      show();
    }, found ? 600 : LATE_MS);
    await fetchPart(next);
    clearTimeout(late);
    if (signal.aborted) return;
    const first = found !== next;
    found = next;
    show(first);
    say();
  }

  async function fetchPart(into) {
    into.fetching = true;
    into.failed = null;
    const { text, ...filters } = into.wanted;
    const before = into.items.length;
    try {
      do {
        const options = { cursor: into.next, signal: into.signal };
        const part = text ? await library.search(text, filters, options) : await library.list(filters, options);
        const items = text ? part.items.map((hit) => ({ ...hit.conversation, hit })) : part.items;
        const known = new Set(into.items.map((item) => item.id));
        into.items.push(...items.filter((item) => !known.has(item.id)));
        library.learn(items);
        into.next = part.next;
        if (found === into && into.late) sidebar.changed();
      } while (into.next && into.items.length - before < ENOUGH);
    } catch (error) {
      if (!into.signal.aborted) into.failed = error;
    }
    into.fetching = false;
  }

  function show(top = true) {
    if (sidebar.view === view && !top) return sidebar.changed();
    sidebar.setView(view);
  }

  /** What was found, as it is by now: renamed, and without what does not belong here any more. */
  function upToDate() {
    const listed = new Map(workspace.session.list.map((item) => [item.id, item]));
    const kept = found.items.map((item) => {
      const now = listed.get(item.id) ?? library.others.get(item.id) ?? item;
      if (!item.hit || item.hit.conversation.title === now.title) return { ...now, hit: item.hit };
      return { ...now, hit: { ...item.hit, title: [{ text: now.title, marked: false }] } };
    });
    const { deleted, archived, starred, tag } = found.wanted;
    return kept.filter(
      (item) =>
        Boolean(item.deleted_at) === deleted &&
        (deleted || Boolean(item.archived_at) === archived) &&
        (!starred || item.starred_at) &&
        (!tag || item.tags?.includes(tag)),
    );
  }

  const view = {
    groups() {
      const items = found ? upToDate() : [];
      if (!items.length) return [];
      if (found.wanted.text) return [{ key: "hits", name: "", items }];
      return byDay(items, undefined, "view ");
    },
    async more() {
      // A search that another one is about to replace is not gone on with.
      if (!found?.next || found.fetching || found.failed || found.signal.aborted) return;
      const into = found;
      await fetchPart(into);
      if (found === into) sidebar.changed();
    },
    foot() {
      if (!found) return [];
      if (found.failed) return [problem(found)];
      if (found.fetching) return found.items.length || found.late ? [skeleton()] : [];
      return upToDate().length ? [] : [none(found.wanted)];
    },
  };

  function problem(of) {
    const again = h("button", { type: "button", class: "button small", text: gettext("Try again"), onclick: begin });
    return h("p", { class: "none" }, fill(gettext("That could not be loaded. %(reason)s"), { reason: of.failed.message }), again);
  }

  function none({ text, ...filters }) {
    const narrowed = filters.starred || filters.tag || filters.assistant_id;
    const said = text
      ? filters.archived
        ? gettext("No archived chat has %(words)s in its title or messages.")
        : filters.deleted
          ? gettext("No deleted chat has %(words)s in its title or messages.")
          : gettext("No chat has %(words)s in its title or messages. Archived ones were not searched.")
      : filters.archived
        ? gettext("Nothing is archived. What you archive is kept here, out of the list.")
        : filters.deleted
          ? gettext("Nothing was deleted in the last 30 days.")
          : gettext("No chat is like this.");
    const buttons = [];
    const way = (label, change) =>
      buttons.push(h("button", { type: "button", class: "button small", text: label, onclick: () => want(change) }));
    if (narrowed) way(gettext("Without filters"), { ...NOTHING, text, archived: filters.archived, deleted: filters.deleted });
    if (text && !filters.archived && !filters.deleted) way(gettext("Search the archive"), { archived: true });
    return h("div", { class: "none" }, h("p", { text: fill(said, { words: `“${text}”` }) }), ...buttons);
  }

  function say() {
    if (!found || found.failed) return;
    const n = found.items.length;
    status.textContent = found.next
      ? fill(gettext("More than %(n)s chats found."), { n })
      : fill(ngettext("%(n)s chat found.", "%(n)s chats found.", n), { n });
  }

  // --- filters -------------------------------------------------------------------------------------------------------

  const assistant = (id) => page.assistants.find((one) => one.id === id)?.name ?? "";

  function chip(label, name, change) {
    return h(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-label": fill(gettext("%(filter)s: take this filter off"), { filter: label }),
        onclick: () => {
          want(change);
          input.focus();
        },
      },
      icon(name),
      h("span", { class: "name", dir: "auto", text: label }),
      icon("x"),
    );
  }

  function drawChips() {
    const shown = [];
    if (wanted.archived) shown.push(chip(gettext("Archived"), "archive", { archived: false }));
    if (wanted.deleted) shown.push(chip(gettext("Recently deleted"), "trash-2", { deleted: false }));
    if (wanted.starred) shown.push(chip(gettext("Starred"), "star", { starred: false }));
    if (wanted.tag) shown.push(chip(wanted.tag, "tag", { tag: "" }));
    if (wanted.assistant_id) shown.push(chip(assistant(wanted.assistant_id), "user-round", { assistant_id: "" }));
    chips.replaceChildren(...shown);
    chips.hidden = !shown.length;
  }

  // The menu waits for its tags only a moment, and needs no server for the rest.
  let tagged = null;
  const fetchTags = () => {
    tagged = library.tags().catch(() => []);
  };
  for (const event of ["pointerenter", "focus"]) filter.addEventListener(event, fetchTags);
  filter.addEventListener("click", async () => {
    if (!tagged) fetchTags();
    const tags = await Promise.race([tagged, new Promise((done) => setTimeout(done, PATIENCE_MS, []))]);
    const most = tags.toSorted((a, b) => b.conversations - a.conversations).slice(0, 12);
    const ways = [
      { label: gettext("Starred"), icon: "star", run: () => want({ starred: true, deleted: false }) },
      { label: gettext("Archived"), icon: "archive", run: () => want({ archived: true, deleted: false }) },
      { label: gettext("Recently deleted"), icon: "trash-2", run: () => want({ ...NOTHING, text: wanted.text, deleted: true }) },
    ];
    if (most.length) ways.push(null, ...most.map(({ name }) => ({ label: name, icon: "tag", run: () => want({ tag: name }) })));
    if (page.assistants.length)
      ways.push(
        null,
        ...page.assistants.map((one) => ({ label: one.name, icon: "user-round", run: () => want({ assistant_id: one.id }) })),
      );
    ways.push(null, { label: gettext("Choose several"), icon: "list-checks", run: () => workspace.choosing.start() });
    openMenu(filter, ways);
  });

  // --- typing and opening --------------------------------------------------------------------------------------------

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const first = found && !found.fetching && sidebar.list.ids()[0];
    if (first) sidebar.list.row(first)?.querySelector("a").click();
  });
  input.addEventListener("input", () => want({ text: input.value.trim() }, PAUSE_MS));
  clear.addEventListener("click", () => {
    want({ text: "" });
    input.focus();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      if (isActive()) want(NOTHING);
      else workspace.composer.focus();
    } else if (event.key === "ArrowDown" && event.target === input) {
      event.preventDefault();
      const [first] = sidebar.list.ids();
      if (first) sidebar.list.focus(first);
    }
  });

  sidebar.open = (id) => visitHit(workspace, id, found?.items.find((item) => item.id === id)?.hit);
  workspace.on("shown", () => {
    const id = /^#message-([\w-]+)$/.exec(location.hash)?.[1];
    if (id) requestAnimationFrame(() => reveal(workspace, id, []));
  });

  commands.add({
    id: "search",
    title: gettext("Search chats"),
    icon: "search",
    run: () => {
      if (!sidebar.isOpen) sidebar.show(true, true);
      input.focus();
      input.select();
    },
  });
  commands.add({ id: "archived", group: "conversations", title: gettext("Show archived chats"), icon: "archive", run: () => lookAt({ archived: true }) });
  commands.add({ id: "deleted", group: "conversations", title: gettext("Show recently deleted chats"), icon: "trash-2", run: () => lookAt({ deleted: true }) });

  function lookAt(change) {
    if (!sidebar.isOpen) sidebar.show(true);
    want({ ...NOTHING, ...change });
  }
}
