// The way of one record as a picture: collector, log, and each job's sinks.

import { el } from "./dom.js";
import { mark, fatePill, toneOf } from "./fates.js";
import { instant } from "./format.js";

const SINKS_MAX = 200;
const NAMES_MAX = 5;

/** The picture; `answer`: what a search says, for the parts that could not be asked. */
export function wayOf(record, answer) {
  const silent = Object.entries(answer.not_asked ?? {});
  const collectors = silent.filter(isCollector);
  const branches = record.sinks.slice(0, SINKS_MAX).map(sink).concat(silent.filter((one) => !isCollector(one)).map(unasked));
  const more = Math.max(0, record.sinks.length - SINKS_MAX) + (answer.not_asked_more ?? 0);
  if (more) branches.push(el("li", { class: "branch" }, el("p", {}, `and ${more} more`)));
  if (!branches.length) branches.push(el("li", { class: "branch" }, el("p", {}, mark("", "no job reads it")),
    el("p", { class: "muted" }, "No job that was asked reads this stream.")));
  return el("ol", { class: "way", "aria-label": `The way of record ${record.stream}/${record.partition}/${record.offset}` },
    el("li", { class: "stage" }, el("h3", {}, "Came in"), cameIn(record.origin, collectors)),
    el("li", { class: "stage" }, el("h3", {}, "Log"), stored(record)),
    el("li", { class: "stage ends" }, el("h3", {}, "Sinks"), el("ul", { class: "branches" }, branches)));
}

/** A part that has never answered is what its name begins with, as everywhere in the console. */
const isCollector = ([name]) => name.startsWith("collector");

function cameIn(origin, silent) {
  const known = Boolean(origin?.collector);
  const facts = known ? [["Collector", origin.collector], ["Source", origin.source]] : [];
  if (origin?.received_ns) facts.push(["Received", instant(origin.received_ns)]);
  return el("div", { class: `node ${known ? "ok" : "ask"}` },
    known ? mark("ok", "received") : mark("ask", "collector not known"),
    known ? null : el("p", { class: "said" }, origin?.reason ?? "The parts were not asked."), list(facts),
    !known && silent.length ? [fatePill("not_asked"), el("p", { class: "said" }, silent.map(([name]) => name).slice(0, NAMES_MAX).join(", ") + (silent.length > NAMES_MAX ? ` and ${silent.length - NAMES_MAX} more` : ""))] : null);
}

function stored(record) {
  const facts = [["Stream", record.stream], ["Partition", record.partition], ["Offset", record.offset.toLocaleString("en")]];
  if (record.subject) facts.push(["Subject", record.subject]);
  if (record.time_ns) facts.push(["Time", instant(record.time_ns)]);
  const tone = record.missing ? "bad" : "ok";
  return el("div", { class: `node ${tone}` }, mark(tone, record.missing ? "not in the log" : "stored"),
    record.missing ? el("p", {}, record.missing) : null, list(facts));
}

function sink(verdict) {
  return el("li", { class: `branch node ${toneOf(verdict.fate)}` },
    el("p", { class: "name" }, el("strong", {}, `${verdict.job}/${verdict.sink}`), fatePill(verdict.fate)),
    verdict.says.filter(Boolean).map((said) => el("p", { class: "said" }, said)));
}

function unasked([name, reason]) {
  return el("li", { class: "branch node ask" },
    el("p", { class: "name" }, el("strong", {}, name), fatePill("not_asked")), el("p", { class: "said" }, reason));
}

const list = (facts) => el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
