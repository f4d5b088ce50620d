/* Octavo's browser client: a module without imports, for the product's own pages and for everybody else's.

     import { Octavo } from "https://chat.example.org/client/octavo.js";

     const octavo = new Octavo({
       url: "https://chat.example.org",
       ticket: async () => (await (await fetch("/my/ticket", { method: "POST" })).json()).ticket,
     });
     for await (const { delta } of octavo.stream("Tell me a story.").deltas()) console.log(delta);

   Promises: a lost connection is made again, and each running answer goes on where it was, so that no text is lost or
   comes twice; a question that was not acknowledged is sent again under the same idempotency key; an answer of which
   nothing is heard is asked for by itself; a connection that says nothing (a sleeping laptop closes no socket) is
   asked, and given up; one that will expire is replaced before. Frames and fields of a newer server are passed over. */

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const ANSWER_MS = 8_000;
const HEARTBEAT_MS = 20_000;
const TICK_MS = 1000;
// Nothing for so long while an answer runs: ask for what is missing. Doubles with each time in vain.
const STALL_MS = 5_000;
const LONGEST_STALL_MS = 40_000;
// No word about a question for so long: send it again; it is the same to the server.
const UNHEARD_MS = 15_000;
const SENDS = 3;
const GAPS = 3;
// What was on its way when the rest was asked for does not fit, and is no new gap.
const ON_ITS_WAY_MS = 1000;
// Without a connection for so long, what waits for one fails; the connection is tried on.
const GIVE_UP_MS = 300_000;
const SUBPROTOCOL = "octavo.v1";
/** A frame could not be read, or was too long. Another connection is of use; questions that may be to blame are sent
    SENDS times, as ever. */
const BAD_FRAME = new Set([4400, 4413]);
/** Close codes after which trying again is useless until somebody does something. */
const FINAL = new Set([4401, 4403, 4440]);

export class OctavoError extends Error {
  /** @param {{code?: string, message?: string, param?: string, retryable?: boolean, retry_after_ms?: number}} told */
  constructor(told) {
    super(told.message ?? "This did not work.");
    this.name = "OctavoError";
    this.code = told.code ?? "unknown";
    this.param = told.param ?? null;
    this.retryable = told.retryable ?? false;
    this.retry_after_ms = told.retry_after_ms ?? null;
  }
}

/** Sixteen random bytes in hexadecimal; randomUUID is missing where the page came over plain http.
    @returns {string} */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

// --- what frames add up to ------------------------------------------------------------------------------------------
//
// An answer has `text`, `last_seq` (the last event it contains, -1 for none), `status`, `usage`, `timing`, `error`, and
// `choices` where more than the text of one was asked for: {text, tool_calls: [{id, name, arguments}], finish_reason}.
// Event 0 is the start; text begins at 1, without a gap; the ending has the last number + 1.

export const LIVE = new Set(["sending", "queued", "running"]);

/** What is told of which topic. */
const TOPICS = {
  "conversation.updated": "conversations",
  "conversation.deleted": "conversations",
  "usage.updated": "usage",
  "memory.updated": "memory",
};

const ENDINGS = {
  "response.completed": "completed",
  "response.incomplete": "incomplete",
  "response.cancelled": "cancelled",
  "response.failed": "failed",
};

const isEnding = (frame) => frame.type in ENDINGS;

/** Add what a step says, in one frame or several: "applied", "known" (nothing new), or "gap" (something before it is
    missing: resume). */
export function addDelta(answer, ...frames) {
  const { first_seq, seq } = frames[0];
  const last = Math.max(answer.last_seq, 0);
  if (seq <= last) return "known";
  if (first_seq !== last + 1) {
    if (first_seq !== 1) return "gap";
    // The database's replay: all of the text in one piece.
    answer.text = "";
    answer.choices = undefined;
  }
  for (const frame of frames) add(answer, frame);
  answer.last_seq = seq;
  if (LIVE.has(answer.status)) answer.status = "running";
  return "applied";
}

