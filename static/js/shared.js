/* The page of a shared conversation: answers as the reading column shows them, and times as the reader counts them. Without
   this script the page is the same in plain text. */

import { useSprite } from "#octavo/dom.js";
import { exactTime, relativeTime } from "#octavo/format.js";
import { gettext } from "#octavo/i18n.js";
import { MarkdownView } from "#octavo/markdown.js";

useSprite(JSON.parse(document.getElementById("page").textContent).icons);

for (const text of document.querySelectorAll(".message.assistant .text.plain")) {
  const source = text.textContent;
  text.textContent = "";
  text.classList.replace("plain", "markdown");
  new MarkdownView(text).update(source);
}

for (const time of document.querySelectorAll("time[data-relative]")) {
  time.textContent = relativeTime(time.dateTime);
  time.title = exactTime(time.dateTime);
}

/* A revoked link does not come back: the button asks once more. */
for (const button of document.querySelectorAll("[data-confirm]")) {
  button.addEventListener("click", (event) => {
    if (button.dataset.confirm === "asked") return;
    event.preventDefault();
    button.dataset.confirm = "asked";
    button.classList.add("danger");
    button.lastChild.textContent = gettext("Revoke for good");
  });
}
