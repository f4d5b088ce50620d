/* The tenant's chat in this tab: which conversations are loaded, which answers are under way, and what changes about them.

   Owns all state that outlives a view, the chosen branch of each conversation among it; knows the pages' JSON and Octavo's
   client, and no DOM. `notify(change)` reports what changed: {kind: "message", conversation, message}, "branch" (another one
   is shown), "accepted", "rejected" (with `again()`, and `text`, `files` and `edited` where a question came back), "list",
   "titled", "gone" (deleted elsewhere); a message is what is shown (tree.js). How answers survive lost connections is the
   client's; what it cannot have any more is loaded from the database. */

import { LIVE, statusOf } from "#octavo/answer.js";
import { titleOf } from "#octavo/format.js";
import { newId } from "#octavo/octavo.js";
import { beingAnswered } from "#octavo/refusals.js";
import { endOf, leafBeside, shown, shownAs } from "#octavo/tree.js";
import { Unsent } from "#octavo/unsent.js";

const RELOADS = 2;

/** What the server would say, too. */
const busy = () => ({
  code: "conversation_busy",
  message: beingAnswered(),
  retryable: true,
});

/** The server writes a time with more digits here and fewer there. */
const isSameTime = (one, other) => Date.parse(one) === Date.parse(other);

/** Under which name the branch of a conversation is kept. */
export const branchName = (id) => `octavo:branch:${id}`;

/** Which branch this browser shows, by conversation: the id of its leaf. */
const branches = {
  get: (id) => stored((store) => store.getItem(branchName(id))),
  set: (id, leaf) =>
    stored((store) => (leaf ? store.setItem(branchName(id), leaf) : store.removeItem(branchName(id)))),
};

function stored(work) {
  try {
    return work(localStorage);
  } catch {
    return null; // switched off or full: the choice lives as long as the page
  }
}

export class Session {
  constructor({ api, whose = "", conversations = { items: [], next: null }, notify, now = () => Date.now() }) {
    Object.assign(this, { api, notify, now, unsent: new Unsent(whose, { now }) });
    this.list = conversations.items;
    this.next = conversations.next;
    this.loaded = new Map(); // id -> conversation {id, title, messages}
    this.gone = new Set(); // ids of what was deleted while the page looks on: a list that is on its way may have them yet
    this.underway = new Map(); // answer -> {conversation, question, response}
  }

  /** Begin to speak with a server: follow what the page's data says is running. */
  attach(octavo) {
    this.octavo = octavo;
    for (const conversation of this.loaded.values()) this.#followLive(conversation);
  }

  // --- reading -----------------------------------------------------------------------------------------------------

  fresh() {
    return { id: null, title: "", params: {}, model: null, messages: [] };
  }

