// Search: a form, the records that match, and for one of them its way and its trace.
// The address has the whole question, so that it can be shared, and the back button works.

import { el, say, table } from "./dom.js";
import { edgeFate, mark, summary } from "./fates.js";
import { count, counted, date, instant, time } from "./format.js";
import { ask } from "./store.js";
import { pretty } from "./tail.js";
import { positionOf, severityTone, waterfallOf } from "./waterfall.js";
import { wayOf } from "./way.js";

const POLL_MS = 400;
const EDGES_MAX = 50;
const KINDS_MAX = 3;
const TRACE_NS = 3600e9; // of a trace, records an hour before and after the one that is shown
const NAMES = ["service", "text", "severity", "trace_id", "record_id", "where", "stopped", "stream", "from", "to", "after"];
const TEXTS = ["service", "text", "severity", "trace_id", "record_id", "where", "stopped", "stream"];
const TERMS = ["service", "text", "severity", "trace_id", "record_id", "where"];
const SEVERITIES = { "": "any", 5: "debug and above", 9: "info and above", 13: "warning and above", 17: "error and above", 21: "fatal" };
const SINCE = { "15m": "15 minutes ago", "1h": "1 hour ago", "6h": "6 hours ago", "1d": "1 day ago", "7d": "7 days ago", earliest: "the beginning of the log", time: "a time …" };
const STOPPED = { "": "are named", yes: "answer by their files" };
const UNTIL = { "": "now", time: "a time …" };
const FROM = "1h";

let go;
let wanted; // the question of the address, by field
let fields = {};
let names;
let output;
let status;
let generation = 0;
let running = ""; // id of the search that is under way
let cached = { key: "", answer: null, at: 0 };
let opened = ""; // position of the record that was shown last

export const view = {
  title: "Search",
  mount(root, context) {
    go = context.go;
    generation += 1;
    wanted = Object.fromEntries(NAMES.map((name) => [name, context.parameters.get(name) ?? ""]).filter(([, value]) => value));
    const record = context.parameters.get("record") ?? "";
    if (record) mountRecord(root, record);
    else mountForm(root);
  },
  update(snapshot) {
    if (!names?.isConnected) return;
    const known = [...new Set(snapshot.streams.rows.map((row) => row.stream))];
    if (names.childElementCount !== known.length) names.replaceChildren(...known.map((name) => el("option", { value: name })));
  },
  unmount() {
    generation += 1;
    cancel();
  },
};

const addressOf = (parameters) => `#/search?${new URLSearchParams(parameters)}`;
const recordAddress = (record) => addressOf({ ...wanted, record: positionOf(record) });
const keyOf = (question) => JSON.stringify(Object.entries(question).sort());

function cancel() {
  if (running) ask(`/api/searches/${running}`, { method: "DELETE", keepalive: true }).catch(() => {});
  running = "";
}

/** Runs a search; `told(progress)` while it runs. Throws what it ended with; returns null when the page went on. */
async function search(question, mine, told) {
  cancel();
  const sent = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) };
  const { id } = await ask("/api/searches", sent);
  if (mine !== generation) {
    ask(`/api/searches/${id}`, { method: "DELETE" }).catch(() => {});
    return null;
  }
  running = id;
  for (;;) {
    const { state, progress, answer } = await ask(`/api/searches/${id}`);
    if (mine !== generation) return null;
    if (state === "running") {
      told(progress);
      await new Promise((done) => setTimeout(done, POLL_MS));
      if (mine !== generation) return null;
      continue;
    }
    if (running === id) running = "";
    if (state === "failed") throw Object.assign(new Error(answer.error), answer.fields ? { code: "FORM", fields: answer.fields } : {});
    if (state === "cancelled") throw new Error(`Cancelled; ${counted(progress.looked_at, "record")} had been looked at.`);
    return answer;
  }
}

// The form

