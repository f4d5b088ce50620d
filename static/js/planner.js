/* The KV planner: a slider beside each number, and the server's figures of whatever is chosen, as it is chosen. The
   address always is that of what is shown. Without this the form has its button. */

import { h, onceAFrame } from "#octavo/dom.js";
import { fadeEdges } from "#octavo/edges.js";
import { positionOf, valueAt } from "#octavo/scale.js";

const FINE = 1000; // steps of a slider
const TYPING_MS = 250; // how long somebody who types is left alone
const SETTLED_MS = 500; // after which the address follows: browsers count how often it is set
const form = document.querySelector("#choices");
const figures = document.querySelector("#figures");
const fade = fadeEdges(figures, ".scroll");
const shapes = JSON.parse(document.querySelector("#shapes")?.textContent ?? "{}");
let asking = null;
let typing = 0;
let settling = 0;

/* --- sliders --- */

function addSlider(field) {
  const { scale } = field.dataset;
  const of = { scale, least: +field.dataset.least, most: +field.dataset.most, step: +(field.dataset.step ?? 1) };
  // As many steps as there are values to choose; where those are many, enough of them.
  const steps =
    scale === "linear" ? (of.most - of.least) / of.step : scale === "powers" ? Math.log2(of.most / of.least) : FINE;
  const label = field.closest("p").querySelector("label").textContent;
  const slider = h("input", { type: "range", min: 0, max: steps, step: 1, "aria-label": `${label}, slider` });
  const follow = () => {
    const position = positionOf(field.value, of);
    if (position !== null) slider.value = Math.round(position * steps);
    slider.setAttribute("aria-valuetext", field.value);
  };
  slider.addEventListener("input", () => {
    field.value = valueAt(slider.value / steps, of);
    slider.setAttribute("aria-valuetext", field.value);
    ask();
  });
  field.addEventListener("input", follow);
  field.after(slider);
  follow();
  return follow;
}
const followers = [...form.querySelectorAll("[data-scale]")].map(addSlider);

/* --- figures --- */

async function load() {
  clearTimeout(typing);
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const query = new URLSearchParams(new FormData(form)).toString();
  try {
    // Who is not logged in any more is sent on to do so, which is no answer to us.
    const reply = await fetch(`${form.dataset.figures}?${query}`, { signal, redirect: "manual" });
    if (reply.status === 403 || reply.type === "opaqueredirect")
      return say("You are not logged in as an operator any more. The figures are of what was chosen before.", {
        text: "Log in again",
        onclick: () => location.assign(`${form.getAttribute("action")}?${query}`),
      });
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    show(await reply.text());
    clearTimeout(settling);
    settling = setTimeout(
      () => history.replaceState(null, "", `${form.getAttribute("action")}?${query}`),
      SETTLED_MS,
    );
  } catch (error) {
    if (error.name === "AbortError") return;
    say("The figures are of what was chosen before: the server did not answer.", { text: "Try again", onclick: load });
  }
}

/** Why the figures are old, and what can be done about it. */
function say(text, button) {
  figures.querySelector(".lost")?.remove();
  const parts = [h("p", { text }), h("button", { type: "button", ...button })];
  figures.prepend(h("div", { class: "wrong lost", role: "alert" }, ...parts));
}
const ask = onceAFrame(load);

function show(html) {
  const held = document.activeElement?.closest?.("[data-block]") ? "#figures [aria-current] th" : null;
  const scrolled = [...figures.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  figures.replaceChildren(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
  [...figures.querySelectorAll(".scroll")].forEach((one, index) => (one.scrollLeft = scrolled[index] ?? 0));
  fade();
  tellWrong();
  tellBriefly();
  const row = held && document.querySelector(held);
  if (row) {
    row.tabIndex = -1;
    row.focus();
  }
}

/** The answer in a line: read out, and beside the sliders where the figures are out of sight. */
function tellBriefly() {
  const said = figures.querySelector(".said, .wrong h2")?.textContent ?? "";
  document.querySelector("#brief").textContent = said.replace(/\s+/g, " ").trim();
}

/** Fields that keep the planner from an answer say so themselves. */
function tellWrong() {
  const wrong = new Set(figures.querySelector("[data-wrong]")?.dataset.wrong.trim().split(" "));
  for (const field of form.elements) {
    if (!field.name) continue;
    const note = document.getElementById(`of-${field.name}`)?.id;
    const why = wrong.has(field.name) ? `wrong-${field.name}` : null;
    const about = [note, why].filter(Boolean).join(" ");
    for (const [attribute, value] of [["aria-invalid", why && "true"], ["aria-describedby", about]]) {
      if (value) field.setAttribute(attribute, value);
      else field.removeAttribute(attribute);
    }
  }
}

/* --- what is pressed --- */

form.addEventListener("input", (event) => {
  if (!event.target.name) return;
  clearTimeout(typing);
  if (event.target.tagName === "SELECT") ask();
  else typing = setTimeout(load, TYPING_MS);
});

/* Who goes over to typing a model's numbers begins with those of the model that was chosen. */
let before = form.elements.model.value;
form.elements.model.addEventListener("change", () => {
  const numbers = shapes[before];
  if (form.elements.model.value === "-typed" && numbers) {
    ["layers", "kv_heads", "head_dim", "context"].forEach((name, index) => {
      form.elements[name].value = numbers[index];
    });
    for (const follow of followers) follow();
  }
  before = form.elements.model.value;
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});

figures.addEventListener("click", (event) => {
  const link = event.target.closest?.("[data-block]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  form.elements.block.value = link.dataset.block;
  for (const follow of followers) follow();
  load();
});

document.querySelector("#plan").hidden = true;
tellWrong();
tellBriefly();
form.dataset.ready = "";
