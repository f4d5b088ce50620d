/* Renames something where it stands: a field in the place of the text. Enter saves, Escape leaves it, an empty name is
   refused; whoever goes elsewhere has meant what they wrote. */

import { h } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";

/** `instead`: the element that the field stands for; `save(name)` is called with another name only; `done()` afterwards. */
export function renameInPlace({ instead, value, label, most, save, done = () => {} }) {
  if (instead.hidden) return; // it is being renamed
  const input = h("input", {
    class: "rename", type: "text", maxlength: most, dir: "auto", "aria-label": label, autocomplete: "off",
    enterkeyhint: "done",
  });
  input.value = value;
  let over = false;
  const end = (name, focus) => {
    if (over) return;
    over = true;
    input.remove();
    instead.hidden = false;
    if (name && name !== value) save(name);
    done(focus);
  };
  const name = () => input.value.trim().replace(/\s+/g, " ");
  input.addEventListener("input", () => input.setCustomValidity(""));
  input.addEventListener("click", (event) => event.stopPropagation());
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.preventDefault();
      end(null, true);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (name()) return end(name(), true);
      input.setCustomValidity(gettext("A name cannot be empty. Escape leaves it as it was."));
      input.reportValidity();
    }
  });
  input.addEventListener("blur", () => end(name(), false));
  instead.hidden = true;
  instead.after(input);
  input.focus();
  input.select();
}