  /** Take a conversation as the server gives it; answers that this tab knows better stay as they are. */
  adopt(data) {
    const known = this.loaded.get(data.id);
    // What is read stays: whatever others have begun since stands beside it.
    if (known) known.leaf = endOf(known);
    const better = new Map((known?.messages ?? []).map((message) => [message.id, message]));
    const messages = data.messages.map((given) => {
      const have = better.get(given.id);
      better.delete(given.id);
      const status = given.role === "assistant" ? statusOf(given.status, given.finish_reason) : "completed";
      // The recorder may be a moment behind what came over the socket.
      if (have && !have.stale && (LIVE.has(have.status) || LIVE.has(status))) return have;
      const message = have ?? {};
      return Object.assign(message, given, {
        text: given.text ?? "",
        last_seq: given.last_seq ?? -1,
        status,
        stale: false,
      });
    });
    // A question that this tab has just asked may be newer than the page's data.
    for (const message of better.values())
      if (LIVE.has(message.status) || this.#isAsked(message)) messages.push(message);
    const conversation = Object.assign(known ?? {}, {
      id: data.id,
      title: data.title,
      updated_at: data.updated_at,
      assistant: data.assistant ?? null,
      params: data.params ?? {},
      model: data.model ?? null,
      starred_at: data.starred_at ?? null,
      archived_at: data.archived_at ?? null,
      tags: data.tags ?? [],
      messages,
    });
    if (!known) {
      const leaf = branches.get(data.id);
      conversation.leaf = messages.find((message) => message.id === leaf) ?? null;
    }
    this.loaded.set(data.id, conversation);
    shown(conversation);
    this.#followLive(conversation);
    return conversation;
  }

  #followLive(conversation) {
    if (!this.octavo) return;
    for (const answer of conversation.messages)
      if (LIVE.has(answer.status) && answer.response_id && !this.underway.has(answer)) {
        const entry = { conversation, question: null };
        this.underway.set(answer, entry);
        entry.response = this.octavo.follow({ answer, ...this.#hears(answer, entry) });
      }
  }

  #isAsked(message) {
    return [...this.underway.values()].some((entry) => entry.question === message);
  }

  async load(id) {
    return this.adopt(await this.#get(`${this.api}/conversations/${id}`));
  }

  async refreshList() {
    const page = await this.#get(`${this.api}/conversations`);
    const first = page.items.filter((item) => !this.gone.has(item.id));
    const ids = new Set(first.map((item) => item.id));
    // What lies in the page's time and is not in it has been deleted; what lies behind it is still as it was.
    const end = page.next ? Date.parse(page.items.at(-1).updated_at) : -Infinity;
    const rest = this.list.filter((item) => !ids.has(item.id) && Date.parse(item.updated_at) < end);
    if (rest.length === 0) this.next = page.next;
    this.list = [...first, ...rest];
    this.notify({ kind: "list" });
  }

  /** The server tells of a conversation, changed by whomever. True: it has messages that this tab does not know. */
  hear(told) {
    this.gone.delete(told.id);
    const item = this.list.find((entry) => entry.id === told.id) ?? { id: told.id };
    Object.assign(item, told);
    const others = this.list.filter((entry) => entry !== item);
    this.list = item.archived_at
      ? others
      : [item, ...others].sort((one, other) => Date.parse(other.updated_at) - Date.parse(one.updated_at));
    this.notify({ kind: "list" });
    const known = this.loaded.get(told.id);
    if (!known) return false;
    known.title = told.title;
    const isNews = !this.live(known) && !isSameTime(known.updated_at, told.updated_at);
    if (this.live(known)) known.updated_at = told.updated_at;
    this.notify({ kind: "titled", conversation: known });
    return isNews;
  }

  /** Whether the list, just loaded, says that a conversation is as this tab has it. What has news is in its first page. */
  isCurrent(conversation) {
    const item = this.list.find((entry) => entry.id === conversation.id);
    return Boolean(item && !item.running && isSameTime(item.updated_at, conversation.updated_at));
  }

  /** A conversation is not there any more. */
  forget(id) {
    const conversation = this.loaded.get(id) ?? null;
    this.loaded.delete(id);
    this.gone.add(id);
    this.list = this.list.filter((item) => item.id !== id);
    this.notify({ kind: "list" });
    this.notify({ kind: "gone", conversation, id });
  }

  async moreOfList() {
    if (!this.next || this.fetching) return;
    this.fetching = true;
    try {
      const page = await this.#get(`${this.api}/conversations?cursor=${encodeURIComponent(this.next)}`);
      const known = new Set(this.list.map((item) => item.id));
      this.list.push(...page.items.filter((item) => !known.has(item.id)));
      this.next = page.next;
    } finally {
      this.fetching = false;
    }
    this.notify({ kind: "list" });
  }

  async #get(url) {
    const reply = await fetch(url, { headers: { Accept: "application/json" }, redirect: "manual" });
    if (!reply.ok)
      throw Object.assign(new Error(`${url} answered ${reply.status}`), { status: reply.status });
    return reply.json();
  }

  /** Whether a conversation is here to be gone on with: neither on its way nor deleted. */
  has(conversation) {
    return !conversation.id || this.loaded.has(conversation.id);
  }

  /** The answer that is under way in a conversation, if one is. */
  live(conversation) {
    return conversation.messages.findLast(
      (message) => message.role === "assistant" && LIVE.has(message.status),
    );
  }

  // --- asking and stopping -----------------------------------------------------------------------------------------

  /** A new question behind what is shown, or behind `parentId` (null: beside the first). `files`: {id, name, …} that go
      with it; `edited`: the question that it is another form of; `key`, `at`: of a question that an earlier page may have
      asked, and when it was first asked. */
  ask(conversation, text, parentId, files = [], edited = null, { key = newId(), at = this.now() } = {}) {
    const parent_id = parentId === undefined ? (endOf(conversation)?.id ?? null) : parentId;
    const question = { id: newId(), parent_id, role: "user", text, files, created_at: this.#time(), status: "completed" };
    const request = { input: text, idempotency_key: key };
    if (files.length) request.file_ids = files.map((file) => file.id);
    if (conversation.id) request.parent_id = parent_id ?? "root";
    else {
      if (conversation.assistant_id) request.assistant_id = conversation.assistant_id;
      if (conversation.model) request.model = conversation.model;
      if (Object.keys(conversation.params ?? {}).length) request.params = conversation.params;
    }
    const again = () => this.ask(conversation, text, parentId, files, edited);
    this.#request(conversation, request, { question, edited, again, at });
  }

  /** Ask again what an earlier page of this browser has left unacknowledged; the server knows it by its key. Those that
      are too old for that, or were stopped, are given back: [{request, files}]. `conversationOf(id)` promises a loaded
      conversation (null: a new one). */
  async askLeft(conversationOf) {
    const old = [];
    for (const { request, files, at, fresh } of this.unsent.left()) {
      const { idempotency_key: key, conversation_id = null, parent_id, input, ...chosen } = request;
      if ([...this.underway.values()].some((entry) => entry.key === key)) continue;
      this.unsent.drop(key);
      try {
        if (!fresh) throw new Error("too old");
        const conversation = await conversationOf(conversation_id);
        if (!conversation.id) {
          const { assistant_id, model = null, params = {} } = chosen;
          Object.assign(conversation, { assistant_id, model, params });
        }
        this.ask(conversation, input, parent_id === "root" ? null : parent_id, files, null, { key, at });
      } catch {
        old.push({ request, files }); // too old, or its conversation is gone
      }
    }
    return old;
  }

  /** The question in other words: it stands beside the one that is there, with the same files. */
  edit(conversation, question, text) {
    this.ask(conversation, text, question.parent_id, question.files, question);
  }

  /** Another answer to the question of a shown answer. */
  answerAgain(conversation, turn) {
    const question_id = turn.parent_id;
    const again = () => this.answerAgain(conversation, turn);
    if (question_id) this.#request(conversation, { question_id }, { parent_id: question_id, again });
  }

  /** The rest of an answer that was cut, stopped, or broke off. */
  goOn(conversation, turn) {
    const continue_id = turn.said?.id;
    const again = () => this.goOn(conversation, turn);
    if (continue_id) this.#request(conversation, { continue_id }, { parent_id: continue_id, again });
  }

  /** What did not come off, once more: the rest of what there is, or all of it. */
  askAgain(conversation, turn) {
    if (turn.said && turn.said !== turn.last) this.goOn(conversation, turn);
    else this.answerAgain(conversation, turn);
  }

  /** Show what stands `by` places beside a shown message. */
  step(conversation, message, by) {
    const leaf = leafBeside(conversation, message, by);
    if (!leaf) return;
    conversation.leaf = leaf;
    this.#keepBranch(conversation);
    this.notify({ kind: "branch", conversation, message });
  }

  #request(conversation, request, { question = null, parent_id = question.id, edited = null, again, at }) {
    if (this.live(conversation)) {
      const { text = null, files = [] } = question ?? {};
      return this.notify({ kind: "rejected", conversation, text, files, edited, again, error: busy() });
    }
    const answer = {
      id: newId(),
      parent_id,
      role: "assistant",
      text: "",
      created_at: this.#time(),
      asked_at: this.now(),
      response_id: null,
      last_seq: -1,
      status: "sending",
    };
    if (conversation.id) request.conversation_id = conversation.id;
    const entry = { conversation, question, edited, again, before: endOf(conversation), key: request.idempotency_key };
    if (question) this.unsent.keep(request, question.files, at);
    if (question) conversation.messages.push(question);
    conversation.messages.push(answer);
    conversation.leaf = answer;
    shown(conversation);
    this.underway.set(answer, entry);
    entry.response = this.octavo.respond(request, {
      answer,
      onAccepted: (frame) => this.#accepted(answer, entry, frame),
      onRefused: (error) => this.#reject(answer, entry, error),
      ...this.#hears(answer, entry),
    });
    this.notify({ kind: "message", conversation, message: shownAs(answer) });
  }

  #time() {
    return new Date(this.now()).toISOString();
  }

