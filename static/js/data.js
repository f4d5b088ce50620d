/* Exports that are being made: their progress, and the page anew at the end. On the account's page also what admin.js
   does on a team's: times, and typed confirmations. */

import { exactTime, relativeTime } from "#octavo/format.js";
import { gettext } from "#octavo/i18n.js";

const EVERY_MS = 1000;
const MOST_FAILURES = 10;

async function follow(bar) {
  const said = bar.parentElement.querySelector("[role=status]");
  for (let failures = 0; failures < MOST_FAILURES; ) {
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    if (document.hidden) continue;
    try {
      const reply = await fetch(bar.dataset.progress, { headers: { Accept: "application/json" } });
      if (!reply.ok) throw new Error(String(reply.status));
      const { state, percent } = await reply.json();
      if (state !== "queued" && state !== "running") return location.reload();
      bar.value = percent;
      if (said) said.textContent = state === "queued" ? gettext("Waiting for a worker") : `${percent} %`;
      failures = 0;
    } catch {
      failures += 1;
      if (said) said.textContent = gettext("Connection lost, trying again");
    }
  }
  if (said) said.textContent = gettext("Reload the page to see how far it is.");
}

for (const bar of document.querySelectorAll("progress[data-progress]")) follow(bar);

if (!document.querySelector("#sidebar")) {
  for (const time of document.querySelectorAll("time[data-relative]")) {
    time.textContent = relativeTime(time.dateTime);
    time.title = exactTime(time.dateTime);
  }
  for (const input of document.querySelectorAll("input[data-must-equal]")) {
    const button = input.form.querySelector("button[type=submit]");
    const check = () => (button.disabled = input.value.trim() !== input.dataset.mustEqual);
    input.addEventListener("input", check);
    check();
  }
}
