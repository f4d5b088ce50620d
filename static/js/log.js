/* The reading column: the messages of the shown conversation, and where the reader is in it.

   Messages that change are drawn once a frame, however many events came, and text that comes in bursts is spread over
   the frames between them (pace.js). Messages far from the reader are plain text (row.js). The view follows the end
   while the reader is there; otherwise nothing that is seen moves, and a button leads back. */

import { LIVE } from "#octavo/answer.js";
import { h } from "#octavo/dom.js";
import { gettext } from "#octavo/i18n.js";
import { LEAF, Leaf } from "#octavo/leaf.js";
import { FAR, NEAR, between, estimate, firstWhere, outward } from "#octavo/nearby.js";
import { Pace, whole } from "#octavo/pace.js";
import { Places } from "#octavo/places.js";
import { Row } from "#octavo/row.js";
import { shown } from "#octavo/tree.js";

// So near to the end a reader is at the end.
const NEAR_PX = 48;
const SKELETON_AFTER_MS = 150;
// Of a frame: what drawing a growing answer, or rendering what comes near, may take. Longer work is spread over frames.
const DRAW_MS = 4;
const RENDER_MS = 8;
const MOST_FRAMES = 15;
const HIDDEN_MS = 100;
const WHEEL_MS = 150;
// What is near is a view's height away: so much of it may pass before one looks again.
const ARRANGE_PX = 64;

const stillness = matchMedia("(prefers-reduced-motion: reduce)");

export class Log {
  /** `message`: what each MessageView is given. */
  constructor({ scroller, log, jump, empty, message, places = new Places() }) {
    Object.assign(this, { scroller, log, jump, empty, given: message, places });
    this.views = new Map(); // message -> Row, in the order of the page
    this.rows = []; // the same rows
    this.leaves = []; // they, in LEAFs
    this.changed = new Set();
    this.paces = new Map(); // message that grows -> Pace
    this.following = true;
    this.news = false; // something new is below what is seen
    this.top = 0;
    this.arrangedAt = 0; // where the view was when what is near it was rendered
    this.wheeledAt = 0; // when the reader last turned the wheel upwards
    this.rest = 0; // frames to leave out, after one that took too long
    scroller.classList.remove("from-end");
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    scroller.addEventListener("wheel", (event) => (this.wheeledAt = event.deltaY < 0 ? event.timeStamp : 0), {
      passive: true,
    });
    jump.addEventListener("click", () => this.toEnd());
    // Somebody opens or folds code here (code.js): the view stays with that.
    scroller.addEventListener("reading", () => (this.following = false));
    const resized = new ResizeObserver((entries) => {
      // An answer that grows at the end moves the view, and that is told as scrolling.
      if (!this.following || entries.some(({ target }) => target === scroller)) this.#arrangeSoon();
      this.#follow();
    });
    resized.observe(log);
    resized.observe(scroller);
    addEventListener("pagehide", () => this.#keepPlace());
  }

  // --- what is shown -------------------------------------------------------------------------------------------------

  show(conversation) {
    this.#clear();
    this.conversation = conversation;
    this.log.replaceChildren();
    this.following = true;
    const place = this.places.of(conversation.id);
    this.refresh();
    if (!place || !this.reveal(place.id, place.offset)) this.toEnd();
  }

  /** A conversation is on its way; bars stand for it if it takes long. */
  wait() {
    this.#keepPlace();
    this.conversation = null;
    this.log.inert = true; // what still stands there is no longer what the page is about
    this.loading = setTimeout(() => {
      this.#clear();
      this.empty.hidden = true;
      this.log.hidden = false;
      this.log.replaceChildren(
        h(
          "div",
          { class: "skeleton", role: "status", "aria-label": gettext("Loading") },
          ...Array.from({ length: 6 }, () => h("i")),
        ),
      );
    }, SKELETON_AFTER_MS);
  }

  /** Something other than a conversation: what went wrong, and a way on. */
  say(element) {
    this.#clear();
    this.empty.hidden = true;
    this.log.hidden = false;
    this.log.replaceChildren(element);
  }

  #clear() {
    clearTimeout(this.loading);
    this.log.inert = false;
    this.#keepPlace();
    this.conversation = null;
    this.views = new Map();
    this.rows = [];
    this.leaves = [];
    this.changed.clear();
    this.paces.clear();
    this.news = false;
  }