function add(answer, frame) {
  const choice = (index) => {
    answer.choices ??= [];
    while (answer.choices.length <= index) answer.choices.push({ text: "", tool_calls: [], finish_reason: null });
    return answer.choices[index];
  };
  if (frame.type === "response.output_text.delta") {
    if (!frame.index) answer.text += frame.delta;
    if (frame.index || answer.choices || frame.finish_reason) {
      const of = choice(frame.index ?? 0);
      of.text = frame.index ? of.text + frame.delta : answer.text;
      of.finish_reason = frame.finish_reason ?? of.finish_reason;
    }
  } else if (frame.type === "response.output_item.added") {
    const { tool_calls } = choice(frame.index);
    tool_calls[frame.call] = { id: frame.item.call_id, name: frame.item.name, arguments: "" };
  } else if (frame.type === "response.function_call_arguments.delta") {
    const { tool_calls } = choice(frame.index);
    tool_calls[frame.call] ??= { id: "", name: "", arguments: "" };
    tool_calls[frame.call].arguments += frame.delta;
  }
}

/** End an answer: "applied", "known", or "gap" when text before the ending is missing. */
export function end(answer, frame) {
  if (!LIVE.has(answer.status)) return "known";
  if (frame.seq > Math.max(answer.last_seq, 0) + 1) return "gap";
  answer.last_seq = Math.max(answer.last_seq, frame.seq);
  answer.status = ENDINGS[frame.type];
  answer.finish_reason = frame.finish_reason ?? null;
  answer.usage = frame.usage ?? null;
  answer.timing = frame.timing ?? null;
  answer.error = frame.error ?? null;
  return "applied";
}

// --- the connection -------------------------------------------------------------------------------------------------

/** A websocket that comes back. Knows frames as JSON objects and nothing of what they mean.

    Attempts wait 0.5 s, 1 s, 2 s … 15 s, less a random part, so that a restarted server is not met by every page at
    once; and for as long as a server without room said. */
export class Connection {
  /** `url` is an address; `protocols` may give, or promise, subprotocols for each attempt.
      `onFrame(frame)`, `onState("connecting" | "open" | "waiting" | "ended", code)`; `onBytes(buffer)`: of binary ones. */
  constructor(url, { onFrame, onState, onBytes = () => {}, protocols = null, WebSocketClass = globalThis.WebSocket }) {
    Object.assign(this, { url, onFrame, onState, onBytes, protocols, WebSocketClass });
    this.state = "waiting";
    this.failures = 0;
    this.refusal = null; // what the server said before it closed for good
    this.askedMs = 0; // and for how long not to come back
  }

  connect() {
    if (this.state === "ended" || this.state === "connecting" || this.state === "open") return;
    clearTimeout(this.retry);
    this.#enter("connecting");
    this.#open();
  }

  /** Send a frame; false when there is no connection, and nothing was sent. */
  send(frame) {
    if (this.state !== "open") return false;
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  /** Try at once: the network is back, or the reader asks for it. */
  hurry() {
    if (this.state === "waiting") this.connect();
    else if (this.state === "open") this.#ask();
  }

  /** Open another one, and let go of this one only when that stands: the server will end it soon. */
  replace() {
    if (this.state === "open" && !this.next) this.#open();
  }

  end(code = 1000) {
    const sockets = [this.socket, this.next];
    this.socket = this.next = this.attempt = null;
    clearTimeout(this.watchdog);
    clearTimeout(this.retry);
    this.#enter("ended", code);
    for (const socket of sockets) socket?.close();
  }

  #open() {
    const attempt = (this.attempt = {});
    if (!this.protocols) return this.#use(attempt, []);
    Promise.resolve()
      .then(() => this.protocols())
      .then(
        (protocols) => this.#use(attempt, [protocols]),
        (error) => {
          this.refusal = { code: "no_ticket", message: error.message };
          if (attempt === this.attempt && this.state === "connecting") this.#wait(0);
        },
      );
  }

