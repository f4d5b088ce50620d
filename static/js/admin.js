/* What every page of a team's administration does by script: the sidebar, the palette and the help, dialogs, copying,
   times, tables that scroll, and a form sent once.
   Pages work without it, but for dialogs, which are shown in place then. */

import { copy } from "#octavo/dom.js";
import { fadeEdge } from "#octavo/edges.js";
import { exactTime, relativeTime } from "#octavo/format.js";
import { gettext } from "#octavo/i18n.js";
import { Sheet } from "#octavo/sheet.js";
import { installShell } from "#octavo/shell.js";

const sheet = new Sheet({
  sidebar: document.querySelector("#sidebar"),
  toggles: document.querySelectorAll("[data-toggle-sidebar]"),
  veil: document.querySelector("#veil"),
});

/* The palette finds the pages that the sidebar and the menus lead to. */
installShell({
  sheet,
  finds: gettext("Find a page or a command"),
  sources: [
    {
      title: gettext("Pages"),
      entries: () =>
        [...document.querySelectorAll("#sidebar a, .menu a")].map((link) => ({
          id: link.href,
          label: link.textContent.trim(),
          icon: link.querySelector("use")?.getAttribute("href").split("#")[1],
          run: () => location.assign(link.href),
        })),
    },
  ],
});

/* Tabs that are wider than a phone scroll; which one is here is seen. */
document.querySelector("nav.tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

/* A table that is wider than its frame scrolls there, and has to be reached by the keyboard for that; others need not. */
for (const frame of document.querySelectorAll(".table")) {
  const name = frame.closest("section")?.querySelector("h2, h3") ?? document.querySelector("h1");
  name.id ||= `of-table-${Math.random().toString(36).slice(2)}`;
  frame.addEventListener("scroll", () => fadeEdge(frame), { passive: true });
  new ResizeObserver(() => {
    fadeEdge(frame);
    const scrolls = frame.scrollWidth > frame.clientWidth;
    for (const [attribute, value] of [["tabindex", "0"], ["role", "group"], ["aria-labelledby", name.id]]) {
      if (scrolls) frame.setAttribute(attribute, value);
      else frame.removeAttribute(attribute);
    }
  }).observe(frame);
}

/** `<time datetime data-relative>`: relative, with the exact time in the reader's own zone on hover. */
function tellTimes() {
  for (const time of document.querySelectorAll("time[data-relative]")) {
    time.textContent = relativeTime(time.dateTime);
    time.title = exactTime(time.dateTime);
  }
}
tellTimes();
setInterval(tellTimes, 30_000);

/* Days that are asked for are days where the reader is (chatapp/dashboard/zones.py). */
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone) document.cookie = `zone=${zone}; path=/; max-age=31536000; samesite=lax`;

document.addEventListener("click", (event) => {
  // Browsers of 2025 and later open it themselves, before this module has come, too.
  const opener = event.target.closest("[command='show-modal']");
  if (opener && !("command" in opener)) document.getElementById(opener.getAttribute("commandfor"))?.showModal();
  if (event.target.closest("[data-closes]")) event.target.closest("dialog")?.close();
  const copier = event.target.closest("[data-copies]");
  if (copier) copyFor(copier);
});

/* What a button has inside while it says how copying went; a click meanwhile copies again and says no more. */
const insides = new Map();

async function copyFor(button) {
  const source = document.getElementById(button.dataset.copies);
  let said = gettext("Copied");
  try {
    await copy(source?.textContent ?? "");
  } catch {
    said = gettext("Select it and press Ctrl+C");
    source?.closest("details")?.setAttribute("open", "");
  }
  if (insides.has(button)) return;
  insides.set(button, [...button.childNodes]);
  button.textContent = said;
  setTimeout(() => {
    button.replaceChildren(...insides.get(button));
    insides.delete(button);
  }, 2000);
}

/* What is destroyed is named first: `<input data-must-equal="acme">` keeps its form's submit button off until it says so. */
for (const input of document.querySelectorAll("input[data-must-equal]")) {
  const button = input.form.querySelector("button[type=submit]");
  const check = () => (button.disabled = input.value.trim() !== input.dataset.mustEqual);
  input.addEventListener("input", check);
  check();
}

/* A second click sends nothing: the server knows a repeat as well, but the reader should see that it is on its way. */
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post" || event.defaultPrevented) return;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "true";
  setTimeout(() => delete form.dataset.sent, 5000);
});
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});
