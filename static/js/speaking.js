/* Whether screen readers hear answers while they come; kept per browser. Nobody else notices. */

const KEY = "octavo:speak";

export const speaking = {
  get on() {
    try {
      return localStorage.getItem(KEY) !== "off";
    } catch {
      return true;
    }
  },
  set on(wanted) {
    try {
      localStorage.setItem(KEY, wanted ? "on" : "off");
    } catch {
      // Storage is switched off: it stays as it is.
    }
  },
};
