/* The workers beside each other, a lane each: how full its pool is, what it does, and how it is. One is looked at. */

import { plural } from "#octavo/block-words.js";
import { h } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { fillBar, poolBar } from "#octavo/pool-figures.js";
import { fillRows, say } from "#octavo/rows.js";

export function health(worker) {
  if (worker.gone) return "gone";
  if (worker.healthy === false) return "not healthy";
  return worker.draining ? "draining" : "healthy";
}

export class Lanes {
  constructor(list, { onChoose }) {
    this.list = list;
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) onChoose(button.dataset.worker);
    });
  }

  /** `figuresOf(id)`: a worker's newest figures, or undefined. */
  show(workers, watched, figuresOf) {
    this.list.hidden = workers.length < 2;
    fillRows(this.list, workers, {
      keyOf: ({ id }) => id,
      make: ({ id }) =>
        h(
          "li",
          {},
          h(
            "button",
            { type: "button", "data-worker": id },
            h("span", { class: "lane-top" }, h("strong"), h("span", { class: "lane-state" })),
            poolBar(),
            h("span", { class: "lane-words" }),
          ),
        ),
      tell: (item, worker) => {
        const figures = figuresOf(worker.id);
        const button = item.firstChild;
        const { num_blocks: blocks = 0, running = 0, waiting = 0 } = worker;
        button.setAttribute("aria-pressed", String(worker.id === watched));
        button.dataset.health = health(worker);
        say(button.querySelector("strong"), worker.id);
        say(button.querySelector(".lane-state"), health(worker) === "healthy" ? (worker.model ?? "") : health(worker));
        fillBar(button.querySelector(".pool-bar"), figures ?? {}, blocks);
        const use = figures
          ? [`${count(figures.used ?? 0)} used`, `${count(figures.cached ?? 0)} cached`]
          : [plural(blocks, "block")];
        say(button.querySelector(".lane-words"), [...use, `${count(running)} running`, waiting && `${count(waiting)} waiting`].filter(Boolean).join(" · "));
      },
    });
  }
}
