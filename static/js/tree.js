/* A conversation's messages are a tree. Which branch of it is shown, and what stands beside each message of that branch.

   What is shown is a list: questions as they are, and a Turn for each answer, which is one message to a reader although what
   was gone on with consists of several. The branch leads through `conversation.leaf` (a message) down to the newest below it;
   without one it ends in the newest of all. So a branch that is read stays, grows with what is said in it, and gives way
   to no other. Pure. */

// Where a text was cut inside a character.
const HALF = /\uFFFD+$/;
// What a Turn has of its last part: how it stands now.
const OF_LAST = ["id", "status", "stopping", "position", "asked_at", "error", "response_id", "finish_reason", "last_seq", "model"];

/** An answer with all that goes on with it. The first part's own object stands for it as long as the page lives. */
export class Turn {
  constructor(head) {
    this.parts = [head];
    this.role = "assistant";
  }

  get head() {
    return this.parts[0];
  }

  get last() {
    return this.parts.at(-1);
  }

  get created_at() {
    return this.head.created_at;
  }

  get parent_id() {
    return this.head.parent_id;
  }

  get text() {
    return this.parts.length === 1 ? this.head.text : joined(this.parts.map((part) => part.text));
  }

  /** Of the whole message: the prompt and the wait of its beginning, the output of all parts. */
  get usage() {
    return summed(this.parts, "usage", "completion_tokens");
  }

  get timing() {
    return summed(this.parts, "timing", "decode_s");
  }

  /** The part that can be gone on with: the last that says anything. */
  get said() {
    return this.parts.findLast((part) => part.text);
  }
}

for (const name of OF_LAST)
  Object.defineProperty(Turn.prototype, name, {
    get() {
      return this.last[name];
    },
  });

function joined(texts) {
  return texts.reduce((text, more) => (more ? text.replace(HALF, "") + more : text), "");
}

function summed(parts, kind, name) {
  const known = parts.map((part) => part[kind]).filter(Boolean);
  if (known.length < 2) return known[0] ?? null;
  return { ...known[0], [name]: known.reduce((sum, one) => sum + (one[name] ?? 0), 0) };
}

const turns = new WeakMap(); // the first part -> its Turn
const places = new WeakMap(); // what is shown -> {at, ends}
const within = new WeakMap(); // a part -> the Turn that it was shown in last

function turnOf(head) {
  if (!turns.has(head)) turns.set(head, new Turn(head));
  return turns.get(head);
}

/** What a reader sees of a conversation, from the root on: questions, and a Turn for each answer. */
export function shown(conversation) {
  const tree = new Tree(conversation.messages);
  const path = tree.path(conversation.leaf);
  const list = [];
  for (const message of path) {
    const before = list.at(-1);
    if (message.role !== "assistant") list.push(message);
    else if (before instanceof Turn) before.parts.push(message);
    else {
      const turn = turnOf(message);
      turn.parts = [message];
      list.push(turn);
    }
  }
  const onPath = new Set(path);
  for (const one of list) {
    const last = one instanceof Turn ? one.last : one;
    for (const part of one.parts ?? []) within.set(part, one);
    const ends = tree.ends(one.parent_id, onPath);
    places.set(one, { at: ends.indexOf(last), ends });
  }
  return list;
}

/** Which of how many a shown message is: {at, of}, counted from 0. */
export function placeOf(message) {
  const { at = 0, ends = [] } = places.get(message) ?? {};
  return { at: Math.max(at, 0), of: Math.max(ends.length, 1) };
}

/** The message of the tree that leads to what stands `by` places beside a shown message; null at an end. */
export function leafBeside(conversation, message, by) {
  const { at, ends } = places.get(message) ?? {};
  const end = ends?.[at + by];
  return end ? new Tree(conversation.messages).leafUnder(end) : null;
}

/** The leaf with which a message is shown: the present one, where it is shown already. */
export function leafThrough(conversation, message) {
  const { leaf = null, messages } = conversation;
  return new Tree(messages).path(leaf).includes(message) ? leaf : message;
}

/** What a message of the tree is shown as: the Turn that it is a part of, or itself. */
export function shownAs(message) {
  const turn = within.get(message);
  return turn?.parts.includes(message) ? turn : message;
}

/** The message that a new one follows: the last that is shown. */
export function endOf(conversation) {
  return new Tree(conversation.messages).path(conversation.leaf).at(-1) ?? null;
}

/** Nothing came of it, and it is nothing to go back to. */
const isVoid = ({ role, status, text }) => role === "assistant" && ["failed", "cancelled"].includes(status) && !text;

class Tree {
  constructor(messages) {
    this.messages = messages;
    this.byId = new Map(messages.map((message) => [message.id, message]));
    this.order = new Map(messages.map((message, index) => [message, index]));
    this.under = new Map(); // id of the parent, null for roots -> messages in their order
    for (const message of messages) {
      const key = this.byId.has(message.parent_id) ? message.parent_id : null;
      if (!this.under.has(key)) this.under.set(key, []);
      this.under.get(key).push(message);
    }
  }

  below(message) {
    return this.under.get(message.id) ?? [];
  }

  /** From the root through `leaf` to the newest below it; a leaf that is not there counts as none. */
  path(leaf) {
    const path = [];
    const left = new Set(this.messages);
    let message = this.order.has(leaf) ? this.newest(leaf) : this.messages.at(-1);
    for (; left.has(message); message = this.byId.get(message.parent_id)) {
      path.push(message);
      left.delete(message); // a loop in the data ends here
    }
    return path.reverse();
  }

  newest(from, first = this.below(from)) {
    let found = from;
    const seen = new Set([from]);
    const rest = [...first];
    while (rest.length) {
      const message = rest.pop();
      if (seen.has(message)) continue;
      seen.add(message);
      if (found === from || this.order.get(message) > this.order.get(found)) found = message;
      rest.push(...this.below(message));
    }
    return found;
  }

  /** Where the alternatives behind a parent end: its questions, and its answers with what goes on with them. */
  ends(parentId, path) {
    const parent = this.byId.get(parentId);
    const counts = (one) => one.role === "assistant" && (!isVoid(one) || path.has(one));
    const found = [];
    const seen = new Set();
    // The last one first, since what is put in last is taken out first.
    const rest = (this.under.get(parent ? parent.id : null) ?? [])
      .filter((one) => one.role !== "assistant" || (parent?.role !== "assistant" && counts(one)))
      .reverse();
    while (rest.length) {
      const message = rest.pop();
      if (seen.has(message)) continue;
      seen.add(message);
      const below = message.role === "assistant" ? this.below(message) : [];
      const more = below.filter(counts);
      if (!more.length || below.some((one) => one.role !== "assistant")) found.push(message);
      rest.push(...more.reverse());
    }
    return found;
  }

  /** The newest message of a branch that shows `end` as an end of its turn. */
  leafUnder(end) {
    if (end.role !== "assistant") return this.newest(end);
    return this.newest(
      end,
      this.below(end).filter((one) => one.role !== "assistant"),
    );
  }
}