  /** Remember the branch, unless it is the one that is shown anyway. */
  #keepBranch(conversation) {
    const { id, messages, leaf } = conversation;
    if (id) branches.set(id, leaf && endOf({ messages, leaf }) !== endOf({ messages, leaf: null }) ? leaf.id : null);
  }

  stop(conversation) {
    const answer = this.live(conversation);
    if (!answer || answer.stopping) return;
    answer.stopping = true;
    const entry = this.underway.get(answer);
    if (entry?.question) this.unsent.hold(entry.key); // a stopped answer stays stopped, whatever page comes next
    entry?.response.cancel();
    this.notify({ kind: "message", conversation, message: shownAs(answer) });
  }

  // --- what the client says ----------------------------------------------------------------------------------------

  #hears(answer, { conversation }) {
    return {
      onChange: () => {
        if (!LIVE.has(answer.status)) this.#finished(answer, conversation);
        this.notify({ kind: "message", conversation, message: shownAs(answer) });
      },
      onLost: () => this.#reload(answer, conversation),
    };
  }

  #reject(answer, { conversation, question, edited, again, before, key }, error) {
    this.underway.delete(answer);
    this.unsent.drop(key);
    conversation.messages = conversation.messages.filter(
      (message) => message !== question && message !== answer,
    );
    if (conversation.leaf === answer) conversation.leaf = before;
    shown(conversation);
    const { text = null, files = [] } = question ?? {};
    this.notify({ kind: "rejected", conversation, text, files, edited, again, error });
  }

  #accepted(answer, { conversation, question, key }, frame) {
    this.unsent.drop(key);
    const isNew = !conversation.id;
    if (isNew) {
      conversation.id = frame.conversation_id;
      conversation.title ||= titleOf(question.text);
      this.loaded.set(conversation.id, conversation);
    }
    const before = { question: question?.id, answer: answer.id };
    if (frame.parent_id) {
      answer.parent_id = frame.parent_id;
      if (question) question.id = frame.parent_id;
    }
    if (frame.message_id) answer.id = frame.message_id;
    this.#keepBranch(conversation);
    this.#touch(conversation, true);
    this.notify({ kind: "accepted", conversation, question, answer: shownAs(answer), before, isNew });
  }

  #finished(answer, conversation) {
    this.underway.delete(answer);
    answer.stopping = false;
    this.#touch(conversation, false);
  }

  /** Move a conversation to the top of the list, running or not. */
  #touch(conversation, running) {
    const item = this.list.find((entry) => entry.id === conversation.id) ?? { id: conversation.id };
    Object.assign(item, {
      title: conversation.title || item.title,
      updated_at: new Date(this.now()).toISOString(),
      running,
    });
    this.list = [item, ...this.list.filter((entry) => entry !== item)];
    this.notify({ kind: "list" });
  }

  /** The rest of an answer cannot be had over the connection: take what the database has. */
  async #reload(answer, conversation) {
    this.underway.delete(answer);
    answer.stale = true;
    answer.reloads = (answer.reloads ?? 0) + 1;
    try {
      if (answer.reloads > RELOADS) throw new Error("the database knows no end of this answer either");
      await this.load(conversation.id);
    } catch {
      answer.status = "failed";
      answer.error = {
        code: "lost",
        message: "The rest of this answer could not be loaded. Reload the page to see what is kept.",
      };
    }
    shown(conversation);
    this.notify({ kind: "message", conversation, message: shownAs(answer) });
  }
}
