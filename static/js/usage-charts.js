/* Charts of what was used: draws into every `[data-chart]` what the page carries as JSON (chatapp/dashboard/charts.py).

   A span of days drawn with the mouse, or by Shift and arrows, leads to the same page of those days. */

import { duration } from "#octavo/format.js";
import { gettext, language } from "#octavo/i18n.js";
import { plot } from "#octavo/plot.js";

/** Thousands and millions on an axis. */
const short = (value) =>
  new Intl.NumberFormat(language(), { notation: "compact", maximumFractionDigits: 1 }).format(value);

const percentiles = (data, what) => [
  { label: gettext("Median"), values: data[`${what}_p50`], colour: "--accent" },
  { label: gettext("95 % within"), values: data[`${what}_p95`], colour: "--warn", dash: true },
];

const failed = (data) => [
  { label: gettext("Failed"), values: data.failed, colour: "--bad", stack: true },
  { label: gettext("Refused"), values: data.refused, colour: "--warn", stack: true },
];

/** What each chart shows. `whole`: nothing but zeros is nothing to show. */
const CHARTS = {
  tokens: (data) => ({
    bars: true,
    height: 224,
    axis: short,
    unit: gettext("tokens"),
    series: [
      { label: gettext("Output"), values: data.output, colour: "--accent", stack: true },
      { label: gettext("Prompt, computed"), values: data.uncached, colour: "--plot-medium", stack: true },
      { label: gettext("Prompt, from memory"), values: data.cached, colour: "--plot-pale", stack: true },
    ],
  }),
  requests: (data) => ({
    bars: true,
    axis: short,
    unit: gettext("requests"),
    series: [
      { label: gettext("Finished"), values: data.finished, colour: "--accent", stack: true },
      { label: gettext("Stopped"), values: data.cancelled, colour: "--plot-pale", stack: true },
      ...failed(data),
    ],
  }),
  errors: (data) => ({
    bars: true,
    axis: short,
    unit: gettext("requests"),
    series: failed(data),
    empty: gettext("No answer failed and none was refused in this period."),
  }),
  first_token: (data) => ({
    even: true,
    format: duration,
    series: percentiles(data, "first_token"),
    empty: gettext("No answer has said a first token in this period."),
  }),
  between_tokens: (data) => ({
    even: true,
    format: duration,
    series: percentiles(data, "between_tokens"),
    empty: gettext("No answer was longer than one token in this period."),
  }),
};

const isQuiet = ({ bars, series }) => bars && series.every(({ values }) => values.every((value) => value === 0));

function lookAt(data, from, to) {
  const [first, last] = [from, to].map((time) => data.days[data.times.indexOf(time)]);
  const address = new URL(location.href);
  for (const [name, value] of [["period", "custom"], ["from", first], ["to", last]]) address.searchParams.set(name, value);
  address.searchParams.delete("page");
  location.assign(address);
}

const told = document.getElementById("chart");
if (told) {
  const data = JSON.parse(told.textContent);
  for (const place of document.querySelectorAll("[data-chart]")) {
    const shown = CHARTS[place.dataset.chart](data);
    const title = place.closest("figure").querySelector("figcaption").textContent.trim();
    plot(place, {
      ...shown,
      title,
      times: isQuiet(shown) ? [] : data.times,
      step: data.step,
      zone: data.zone,
      sync: "usage",
      ...(data.days.length > 1 ? { onSelect: (from, to) => lookAt(data, from, to) } : {}),
    });
  }
}
