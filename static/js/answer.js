/* The assistant's messages as the server's pages give them: what their status is called here, and which branch is shown.
   How frames become text is the client's (octavo.js). Pure. */

export { LIVE, addDelta, end, isEnding } from "#octavo/octavo.js";

/** The server's words for a generation's state, as the four ways to end and the three ways to be under way. */
export function statusOf(status, finishReason) {
  if (["accepted", "queued"].includes(status)) return "queued";
  if (["claimed", "running", "started", "cancelling"].includes(status)) return "running";
  if (["finished", "completed"].includes(status))
    return finishReason === "length" ? "incomplete" : "completed";
  if (["cancelled", "incomplete"].includes(status)) return status;
  return status ? "failed" : "completed";
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
