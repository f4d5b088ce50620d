/* Says how the page stands with its server: a banner while there is no connection, with the one thing to do about it.
   A feature of chat.js. */

import { h, icon } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";
import { inWords } from "#octavo/refusals.js";

// A short break is not worth a banner.
const PATIENCE_MS = 1500;
// So many attempts in vain may have a reason that only the pages can tell.
const ATTEMPTS = 2;
const LOGGED_OUT = 4401;
const NO_ACCESS = 4403;
const CLOSE_FOR = { 0: LOGGED_OUT, 401: LOGGED_OUT, 403: NO_ACCESS, 404: NO_ACCESS }; // by status, 0: sent elsewhere
// The server has no room for another socket, or this person has too many.
const NO_ROOM = new Set([1013, 4429]);

/** Why a server that was reached lets nobody in, where it said so; "" where there is just no connection. Pure. */
export const whyClosed = (code, refusal) => (NO_ROOM.has(code) ? inWords(refusal) : "");

export function install(workspace) {
  const { octavo, session } = workspace;
  const place = document.getElementById("banner");
  let timer;
  let why = "";

  workspace.on("connection", (state, code) => {
    clearTimeout(timer);
    if (state === "waiting") why = whyClosed(code, octavo.connection.refusal);
    if (state === "open" && !why) letIn();
    else if (state === "open") timer = setTimeout(letIn, PATIENCE_MS); // it was turned away, and may be so again
    else if (state === "ended" && code !== 1000) tellEnd(code);
    else {
      timer = setTimeout(() => show(lost()), navigator.onLine ? PATIENCE_MS : 0);
      if (state === "waiting" && octavo.failures >= ATTEMPTS) checkLogin();
    }
  });
  // The browser knows that the network is gone long before a silent connection shows it.
  addEventListener("offline", () => octavo.state !== "ended" && show(lost()));
  addEventListener("online", () => {
    if (octavo.state === "open") place.hidden = true;
  });

  function letIn() {
    why = "";
    place.hidden = true;
  }

  function show({ text, way }) {
    place.replaceChildren(icon("wifi-off"), h("span", { class: "notice-text", text }), way);
    place.hidden = false;
  }

  function lost() {
    return {
      text: navigator.onLine
        ? why || gettext("No connection to the server. Answers go on there, and this page catches up.")
        : gettext("You are offline. Answers go on without you, and this page catches up."),
      way: h("button", { type: "button", class: "button small", onclick: () => octavo.hurry() }, gettext("Try now")),
    };
  }

  /** It has ended for good: logged out (in another tab, perhaps), or the right to this team is gone or another one. */
  async function tellEnd(code) {
    show(ended(code === LOGGED_OUT || (await refusal()) === LOGGED_OUT));
  }

  /** Why the pages' JSON refuses this page, as a close code; undefined where it does not. */
  async function refusal() {
    try {
      await session.refreshList();
    } catch (error) {
      return CLOSE_FOR[error.status];
    }
  }

  function ended(loggedOut) {
    const here = location.pathname;
    return loggedOut
      ? {
          text: gettext("You are logged out. Log in again to go on; nothing is lost."),
          way: way(`/accounts/login/?next=${encodeURIComponent(here)}`, gettext("Log in")),
        }
      : {
          text: gettext("Your access to this team has ended or changed. Load the page again; nothing is lost."),
          way: way(here, gettext("Load again")),
        };
  }

  const way = (href, text) => h("a", { class: "button small", href, text });

  /** A socket may be refused without a word; the pages' JSON does say why. */
  async function checkLogin() {
    const code = await refusal();
    if (code) octavo.close(code);
  }
}