  #use(attempt, protocols) {
    if (attempt !== this.attempt || this.state === "ended") return;
    const socket = new this.WebSocketClass(this.url, ...protocols);
    socket.binaryType = "arraybuffer";
    const replaces = this.state === "open";
    if (replaces) this.next = socket;
    else {
      this.socket = socket;
      this.watchdog = setTimeout(() => this.#lost(socket, 0), ANSWER_MS);
    }
    socket.onopen = () => {
      if (socket === this.next) {
        const former = this.socket;
        this.socket = socket;
        this.next = null;
        former.close();
      }
      if (socket !== this.socket) return;
      this.#listen(HEARTBEAT_MS);
      this.#enter("open");
    };
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      if (typeof event.data !== "string") {
        this.failures = 0;
        this.#listen(this.heartbeatMs || HEARTBEAT_MS);
        this.onBytes(event.data);
        return;
      }
      const frame = JSON.parse(event.data);
      // Being let in counts, not being heard: a server that accepts and then closes must not be hammered.
      if (frame.type !== "error") this.failures = 0;
      else if (!frame.event_id && !frame.response_id) {
        this.refusal = frame;
        this.askedMs = frame.retry_after_ms ?? 0;
      }
      if (frame.type === "session.created") {
        this.heartbeatMs = frame.heartbeat_s * 1000;
        this.refusal = null;
      }
      this.#listen(this.heartbeatMs || HEARTBEAT_MS);
      this.onFrame(frame);
    };
    socket.onclose = (event) => this.#lost(socket, event.code);
  }

  #listen(quietMs) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.#ask(), quietMs);
  }

  #ask() {
    const socket = this.socket;
    this.send({ type: "ping" });
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.#lost(socket, 0), ANSWER_MS);
  }

  #lost(socket, code) {
    if (socket === this.next) this.next = null;
    if (socket !== this.socket) return;
    clearTimeout(this.watchdog);
    this.socket = null;
    socket.close();
    this.next?.close();
    this.next = null;
    if (FINAL.has(code)) return this.#enter("ended", code);
    this.#wait(code);
  }

  #wait(code) {
    this.failures += 1;
    this.#enter("waiting", code);
    const wait = Math.min(FIRST_WAIT_MS * 2 ** (this.failures - 1), LONGEST_WAIT_MS) * (0.5 + Math.random() / 2);
    this.retry = setTimeout(() => this.connect(), Math.max(wait, this.askedMs));
    this.askedMs = 0;
  }

  #enter(state, code) {
    this.state = state;
    this.onState(state, code);
  }
}

// --- responses ------------------------------------------------------------------------------------------------------

const UNSENT = { code: "unsent", message: "The server did not answer. Try again.", retryable: true };
const ENDED = { code: "closed", message: "The connection has ended. Load the page again." };
const UNREACHABLE = { code: "unreachable", message: "The server cannot be reached.", retryable: true };
const BROKEN = {
  code: "connection_lost",
  message: "The connection broke, which ends an answer that is kept nowhere. Ask again.",
  retryable: true,
};

/** One answer as this page follows it. `answer` is changed in place; the callbacks say when. */
class Response {
  constructor(octavo, { answer, request = null, onAccepted, onChange, onRefused, onLost, retries = 0 }) {
    Object.assign(this, { octavo, answer, request, onAccepted, onChange, onRefused, onLost, retries });
    this.sends = 0;
    this.stopping = false;
    this.gaps = 0;
    this.held = []; // frames of a step whose last one has not come
  }

  get id() {
    return this.answer.response_id ?? null;
  }

  /** Nothing of it is kept, and it ends with its connection. */
  get stateless() {
    return Array.isArray(this.request?.input);
  }

  cancel() {
    this.stopping = true;
    if (this.id) this.octavo.send({ type: "response.cancel", response_id: this.id });
  }
}

/** Whoever speaks with a server over one connection.

    `url`: the server's address, or the whole one of a socket. `ticket`: gives, or promises, a fresh one-time ticket for
    each connection; `apiKey` in its place is for pages that nobody else can read. Neither where a session counts.
    `onState(state, code)` as Connection's; `onFrame(frame)` sees every frame. `patient`: answers do not fail when the
    connection ends for good, for a page that says so itself. */
export class Octavo {
  constructor({ url, ticket, apiKey, onState, onFrame, WebSocketClass, patient = false, now = () => Date.now() }) {
    Object.assign(this, { onState, onFrame, patient, now });
    const protocols = ticket
      ? async () => [SUBPROTOCOL, `octavo.ticket.${await ticket()}`]
      : apiKey && (() => [SUBPROTOCOL, `octavo.key.${apiKey}`]);
    this.pending = new Map(); // event id -> Response
    this.running = new Map(); // response id -> Response
    this.topics = new Map(); // topic -> onFrame
    this.connection = new Connection(socketUrl(url), {
      protocols,
      WebSocketClass: WebSocketClass ?? globalThis.WebSocket,
      onFrame: (frame) => this.#hear(frame),
      onState: (state, code) => this.#connectionChanged(state, code),
    });
  }

  get state() {
    return this.connection.state;
  }

  /** How often in a row no connection could be made. */
  get failures() {
    return this.connection.failures;
  }

