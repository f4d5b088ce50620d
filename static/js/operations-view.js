/* The operators' dashboard as elements: each function draws one section out of the figures, from nothing. What is already
   there is brought to that by morph (operations.js), so nothing here listens to anything. */

import { h } from "#octavo/dom.js";
import { exactTime, relativeTime } from "#octavo/format.js";
import { ago, compact, count, many, parts, percent, size, span, verdict } from "#octavo/operations-words.js";

const SVG = "http://www.w3.org/2000/svg";
const PHASES = [["queue", "queue_s"], ["prefill", "prefill_s"], ["decode", "decode_s"], ["on the way", "rest_s"]];
const MEMORY = ["used", "cached"];

/** A bar of `parts`; `mark`: where a line stands across it. What it says is said in words beside it too. */
function bar(named, whole, mark = null) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "bar");
  svg.setAttribute("aria-hidden", "true");
  const rect = (name, from, width) => {
    const part = document.createElementNS(SVG, "rect");
    for (const [key, value] of [["class", name.replaceAll(" ", "-")], ["x", from], ["width", width], ["y", 0], ["height", 1]])
      part.setAttribute(key, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
    svg.append(part);
  };
  for (const [name, from, width] of parts(named, whole)) rect(name, from, width);
  if (mark !== null) rect("due", Math.min(mark * 100, 99), 1);
  return svg;
}

const state = (one) => h("span", { class: `state ${one.state}` }, h("i", { "aria-hidden": "true" }), h("span", { text: one.says }));
const quiet = (text) => h("p", { class: "quiet", text });
const fact = (name, ...value) => h("div", {}, h("dt", { text: name }), h("dd", {}, ...value));

function time(iso) {
  return h("time", { datetime: iso, title: exactTime(iso), text: relativeTime(iso) });
}

function table(name, columns, rows) {
  const heads = columns.map(([text, kind]) => h("th", { scope: "col", class: kind, text }));
  const body = rows.map(({ key, cells }) =>
    h("tr", { "data-key": key }, ...cells.map((cell, at) => h("td", { class: columns[at][1] }, ...[cell].flat()))),
  );
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${name}` },
    h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...body)));
}

const link = (href, text) => (href ? h("a", { href, text }) : text);
const filled = (address, worker) => address.replace("WORKER", encodeURIComponent(worker));

// --- the sections ---------------------------------------------------------------------------------------------------

export function drawVerdict({ findings }) {
  const { worst, text } = verdict(findings);
  const lines = findings.slice(0, 8).map((one) =>
    h("li", { class: one.state }, h("i", { "aria-hidden": "true" }), h("a", { href: `#of-${one.where}`, text: one.text })),
  );
  const more = findings.length - lines.length;
  return [
    h("p", { class: `overall ${worst}` }, h("i", { "aria-hidden": "true" }), h("strong", { text })),
    lines.length > 0 && h("ul", {}, ...lines),
    more > 0 && quiet(`And ${count(more)} more, below.`),
  ];
}

export function drawModels({ engines }) {
  if (!engines) return [quiet("Redis does not answer, so nothing is known of models and workers.")];
  const columns = [["Model", "name"], ["State", "name"], ["Workers", "n"], ["Running", "n"], ["Waiting", "n"], ["Longest wait", "n"]];
  return [
    table("models", columns, engines.models.map((one) => ({
      key: one.name,
      cells: [
        h("strong", { text: one.name }),
        state(one),
        one.taking === one.workers ? count(one.workers) : `${count(one.taking)} of ${count(one.workers)}`,
        count(one.running),
        one.queued ? `${count(one.queued)} from ${many(one.teams, "team")}` : "0",
        one.queued ? span(one.oldest_s) : "–",
      ],
    }))),
  ];
}

export function drawWorkers({ engines }, rates, places) {
  if (!engines) return [quiet("Not known without Redis.")];
  if (!engines.workers.length)
    return [
      h("div", { class: "none" },
        h("h3", { text: "No worker is there" }),
        h("p", {}, "A worker is a process that has a model in memory and answers. Start one with ",
          h("code", { text: "python -m engine.worker" }), ", or all of Octavo with ", h("code", { text: "make run" }),
          ". It shows up here by itself.")),
    ];
  return [h("ul", { class: "workers" }, ...engines.workers.map((one) => worker(one, rates[one.id], places)))];
}

function worker(one, rate, places) {
  const known = one.used !== null;
  const memory = known
    ? `${percent(one.used / one.blocks)} used, ${percent(one.cached / one.blocks)} cached, of ${compact(one.blocks)} blocks`
    : `${compact(one.blocks)} blocks of ${count(one.tokens_a_block)} tokens`;
  const speed = [rate !== undefined && `${rate > 0 && rate < 10 ? rate.toFixed(1) : count(Math.round(rate))} a second`, one.step_ms > 0 && `${one.step_ms.toFixed(one.step_ms < 10 ? 1 : 0)} ms each`];
  const what = [one.model, one.host, one.device, one.threads > 0 && many(one.threads, "thread"), one.dtype, one.version && `version ${one.version}`];
  return h("li", { "data-key": one.id, class: "worker" },
    h("div", { class: "head" },
      h("h3", {}, h("a", { href: `${places.blocks}?worker=${encodeURIComponent(one.id)}`, text: one.id, title: "Its block table" })),
      button(one, places)),
    state(one),
    h("p", { class: "quiet", text: what.filter(Boolean).join(" · ") }),
    known && bar(MEMORY.map((name) => [name, one[name]]), one.blocks),
    h("p", { class: "quiet", text: memory }),
    h("dl", {},
      fact("Running", count(one.running)),
      fact("Waiting in it", count(one.waiting)),
      fact("Steps", count(one.steps), h("small", { text: speed.filter(Boolean).join(", ") })),
      fact("Preempted", count(one.preemptions)),
      fact("Heartbeat", ago(one.beat_s)),
      one.started_ms > 0 && fact("Started", time(new Date(one.started_ms).toISOString()))));
}