function mountForm(root) {
  const choice = (all) => Object.entries(all).sort(([a], [b]) => (Number(a) || 0) - (Number(b) || 0)).map(([value, words]) => el("option", { value }, words));
  names = el("datalist", { id: "search-streams" });
  fields = {
    service: el("input", { type: "text", autocomplete: "off" }),
    severity: el("select", {}, choice(SEVERITIES)),
    text: el("input", { type: "search", autocomplete: "off" }),
    trace_id: el("input", { type: "text", autocomplete: "off", spellcheck: "false", class: "mono" }),
    record_id: el("input", { type: "text", autocomplete: "off", spellcheck: "false", class: "mono" }),
    stream: el("input", { type: "text", list: "search-streams", placeholder: "all", autocomplete: "off" }),
    from: el("select", { onchange: showTimes }, Object.entries(SINCE).map(([value, words]) => el("option", { value }, words))),
    from_time: el("input", { type: "datetime-local", step: "1" }),
    to: el("select", { onchange: showTimes }, Object.entries(UNTIL).map(([value, words]) => el("option", { value }, words))),
    to_time: el("input", { type: "datetime-local", step: "1" }),
    where: el("input", { type: "text", autocomplete: "off", spellcheck: "false", class: "mono" }),
    stopped: el("select", {}, Object.entries(STOPPED).map(([value, words]) => el("option", { value }, words))),
  };
  fill();
  const form = el("form", { class: "search-form", novalidate: true, "aria-label": "Search", onsubmit: submit },
    field("service", "Service"), field("severity", "Severity"), field("text", "Text", "in body or name; case counts"),
    field("trace_id", "Trace id", "32 hexadecimal digits"), field("record_id", "Record id"), field("stream", "Stream", "several with commas between"), names,
    field("from", "From", "", fields.from_time), field("to", "To", "", fields.to_time),
    field("stopped", "Jobs that do not run", "reading takes some seconds"), field("where", "Condition", "as in a route, instead of the other terms: service = 'shop' and body like '%declined%'"),
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "main" }, "Search"),
      el("button", { type: "button", onclick: () => go("search") }, "Clear")));
  status = el("p", { role: "status" }, "Say what to look for.");
  output = el("div");
  root.append(el("div", { class: "head" }, el("h1", {}, "Search"), status), el("section", { class: "card", "aria-label": "What to look for" }, form), output);
  showTimes();
  if (cached.answer && cached.key === keyOf(wanted)) {
    showAnswer(cached.answer);
    const back = opened;
    opened = "";
    if (back) queueMicrotask(() => [...output.querySelectorAll("a[data-position]")].find((one) => one.dataset.position === back)?.focus());
  } else if (TERMS.some((name) => wanted[name])) run();
}

function field(name, title, hint = "", more = null) {
  const input = fields[name];
  const about = [hint ? `hint-${name}` : "", `error-${name}`].filter(Boolean).join(" ");
  for (const one of [input, more].filter(Boolean)) {
    one.setAttribute("aria-describedby", about);
    one.setAttribute("id", one === input ? `search-${name}` : `search-${name}-time`);
  }
  more?.setAttribute("aria-label", `${title}, the time`);
  return el("div", { class: `field ${name}` }, el("label", { for: `search-${name}` }, title), input, more,
    hint ? el("span", { class: "hint", id: `hint-${name}` }, hint) : null, el("span", { class: "wrong", id: `error-${name}` }));
}

function fill() {
  for (const name of TEXTS) fields[name].value = wanted[name] ?? "";
  for (const [name, presets, usual] of [["from", SINCE, FROM], ["to", UNTIL, ""]]) {
    const value = wanted[name] ?? (wanted.after || TERMS.some((one) => wanted[one]) ? "" : usual);
    const preset = name === "from" && value === "" ? "earliest" : value;
    const isTime = !Object.hasOwn(presets, preset) || preset === "time";
    fields[name].value = isTime ? "time" : preset;
    const moment = new Date(value);
    if (isTime && !Number.isNaN(moment.getTime())) fields[`${name}_time`].value = localText(moment);
  }
}

/** As a field of the browser's own time has it. */
const localText = (moment) => `${date(moment.getTime())}T${time(moment.getTime()).slice(0, 8)}`;

