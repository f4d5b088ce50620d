/* The overview keeps what runs now up to date: asks for that part of the page again every few seconds while somebody
   looks, and stops an answer without leaving the page. Without scripts the part is as old as the page. */

import { count, exactTime, relativeTime } from "#octavo/format.js";

const EVERY_MS = 3000;
const SLOWEST_MS = 30_000;

const place = document.getElementById("running");
const lost = document.getElementById("running-lost");
let shown = place?.innerHTML.trim();
let wait = EVERY_MS;
let timer = 0;

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

async function look() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const answer = await fetch(place.dataset.from, { headers: { "X-Part": "running" }, redirect: "manual" });
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
    const answer = await fetch(form.action, { method: "POST", body: new FormData(form), redirect: "manual" });
    // It leads on to the page, which is here already.
    if (answer.type !== "opaqueredirect" && !answer.ok) throw new Error(String(answer.status));
  } catch {
    button.disabled = false;
    lost.hidden = false;
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
