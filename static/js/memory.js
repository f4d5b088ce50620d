/* The Memory drawer: the blocks of this very chat in the engine's memory, live. A feature of chat.js.

   Closed by default, and then nothing is asked of anybody; open it follows the chat that is shown. What it shows is
   worked out in memory-cells.js and drawn by memory-board.js, which is loaded with the first opening. */

import { commands } from "#octavo/commands.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { keep, recall } from "#octavo/settings.js";

const KEY = "octavo:memory";
// As long as this nobody needs to be told that something is on its way.
const LOADING_AFTER_MS = 150;

const $ = (id) => document.getElementById(id);

export function install(workspace) {
  new Drawer(workspace);
}

class Drawer {
  constructor(workspace) {
    this.workspace = workspace;
    this.drawer = $("memory");
    this.toggle = $("memory-toggle");
    this.about = null; // what is subscribed
    commands.add({
      id: "memory",
      title: gettext("Memory of this chat"),
      icon: "memory-stick",
      run: () => this.show(this.drawer.hidden, true),
    });
    this.toggle.addEventListener("click", () => this.show(this.drawer.hidden, true));
    $("memory-close").addEventListener("click", () => this.#close());
    this.drawer.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      this.#close();
    });
    workspace.on("shown", () => this.#follow());
    workspace.on("changed", (change) => this.#changed(change));
    workspace.on("connection", (state) => this.#connection(state));
    $("assistants")?.addEventListener("change", () => queueMicrotask(() => this.#follow()));
    // Nobody looks at a page that is hidden.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#leave() : this.#follow()));
    if (recall(KEY) === "open") this.show(true);
  }

  #close() {
    this.show(false, true);
    this.toggle.focus();
  }

  async show(visible, remember = false) {
    this.drawer.hidden = !visible;
    this.toggle.setAttribute("aria-expanded", String(visible));
    if (remember) keep(KEY, visible ? "open" : null);
    if (!visible) return this.#leave();
    if (!this.board) {
      const [{ MemoryBoard }, cells] = await Promise.all([
        import("#octavo/memory-board.js"),
        import("#octavo/memory-cells.js"),
      ]);
      this.cells = cells;
      this.board ??= new MemoryBoard({
        board: $("memory-board"),
        card: $("memory-card"),
        spoken: $("memory-spoken"),
      });
    }
    this.#follow();
  }

  // --- what is followed ---------------------------------------------------------------------------------------------

  /** Look at the chat that is shown, if the drawer is open and does not look at it already. */
  #follow() {
    if (this.drawer.hidden || !this.board || document.hidden) return;
    const { current, octavo } = this.workspace;
    const about = current?.id
      ? { conversation_id: current.id }
      : current?.assistant_id
        ? { assistant_id: current.assistant_id }
        : {};
    this.#words();
    if (this.about && JSON.stringify(about) === JSON.stringify(this.about)) return;
    this.#leave();
    this.about = about;
    this.#wait();
    this.end = octavo.subscribe("memory", (frame) => this.#hear(frame, about), about);
  }

  #leave() {
    clearTimeout(this.loading);
    this.end?.();
    this.end = this.about = this.memory = null;
    this.board?.clear();
  }

  #wait() {
    this.#state("");
    this.loading = setTimeout(() => this.#state("loading"), LOADING_AFTER_MS);
  }

  #hear(frame, about) {
    if (about !== this.about) return;
    if (frame.type === "error" || (frame.type === "unsubscribed" && !frame.event_id)) {
      this.memory = null;
      this.board.clear();
      return this.#state("refused");
    }
    if (frame.type !== "memory.updated" || frame.conversation_id !== about.conversation_id) return;
    clearTimeout(this.loading);
    if (!frame.memory) return this.#state("away");
    this.memory = frame.memory;
    this.board.show(this.memory, this.#tokens());
    this.#state("shown");
  }

  #changed(change) {
    if (this.drawer.hidden || !this.board) return;
    if (change.kind === "accepted" || change.kind === "rejected") return this.#follow();
    if (change.kind !== "message" || change.conversation !== this.workspace.current) return;
    if (this.memory) this.board.grow(this.#tokens());
    if (change.message.status !== this.status) {
      this.status = change.message.status;
      this.#words();
    }
  }

  #connection(state) {
    if (this.drawer.hidden || !this.board || !this.about) return;
    if (state === "waiting" || state === "ended") this.#state("unconnected");
    else if (state === "open") this.#state(this.memory ? "shown" : "loading");
  }

  /** By what this page has heard of the answer, which is newer than the engine's last word about its memory. */
  #tokens() {
    const { current, session } = this.workspace;
    return this.cells.tokensNow(this.memory, current && session.live(current));
  }

  // --- words --------------------------------------------------------------------------------------------------------

  #state(state) {
    this.drawer.dataset.state = state;
    this.#words();
  }

  #words() {
    const { memory, cells } = this;
    const messages = this.workspace.current?.messages ?? [];
    const state = this.drawer.dataset.state;
    const words = {
      loading: gettext("Asking the engine…"),
      away: gettext("The engine does not answer right now. This comes back by itself."),
      unconnected: gettext("No connection. This is how it was."),
      refused: gettext("The memory of this chat cannot be shown."),
    };
    const usage = messages.findLast((message) => message.usage?.prompt_tokens)?.usage;
    const known = usage ? usage.prompt_tokens + (usage.completion_tokens ?? 0) : 0;
    // What counts down several times a second is for the eye alone.
    $("memory-meaning").ariaLive = memory?.state === "answering" && !(state in words) ? "off" : "polite";
    put($("memory-line"), memory ? cells.summary(memory) : "");
    put(
      $("memory-meaning"),
      words[state] ?? (memory ? cells.meaning(memory, { messages: messages.length, known }) : ""),
    );
    put($("memory-saved"), cells ? cells.savedInWords(cells.saved(messages)) : "");
    put($("memory-worker"), memory ? fill(gettext("Held by %(worker)s"), { worker: memory.worker }) : "");
    for (const item of $("memory-legend").children) {
      const { kind } = item.dataset;
      item.hidden = !memory?.runs.some((run) => run.kind === kind || run[kind] || (kind === "team" && run.kind === "platform"));
    }
    this.#table();
  }

  #table() {
    const { memory, cells } = this;
    const rows = memory ? cells.rowsOf(memory) : [];
    $("memory-table").hidden = rows.length === 0;
    const key = JSON.stringify(rows);
    if (this.tabled === key) return;
    this.tabled = key;
    $("memory-rows").replaceChildren(
      ...rows.map((row) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", text: cells.nameOf(row.kind) }),
          h("td", { text: count(row.blocks) }),
          h("td", { text: fill(gettext("%(from)s–%(to)s"), { from: count(row.from + 1), to: count(row.to) }) }),
          h("td", { text: count(row.chats) }),
        ),
      ),
    );
  }
}

/** Only what differs is written: a screen reader says what a status changes to, not what it stays. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
