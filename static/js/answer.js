/* The assistant's messages as the server's pages give them: what their status is called here. How frames become text is
   the client's (octavo.js); which branch is shown is tree.js's. Pure. */

export { LIVE } from "#octavo/octavo.js";

/** The server's words for a generation's state, as the four ways to end and the three ways to be under way. */
export function statusOf(status, finishReason) {
  if (["accepted", "queued"].includes(status)) return "queued";
  if (["claimed", "running", "started", "cancelling"].includes(status)) return "running";
  if (["finished", "completed"].includes(status))
    return finishReason === "length" ? "incomplete" : "completed";
  if (["cancelled", "incomplete"].includes(status)) return status;
  return status ? "failed" : "completed";
}
