// Specs of records: versions, fields, producers, records a minute, and what collectors refused.

import { el, figure, patch, table } from "./dom.js";
import { count, counted, span } from "./format.js";
import { ask } from "./store.js";

const INTERVAL_MS = 5000;

let body;
let note;
let filter;
let found = { specs: [], violations: [], problem: "" };
let timer = 0;
let generation = 0;

export const view = {
  title: "Specs",
  mount(root) {
    note = el("p", { role: "status" }, "looking …");
    filter = el("input", { type: "search", placeholder: "spec, producer or field", oninput: draw });
    body = el("div");
    root.append(el("div", { class: "head" }, el("h1", {}, "Specs"), note),
      el("div", { class: "tools bare" }, el("label", {}, "Show", filter)), body);
    generation += 1;
    look(generation);
  },
  update() {},
  unmount() {
    generation += 1;
    clearTimeout(timer);
  },
};

async function look(mine) {
  try {
    const answer = await ask("/api/specs");
    if (mine !== generation) return;
    found = answer;
    draw();
  } catch (error) {
    if (mine !== generation) return;
    note.textContent = error.message;
  }
  timer = setTimeout(look, INTERVAL_MS, mine);
}

function draw() {
  const wanted = filter.value.trim().toLowerCase();
  const chosen = found.specs.filter((one) => !wanted || [one.spec, ...Object.keys(one.producers), ...one.fields.map((field) => field.name)]
    .some((text) => text.toLowerCase().includes(wanted)));
  const kinds = new Set(found.specs.map((one) => one.spec));
  note.textContent = [`${counted(kinds.size, "spec")} seen since the console started, in samples of the busiest streams`, found.problem].filter(Boolean).join(" · ");
  patch(body, [seen(chosen), refused(), ...chosen.map(fields)]);
}

const names = (counts) => Object.keys(counts).slice(0, 4).join(", ") + (Object.keys(counts).length > 4 ? ` and ${Object.keys(counts).length - 4} more` : "");

function seen(specs) {
  const rows = specs.map((one) => [el("th", { scope: "row" }, one.spec), el("td", {}, one.version || "–"), figure(count(one.records_per_minute)),
    figure(count(one.fields.length)), el("td", {}, names(one.producers)), el("td", {}, names(one.streams)), figure(span(Date.now() - one.last_ms))]);
  return el("section", { class: "card" }, el("header", {}, el("h2", {}, "Specs seen")),
    rows.length ? table("Specs", ["Spec", "Version", "#Records a minute", "#Fields", "Producers", "Streams", "#Last seen"], rows)
      : el("p", { class: "empty" }, "None yet: records are looked at every 10 seconds."));
}

function refused() {
  const rows = found.violations.map((one) => [el("th", { scope: "row" }, one.reason), figure(count(one.records)), el("td", {}, one.source), el("td", { class: "muted" }, one.collector)]);
  return el("section", { class: "card" }, el("header", {}, el("h2", {}, "Violations"),
    el("p", { class: "muted" }, "records that collectors put into quarantine, since each of them started")),
  rows.length ? table("Violations by reason", ["Reason", "#Records", "Source", "Collector"], rows) : el("p", { class: "empty" }, "No collector refused a record."));
}

function fields(one) {
  const rows = one.fields.map((field) => [el("th", { scope: "row" }, el("code", {}, field.name)), el("td", {}, field.types.join(" or ")), figure(`${field.share < 0.01 ? "<1" : Math.round(field.share * 100)} %`)]);
  return el("details", { class: "card fold" },
    el("summary", {}, el("h2", {}, `Fields of ${one.spec}${one.version ? ` ${one.version}` : ""}`), el("span", { class: "muted" }, `${count(one.fields.length)} in ${counted(one.sampled, "record")} looked at`)),
    table(`Fields of ${one.spec} ${one.version}`, ["Field", "Holds", "#In"], rows));
}
