/* Makes elements. Text is always text: nothing here parses HTML. */

import { gettext } from "#octavo/i18n.js";

/** An element. `props`: "class", "text", "on<event>" functions, "data-*" and other attributes; null and false are left out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A function that does `work` with the next frame, however often it is called until then. */
export function onceAFrame(work) {
  let waiting = false;
  const now = () => {
    waiting = false;
    work();
  };
  return () => {
    if (waiting) return;
    waiting = true;
    // A hidden tab has no frames; its page still has to be right.
    if (document.hidden) setTimeout(now, 100);
    else requestAnimationFrame(now);
  };
}

const SVG = "http://www.w3.org/2000/svg";
let sprite = "";

/** Where the icons are; the page says it, because the file's name carries a hash. */
export function useSprite(url) {
  sprite = url;
}

/** Where the page's own icons come from. */
const spriteOfPage = () => document.querySelector("svg.icon use")?.getAttribute("href").split("#")[0] ?? "";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  sprite ||= spriteOfPage();
  use.setAttribute("href", `${sprite}#${name}`);
  svg.append(use);
  return svg;
}

/** Copy text; where the page may not use the clipboard (plain http), through a selection. */
export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const field = h("textarea", { class: "only-read", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (!copied) throw new Error("the browser does not let this page copy");
}

/** A button that copies what `text()` gives and says so for a moment. */
export function copyButton(text, props = {}) {
  const label = h("span", { text: gettext("Copy") });
  const button = h("button", { type: "button", ...props }, icon("copy"), label);
  button.addEventListener("click", async () => {
    try {
      await copy(text());
    } catch {
      return;
    }
    button.firstChild.replaceWith(icon("check"));
    label.textContent = gettext("Copied");
    setTimeout(() => {
      button.firstChild.replaceWith(icon("copy"));
      label.textContent = gettext("Copy");
    }, 1600);
  });
  return button;
}
