/* Keeps this page in step with what happens elsewhere: in other tabs, on other devices, by a program with the same rights.
   A feature of chat.js. The server tells of each changed conversation; what was missed meanwhile is loaded. */

export function install(workspace) {
  const { session, octavo } = workspace;

  octavo.subscribe("conversations", (frame) => {
    if (frame.type === "subscribed") missed();
    else if (frame.type === "conversation.deleted") session.forget(frame.conversation_id);
    else if (frame.type === "conversation.updated" && session.hear(frame.conversation)) catchUp();
  });

  /** Whatever may have happened while nobody told: the list, and what is new in the open conversation. */
  async function missed() {
    try {
      await session.refreshList();
    } catch {
      return; // the next connection, or the next look at this page, comes here again
    }
    const known = workspace.current;
    if (known?.id && !session.isCurrent(known)) catchUp();
  }

  /** Take what the server has of the open conversation, running or not. */
  async function catchUp() {
    const known = workspace.current;
    if (!known?.id || session.live(known)) return;
    try {
      await session.load(known.id);
      if (workspace.current === known) workspace.redraw();
    } catch {
      // The next occasion is soon enough; a lost connection has a banner of its own.
    }
  }

  // A tab that was asleep may have a connection that looks alive and has told nothing.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) missed();
  });
  workspace.catchUp = catchUp;
}
