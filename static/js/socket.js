/* The connection to /ws/ui: opens, keeps alive, comes back. Knows frames as JSON objects and nothing of what they mean.

   A connection that says nothing for a heartbeat is asked (ping); without an answer it is given up and replaced, since a
   sleeping laptop or a lost network closes no socket. Attempts wait 0.5 s, 1 s, 2 s … 15 s, less a random part, so that
   a restarted server is not met by every page at once. */

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15_000;
const ANSWER_MS = 8_000;
const HEARTBEAT_MS = 20_000;
/** Close codes after which trying again is useless until the reader does something. */
const FINAL = new Set([4401, 4403, 4440]);

export class Socket {
  /** `onFrame(frame)`, `onState("connecting" | "open" | "waiting" | "ended", code)`. */
  constructor(url, { onFrame, onState, WebSocketClass = globalThis.WebSocket }) {
    Object.assign(this, { url, onFrame, onState, WebSocketClass });
    this.state = "waiting";
    this.failures = 0;
  }

  connect() {
    if (this.state === "ended" || this.state === "connecting" || this.state === "open") return;
    clearTimeout(this.retry);
    this.#enter("connecting");
    const socket = new this.WebSocketClass(this.url);
    this.socket = socket;
    this.watchdog = setTimeout(() => this.#lost(socket, 0), ANSWER_MS);
    socket.onopen = () => {
      if (socket !== this.socket) return;
      this.#listen(HEARTBEAT_MS);
      this.#enter("open");
    };
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      const frame = JSON.parse(event.data);
      // Being let in counts, not being heard: a server that accepts and then closes must not be hammered.
      if (frame.type !== "error") this.failures = 0;
      if (frame.type === "session.created") this.heartbeatMs = frame.heartbeat_s * 1000;
      this.#listen(this.heartbeatMs || HEARTBEAT_MS);
      this.onFrame(frame);
    };
    socket.onclose = (event) => this.#lost(socket, event.code);
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

  end(code = 1000) {
    const socket = this.socket;
    this.socket = null;
    clearTimeout(this.watchdog);
    clearTimeout(this.retry);
    this.#enter("ended", code);
    socket?.close();
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
    if (socket !== this.socket) return;
    clearTimeout(this.watchdog);
    this.socket = null;
    socket.close();
    if (FINAL.has(code)) return this.#enter("ended", code);
    this.failures += 1;
    this.#enter("waiting", code);
    const wait = Math.min(FIRST_WAIT_MS * 2 ** (this.failures - 1), LONGEST_WAIT_MS);
    this.retry = setTimeout(() => this.connect(), wait * (0.5 + Math.random() / 2));
  }

  #enter(state, code) {
    this.state = state;
    this.onState(state, code);
  }
}
