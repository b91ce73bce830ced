// Records of a stream: the newest as they come, or those after a time or an offset.

import { el } from "./dom.js";
import { count, counted, time } from "./format.js";
import { ask } from "./store.js";

const KEPT_MAX = 500;
const INTERVAL_MS = 1000;
const PARTITIONS_MAX = 16;
const ATTRIBUTES_MAX = 6;
const LEVELS = { "": "any", 5: "debug and above", 9: "info and above", 13: "warning and above", 17: "error and above", 21: "fatal" };
const FROM = { "": "the newest", 5: "5 minutes ago", 60: "1 hour ago", 1440: "1 day ago", 10080: "7 days ago", time: "a time …" };

let fields;
let list;
let note;
let pause;
let later; // what shows later records, below them
let names;
let timer = 0;
let generation = 0;
let at = "";
let partitions = Object.create(null); // a stream may be called `constructor`
let shown = []; // [record, element], the newest first; when one looks back, the oldest first
let opened = ""; // PARTITION:OFFSET of the record that the address names
let blind = false;
let partial = "";
let told = "";

export const view = {
  title: "Tail",
  mount(root, context) {
    const wanted = context.parameters;
    const options = (all) => Object.entries(all).sort(([a], [b]) => (Number(a) || (a ? 1e9 : 0)) - (Number(b) || (b ? 1e9 : 0)))
      .map(([value, words]) => el("option", { value }, words));
    names = el("datalist", { id: "stream-names" });
    fields = {
      stream: el("input", { type: "text", list: "stream-names", placeholder: "stream", onchange: start, autocomplete: "off" }),
      subject: el("input", { type: "text", placeholder: "telemetry.logs.>", onchange: start, autocomplete: "off" }),
      text: el("input", { type: "search", placeholder: "text in the record", oninput: filter, onchange: start, autocomplete: "off" }),
      severity: el("select", { onchange: start }, options(LEVELS)),
      from: el("select", { onchange: chooseFrom }, options(FROM)),
      time: el("input", { type: "datetime-local", step: "1", onchange: start }),
    };
    for (const name of ["stream", "subject", "text", "severity", "from", "time"]) if (wanted.get(name)) fields[name].value = wanted.get(name);
    opened = wanted.get("record") ?? "";
    pause = el("button", { type: "button", "aria-pressed": "false", onclick: () => (isLive() ? hold(pause.getAttribute("aria-pressed") !== "true") : goLive()) }, "Pause");
    const more = el("button", { type: "button", onclick: () => look(generation) }, "Show later ones");
    note = el("p", { role: "status" }, "looking for the busiest stream …");
    list = el("ul", { class: "records", tabindex: "0", "aria-label": "Records" });
    const timeField = el("label", { hidden: true }, "Time", fields.time);
    fields.timeField = timeField;
    later = el("div", { class: "tools", hidden: true }, more);
    root.append(
      el("div", { class: "head" }, el("h1", {}, "Tail"), note),
      el("section", { class: "card", "aria-label": "Records" },
        el("div", { class: "tools" },
          el("label", {}, "Stream", fields.stream), names,
          el("label", {}, "Containing", fields.text),
          el("label", {}, "Severity", fields.severity),
          el("label", {}, "From", fields.from), timeField,
          el("label", {}, "Subject", fields.subject),
          pause, el("button", { type: "button", onclick: clear }, "Clear")),
        list, later));
    timeField.hidden = fields.from.value !== "time";
    if (fields.stream.value) start();
  },
  update(snapshot) {
    partitions = Object.create(null);
    for (const row of snapshot.streams.rows) (partitions[row.stream] ??= []).push(row.partition);
    const known = Object.keys(partitions);
    if (names.childElementCount !== known.length) names.replaceChildren(...known.map((name) => el("option", { value: name })));
    const here = document.activeElement === fields.stream;
    if (!fields.stream.value && !here && (fields.stream.value = busiest(snapshot.streams.rows))) start();
    else if (!fields.stream.value && snapshot.streams.problem) note.textContent = snapshot.streams.problem;
    else if (blind && partitions[fields.stream.value.trim()]) start();
  },
  unmount() {
    generation += 1;
    clearTimeout(timer);
    timer = 0;
    at = "";
    blind = false;
    opened = "";
    shown = [];
  },
};