  /** Connect, and stay connected; asking does it by itself. */
  connect() {
    if (!this.clock) {
      this.clock = setInterval(() => this.tick(), TICK_MS);
      this.clock.unref?.();
      this.wake = () => globalThis.document?.hidden || this.hurry();
      globalThis.addEventListener?.("online", this.wake);
      globalThis.document?.addEventListener("visibilitychange", this.wake);
    }
    this.connection.connect();
  }

  hurry() {
    this.connection.hurry();
  }

  /** Close the connection for good. Answers in conversations go on at the server. */
  close(code = 1000) {
    this.connection.end(code);
  }

  send(frame) {
    return this.connection.send(frame);
  }

  /** Ask, with a frame response.create (without its type and ids). Sent until it is accepted or refused.

      `answer`: what is to be filled. `onAccepted(frame)`, `onChange()`, `onRefused(error)`, and `onLost(error)` when the
      rest cannot be had over this connection. `retries`: how often a refusal for the moment is tried again. */
  respond(request, options) {
    const event_id = newId();
    const frame = { type: "response.create", event_id, ...request };
    frame.idempotency_key ??= newId();
    const response = new Response(this, { ...options, request: frame });
    this.pending.set(event_id, response);
    if (this.state === "ended" && !this.patient) queueMicrotask(() => this.#refuse(event_id, ENDED));
    else {
      if (this.state === "waiting" && !this.clock) this.connect();
      this.#ask(event_id);
    }
    return response;
  }

  /** Follow a response that somebody has asked for, from behind `answer.last_seq`. */
  follow(options) {
    const response = new Response(this, options);
    this.#track(response);
    if (this.state === "waiting" && !this.clock) this.connect();
    this.#resume(response);
    return response;
  }

  /** Hear of a topic on every connection, until the returned function is called, or something else is heard of it.
      `onFrame` gets what is told, a frame `subscribed` whenever something may have been missed before, and the `error`
      where it is refused. `about`: what else the frame says, as whose memory. */
  subscribe(topic, onFrame, about = {}) {
    const wanted = { onFrame, about, event_id: newId() };
    this.topics.set(topic, wanted);
    this.#subscribe(topic);
    return () => {
      if (this.topics.get(topic) !== wanted) return;
      this.topics.delete(topic);
      this.send({ type: "unsubscribe", topic, event_id: newId() });
    };
  }

  #subscribe(topic) {
    const { about, event_id } = this.topics.get(topic);
    this.send({ type: "subscribe", topic, event_id, ...about });
  }

  /** Time has passed: resume answers that have gone quiet, and send questions again that nobody has heard. */
  tick() {
    for (const [eventId, response] of this.pending) {
      const lane = response.request.stream_id !== undefined; // it may have to wait for others
      const due = response.retryAt ?? (lane ? Infinity : response.sentAt + UNHEARD_MS + 1);
      if (this.now() >= due) this.#ask(eventId);
    }
    for (const response of this.running.values()) {
      if (this.now() - response.heardAt < response.patience) continue;
      response.heardAt = this.now();
      response.patience = Math.min(response.patience * 2, LONGEST_STALL_MS);
      if (response.stopping) response.cancel();
      this.#resume(response);
    }
    if (this.expiring) this.#replace();
    if (!this.patient && this.lostAt && this.now() - this.lostAt > GIVE_UP_MS)
      this.#failAll(this.connection.refusal ?? UNREACHABLE);
  }

  // --- reading, for programs ---

  /** Ask: a text for a conversation, or a list of {role, content}, of which nothing is kept; or nothing, with the option
      question_id (answer it once more) or continue_id (go on with that answer). Returns a Stream.
      `options`: conversation_id, parent_id, assistant_id, model, stream_id, tools, tool_choice, idempotency_key, and
      under `params` how to answer; `retries` (3): how often a refusal for the moment is tried again. */
  stream(input, { retries = 3, ...options } = {}) {
    return new Stream((callbacks) => this.respond({ input, ...options }, { retries, ...callbacks }));
  }

  /** Ask, and wait for the whole answer. */
  complete(input, options) {
    return this.stream(input, options).whole();
  }

  /** Ask, and wait for the text. */
  async ask(input, options) {
    return (await this.complete(input, options)).text;
  }

  /** Read a response that runs, or has ended, from behind the event `after` on. */
  resume(response_id, { after = -1 } = {}) {
    return new Stream((callbacks) => {
      Object.assign(callbacks.answer, { response_id, last_seq: after, status: "queued" });
      return this.follow(callbacks);
    });
  }

  // --- the wire ---

