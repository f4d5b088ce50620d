/* Colours as a canvas needs them, resolved by the browser from the page's variables. In the system's own colours
   (forced-colors) a canvas keeps what it draws, while all around it changes: tokens.css gives surfaces, text and lines the
   system's there, and what tells teams apart keeps its hue. */

import { h } from "#octavo/dom.js";

/** `resolve(colour)` for a variable ("--accent") as it is at `place`, or for any CSS colour. */
export function resolver(place) {
  const probe = h("i", { hidden: true });
  probe.style.forcedColorAdjust = "none";
  return (colour) => {
    if (!probe.isConnected) place.append(probe);
    probe.style.color = colour.startsWith("--") ? `var(${colour})` : colour;
    return getComputedStyle(probe).color;
  };
}

/** Call `listener` whenever what is resolved may have become another one. */
export function onColours(listener, { signal } = {}) {
  for (const query of ["(prefers-color-scheme: dark)", "(prefers-contrast: more)", "(forced-colors: active)"])
    matchMedia(query).addEventListener("change", listener, { signal });
  const theme = new MutationObserver(listener);
  theme.observe(document.documentElement, { attributeFilter: ["data-theme", "class"] });
  signal?.addEventListener("abort", () => theme.disconnect());
}