/** The stream that grows fastest, or holds the most; logd's own do not count. */
function busiest(rows) {
  const streams = Object.create(null);
  for (const row of rows) {
    if (row.stream.startsWith("__")) continue;
    const sum = (streams[row.stream] ??= [row.stream, 0, 0]);
    sum[1] += row.rate ?? 0;
    sum[2] += row.records ?? 0;
  }
  return Object.values(streams).sort((a, b) => b[1] - a[1] || b[2] - a[2])[0]?.[0] ?? "";
}

const isLive = () => !fields.from.value && !opened;

function clear() {
  list.replaceChildren();
  shown = [];
  sayHowMany();
}

function chooseFrom() {
  fields.timeField.hidden = fields.from.value !== "time";
  opened = "";
  if (fields.from.value === "time" && !fields.time.value) fields.time.focus();
  else start();
}

function goLive() {
  fields.from.value = "";
  fields.timeField.hidden = true;
  opened = "";
  start();
}

function hold(on) {
  pause.setAttribute("aria-pressed", String(on));
  pause.textContent = on ? "Go on" : "Pause";
  generation += 1;
  clearTimeout(timer);
  if (!on && fields.stream.value) look(generation);
}

function address(more = {}) {
  const wanted = { stream: fields.stream.value.trim(), subject: fields.subject.value.trim(), text: fields.text.value.trim(),
    severity: fields.severity.value, from: fields.from.value, time: fields.from.value === "time" ? fields.time.value : "", record: opened, ...more };
  return `#/tail?${new URLSearchParams(Object.entries(wanted).filter(([, value]) => value))}`;
}

function start(event) {
  if (event) opened = "";
  generation += 1;
  clearTimeout(timer);
  told = "";
  list.replaceChildren();
  shown = [];
  const stream = fields.stream.value.trim();
  if (!stream) { note.textContent = "Choose a stream."; return; }
  blind = !partitions[stream];
  const all = partitions[stream] ?? [0];
  at = all.slice(0, PARTITIONS_MAX).join(",");
  if (/^\d+:\d+$/.test(opened)) {
    const [partition, offset] = opened.split(":");
    at = `${partition}:${Math.max(0, Number(offset) - 20)}`;
  }
  partial = all.length > PARTITIONS_MAX ? ` · the first ${PARTITIONS_MAX} of ${all.length} partitions` : "";
  history.replaceState(null, "", address());
  if (isLive()) { later.hidden = true; hold(false); return; }
  pause.setAttribute("aria-pressed", "false");
  pause.textContent = "Show the newest";
  look(generation);
}

function question() {
  const query = new URLSearchParams({ stream: fields.stream.value.trim(), at });
  if (fields.subject.value.trim()) query.set("subject", fields.subject.value.trim());
  if (fields.text.value.trim()) query.set("text", fields.text.value.trim());
  if (fields.severity.value) query.set("severity", fields.severity.value);
  if (isLive()) return query;
  query.set("back", "1");
  const since = fields.from.value === "time" ? new Date(fields.time.value).getTime() : Date.now() - Number(fields.from.value) * 60000;
  if (!opened && since > 0) query.set("since_ms", String(Math.round(since)));
  return query;
}

async function look(mine) {
  try {
    const answer = await ask(`/api/records?${question()}`);
    if (mine !== generation) return;
    at = Object.entries(answer.at).map(([partition, offset]) => `${partition}:${offset}`).join(",");
    show(answer);
  } catch (error) {
    if (mine !== generation) return;
    note.textContent = error.message;
  }
  if (isLive()) timer = setTimeout(look, INTERVAL_MS, mine);
}

function show(answer) {
  const made = answer.records.map((one) => [one, record(one)]);
  if (isLive()) {
    made.reverse();
    list.prepend(...made.map(([, element]) => element));
    shown = [...made, ...shown];
    for (const [, element] of shown.splice(KEPT_MAX)) element.remove();
  } else {
    list.append(...made.map(([, element]) => element));
    shown.push(...made);
    for (const [, element] of shown.splice(0, Math.max(0, shown.length - KEPT_MAX))) element.remove();
    later.hidden = answer.is_end;
  }
  told = answer.skipped ? ` · ${count(answer.skipped)} passed over: they come faster than they can be shown` : "";
  filter();
  const named = made.find(([one]) => `${one.partition}:${one.offset}` === opened);
  if (named) {
    named[1].classList.add("named");
    named[1].firstChild.open = true;
    named[1].firstChild.addEventListener("toggle", () => named[1].scrollIntoView({ block: "center" }), { once: true });
  }
}

/** Hides what is shown and does not match. */
function filter() {
  const wanted = fields.text.value.trim().toLowerCase();
  for (const [one, element] of shown) element.hidden = Boolean(wanted) && !haystack(one).includes(wanted);
  sayHowMany();
}

