/* What can be done on this page, by name: the palette lists it, the keyboard starts it, the help page explains it.

   A command is {id, title, keys, icon, run, when}: `title` in words, `keys` like "Mod+K" ("Mod" is Ctrl, or Cmd on a Mac; "" for
   none), `when()` says whether it can be done now. The newest with an id replaces the one before. */

const known = new Map();
const isMac = /Mac|iPhone|iPad/.test(globalThis.navigator?.platform ?? "");

export const commands = {
  add(command) {
    known.set(command.id, { keys: "", when: () => true, ...command });
  },

  remove(id) {
    known.delete(id);
  },

  /** Those that can be done now, in the order in which they were added. */
  list: () => [...known.values()].filter((command) => command.when()),

  run(id) {
    const command = known.get(id);
    if (command?.when()) command.run();
  },
};

/** "Mod+Shift+O" of a key event. */
export function keysOf(event) {
  const mod = isMac ? event.metaKey : event.ctrlKey;
  const parts = [mod && "Mod", event.altKey && "Alt", event.shiftKey && event.key.length > 1 && "Shift"];
  const key = event.key.length === 1 ? event.key.toUpperCase() : event.key;
  if (mod && event.shiftKey && event.key.length === 1) parts.push("Shift");
  return [...parts.filter(Boolean), key].join("+");
}

/** Start what the keys of an event name; says whether something was. Keys without Mod are for those who are not typing. */
export function pressed(event) {
  if (event.defaultPrevented || event.isComposing) return false;
  const keys = keysOf(event);
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  const command = commands.list().find((one) => one.keys === keys);
  if (!command || (typing && !keys.startsWith("Mod+") && keys !== "Escape")) return false;
  event.preventDefault();
  command.run();
  return true;
}