/** A form, so that it works by keyboard and touch as all buttons do; the page gives it its token. */
function button(one, places) {
  if (!one.can) return null;
  const drains = one.can === "drain";
  return h("form", { method: "post", action: filled(drains ? places.drain : places.take, one.id), "data-key": `${one.can} ${one.id}` },
    h("input", { type: "hidden", name: "csrfmiddlewaretoken", value: places.token }),
    h("button", {
      type: "submit",
      text: drains ? "Drain" : "Take again",
      title: drains ? "It finishes what it has and takes nothing new" : "It takes requests as before",
      "aria-label": `${drains ? "Drain" : "Take again"}: ${one.id}`,
    }));
}

export function drawQueues({ engines }) {
  if (!engines) return [quiet("Not known without Redis.")];
  if (!engines.queues.length) return [quiet("Nothing waits: every question is with a worker.")];
  const columns = [["Team", "name"], ["Model", "name"], ["Waiting", "n"], ["Longest wait", "n"], ["Size", "n"]];
  return [
    table("queues", columns, engines.queues.map((one) => ({
      key: `${one.model} ${one.tenant}`,
      cells: [one.team, one.model, count(one.queued), span(one.oldest_s), size(one.bytes)],
    }))),
    engines.more_queues > 0 && quiet(`And ${many(engines.more_queues, "more queue")} with shorter waits.`),
  ];
}

export function drawTeams({ teams, more_teams: more }, places) {
  if (!teams.length) return [quiet("No team has used anything in the last 24 hours. What is asked now is counted within a minute.")];
  const columns = [["Team", "name"], ["Weight", "n"], ["Share of what was computed", "wide"], ["Requests", "n"], ["Prompt tokens", "n"], ["Cached", "n"], ["Output", "n"], ["Open now", "n"]];
  return [
    table("teams", columns, teams.map((one) => ({
      key: one.slug,
      cells: [
        link(one.link, one.name),
        String(one.weight),
        [bar([["decode", one.share]], 1, one.due), h("small", { text: `${percent(one.share)}; its weight is ${percent(one.due)}` })],
        compact(one.requests),
        compact(one.prompt),
        one.prompt ? percent(one.cached / one.prompt) : "–",
        compact(one.output),
        one.unfinished ? count(one.unfinished) : "–",
      ],
    }))),
    quiet("Computed are prompt tokens that were not cached, and output. The line in a bar is the share that the weight gives while all of these teams ask at once; who asks alone may have everything."),
    more > 0 && h("p", { class: "quiet" }, h("a", { href: places.teams, text: `${many(more, "more team")}` })),
  ];
}

export function drawSlow({ slow }, places) {
  if (!slow.length) return [quiet("Nothing was answered in the last hour.")];
  const longest = Math.max(...slow.map((one) => one.total_s));
  const columns = [["Asked", "one"], ["Team", "name"], ["Took", "n"], ["Where the time went", "wide"], ["Tokens", "n"], ["Ended"]];
  const legend = h("ul", { class: "legend" }, ...PHASES.map(([name]) => h("li", {}, h("i", { class: name.replaceAll(" ", "-"), "aria-hidden": "true" }), name)));
  return [
    legend,
    table("slow requests", columns, slow.map((one) => ({
      key: one.id,
      cells: [
        one.link ? h("a", { href: one.link }, time(one.at)) : time(one.at),
        [one.team, h("small", { text: `${one.model}, ${one.kind === "api" ? "API" : "chat"}` })],
        span(one.total_s),
        [bar(PHASES.map(([name, field]) => [name, one[field]]), longest), h("small", { text: phases(one) })],
        [`${compact(one.prompt)} + ${compact(one.output)}`, h("small", { text: `${compact(one.cached)} cached` })],
        one.state,
      ],
    }))),
    h("p", { class: "quiet" }, h("a", { href: places.generations, text: "All generations" })),
  ];
}

const phases = (one) =>
  PHASES.filter(([, field]) => one[field] >= 0.005)
    .map(([name, field]) => `${name} ${span(one[field])}`)
    .join(" · ");

const FAULTS = { dead: "Dead letters", answers: "Answers", workers: "Worker", tasks: "Background task", records: "Record", webhooks: "Webhooks" };

export function drawFaults({ faults }) {
  if (!faults.length) return [quiet("Nothing went wrong: no answer failed, no worker vanished, no task broke.")];
  const columns = [["What", "one"], ["Code"], ["Meaning", "wide"], ["Times", "n"], ["Last", "one"]];
  return [
    table("faults", columns, faults.map((one) => ({
      key: `${one.kind} ${one.code} ${one.says}`,
      cells: [
        FAULTS[one.kind] ?? one.kind,
        one.link ? h("a", { href: one.link }, h("code", { text: one.code })) : h("code", { text: one.code }),
        one.says || "–",
        count(one.count),
        ago(one.ago_s),
      ],
    }))),
  ];
}

const PARTS = [["redis", "Redis"], ["database", "Database"], ["background", "Recorder and background work"]];

export function drawHealth({ health }) {
  return [
    h("div", { class: "cards" }, ...PARTS.filter(([name]) => health[name].length).map(([name, title]) =>
      h("div", { class: "card" }, h("h3", { text: title }),
        h("dl", {}, ...health[name].map((sign) =>
          h("div", { class: sign.state, "data-key": sign.name },
            h("dt", { text: sign.name }),
            h("dd", {}, sign.value, sign.says && h("small", { text: sign.says })))))))),
  ];
}
