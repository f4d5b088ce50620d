/* Charts: uPlot in our colours, with what it leaves out: a legend that says the values at the cursor, the cursor by
   keyboard and by touch, the same figures as a table, and words where there is nothing to show.

     plot(place, {
       title,                 what it shows, for screen readers and the table
       times,                 seconds since 1970, rising
       series,                [{label, values, colour, stack?, line?, dash?}]; colour is a CSS variable ("--accent") or any
                              CSS colour; with `stack` it stands on the ones before it; null is a gap
       bars?,                 bars, one slot a time, all slots alike (days with 23 hours, too); `line` draws a line among them
       even?,                 slots alike for lines as well; true with bars
       unit?, format?, axis?, the word for values ("tokens"), how one is written, and how at the axis, where it differs
       step?,                 seconds between two times, where one alone would not say it
       zone?,                 IANA name; else the reader's
       height?,               CSS pixels of the picture
       sync?,                 charts with the same key move their cursors together
       onPoint?(index|null),  the cursor has come to a point, or left
       onPick?(index),        a point was chosen: clicked, dragged along, Enter
       onSelect?(from, to),   a span of time was drawn with the mouse, or by Shift and arrows; with bars, the times of its
                              first and its last bar
       empty?,                what to say where there are no values
     }) -> { update(times, values), mark(time | null), point(index | null), destroy() }

   `update` takes as many arrays of values as there are series. A mark is a line at a time. Needs css/plot.css. */

import uPlot from "uplot";
import { onColours, resolver } from "#octavo/colours.js";
import { h, onceAFrame } from "#octavo/dom.js";
import { count } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { areWhole, axisLabels, drawn, hasValues, momentOf, nearestTo, placeOf, placesOf, stepOf } from "#octavo/plot-data.js";

const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 12 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b);
const LEAST_LABEL = 64;
let plots = 0;

export function plot(place, options) {
  return new Plot(place, options);
}

class Plot {
  #options;
  #times = [];
  #series;
  #shown;
  #chart = null;
  #mark = null;
  #index = null;
  #from = null;
  #colour; // resolves a CSS variable or any CSS colour
  #said = h("p", { class: "plot-at" });
  #picture = h("div", { class: "plot-picture", tabindex: "0", role: "slider", "aria-orientation": "horizontal", dir: "ltr" });
  #none = h("p", { class: "plot-none" });
  #legend = h("ul", { class: "plot-legend" });
  #table = h("table");
  #details;
  #root;
  #observers = [];
  #leave = new AbortController();