  /** Messages came or went. */
  refresh() {
    if (!this.conversation) return; // something else is shown: `wait`, `say`
    const path = shown(this.conversation);
    const views = new Map();
    const width = this.log.clientWidth || this.scroller.clientWidth;
    for (const message of path) {
      const row = this.views.get(message) ?? new Row(message, this.given, estimate(message, width));
      views.set(message, row);
      if (LIVE.has(message.status)) row.load();
      row.element.classList.toggle("latest", message === path.at(-1));
      if (!this.views.has(message) && this.rows.length) this.news = true;
    }
    this.views = views;
    this.rows = [...views.values()];
    const leaves = Math.ceil(this.rows.length / LEAF);
    while (this.leaves.length < leaves) this.leaves.push(new Leaf());
    this.leaves.length = leaves;
    this.leaves.forEach((leaf, index) => leaf.hold(this.rows.slice(index * LEAF, (index + 1) * LEAF)));
    if (this.log.children.length !== leaves || this.log.firstChild !== (this.leaves[0]?.element ?? null))
      this.log.replaceChildren(...this.leaves.map((leaf) => leaf.element));
    this.empty.hidden = path.length > 0;
    this.log.hidden = path.length === 0;
    this.#follow();
    this.#fillView();
    this.#showJump();
  }

  /** The row of a message, rendered. */
  row(message) {
    const row = this.views.get(message);
    row?.load();
    return row;
  }

  /** Show a message with its top `offset` px below the view's. False when it is not among those that are shown. */
  reveal(id, offset = 0) {
    const row = this.rows.find((one) => one.message.id === id);
    if (!row) return false;
    this.following = false;
    row.load();
    const move = () => {
      this.scroller.scrollTop += row.element.getBoundingClientRect().top - this.#viewTop() - offset;
      this.top = this.scroller.scrollTop;
    };
    move();
    this.#fillView(row);
    move(); // near the end there was less room below it before
    this.#showJump();
    return true;
  }

  // --- what changes --------------------------------------------------------------------------------------------------

  /** Draw a message again with the next frame. */
  touch(message) {
    const row = this.views.get(message);
    if (!row) return;
    if (LIVE.has(message.status) && !document.hidden && !stillness.matches) {
      if (!this.paces.has(message)) this.paces.set(message, new Pace(row.length));
      this.paces.get(message).arrive(message.text.length, performance.now());
    }
    this.#drawSoon(message);
  }