const haystack = (one) => [one.value, one.subject, one.key, JSON.stringify(one.headers)].join("\n").toLowerCase();

function sayHowMany() {
  const seen = shown.filter(([, element]) => !element.hidden).length;
  const how = isLive() ? "the newest first" : "the oldest first";
  note.textContent = `${counted(seen, "record")} of ${fields.stream.value.trim()} shown, ${how}${partial}${told}`;
}

function record(one) {
  const read = reading(one.value);
  const details = el("details", {}, el("summary", {},
    el("span", { class: "num muted", title: new Date(one.time_ms).toISOString() }, time(one.time_ms)),
    el("span", { class: `level ${read.tone}` }, read.level),
    el("span", { class: "subject", title: one.subject }, one.subject),
    el("span", { class: "text" }, read.text.slice(0, 400), read.attributes.map(([name, value]) => [" ", el("span", { class: "attribute" }, el("b", {}, name), `=${value}`)]))));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(el("div", { class: "whole" }, tools(one), el("pre", {}, whole(one))));
  });
  return el("li", {}, details);
}

function tools(one) {
  const outcome = el("span", { class: "muted", role: "status" });
  const copyIt = async () => {
    try {
      await copy(JSON.stringify(await exported(one), null, 2));
      outcome.textContent = "Copied.";
    } catch (error) {
      outcome.textContent = `Not copied: ${error.message}`;
    }
  };
  return el("div", { class: "tools" }, el("button", { type: "button", onclick: copyIt }, "Copy as JSON"),
    el("a", { href: `#/tail?${new URLSearchParams({ stream: fields.stream.value.trim(), record: `${one.partition}:${one.offset}` })}` }, "Link to this record"), outcome);
}

/** A record with all of its value, also where the list has only the beginning. */
async function exported(one) {
  const stream = fields.stream.value.trim();
  let all = one;
  if (one.cut) {
    const query = new URLSearchParams({ stream, at: `${one.partition}:${one.offset}`, whole: "1" });
    all = (await ask(`/api/records?${query}`)).records[0];
    if (all?.offset !== one.offset) throw new Error("the stream does not have it any more");
    if (all.cut) throw new Error("it is longer than the console sends; use penstock logd fetch");
  }
  return { stream, partition: all.partition, offset: all.offset, time: new Date(all.time_ms).toISOString(), subject: all.subject,
    key: all.key, headers: all.headers, value: parsed(all.value) ?? all.value };
}

/** To the clipboard; browsers give it to pages of https and of this machine alone. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = el("textarea", { class: "unseen" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("the browser does not allow it");
}

function whole(one) {
  const head = [`offset ${one.offset} of partition ${one.partition}`, new Date(one.time_ms).toISOString(), one.subject];
  if (one.key !== null) head.push(`key ${one.key}`);
  for (const [name, value] of one.headers) head.push(`${name}: ${value}`);
  const cut = one.cut ? `\n… and ${one.cut} characters more` : "";
  return `${head.join("\n")}\n\n${pretty(one.value)}${cut}`;
}

function parsed(value) {
  try { return JSON.parse(value); } catch { return undefined; }
}

/** What a record says, in a line: of Penstock's own kinds the body or the name, else all of it. */
function reading(value) {
  if (value === null) return { text: "(tombstone)", level: "", tone: "", attributes: [] };
  const document = parsed(value);
  if (document === null || typeof document !== "object" || Array.isArray(document)) return { text: value, level: "", tone: "", attributes: [] };
  const { severity_text: words, severity_number: number, status_code: status, body, name, value: figure, unit } = document;
  const severity = typeof number === "number" ? number : status === "ERROR" ? 17 : 0;
  const level = typeof words === "string" && words ? words : status === "ERROR" ? "ERROR" : "";
  const tone = severity >= 17 ? "bad" : severity >= 13 ? "warn" : severity >= 9 ? "info" : "";
  const said = typeof body === "string" ? body : typeof name === "string" ? [name, typeof figure === "number" ? figure : "", typeof figure === "number" ? unit ?? "" : ""].join(" ").trim() : value;
  const attributes = Object.entries(document.attributes ?? {}).slice(0, ATTRIBUTES_MAX)
    .map(([key, held]) => [key, String(typeof held === "object" ? JSON.stringify(held) : held).slice(0, 80)]);
  return { text: said, level, tone, attributes };
}

export function pretty(value) {
  if (value === null) return "(tombstone)";
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch { return value; }
}