function showTimes() {
  fields.from_time.hidden = fields.from.value !== "time";
  fields.to_time.hidden = fields.to.value !== "time";
}

/** The form as a question: fields that are empty are left out. */
function asked() {
  const found = {};
  for (const name of TEXTS) found[name] = fields[name].value.trim();
  for (const name of ["from", "to"]) {
    const moment = new Date(fields[`${name}_time`].value);
    found[name] = fields[name].value !== "time" ? fields[name].value : Number.isNaN(moment.getTime()) ? "?" : moment.toISOString().replace(".000Z", "Z");
  }
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
}

function submit(event) {
  event.preventDefault();
  cached = { key: "", answer: null, at: 0 };
  const question = asked();
  const address = addressOf(question);
  if (address === location.hash || !TERMS.some((name) => question[name])) {
    wanted = question;
    generation += 1;
    run();
  } else go("search", question);
}

function mistakes(found) {
  for (const name of [...Object.keys(fields)]) {
    const words = found[name] ?? "";
    const place = document.getElementById(`error-${name}`);
    if (place) say(place, words);
    if (words) fields[name].setAttribute("aria-invalid", "true"); else fields[name].removeAttribute("aria-invalid");
  }
  const first = Object.keys(fields).find((name) => found[name]);
  if (first) fields[first].focus();
}

// Results

async function run() {
  const mine = generation;
  const question = { ...wanted };
  mistakes({});
  say(status, "Searching …");
  const bar = el("progress", { "aria-label": "Partitions looked at" });
  const words = el("p", { class: "muted" }, "beginning …");
  const stop = el("button", { type: "button", onclick: cancel }, "Cancel");
  output.replaceChildren(el("section", { class: "card running", "aria-label": "Progress" }, words, bar, stop));
  try {
    const answer = await search(question, mine, (progress) => tell(progress, bar, words));
    if (answer === null) return;
    cached = { key: keyOf(question), answer, at: Date.now() };
    showAnswer(answer);
    if (output.getBoundingClientRect().top > innerHeight * 0.7) output.scrollIntoView({ block: "start" });
  } catch (error) {
    if (mine !== generation) return;
    output.replaceChildren();
    if (error.code === "FORM") {
      say(status, "The form is not filled in well.");
      mistakes(error.fields);
      return;
    }
    say(status, error.message);
  }
}

function tell(progress, bar, words) {
  if (progress.partitions) {
    bar.setAttribute("max", progress.partitions);
    bar.setAttribute("value", Math.max(0, progress.done - (progress.parts ? 0 : 1)));
  }
  const log = `${count(progress.done)} of ${counted(progress.partitions, "partition")}, ${counted(progress.looked_at, "record")} looked at, ${count(progress.found)} found, ${Math.round(progress.seconds)} s`;
  say(words, progress.parts ? `${count(progress.found)} found; asking ${counted(progress.parts, "job")} and collectors what became of them` : log);
}

function showAnswer(answer) {
  const { records } = answer;
  const more = answer.more && records.length;
  say(status, `${counted(records.length, "record")} found${more ? ", and there are more" : ""}; ${counted(answer.looked_at, "record")} looked at, ${time(cached.at || Date.now()).slice(0, 8)}`);
  const parts = [notes(answer)];
  if (records.length) parts.push(results(records));
  else parts.push(el("section", { class: "card" }, el("p", { class: "empty" }, "No record of the log matches. ", widen())));
  if (more) {
    const address = addressOf({ ...wanted, after: positionOf(records.at(-1)) });
    parts.push(el("p", { class: "onward" }, `These are the first ${records.length}, in the order of streams and offsets. `, el("a", { href: address }, "Show the next"), ", or narrow the question."));
  }
  const gone = answer.edges.filter((one) => !one.in_log);
  if (gone.length) parts.push(edges(gone));
  if (answer.applications.length) parts.push(applications(answer.applications));
  output.replaceChildren(...parts.filter(Boolean));
}

function widen() {
  if (!wanted.from || wanted.from === "earliest") return "";
  return el("a", { href: addressOf({ ...wanted, from: "earliest" }) }, "Search the whole log");
}