  #connectionChanged(state, code) {
    if (state === "open") this.lostAt = null;
    else this.lostAt ??= this.now();
    if (state === "open") {
      for (const [eventId, response] of [...this.pending]) if (!response.retryAt) this.#ask(eventId);
      for (const topic of this.topics.keys()) this.#subscribe(topic);
      for (const response of [...this.running.values()]) {
        if (response.stateless && response.on !== this.connection.socket) {
          this.#lose(response, BROKEN);
          continue;
        }
        if (response.stopping) response.cancel();
        this.#resume(response);
      }
    } else if (state === "waiting") {
      if (BAD_FRAME.has(code)) for (const response of this.pending.values()) response.why = this.connection.refusal;
      for (const response of [...this.running.values()]) if (response.stateless) this.#lose(response, BROKEN);
    } else if (state === "ended") this.#ended(code);
    this.onState?.(state, code);
  }

  #ended(code) {
    clearInterval(this.clock);
    globalThis.removeEventListener?.("online", this.wake);
    globalThis.document?.removeEventListener("visibilitychange", this.wake);
    const error = this.connection.refusal ?? { code: "closed", message: `The connection was closed (${code}).` };
    if (!this.patient) this.#failAll(error);
  }

  #failAll(error) {
    for (const eventId of [...this.pending.keys()]) this.#refuse(eventId, error);
    for (const response of [...this.running.values()]) this.#lose(response, error);
  }

  #replace() {
    if ([...this.running.values()].some((response) => response.stateless)) return; // they would end with it
    this.expiring = false;
    this.connection.replace();
  }

  #ask(eventId) {
    const response = this.pending.get(eventId);
    response.retryAt = undefined;
    if (response.sends >= SENDS) return this.#refuse(eventId, response.why ?? UNSENT);
    const size = this.limits ? new TextEncoder().encode(JSON.stringify(response.request)).length : 0;
    if (size > (this.limits?.max_frame_bytes ?? Infinity)) {
      const message = `This takes ${size} bytes; the server takes ${this.limits.max_frame_bytes} at most.`;
      return this.#refuse(eventId, { code: "frame_too_large", message, param: "input" });
    }
    response.sentAt = this.now();
    if (this.send(response.request)) response.sends += 1;
  }

  #refuse(eventId, error) {
    const response = this.pending.get(eventId);
    this.pending.delete(eventId);
    response.onRefused?.(error);
  }

  #resume(response) {
    response.held = [];
    response.resumedAt = this.now();
    this.send({ type: "response.resume", response_id: response.id, after: response.answer.last_seq });
  }

  #track(response) {
    Object.assign(response, { heardAt: this.now(), patience: STALL_MS, on: this.connection.socket });
    this.running.set(response.id, response);
  }

  #lose(response, error) {
    this.running.delete(response.id);
    response.onLost?.(error);
  }

  #hear(frame) {
    this.onFrame?.(frame);
    if (frame.type === "session.created") this.limits = frame.limits;
    if (frame.type === "session.expiring") {
      this.expiring = true;
      this.#replace();
    }
    const topic = frame.type.endsWith("subscribed") ? frame.topic : TOPICS[frame.type];
    if (topic) return this.topics.get(topic)?.onFrame(frame);
    const refused =
      frame.type === "error" && [...this.topics.values()].find((wanted) => wanted.event_id === frame.event_id);
    if (refused) return refused.onFrame(frame);
    const asked = this.pending.get(frame.event_id);
    if (asked && frame.type === "response.queued") return this.#accepted(asked, frame);
    if (asked && frame.type === "error") return this.#refused(asked, frame);
    const response = this.running.get(frame.response_id);
    if (!response) return;
    response.heardAt = this.now();
    response.patience = STALL_MS;
    const outcome = this.#apply(response, frame);
    if (outcome === "gap") return this.#mind(response);
    if (outcome !== "applied") return;
    response.gaps = 0;
    if (!LIVE.has(response.answer.status)) this.running.delete(response.id);
    response.onChange?.();
  }

  /** "applied", "known", "gap", or "nothing" where there is nothing to tell. */
  #apply(response, frame) {
    const { answer } = response;
    if (frame.type === "response.queued") {
      answer.position = frame.position;
      return "applied";
    }
    if (frame.type === "response.created") {
      answer.last_seq = Math.max(answer.last_seq, 0);
      answer.status = "running";
      const { prompt_tokens, cached_tokens = 0, shared_tokens = 0 } = frame;
      answer.usage ??= { prompt_tokens, cached_tokens, shared_tokens };
      return "applied";
    }
    if (isEnding(frame)) return response.held.length ? "gap" : end(answer, frame);
    if (frame.type === "error") {
      if (!frame.retryable) this.#lose(response, frame);
      return "nothing";
    }
    if (typeof frame.first_seq !== "number") return "nothing";
    const held = response.held;
    if (held.length && held[0].first_seq !== frame.first_seq) return "gap";
    held.push(frame);
    if (frame.more) return "nothing";
    response.held = [];
    return addDelta(answer, ...held);
  }

  #accepted(response, frame) {
    this.pending.delete(frame.event_id);
    const { answer } = response;
    answer.response_id = frame.response_id;
    answer.position = frame.position;
    answer.status = "queued";
    this.#track(response);
    response.onAccepted?.(frame);
    response.onChange?.();
    if (response.stopping) response.cancel();
  }

  #refused(response, frame) {
    if (!frame.retryable || response.retries <= 0 || response.stopping)
      return this.#refuse(frame.event_id, frame);
    response.retries -= 1;
    response.sends = 0;
    response.retryAt = this.now() + (frame.retry_after_ms ?? 1000 * (1 + Math.random()));
  }

  /** Something is missing: ask for it again, and give up after some times in vain. */
  #mind(response) {
    response.held = [];
    if (response.gaps && this.now() - response.resumedAt < ON_ITS_WAY_MS) return;
    response.gaps += 1;
    if (response.gaps <= GAPS) this.#resume(response);
    else this.#lose(response, { code: "gap", message: "The rest of this answer could not be had.", retryable: true });
  }
}

