/* What a text takes in the engine, under the editor: figures and a cell for each block. Asks when typing pauses. */

import { count, decimal } from "#octavo/format.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";

const PAUSE_MS = 250;
const AGAIN_MS = 5000;
const MOST_CELLS = 160;

/** Returns `show(text, atOnce)`; `ask(text)` gives the engine's answer, of which only the newest one is shown. */
export function measurePanel(panel, ask) {
  const figure = (name) => panel.querySelector(`[data-figure="${name}"]`);
  const cells = panel.querySelector(".blocks");
  let newest = 0;
  let timer;

  function show(text, atOnce = false) {
    clearTimeout(timer);
    newest += 1;
    const number = newest;
    if (!atOnce && panel.dataset.state === "exact") panel.dataset.state = "waiting";
    timer = setTimeout(() => measure(text, number), atOnce ? 0 : PAUSE_MS);
  }

  async function measure(text, number) {
    let found;
    try {
      found = await ask(text);
    } catch (error) {
      found = { state: error.status === 429 ? "too-often" : "refused", message: error.message };
    }
    if (number !== newest) return;
    if (found.state !== "exact") {
      panel.dataset.state = "none";
      figure("message").textContent = found.message;
      if (found.state !== "refused") timer = setTimeout(() => measure(text, number), AGAIN_MS);
      return;
    }
    panel.dataset.state = found.too_long ? "too-long" : "exact";
    figure("tokens").textContent = count(found.tokens);
    figure("context").textContent = fill(gettext("of %(n)s"), { n: count(found.context) });
    figure("blocks").textContent = count(found.blocks);
    figure("block_size").textContent = fill(gettext("of %(n)s tokens"), { n: count(found.block_size) });
    figure("unused_slots").textContent = count(found.unused_slots);
    figure("share").textContent = percent(found.share);
    figure("quota").textContent = fill(gettext("of %(n)s blocks"), { n: count(found.quota_blocks) });
    const rest = found.tokens - found.own_tokens;
    figure("message").textContent =
      found.too_long ||
      fill(
        ngettext(
          "%(own)s token of text, %(rest)s of the model’s own opening. One copy for all chats of your team.",
          "%(own)s tokens of text, %(rest)s of the model’s own opening. One copy for all chats of your team.",
          found.own_tokens,
        ),
        { own: count(found.own_tokens), rest: count(rest) },
      );
    draw(found);
  }

  function draw({ blocks, block_size, unused_slots }) {
    const shown = Math.min(blocks, MOST_CELLS);
    const made = Array.from({ length: shown }, () => document.createElement("i"));
    if (shown === blocks && unused_slots > 0 && made.length) {
      made.at(-1).className = "part";
      made.at(-1).style.setProperty("--filled", `${Math.round(100 * (1 - unused_slots / block_size))}%`);
    }
    if (shown < blocks) {
      const more = Object.assign(document.createElement("span"), { className: "more", textContent: `+ ${count(blocks - shown)}` });
      made.push(more);
    }
    cells.replaceChildren(...made);
  }

  return show;
}

function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.1) return `< ${decimal(0.1, 1)} %`;
  return `${value < 10 ? decimal(value, 1) : count(Math.round(value))} %`;
}