/** What the answer lacks. */
function notes(answer) {
  const silent = Object.entries(answer.not_asked);
  const said = silent.map(([name, reason]) => el("li", {}, el("strong", {}, name), ` could not be asked: ${reason}`));
  if (answer.not_asked_more) said.push(el("li", {}, `and ${answer.not_asked_more} more`));
  const read = Object.entries(answer.not_running).map(([name, state]) => el("li", {}, el("strong", {}, name), `: ${state}`));
  if (!said.length && !read.length && !answer.ended) return null;
  return el("section", { class: "card", "aria-label": "What the answer lacks" },
    answer.ended ? el("p", { class: "section" }, mark("ask", "not all"), " The time was up before everything had been looked at: narrow the question, or choose a shorter time.") : null,
    said.length ? el("details", { class: "fold", open: said.length < 4 }, el("summary", {}, mark("ask", `${counted(said.length, "part")} could not be asked`), el("span", { class: "muted" }, "what they know is missing here")),
      el("ul", { class: "reasons" }, said)) : null,
    read.length ? el("ul", { class: "reasons" }, read) : null);
}

function results(records) {
  const sorted = [...records].sort((a, b) => (a.time_ns ?? 0) - (b.time_ns ?? 0));
  const rows = sorted.map((one) => [
    el("th", { scope: "row", class: "when" },
      el("a", { href: recordAddress(one), "data-position": positionOf(one) }, one.time_ns ? time(one.time_ns / 1e6) : "no time"),
      el("span", { class: "muted" }, one.time_ns ? date(one.time_ns / 1e6) : ""),
      one.severity_text || one.severity ? mark(severityTone(one.severity), one.severity_text ?? `severity ${one.severity}`) : null),
    el("td", { class: "what" }, el("p", {}, one.missing ?? (one.text || "(empty)")),
      el("p", { class: "muted" }, [one.service, one.kind, positionOf(one)].filter(Boolean).join(" · "))),
    el("td", { class: "fates" }, summary(one.sinks, KINDS_MAX))]);
  const shown = table("Records found", ["Time", "Record", "At the sinks"], rows);
  shown.classList.add("found");
  shown.addEventListener("click", (event) => {
    const link = event.target.closest("tr")?.querySelector("a[data-position]");
    if (link && !event.target.closest("a") && !String(getSelection())) link.click();
  });
  return el("section", { class: "card", "aria-label": "Results" }, shown);
}

function edges(all) {
  const rows = all.slice(0, EDGES_MAX).map((one) => [
    el("th", { scope: "row", class: "when" }, one.time_ns ? [el("span", {}, time(one.time_ns / 1e6)), el("span", { class: "muted" }, date(one.time_ns / 1e6))] : "–"),
    el("td", { class: "what" }, el("p", {}, one.fate === "unrecorded" ? `${counted(one.records, "record")} more that it dropped` : one.text ?? one.reason),
      el("p", { class: "muted" }, [one.collector, one.source && `source ${one.source}`, one.service].filter(Boolean).join(" · "))),
    el("td", { class: "fates" }, mark(...edgeFate(one)), one.step ? el("span", { class: "muted" }, ` by ${one.step}`) : null)]);
  const shown = table("Records that never reached the log", ["Time", "Record", "What became of it"], rows);
  shown.classList.add("found");
  return el("section", { class: "card", "aria-label": "Never reached the log" },
    el("header", {}, el("h2", {}, "Never reached the log"), el("p", { class: "muted" }, "what collectors dropped or hold in quarantine")), shown,
    all.length > EDGES_MAX ? el("p", { class: "section" }, `and ${all.length - EDGES_MAX} more`) : null);
}

/** Applications that did not hand over all records to a collector. */
function applications(all) {
  return el("section", { class: "card", "aria-label": "Not handed over" },
    el("header", {}, el("h2", {}, "Not handed over"), el("p", { class: "muted" }, "what applications counted since they started; nobody knows which records these are")),
    el("ul", { class: "reasons" }, all.map((one) => el("li", {}, one.says, one.reported_ns ? el("span", { class: "muted" }, ` · reported ${instant(one.reported_ns)}`) : null))));
}

