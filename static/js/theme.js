/* Light, dark or auto, kept per browser. A classic script in the head, so that no page is painted in the wrong one.
   Owns the attribute data-theme of the root; auto is its absence. Buttons with data-theme-choice set it, on any page. */

(() => {
  const KEY = "octavo:theme";
  const root = document.documentElement;

  function read() {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // storage is switched off
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
    for (const button of document.querySelectorAll("[data-theme-choice]")) {
      button.setAttribute("aria-pressed", String(button.dataset.themeChoice === theme));
    }
  }

  apply(read());
  document.addEventListener("DOMContentLoaded", () => apply(read()));
  addEventListener("storage", (event) => event.key === KEY && apply(read()));
  document.addEventListener("click", (event) => {
    const choice = event.target.closest?.("[data-theme-choice]")?.dataset.themeChoice;
    if (!choice) return;
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // It holds for this page, then.
    }
    apply(choice);
  });
})();
