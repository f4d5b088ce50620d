/* The list of all keys, made of the commands themselves, so that it says what is true; and what can be switched off. */

import { GROUPS, commands, placeOf, singleKeys, wordsOf } from "#octavo/commands.js";
import { openDialog } from "#octavo/dialog.js";
import { h } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";
import { speaking } from "#octavo/speaking.js";

export function openHelp() {
  const all = commands.all().filter((command) => command.keys && !command.hidden?.());
  const groups = Object.keys(GROUPS).map((name) => ({
    title: GROUPS[name](),
    entries: all.filter((command) => command.group === name),
  }));
  openDialog({
    title: gettext("Keyboard shortcuts"),
    className: "help",
    body: [...groups.filter((group) => group.entries.length).map(part), switches()],
  });
}

function part({ title, entries }, at) {
  const id = `help-${at}`;
  return h(
    "section",
    { "aria-labelledby": id },
    h("h3", { id, text: title }),
    h(
      "dl",
      { class: "shortcuts" },
      ...entries.map((command) =>
        h(
          "div",
          {},
          h("dt", { text: [command.title, placeOf(command.keys)].filter(Boolean).join(", ") }),
          h("dd", { class: "keycaps" }, ...wordsOf(command.keys).map((word) => h("kbd", { text: word }))),
        ),
      ),
    ),
  );
}

function switches() {
  return h(
    "section",
    { "aria-labelledby": "help-switches" },
    h("h3", { id: "help-switches", text: gettext("Settings of this browser") }),
    choice(gettext("Keys of one character, / and ?, start something while you are not typing"), singleKeys),
    choice(gettext("Screen readers hear an answer sentence by sentence while it comes"), speaking),
  );
}

function choice(words, setting) {
  const input = h("input", {
    type: "checkbox",
    checked: setting.on,
    onchange: () => (setting.on = input.checked),
  });
  return h("label", { class: "switch" }, input, h("span", { text: words }));
}
