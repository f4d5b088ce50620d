/* What can be done on this page, by name: the palette lists it, the keyboard starts it, the help explains it.

   A command is {id, title, group, icon, run, when}, and its `keys` are those that KEYS has for the id, "" for none: `title` in
   words, `group` one of GROUPS, `when()` says whether it can be done now, `hidden()` whether the help leaves it out; without
   `run` the browser does it by itself. The newest with an id replaces the one before. */

import { gettext, pgettext } from "#octavo/i18n.js";
import { onUnlessOff } from "#octavo/settings.js";

/** Which keys start what, all in one place, so that no two meet.

    "Mod" is Ctrl, and ⌘ on a Mac. "Own" is Alt+Shift, and ⌃⇧ on a Mac: browsers, screen readers and third characters of
    keyboards leave these alone, as they do not leave Ctrl+Shift (incognito windows, bookmarks, developers' tools) or
    Ctrl+Alt (which is AltGr). "Message" is for the box where a message is written, "Empty" for it while nothing is in it.
    A single character is for those who are not typing, and can be switched off (WCAG 2.2, 2.1.4). */
export const KEYS = {
  palette: "Mod+K",
  help: "?",
  search: "/",
  "new-chat": "Own+N",
  "next-chat": "Own+J",
  "previous-chat": "Own+K",
  rename: "F2",
  sidebar: "Own+S",
  memory: "Own+M",
  theme: "Own+D",
  write: "Own+W",
  send: "Message+Enter",
  "send-now": "Message+Mod+Enter",
  "break-line": "Message+Shift+Enter",
  stop: "Escape",
  "edit-last": "Empty+ArrowUp",
  regenerate: "Own+R",
  continue: "Own+G",
  "previous-version": "Own+H",
  "next-version": "Own+L",
  "copy-answer": "Own+C",
  "copy-code": "Own+X",
  undo: "Own+Z",
};

/** The parts of the help, in order, and which commands of other modules belong where. */
export const GROUPS = {
  chat: () => gettext("Writing and answers"),
  conversations: () => gettext("Conversations"),
  page: () => gettext("This page"),
};
const GROUP_OF = {
  ...Object.fromEntries(
    ["edit-last", "regenerate", "continue", "quote-last", "choices", "previous-version", "next-version"].map((id) => [id, "chat"]),
  ),
  search: "conversations",
};

const known = new Map();
const isMac = /Mac|iPhone|iPad/.test(globalThis.navigator?.platform ?? "");

export const commands = {
  add(command) {
    const { id } = command;
    known.set(id, { when: () => true, group: GROUP_OF[id] ?? "page", ...command, keys: KEYS[id] ?? "" });
  },

  remove(id) {
    known.delete(id);
  },

  /** Those that can be done now, in the order in which they were added. */
  list: () => [...known.values()].filter((command) => command.when()),

  /** All, also those that cannot be done now. */
  all: () => [...known.values()],

  get: (id) => known.get(id),

  run(id) {
    const command = known.get(id);
    if (!command?.run || !command.when()) return false;
    command.run();
    return true;
  },
};

/** Whether keys of a single character start something; kept per browser. */
export const singleKeys = onUnlessOff("octavo:single-keys");

// --- keys in words -------------------------------------------------------------------------------------------------

/** ["Ctrl", "K"], or ["⌘", "K"] on a Mac. */
export function wordsOf(keys, mac = isMac) {
  if (!keys) return [];
  const shift = mac ? ["⇧"] : [pgettext("key", "Shift")];
  const names = {
    Mod: mac ? ["⌘"] : [pgettext("key", "Ctrl")],
    Own: mac ? ["⌃", "⇧"] : [pgettext("key", "Alt"), ...shift],
    Shift: shift,
    Message: [],
    Empty: [],
    Escape: [pgettext("key", "Esc")],
    Enter: [mac ? "↩" : pgettext("key", "Enter")],
    ArrowUp: ["↑"],
    ArrowDown: ["↓"],
    ArrowLeft: ["←"],
    ArrowRight: ["→"],
  };
  return keys.split("+").flatMap((part) => names[part] ?? [part]);
}

/** Where keys work, in words, or "". */
export function placeOf(keys) {
  if (keys.startsWith("Message+")) return gettext("in the message box");
  return keys.startsWith("Empty+") ? gettext("in the empty message box") : "";
}

/** For aria-keyshortcuts: "Control+K", "Alt+Shift+N". */
export function ariaOf(keys, mac = isMac) {
  const names = { Mod: mac ? "Meta" : "Control", Own: mac ? "Control+Shift" : "Alt+Shift" };
  const parts = keys.split("+").filter((part) => part !== "Message" && part !== "Empty");
  return parts.map((part) => names[part] ?? part).join("+");
}

// --- keys that are pressed -----------------------------------------------------------------------------------------

const TEXT_FIELDS = "input:not([type=checkbox], [type=radio], [type=button], [type=submit], [type=file]), textarea, select";

const isTyping = (target) =>
  Boolean(target?.closest?.(`${TEXT_FIELDS}, [contenteditable]:not([contenteditable=false])`));

/** Whether an event is of these keys. Letters count as they are printed, or by their place where another script is. */
export function matches(keys, event, mac = isMac) {
  const parts = keys.split("+");
  const key = parts.pop() || "+";
  const wants = new Set(parts);
  const third = event.getModifierState?.("AltGraph") ?? false;
  const isBox = event.target?.dataset?.message !== undefined;
  if ((wants.has("Message") || wants.has("Empty")) && !isBox) return false;
  if (wants.has("Empty") && event.target.value !== "") return false;
  const chord = wants.has("Mod") || wants.has("Own");
  if (!chord && key.length === 1) {
    // Whatever a keyboard needs for the character: Shift, AltGr, Option.
    const plain = !event.metaKey && (third || (!event.ctrlKey && (mac || !event.altKey)));
    return plain && event.key === key && singleKeys.on && !isTyping(event.target);
  }
  if (third) return false;
  const own = wants.has("Own");
  const wanted = {
    ctrlKey: (wants.has("Mod") && !mac) || (own && mac),
    metaKey: wants.has("Mod") && mac,
    altKey: wants.has("Alt") || (own && !mac),
    shiftKey: own || wants.has("Shift"),
  };
  if (Object.entries(wanted).some(([name, value]) => Boolean(event[name]) !== value)) return false;
  return event.key.toUpperCase() === key.toUpperCase() || (!/^[\x20-\x7e]+$/.test(event.key) && event.code === `Key${key}`);
}

/** Start what the keys of an event name; says whether something was. An input method's keys, and those behind a dialog, are
    none. */
export function pressed(event) {
  // 229: an input method has taken it, which not every browser says by isComposing.
  if (event.defaultPrevented || event.isComposing || event.keyCode === 229) return false;
  if (globalThis.document?.querySelector("dialog:modal")) return false;
  // Whether it can be done now is asked of what these keys are for alone: it may be dear, and people type.
  const command = commands.all().find((one) => one.keys && one.run && matches(one.keys, event) && one.when());
  if (!command) return false;
  event.preventDefault();
  // A key that is held down would do it again and again.
  if (!event.repeat || command.repeats) command.run();
  return true;
}
