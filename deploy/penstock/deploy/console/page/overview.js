// Figures over 15 minutes, 6 hours or 7 days: of the pipeline, or of one stream, collector, job or sink.

import { Chart } from "./chart.js";
import { el, figure, patch, pill, table } from "./dom.js";
import { bytes, count, rate } from "./format.js";
import { ask } from "./store.js";

const SPANS = { "15m": "15 minutes", "6h": "6 hours", "7d": "7 days" };
const INTERVAL_MS = 5000;
const KINDS = { pipeline: "The whole pipeline", stream: "Streams", collector: "Collectors", job: "Jobs", sink: "Sinks" };

const records = (figure, title) => ({ figure, title });
/** By kind: title, what it means, lines, how values are shown, whether units are powers of 1,024. */
const CHARTS = {
  pipeline: [
    ["Throughput", "records per second", [records("received", "received"), records("stored", "stored"), records("delivered", "delivered, of all sinks")], rate],
    ["Lag", "records that wait", [records("waiting_collectors", "in collectors"), records("waiting_sinks", "for sinks")], count],
    ["Errors", "records per second", [records("errors", "errors")], rate],
    ["Drops", "records per second that will not arrive", [records("drops", "dropped, lost or dead letters"), records("app_drops", "dropped by applications")], rate],
    ["Disk", "bytes in use", [records("stored_bytes", "streams"), records("spool_bytes", "spools")], bytes, true],
    ["Free room", "on the disk of the console", [records("free_bytes", "free")], bytes, true],
  ],
  stream: [
    ["Throughput", "records per second", [records("stored", "stored")], rate],
    ["Lag", "records that wait", [records("waiting_sinks", "for the sink farthest behind")], count],
    ["Errors and losses", "records per second", [records("errors", "errors"), records("drops", "lost")], rate],
    ["Disk", "bytes in use", [records("stored_bytes", "stored")], bytes, true],
  ],
  collector: [
    ["Throughput", "records per second", [records("received", "received"), records("delivered", "delivered")], rate],
    ["Lag", "records that wait", [records("waiting", "held")], count],
    ["Errors and drops", "records per second", [records("errors", "errors"), records("drops", "dropped"), records("app_drops", "dropped by applications")], rate],
    ["Disk", "bytes in use", [records("spool_bytes", "spools and quarantine")], bytes, true],
  ],
  job: [
    ["Throughput", "records per second", [records("received", "read"), records("delivered", "delivered, of all sinks")], rate],
    ["Lag", "records that wait", [records("waiting", "for the sink farthest behind")], count],
    ["Errors and dead letters", "records per second", [records("errors", "errors"), records("drops", "dead letters")], rate],
  ],
};
CHARTS.sink = CHARTS.job.map(([title, about, lines, ...rest]) => [title, about,
  lines.map((line) => ({ ...line, title: { delivered: "delivered", waiting: "behind the log" }[line.figure] ?? line.title })), ...rest]);

let chosen;
let charts = [];
let picker;
let spans;
let note;
let account;
let timer = 0;
let generation = 0;

export const view = {
  title: "Overview",
  mount(root, context) {
    const wanted = context.parameters;
    const kind = Object.hasOwn(CHARTS, wanted.get("kind") ?? "") ? wanted.get("kind") : "pipeline";
    chosen = { kind, name: kind === "pipeline" ? "" : wanted.get("name") ?? "", span: Object.hasOwn(SPANS, wanted.get("span") ?? "") ? wanted.get("span") : "15m" };
    const go = (change) => context.go("overview", { ...chosen, ...change });
    picker = el("select", { onchange: () => { const [to, ...name] = picker.value.split(" "); go({ kind: to, name: name.join(" ") }); } });
    spans = el("div", { class: "segments", role: "group", "aria-label": "Time span" }, Object.entries(SPANS).map(([span, words]) =>
      el("button", { type: "button", "aria-pressed": String(span === chosen.span), onclick: () => go({ span }) }, words)));
    note = el("p", { role: "status" }, "looking …");
    charts = CHARTS[kind].map((one) => new Chart(...one));
    account = el("section", { class: "card account" });
    root.append(el("div", { class: "head" }, el("h1", {}, "Overview"), note), account,
      el("div", { class: "tools bare" }, el("label", {}, "Figures of", picker), spans),
      el("div", { class: "charts" }, charts.map((chart) => chart.element)));
    generation += 1;
    look(generation);
  },
  update(snapshot) {
    patch(account, accountOf(snapshot.account));
    const names = {
      stream: [...new Set(snapshot.streams.rows.map((row) => row.stream))],
      collector: snapshot.collectors.map((one) => one.name),
      job: snapshot.routers.map((one) => one.name),
      sink: snapshot.routers.flatMap((one) => one.sinks.map((sink) => `${one.name}/${sink.name}`)),
    };
    if (chosen.name && !names[chosen.kind].includes(chosen.name)) names[chosen.kind].push(chosen.name);
    const option = (kind, name) => el("option", { value: `${kind} ${name}` }, name || KINDS[kind]);
    if (document.activeElement !== picker) {
      patch(picker, [option("pipeline", ""), ...Object.entries(names).filter(([, all]) => all.length).map(([kind, all]) =>
        el("optgroup", { label: KINDS[kind] }, all.map((name) => option(kind, name))))]);
      picker.value = `${chosen.kind} ${chosen.name}`;
    }
  },
  unmount() {
    generation += 1;
    clearTimeout(timer);
    charts.forEach((chart) => chart.close());
  },
};

async function look(mine) {
  try {
    const data = await ask(`/api/history?${new URLSearchParams(chosen)}`);
    if (mine !== generation) return;
    charts.forEach((chart) => chart.update(data));
    const what = chosen.name ? `${chosen.kind} ${chosen.name}` : "the whole pipeline";
    note.textContent = [`The last ${SPANS[chosen.span]} of ${what}`, data.kept ? "" : "kept until the console ends",
      data.left_out ? `${count(data.left_out)} figures are not kept: raise history.max_series` : "",
      data.problem ? `not written: ${data.problem}` : ""].filter(Boolean).join(" · ");
  } catch (error) {
    if (mine !== generation) return;
    note.textContent = error.message;
  }
  timer = setTimeout(look, INTERVAL_MS, mine);
}

const WORDS = {
  balanced: "every record is accounted for", settling: "records are on their way",
  unknown: "not everything can be compared", off: "records are not accounted for",
};
const terms = (counts) => Object.entries(counts).filter(([, value]) => value).map(([name, value]) => `${count(value)} ${name}`).join(" + ") || "0";

/** The account of all parts: a row for each equation; a row that is off is marked, with its part. */
function accountOf({ state, rows }) {
  const cells = rows.map((row) => {
    const compared = Object.keys(row.came).length > 0;
    return { state: row.state, cells: [
      el("th", { scope: "row" }, row.stage), el("td", { class: row.state === "off" ? "bad" : null }, row.part),
      el("td", {}, compared ? terms(row.came) : "–"), el("td", {}, compared ? terms(row.went) : "–"),
      figure(compared ? row.difference.toLocaleString("en") : "–"), el("td", {}, pill(row.state)), el("td", { class: "muted" }, row.note)] };
  });
  const shown = table("The account of records", ["Stage", "Part", "Came", "What became of it", "#Difference", "State", "Note"], cells.map((one) => one.cells));
  shown.querySelectorAll("tbody tr").forEach((line, index) => { if (cells[index].state === "off") line.setAttribute("class", "off"); });
  return [el("header", {}, el("h2", {}, "Account"), pill(state, rows.length ? WORDS[state] : "no part was read yet")), shown];
}
