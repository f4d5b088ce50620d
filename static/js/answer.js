/* What an answer is made of: how frames of the wire become its text, in any order that a network can produce.

   An answer is the assistant's message as the server gives it, with `text`, `last_seq` (the last event it contains, -1
   for none), `status`, `usage`, `timing`, `error`. The functions change it in place and say what happened. Pure.
   Event 0 is the start; text begins at 1, without a gap; the ending has the last number + 1. */

export const LIVE = new Set(["sending", "queued", "running"]);

const ENDINGS = {
  "response.completed": "completed",
  "response.incomplete": "incomplete",
  "response.cancelled": "cancelled",
  "response.failed": "failed",
};

export const isEnding = (frame) => frame.type in ENDINGS;

/** The server's words for a generation's state, as the four ways to end and the three ways to be under way. */
export function statusOf(status, finishReason) {
  if (["accepted", "queued"].includes(status)) return "queued";
  if (["claimed", "running", "started", "cancelling"].includes(status)) return "running";
  if (["finished", "completed"].includes(status))
    return finishReason === "length" ? "incomplete" : "completed";
  if (["cancelled", "incomplete"].includes(status)) return status;
  return status ? "failed" : "completed";
}

/** Add a delta: "applied", "known" (nothing new), or "gap" (something before it is missing: resume). */
export function addDelta(answer, frame) {
  const last = Math.max(answer.last_seq, 0);
  if (frame.seq <= last) return "known";
  if (frame.first_seq === last + 1) answer.text += frame.index ? "" : frame.delta;
  // The database's replay: all of the text in one piece.
  else if (frame.first_seq === 1) answer.text = frame.delta;
  else return "gap";
  answer.last_seq = frame.seq;
  if (LIVE.has(answer.status)) answer.status = "running";
  return "applied";
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

/** The messages from the root to the newest leaf: the branch that is shown. */
export function newestPath(messages) {
  const byId = new Map(messages.map((message) => [message.id, message]));
  const path = [];
  for (let message = messages.at(-1); message; message = byId.get(message.parent_id)) {
    path.push(message);
    byId.delete(message.id); // a loop in the data ends here
  }
  return path.reverse();
}
