/* The overview keeps what runs now up to date: asks for that part of the page again every few seconds while somebody
   looks, and stops an answer without leaving the page. Without scripts the part is as old as the page. */

import { count, exactTime, relativeTime } from "#octavo/format.js";
import { gettext } from "#octavo/i18n.js";
import { failed, toast } from "#octavo/toast.js";

const EVERY_MS = 3000;
const SLOWEST_MS = 30_000;
const WITHIN_MS = 10_000;
const PART = { "X-Part": "running" };

const place = document.getElementById("running");
const lost = document.getElementById("running-lost");
let shown = place?.innerHTML.trim();
let wait = EVERY_MS;
let timer = 0;
let over = false;

/** Puts the newest in, if it is another; the button that had the focus has it again. */
function put(text) {
  const found = new DOMParser().parseFromString(text, "text/html").body;
  const focused = place.contains(document.activeElement) ? document.activeElement.closest("[data-stops]") : null;
  place.replaceChildren(...found.childNodes);
  for (const time of place.querySelectorAll("time[data-relative]")) {
    time.textContent = relativeTime(time.dateTime);
    time.title = exactTime(time.dateTime);
  }
  document.getElementById("running-count").textContent = count(Number(place.querySelector("[data-count]").dataset.count));
  if (focused) place.querySelector(`[data-stops="${focused.dataset.stops}"] button`)?.focus();
}

/** What is compared: tokens of forms differ each time. */
const essence = (text) => text.replace(/name="csrfmiddlewaretoken" value="[^"]*"/g, "");

/** Who is not logged in any more is sent on to do so, and there is no such page for who may not see it. */
const refused = (answer) => answer.type === "opaqueredirect" || answer.status === 403 || answer.status === 404;

async function look() {
  clearTimeout(timer);
  if (document.hidden || over) return;
  try {
    const answer = await fetch(place.dataset.from, {
      headers: PART, redirect: "manual", signal: AbortSignal.timeout(WITHIN_MS),
    });
    if (refused(answer)) {
      over = true;
      lost.firstElementChild.textContent = gettext("You may not see this any more. Log in again.");
      lost.hidden = false;
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const text = (await answer.text()).trim();
    if (essence(text) !== essence(shown)) put(text);
    shown = text;
    wait = EVERY_MS;
    lost.hidden = true;
  } catch {
    wait = Math.min(wait * 2, SLOWEST_MS);
    lost.hidden = false;
  }
  timer = setTimeout(look, wait);
}

async function stop(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const answer = await fetch(form.action, {
      method: "POST", body: new FormData(form), headers: PART, redirect: "manual", signal: AbortSignal.timeout(WITHIN_MS),
    });
    // Pages of errors are no words for it: what came of it is plain text.
    const said = answer.headers.get("Content-Type")?.startsWith("text/plain") ? await answer.text() : "";
    if (refused(answer)) throw new Error(gettext("You may not see this any more. Log in again."));
    if (!answer.ok || !said) throw new Error(said);
    toast(said);
  } catch (error) {
    // The browser's own words for what has become of a connection are nobody's.
    const known = error.constructor === Error && error.message;
    failed({ message: known || gettext("The server did not answer. Try again.") });
    button.disabled = false;
  }
  await look();
}

if (place) {
  place.addEventListener("submit", (event) => {
    event.preventDefault();
    // admin.js has seen it first, and would not let it be sent again.
    delete event.target.dataset.sent;
    stop(event.target);
  });
  document.addEventListener("visibilitychange", look);
  timer = setTimeout(look, EVERY_MS);
}