// One record

function mountRecord(root, position) {
  opened = position;
  status = el("p", { role: "status" }, "looking …");
  output = el("div");
  const back = TERMS.some((name) => wanted[name]) ? "Back to the results" : "To the search";
  root.append(el("p", { class: "back" }, el("a", { href: addressOf(wanted) }, `← ${back}`)),
    el("div", { class: "head" }, el("h1", {}, `Record ${position}`), status), output);
  const known = cached.key === keyOf(wanted) && cached.answer?.records.find((one) => positionOf(one) === position);
  if (known) showRecord(known, cached.answer);
  else findRecord(position);
}

async function findRecord(position) {
  const mine = generation;
  try {
    const answer = await search(wanted.stopped ? { position, stopped: wanted.stopped } : { position }, mine, () => {});
    if (answer === null) return;
    if (answer.records[0]) showRecord(answer.records[0], answer);
    else say(status, "The console cannot find it.");
  } catch (error) {
    if (mine === generation) say(status, error.code === "FORM" ? "A position looks like logs/0/4711." : error.message);
  }
}

function showRecord(record, answer) {
  say(status, [record.service, record.kind, record.time_ns ? instant(record.time_ns) : ""].filter(Boolean).join(" · "));
  const trace = el("div", { class: "section" }, el("p", { class: "muted" }, "looking for the trace …"));
  output.replaceChildren(
    el("section", { class: "card", "aria-label": "The record" }, el("div", { class: "section first" },
      el("p", { class: "quote" }, record.severity_text ? [mark(severityTone(record.severity), record.severity_text), " "] : null, record.text || "(empty)"), whole(record))),
    el("section", { class: "card", "aria-label": "Its way" }, el("header", {}, el("h2", {}, "Its way"), summary(record.sinks)), wayOf(record, answer)),
    ...(record.trace_id ? [el("section", { class: "card", "aria-label": "Its trace" }, el("header", {}, el("h2", {}, "Its trace"),
      el("a", { class: "mono", href: addressOf({ trace_id: record.trace_id }) }, record.trace_id)), trace)] : []));
  if (record.trace_id) showTrace(record, trace);
}

async function showTrace(record, holder) {
  const mine = generation;
  const question = { trace_id: record.trace_id, ways: "no" };
  if (record.time_ns) {
    const iso = (ns) => new Date(ns / 1e6).toISOString();
    Object.assign(question, { from: iso(record.time_ns - TRACE_NS), to: iso(record.time_ns + TRACE_NS) });
  }
  try {
    const answer = await search(question, mine, () => {});
    if (answer === null) return;
    const drawn = waterfallOf(answer.records, recordAddress, positionOf(record));
    const cut = answer.more || answer.ended ? el("p", { class: "muted" }, mark("ask", "not all"), ` The trace has more than these ${answer.records.length} records.`) : null;
    holder.replaceChildren(...[drawn, cut, el("p", { class: "muted" }, "Records within an hour of this one. Marks on a bar are the logs of its span.")].filter(Boolean));
  } catch (error) {
    if (mine === generation) holder.replaceChildren(el("p", { class: "muted", role: "status" }, error.message));
  }
}

/** The record as the log has it, asked for when it is opened. */
function whole(record) {
  const holder = el("pre", { tabindex: "0", "aria-label": "The record as it is stored" }, "looking …");
  const details = el("details", { class: "stored" }, el("summary", {}, "As it is stored"), holder);
  details.addEventListener("toggle", async () => {
    if (!details.open || details.dataset.asked) return;
    details.dataset.asked = "yes";
    try {
      const query = new URLSearchParams({ stream: record.stream, at: `${record.partition}:${record.offset}`, whole: "1" });
      const found = (await ask(`/api/records?${query}`)).records[0];
      say(holder, found?.offset === record.offset ? pretty(found.value) : "The log does not have it any more.");
    } catch (error) {
      say(holder, error.message);
    }
  });
  return details;
}
