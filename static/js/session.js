/* The tenant's chat in this tab: which conversations are loaded, which answers are under way, and how frames change them.

   Owns all state that outlives a view; knows the socket and the pages' JSON, and no DOM. `notify(change)` reports what
   changed: {kind: "message", conversation, message}, "accepted", "rejected", "list".
   Promises: an answer that runs goes on whatever is shown; after a reconnect, or some seconds without an event, it is
   resumed behind the last event that arrived; a question is sent again under the same idempotency key until it is
   accepted or refused. */

import { LIVE, addDelta, end, isEnding, statusOf } from "#octavo/answer.js";
import { titleOf } from "#octavo/format.js";

// Nothing for so long while an answer runs: ask for what is missing. Doubles with each time in vain.
const STALL_MS = 5_000;
const LONGEST_STALL_MS = 40_000;
// No word about a question for so long: send it again; it is the same to the server.
const UNHEARD_MS = 15_000;
const SENDS = 3;
const UNSENT = { code: "unsent", message: "The server did not answer. Try again.", retryable: true };
const GAPS = 3;
const RELOADS = 2;

/** Sixteen random bytes in hexadecimal; randomUUID is missing where the page came over plain http. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

export class Session {
  constructor({ api, conversations = { items: [], next: null }, notify, now = () => Date.now() }) {
    Object.assign(this, { api, notify, now });
    this.list = conversations.items;
    this.next = conversations.next;
    this.loaded = new Map(); // id -> conversation {id, title, messages}
    this.running = new Map(); // response id -> {answer, conversation, heardAt, patience, gaps}
    this.pending = new Map(); // event id -> {frame, conversation, question, answer, sends, cancel}
  }

  attach(socket) {
    this.socket = socket;
  }

  // --- reading -----------------------------------------------------------------------------------------------------

  fresh() {
    return { id: null, title: "", messages: [] };
  }

  /** Take a conversation as the server gives it; answers that this tab knows better stay as they are. */
  adopt(data) {
    const known = this.loaded.get(data.id);
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
      assistant: data.assistant ?? null,
      messages,
    });
    this.loaded.set(data.id, conversation);
    for (const message of messages) {
      if (LIVE.has(message.status) && message.response_id && !this.running.has(message.response_id)) {
        this.#track(conversation, message);
        this.#resume(message.response_id);
      }
    }
    return conversation;
  }

  #isAsked(message) {
    return [...this.pending.values(), ...this.running.values()].some((entry) => entry.question === message);
  }

  async load(id) {
    return this.adopt(await this.#get(`${this.api}/conversations/${id}`));
  }

  async refreshList() {
    const page = await this.#get(`${this.api}/conversations`);
    const first = new Set(page.items.map((item) => item.id));
    const rest = this.list.filter((item) => !first.has(item.id));
    if (rest.length === 0) this.next = page.next;
    this.list = [...page.items, ...rest];
    this.notify({ kind: "list" });
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

  /** The answer that is under way in a conversation, if one is. */
  live(conversation) {
    return conversation.messages.findLast(
      (message) => message.role === "assistant" && LIVE.has(message.status),
    );
  }

  // --- asking and stopping -----------------------------------------------------------------------------------------

  /** `files`: {id, name, …} that go with it. */
  ask(conversation, text, parentId, files = []) {
    const created_at = new Date(this.now()).toISOString();
    const parent_id = parentId === undefined ? (conversation.messages.at(-1)?.id ?? null) : parentId;
    const question = { id: newId(), parent_id, role: "user", text, files, created_at, status: "completed" };
    const answer = {
      id: newId(),
      parent_id: question.id,
      role: "assistant",
      text: "",
      created_at,
      asked_at: this.now(),
      response_id: null,
      last_seq: -1,
      status: "sending",
    };
    conversation.messages.push(question, answer);
    const frame = { type: "response.create", event_id: newId(), input: text, idempotency_key: newId() };
    if (files.length) frame.file_ids = files.map((file) => file.id);
    if (conversation.id) frame.conversation_id = conversation.id;
    if (conversation.id && parent_id) frame.parent_id = parent_id;
    if (!conversation.id && conversation.assistant_id) frame.assistant_id = conversation.assistant_id;
    this.pending.set(frame.event_id, { frame, conversation, question, answer, sends: 0 });
    this.#send(frame.event_id);
    this.notify({ kind: "message", conversation, message: answer });
  }

  /** Ask the question of a failed answer again. */
  askAgain(conversation, answer) {
    const question = conversation.messages.find((message) => message.id === answer.parent_id);
    if (question && !this.live(conversation)) this.ask(conversation, question.text, undefined, question.files);
  }

  stop(conversation) {
    const answer = this.live(conversation);
    if (!answer || answer.stopping) return;
    answer.stopping = true;
    if (answer.response_id) this.socket.send({ type: "response.cancel", response_id: answer.response_id });
    this.notify({ kind: "message", conversation, message: answer });
  }

  #send(eventId) {
    const entry = this.pending.get(eventId);
    if (entry.sends >= SENDS) return this.#reject(eventId, UNSENT);
    entry.sentAt = this.now();
    if (this.socket.send(entry.frame)) entry.sends += 1;
  }

  #reject(eventId, error) {
    const { conversation, question, answer } = this.pending.get(eventId);
    this.pending.delete(eventId);
    conversation.messages = conversation.messages.filter(
      (message) => message !== question && message !== answer,
    );
    this.notify({ kind: "rejected", conversation, text: question.text, files: question.files, error });
  }

  // --- frames ------------------------------------------------------------------------------------------------------

  onOpen() {
    for (const eventId of [...this.pending.keys()]) this.#send(eventId);
    for (const [id, entry] of this.running) {
      if (entry.answer.stopping) this.socket.send({ type: "response.cancel", response_id: id });
      this.#resume(id);
    }
  }

  onFrame(frame) {
    if (frame.type === "response.queued" && this.pending.has(frame.event_id)) return this.#accepted(frame);
    if (frame.type === "error" && this.pending.has(frame.event_id))
      return this.#reject(frame.event_id, frame);
    const entry = this.running.get(frame.response_id);
    if (!entry) return;
    const { answer, conversation } = entry;
    entry.heardAt = this.now();
    entry.patience = STALL_MS;
    let outcome = "applied";
    if (frame.type === "response.queued") answer.position = frame.position;
    else if (frame.type === "response.created") this.#started(answer, frame);
    else if (frame.type === "response.output_text.delta") outcome = addDelta(answer, frame);
    else if (isEnding(frame)) outcome = end(answer, frame);
    else if (frame.type === "lagged") outcome = "gap";
    else if (frame.type === "error") return frame.retryable ? undefined : this.#reload(entry);
    else return;
    if (outcome === "gap") return this.#mind(entry);
    if (outcome === "applied") entry.gaps = 0;
    if (!LIVE.has(answer.status)) this.#finished(entry);
    if (outcome === "applied") this.notify({ kind: "message", conversation, message: answer });
  }

  #accepted(frame) {
    const entry = this.pending.get(frame.event_id);
    const { conversation, question, answer } = entry;
    this.pending.delete(frame.event_id);
    const isNew = !conversation.id;
    if (isNew) {
      conversation.id = frame.conversation_id;
      conversation.title ||= titleOf(question.text);
      this.loaded.set(conversation.id, conversation);
    }
    const before = { question: question.id, answer: answer.id };
    if (frame.parent_id) question.id = answer.parent_id = frame.parent_id;
    if (frame.message_id) answer.id = frame.message_id;
    answer.response_id = frame.response_id;
    answer.position = frame.position;
    answer.status = "queued";
    this.#track(conversation, answer, question);
    this.#touch(conversation, true);
    this.notify({ kind: "accepted", conversation, question, answer, before, isNew });
    if (answer.stopping) this.socket.send({ type: "response.cancel", response_id: answer.response_id });
  }

  #started(answer, frame) {
    answer.last_seq = Math.max(answer.last_seq, 0);
    answer.status = "running";
    answer.usage ??= { prompt_tokens: frame.prompt_tokens, cached_tokens: frame.cached_tokens ?? 0 };
  }

  #track(conversation, answer, question = null) {
    this.running.set(answer.response_id, {
      answer,
      conversation,
      question,
      heardAt: this.now(),
      patience: STALL_MS,
      gaps: 0,
    });
  }

  #finished({ answer, conversation }) {
    this.running.delete(answer.response_id);
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

  // --- what was missed ---------------------------------------------------------------------------------------------

  #resume(responseId) {
    const { answer } = this.running.get(responseId);
    this.socket?.send({ type: "response.resume", response_id: responseId, after: answer.last_seq });
  }

  /** Something is missing: ask for it again, and after some times in vain take what the database has. */
  #mind(entry) {
    entry.gaps += 1;
    if (entry.gaps <= GAPS) this.#resume(entry.answer.response_id);
    else this.#reload(entry);
  }

  async #reload({ answer, conversation }) {
    this.running.delete(answer.response_id);
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
    this.notify({ kind: "message", conversation, message: answer });
  }

  /** Called every second: resume answers that have gone quiet, and send questions again that nobody has heard. */
  tick() {
    for (const [eventId, entry] of this.pending)
      if (this.now() - entry.sentAt > UNHEARD_MS) this.#send(eventId);
    for (const [id, entry] of this.running) {
      if (this.now() - entry.heardAt < entry.patience) continue;
      entry.heardAt = this.now();
      entry.patience = Math.min(entry.patience * 2, LONGEST_STALL_MS);
      if (entry.answer.stopping) this.socket.send({ type: "response.cancel", response_id: id });
      this.#resume(id);
    }
  }
}