  constructor(place, options) {
    this.#options = { height: 176, format: count, unit: "", empty: gettext("Nothing to show yet."), ...options };
    this.#options.even ??= Boolean(options.bars);
    this.#series = options.series.map((each) => ({ ...each }));
    this.#shown = this.#series.map(() => true);
    plots += 1;
    this.#details = h(
      "details",
      { class: "plot-table" },
      h("summary", { text: gettext("Show as a table") }),
      // It scrolls, so the keyboard has to reach it.
      h("div", { class: "table", tabindex: "0", role: "group", "aria-label": options.title ?? gettext("Chart") }, this.#table),
    );
    this.#picture.setAttribute("aria-label", options.title ?? gettext("Chart"));
    this.#none.textContent = this.#options.empty;
    this.#root = h(
      "div",
      { class: "plot" },
      h("div", { class: "plot-head" }, this.#legend, this.#said),
      this.#picture,
      this.#none,
      this.#details,
    );
    this.#colour = resolver(this.#root);
    place.replaceChildren(this.#root);
    this.#drawLegend();
    this.#listen();
    this.update(options.times, options.series.map(({ values }) => values));
  }

  update(times, values) {
    const here = this.#index === null ? null : this.#times[this.#index];
    const wasLast = this.#index !== null && this.#index === this.#times.length - 1;
    this.#times = times;
    this.#series.forEach((each, index) => (each.values = values[index]));
    const any = times.length > 0 && hasValues(this.#series);
    this.#root.classList.toggle("is-empty", !any);
    this.#picture.hidden = this.#details.hidden = !any;
    this.#none.hidden = any;
    if (!any) {
      this.#chart?.destroy();
      this.#chart = null;
      this.#move(null);
      return;
    }
    if (this.#chart) this.#chart.setData(this.#data());
    else this.#draw();
    if (here !== null) this.#put(wasLast ? times.length - 1 : nearestTo(times, here));
    else this.#say();
    this.#fillTable();
  }

  mark(time) {
    this.#mark = time;
    this.#chart?.redraw(false, false);
  }

  point(index) {
    this.#put(index);
  }

  destroy() {
    this.#leave.abort();
    for (const observer of this.#observers) observer.disconnect();
    this.#chart?.destroy();
    this.#chart = null;
    this.#root.remove();
  }

  /* Drawing */

  // The highest of a stack is drawn first, and those under it over it.
  #order() {
    const places = this.#series.map((_, index) => index);
    const stacked = places.filter((index) => this.#series[index].stack).reverse();
    return [...stacked, ...places.filter((index) => !this.#series[index].stack)];
  }

  #data() {
    const values = drawn(this.#series, this.#shown, this.#options.bars);
    const x = this.#options.even ? this.#times.map((_, index) => index) : this.#times;
    return [x, ...this.#order().map((index) => values[index])];
  }

  #draw() {
    const { axis: written, bars, even, format, height, sync, zone, onSelect } = this.#options;
    const isBar = (each) => bars && !each.line;
    const line = (name) => () => this.#colour(name);
    const style = getComputedStyle(this.#root);
    const font = () => `${style.fontSize} ${style.fontFamily}`;
    const axis = { stroke: line("--text-2"), font: font(), ticks: { show: false }, gap: 6 };
    this.#chart = new uPlot(
      {
        width: this.#width(),
        height,
        legend: { show: false },
        ms: 1e-3,
        tzDate: (time) => (zone ? uPlot.tzDate(new Date(time * 1e3), zone) : new Date(time * 1e3)),
        padding: [8, 18, 0, 0],
        cursor: {
          y: false,
          drag: { x: Boolean(onSelect), y: false, setScale: false },
          points: { size: 7, show: (chart, index) => this.#dot(chart, index) },
          ...(sync ? { sync: { key: sync, setSeries: false } } : {}),
        },
        scales: {
          x: even ? { time: false, range: (_, least, most) => [least - 0.5, most + 0.5] } : { time: true },
          y: { range: (_, least, most) => [Math.min(0, least ?? 0), most > 0 ? most * 1.06 : 1] },
        },
        axes: [
          {
            ...axis,
            size: 26,
            space: LEAST_LABEL,
            grid: { show: false },
            border: { show: true, stroke: line("--line"), width: 1 },
            ...(even
              ? {
                  splits: () => placesOf(this.#times.length, (this.#times.length * LEAST_LABEL) / this.#width()),
                  values: (_, places) => this.#labels(places.map((at) => this.#times[at])),
                }
              : { values: (_, times) => this.#labels(times) }),
          },
          {
            ...axis,
            space: 28,
            size: (chart, values) => this.#gutter(chart, values, font()),
            grid: { stroke: line("--line"), width: 1 },
            values: (_, values) => values.map((value) => (written ?? format)(value)),
            ...(areWhole(this.#series) ? { incrs: WHOLE } : {}),
          },
        ],
        series: [
          {},
          ...this.#order().map((index) => {
            const each = this.#series[index];
            const colour = line(each.colour);
            if (isBar(each)) {
              const paths = uPlot.paths.bars({ size: [0.72, 48], radius: [0.12, 0] });
              return { stroke: null, fill: colour, width: 0, paths, points: { show: false } };
            }
            return {
              stroke: colour,
              width: 1.5,
              ...(each.stack ? { fill: colour } : {}),
              ...(each.dash ? { dash: [5, 4] } : {}),
              // A value between two gaps is a dot, or nobody would see it.
              points: { show: (chart, at) => this.#areAlone(chart.data[at]), size: 4, fill: colour },
            };
          }),
        ],
        hooks: { setCursor: [() => this.#moved()], setSelect: [() => this.#selected()], draw: [() => this.#drawMark()] },
      },
      this.#data(),
      this.#picture,
    );
    this.#listenToChart();
  }

  #areAlone(values) {
    return values.some(
      (value, at) =>
        value !== null && value !== undefined && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null,
    );
  }

  /** The cursor's dot on a line; bars have none. */
  #dot(chart, index) {
    const each = this.#series[this.#order()[index - 1]];
    if (this.#options.bars && !each.line) return false;
    const dot = h("div", { class: "u-cursor-pt" });
    dot.style.background = this.#colour(each.colour);
    return dot;
  }

  #labels(times) {
    const span = this.#times.at(-1) - this.#times[0];
    return axisLabels(times, { span, step: this.#step(), zone: this.#options.zone });
  }

  #step() {
    return this.#options.step ?? stepOf(this.#times);
  }

  #gutter(chart, values, font) {
    if (!values) return 40;
    chart.ctx.save();
    chart.ctx.font = font;
    const widest = Math.max(...values.map((value) => chart.ctx.measureText(value).width));
    chart.ctx.restore();
    return Math.ceil(widest) + 14;
  }

  #drawMark() {
    if (this.#mark === null) return;
    const chart = this.#chart;
    const at = this.#options.even ? placeOf(this.#times, this.#mark) : this.#mark;
    if (at === null) return;
    const { ctx, bbox } = chart;
    const x = Math.round(chart.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.save();
    ctx.fillStyle = this.#colour("--accent");
    const wide = 2 * uPlot.pxRatio;
    ctx.fillRect(x - wide / 2, bbox.top, wide, bbox.height);
    ctx.beginPath();
    ctx.arc(x, bbox.top, 2 * wide, 0, 2 * Math.PI);
    ctx.fill();
    ctx.restore();
  }

  #width() {
    return Math.max(120, Math.floor(this.#root.clientWidth));
  }

  /* The cursor */

  #moved() {
    if (!this.#chart) return;
    const { idx, left } = this.#chart.cursor;
    this.#move(left < 0 ? null : (idx ?? null));
  }

  #move(index) {
    if (index === this.#index) return;
    this.#index = index;
    this.#say();
    this.#options.onPoint?.(index);
  }

  #put(index) {
    if (!this.#chart) return;
    if (index === null) {
      this.#chart.setCursor({ left: -10, top: -10 }, true, true);
      return;
    }
    const at = this.#options.even ? index : this.#times[index];
    this.#chart.setCursor({ left: this.#chart.valToPos(at, "x"), top: this.#chart.over.clientHeight / 2 }, true, true);
  }

  #written(index, at) {
    const value = this.#series[index].values[at];
    if (value === null || value === undefined) return "–";
    return this.#options.format(value);
  }

  #say() {
    const at = this.#index;
    const moment = at === null ? "" : momentOf(this.#times[at], this.#step(), this.#options.zone);
    this.#said.textContent = moment && this.#options.unit ? `${moment} · ${this.#options.unit}` : moment || this.#options.unit;
    this.#legend.querySelectorAll(".plot-value").forEach((value, index) => {
      value.textContent = at === null ? "" : this.#written(index, at);
    });
    const last = this.#times.length - 1;
    this.#picture.setAttribute("aria-valuemin", "0");
    this.#picture.setAttribute("aria-valuemax", String(Math.max(last, 0)));
    this.#picture.setAttribute("aria-valuenow", String(at ?? Math.max(last, 0)));
    this.#picture.setAttribute("aria-valuetext", at === null ? gettext("Arrow keys read the values") : this.#sentence(at, moment));
  }

  #sentence(at, moment) {
    const values = this.#series.map((each, index) => `${each.label} ${this.#written(index, at)}`);
    return `${moment}: ${values.join(", ")}${this.#options.unit ? ` ${this.#options.unit}` : ""}`;
  }

  #selected() {
    const { left, width } = this.#chart.select;
    if (width < 4) return;
    const ends = [left, left + width].map((x) => this.#timeAt(this.#chart.posToVal(x, "x")));
    this.#chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#options.onSelect?.(...ends);
  }

  #timeAt(x) {
    return this.#options.even ? this.#times[Math.min(Math.max(Math.round(x), 0), this.#times.length - 1)] : x;
  }

  /* The legend and the table */

  #drawLegend() {
    const several = this.#series.length > 1;
    this.#legend.replaceChildren(
      ...this.#series.map((each, index) => {
        const swatch = h("i", { class: each.dash ? "plot-swatch is-dash" : "plot-swatch" });
        swatch.style.setProperty("--swatch", each.colour.startsWith("--") ? `var(${each.colour})` : each.colour);
        const inside = [swatch, h("span", { text: each.label }), h("span", { class: "plot-value number" })];
        if (!several) return h("li", {}, ...inside);
        const button = h("button", { type: "button", "aria-pressed": "true" }, ...inside);
        button.addEventListener("click", () => this.#toggle(index, button));
        return h("li", {}, button);
      }),
    );
  }

  /** Shows a series or not; the last one shown stays. */
  #toggle(index, button) {
    const others = this.#shown.some((each, at) => each && at !== index);
    if (!others) return;
    this.#shown[index] = !this.#shown[index];
    button.setAttribute("aria-pressed", String(this.#shown[index]));
    this.#chart?.setData(this.#data());
  }

  #fillTable() {
    if (!this.#details.open) return;
    const { title, unit } = this.#options;
    const head = h("tr", {}, h("th", { scope: "col", text: gettext("Time") }));
    for (const { label } of this.#series) head.append(h("th", { scope: "col", class: "figure", text: label }));
    const rows = this.#times.map((time, at) =>
      h(
        "tr",
        {},
        h("th", { scope: "row", text: momentOf(time, this.#step(), this.#options.zone) }),
        ...this.#series.map((_, index) => h("td", { class: "figure", text: this.#written(index, at) })),
      ),
    );
    const named = unit && title ? fill(gettext("%(title)s, in %(unit)s"), { title, unit }) : (title ?? unit);
    this.#table.replaceChildren(h("caption", { class: "only-read", text: named }), h("thead", {}, head), h("tbody", {}, ...rows));
  }

  /* What happens to it */

  #listen() {
    const { signal } = this.#leave;
    // Bars keep their colours with their paths.
    const repaint = onceAFrame(() => this.#chart?.redraw(true, true));
    onColours(repaint, { signal });
    const fits = onceAFrame(() => {
      if (this.#chart && this.#chart.width !== this.#width())
        this.#chart.setSize({ width: this.#width(), height: this.#options.height });
    });
    const size = new ResizeObserver(fits);
    size.observe(this.#root);
    this.#observers.push(size);
    this.#details.addEventListener("toggle", () => this.#fillTable(), { signal });
    this.#picture.addEventListener("keydown", (event) => this.#pressed(event), { signal });
    this.#picture.addEventListener("blur", () => this.#put(null), { signal });
  }

  #pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#chart) return;
    const last = this.#times.length - 1;
    const at = this.#index;
    const page = Math.max(1, Math.round(last / 10));
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page, PageUp: page };
    const ends = { Home: 0, End: last };
    if (event.key in steps || event.key in ends) {
      // The first press enters at the end, where the newest is.
      const to = ends[event.key] ?? (at === null ? last : at + steps[event.key]);
      this.#extend(event, Math.min(Math.max(to, 0), last));
    } else if (event.key === "Enter" && this.#from !== null) {
      const span = [this.#times[Math.min(this.#from, at)], this.#times[Math.max(this.#from, at)]];
      this.#forget();
      this.#options.onSelect?.(...span);
    } else if ((event.key === "Enter" || event.key === " ") && at !== null && this.#options.onPick) {
      this.#options.onPick(at);
    } else if (event.key === "Escape" && at !== null) {
      this.#forget();
      this.#put(null);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Moves the cursor; with Shift, the span that Enter chooses grows with it. */
  #extend(event, to) {
    if (!event.shiftKey || !this.#options.onSelect) this.#forget();
    else this.#from ??= this.#index ?? to;
    this.#put(to);
    if (this.#from === null) return;
    const [left, right] = [this.#from, to]
      .map((index) => this.#chart.valToPos(this.#options.even ? index : this.#times[index], "x"))
      .sort((a, b) => a - b);
    this.#chart.setSelect({ left, top: 0, width: right - left, height: this.#chart.over.clientHeight }, false);
  }

  #forget() {
    if (this.#from === null) return;
    this.#from = null;
    this.#chart?.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  /** Choosing by pointer, and a cursor that follows a finger. */
  #listenToChart() {
    const { over } = this.#chart;
    const { onPick, onSelect } = this.#options;
    let picked = null;
    const at = (event) => {
      const { left } = over.getBoundingClientRect();
      return this.#chart.posToIdx(event.clientX - left);
    };
    const pick = (event) => {
      const index = at(event);
      if (index === picked) return;
      picked = index;
      onPick(index);
    };
    over.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      if (event.pointerType === "touch") this.#put(at(event));
      if (!onPick || onSelect) return;
      over.setPointerCapture(event.pointerId);
      pick(event);
    });
    over.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") this.#put(at(event));
      if (picked !== null) pick(event);
    });
    const done = () => (picked = null);
    over.addEventListener("pointerup", done);
    over.addEventListener("pointercancel", done);
    if (onPick && onSelect) over.addEventListener("click", (event) => onPick(at(event)));
  }
}