  #drawSoon(message) {
    if (this.changed.size === 0) this.#nextFrame(() => this.#draw());
    this.changed.add(message);
  }

  #nextFrame(work) {
    // A hidden tab has no frames; its page still has to be right.
    if (document.hidden) setTimeout(work, HIDDEN_MS);
    else requestAnimationFrame(work);
  }

  #draw() {
    const began = performance.now();
    const changed = [...this.changed];
    this.changed.clear();
    const ended = changed.some((message) => !LIVE.has(message.status));
    if (this.rest > 0 && !ended) {
      this.rest -= 1;
      for (const message of changed) this.#drawSoon(message);
      return;
    }
    for (const message of changed) this.#drawOne(message, began);
    this.#follow();
    this.#showJump();
    this.rest = Math.min(Math.floor((performance.now() - began) / DRAW_MS), MOST_FRAMES);
  }

  #drawOne(message, now) {
    const row = this.views.get(message);
    const pace = this.paces.get(message);
    if (!row) return;
    if (!this.following && message.text.length > row.length) this.news = true;
    if (!pace || !LIVE.has(message.status) || document.hidden || stillness.matches) {
      this.paces.delete(message);
      return row.update();
    }
    row.update(whole(message.text, pace.show(now)));
    if (pace.behind > 0) this.#drawSoon(message);
  }

  tick() {
    const now = Date.now();
    for (const row of this.rows) row.tick(now);
  }

  // --- what is near the reader -----------------------------------------------------------------------------------------

  #viewTop() {
    return this.scroller.getBoundingClientRect().top;
  }

  /** Where rows are, in px below the view's top. */
  #extent() {
    const zero = this.#viewTop();
    const of = (index) => this.leaves[Math.floor(index / LEAF)].extent(index % LEAF);
    return { top: (index) => of(index).top - zero, bottom: (index) => of(index).bottom - zero };
  }

  #arrangeSoon() {
    if (this.arranging || !this.rows.length) return;
    this.arranging = true;
    this.#nextFrame(() => {
      this.arranging = false;
      if (this.#arrange(RENDER_MS, NEAR)) this.#arrangeSoon();
    });
  }

  /** Render all that is seen, at once; what is near it comes with the next frames. */
  #fillView(anchor) {
    while (this.#arrange(Infinity, 0, anchor));
    this.#arrangeSoon();
  }

  /** Render what is near and has not been, until `budget` ms are over, and make plain text of what is far. Nothing that is
      seen moves: `anchor` stays where it is, which is the first row that is seen. Returns whether there is more to do. */
  #arrange(budget, near, anchor = null) {
    if (!this.rows.length) return false;
    const began = performance.now();
    const count = this.rows.length;
    const height = this.scroller.clientHeight;
    const extent = this.#extent();
    const seen = between(count, extent, 0, height);
    const wanted = between(count, extent, -near * height, (1 + near) * height);
    const kept = between(count, extent, -FAR * height, (1 + FAR) * height);
    anchor = anchor ? this.rows.indexOf(anchor) : Math.min(seen[0], count - 1);
    const before = extent.top(anchor);
    const far = this.rows
      .filter((row, index) => row.loaded && (index < kept[0] || index >= kept[1]) && !row.held)
      .map((row) => [row, row.element.getBoundingClientRect().height]);
    for (const [row, is] of far) row.unload(is);
    this.leaves.forEach((leaf, index) => {
      const isFar = (index + 1) * LEAF <= kept[0] || index * LEAF >= kept[1];
      if (isFar && !leaf.closed && !leaf.rows.some((row) => row.loaded)) leaf.close();
    });
    let more = false;
    let rendered = 0;
    for (const index of outward(wanted, seen)) {
      if (this.rows[index].loaded) continue;
      if (rendered && performance.now() - began > budget) {
        more = true;
        break;
      }
      this.rows[index].load();
      rendered += 1;
    }
    this.arrangedAt = this.scroller.scrollTop;
    if (!rendered && !far.length) return false;
    if (this.following) this.#follow();
    else {
      const moved = extent.top(anchor) - before;
      if (Math.abs(moved) >= 0.5) this.scroller.scrollTop += moved;
      this.top = this.scroller.scrollTop;
    }
    return more || rendered > 0; // what is rendered has another height, so that others may be near now
  }

  // --- where the reader is ---------------------------------------------------------------------------------------------

  toEnd() {
    this.following = true;
    this.news = false;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
    this.#showJump();
  }

  get #toGo() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  /** Stay at the end. A wheel that turns upwards takes some frames to move the view: it is not pulled back meanwhile. */
  #follow() {
    if (this.following && performance.now() - this.wheeledAt > WHEEL_MS) this.toEnd();
  }

  #scrolled() {
    const { scrollTop } = this.scroller;
    // Growth from below is not the reader's doing: only going up leaves the end, and only going down comes back.
    if (scrollTop < this.top) this.following &&= this.#toGo < 2;
    else if (scrollTop > this.top && this.#toGo < NEAR_PX) this.following = true;
    if (this.following) this.news = false;
    this.top = scrollTop;
    this.#showJump();
    if (Math.abs(scrollTop - this.arrangedAt) > ARRANGE_PX) this.#arrangeSoon();
  }

  #showJump() {
    this.jump.hidden = this.following || this.#toGo < NEAR_PX;
    const words = this.news ? gettext("Jump to new text") : gettext("Jump to end");
    const said = this.jump.lastElementChild;
    if (said.textContent !== words) said.textContent = words;
    this.jump.classList.toggle("news", this.news);
  }

  #keepPlace() {
    if (!this.conversation || !this.rows.length) return;
    let place = null;
    if (!this.following) {
      const { top, bottom } = this.#extent();
      const index = Math.min(firstWhere(this.rows.length, (one) => bottom(one) > 0), this.rows.length - 1);
      place = { id: this.rows[index].message.id, offset: top(index) };
    }
    this.places.keep(this.conversation.id, place);
  }
}
