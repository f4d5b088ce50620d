/* Words in the reader's language: what Django's JavaScript catalog gives where the page has loaded it, else English.

   Every text that a reader sees goes through one of these, as a whole sentence, so that it can be collected:
     gettext("Copy")   ngettext("%(n)s chat", "%(n)s chats", n)   pgettext("verb", "Share")
     fill(gettext("%(name)s answers"), { name })   */

export const gettext = (text) => globalThis.gettext?.(text) ?? text;

export const ngettext = (one, many, n) => globalThis.ngettext?.(one, many, n) ?? (n === 1 ? one : many);

export const pgettext = (context, text) => globalThis.pgettext?.(context, text) ?? text;

/** Put values into a text: `%(name)s` by name, `%%` is a percent sign. A name that has no value stays as it is. */
export const fill = (text, values) =>
  text.replace(/%\((\w+)\)s|%%/g, (found, name) => (name === undefined ? "%" : String(values[name] ?? found)));

/** The language of the page, for Intl. */
export const language = () => globalThis.document?.documentElement.lang || "en";