/** An answer under way: `for await (const {delta} of stream.deltas())`, or `await stream.whole()`.

    `answer` is what has come of it. Leaving a loop before its end cancels the answer. */
class Stream {
  constructor(begin) {
    this.answer = { response_id: null, conversation_id: null, text: "", last_seq: -1, status: "sending" };
    this.news = deferred();
    const tell = () => {
      this.news.resolve();
      this.news = deferred();
    };
    const fail = (error) => {
      this.error = Object.assign(new OctavoError(error), { answer: this.answer });
      if (LIVE.has(this.answer.status)) this.answer.status = "failed";
      tell();
    };
    this.response = begin({
      answer: this.answer,
      onAccepted: ({ conversation_id = null, message_id = null, model = null }) =>
        Object.assign(this.answer, { conversation_id, message_id, model }),
      onChange: tell,
      onRefused: fail,
      onLost: fail,
    });
  }

  get ended() {
    return !LIVE.has(this.answer.status);
  }

  /** Stop the answer; its end says `cancelled`. */
  cancel() {
    this.response.cancel();
  }

  /** The answer, each time it has changed. */
  async *[Symbol.asyncIterator]() {
    try {
      for (let seen = null; !this.ended; ) {
        const news = this.news.promise;
        const state = `${this.answer.status} ${this.answer.last_seq}`;
        if (state !== seen && seen !== null) yield this.answer;
        seen = state;
        if (news === this.news.promise && !this.ended) await news;
      }
      this.#check();
      yield this.answer;
    } finally {
      if (!this.ended) this.cancel();
    }
  }

  /** The text of choice `index`, piece by piece, as {delta}. */
  async *deltas(index = 0) {
    let given = 0;
    for await (const answer of this) {
      const text = (index ? answer.choices?.[index]?.text : answer.text) ?? "";
      if (text.length > given) yield { delta: text.slice(given) };
      given = text.length;
    }
  }

  /** Wait for the end. Throws OctavoError, whose `answer` has what came. */
  async whole() {
    while (!this.ended) await this.news.promise;
    this.#check();
    return this.answer;
  }

  #check() {
    if (!this.error && this.answer.status === "failed")
      this.error = Object.assign(new OctavoError(this.answer.error ?? {}), { answer: this.answer });
    if (this.error) throw this.error;
  }
}

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}

/** A socket's address for what people know: the server's, or a path of the page's own server.
    @param {string} url @returns {string} */
export function socketUrl(url) {
  const found = new URL(url, globalThis.location?.href);
  found.protocol = found.protocol.replace("http", "ws");
  if (!/\/ws\/[^/]+(\/[^/]+)?$/.test(found.pathname))
    found.pathname = `${found.pathname.replace(/\/(v1\/?)?$/, "")}/ws/v1`;
  return found.href;
}
