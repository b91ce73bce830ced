// Records of a stream as they come.

import { el } from "./dom.js";
import { count, counted, time } from "./format.js";
import { ask } from "./store.js";

const KEPT_MAX = 500;
const INTERVAL_MS = 1000;
const PARTITIONS_MAX = 16;

let fields;
let list;
let note;
let pause;
let names;
let timer = 0;
let generation = 0;
let at = "";
let partitions = Object.create(null); // a stream may be called `constructor`
let kept = 0;
let blind = false;
let partial = "";

export const view = {
  title: "Tail",
  mount(root, context) {
    const wanted = context.parameters;
    names = el("datalist", { id: "stream-names" });
    fields = {
      stream: el("input", { type: "text", list: "stream-names", placeholder: "stream", onchange: start, autocomplete: "off" }),
      subject: el("input", { type: "text", placeholder: "telemetry.logs.>", onchange: start, autocomplete: "off" }),
      text: el("input", { type: "search", placeholder: "text in the record", onchange: start, autocomplete: "off" }),
    };
    fields.stream.value = wanted.get("stream") ?? "";
    pause = el("button", { type: "button", "aria-pressed": "false", onclick: () => hold(pause.getAttribute("aria-pressed") !== "true") }, "Pause");
    note = el("p", { role: "status" }, "Choose a stream.");
    list = el("ul", { class: "records", tabindex: "0", "aria-label": "Records, the newest first" });
    root.append(
      el("div", { class: "head" }, el("h1", {}, "Tail"), note),
      el("section", { class: "card", "aria-label": "Records" },
        el("div", { class: "tools" },
          el("label", {}, "Stream", fields.stream), names,
          el("label", {}, "Subject", fields.subject),
          el("label", {}, "Containing", fields.text),
          pause, el("button", { type: "button", onclick: clear }, "Clear")),
        list));
    if (fields.stream.value) start();
  },
  update(snapshot) {
    partitions = Object.create(null);
    for (const row of snapshot.streams.rows) (partitions[row.stream] ??= []).push(row.partition);
    const known = Object.keys(partitions);
    if (names.childElementCount !== known.length) names.replaceChildren(...known.map((name) => el("option", { value: name })));
    if (blind && partitions[fields.stream.value.trim()]) start();
  },
  unmount() {
    generation += 1;
    clearTimeout(timer);
    timer = 0;
    at = "";
    blind = false;
  },
};

function clear() {
  list.replaceChildren();
  kept = 0;
}

function hold(on) {
  pause.setAttribute("aria-pressed", String(on));
  pause.textContent = on ? "Go on" : "Pause";
  generation += 1;
  clearTimeout(timer);
  if (!on && fields.stream.value) look(generation);
}

function start() {
  generation += 1;
  clearTimeout(timer);
  clear();
  const stream = fields.stream.value.trim();
  if (!stream) { note.textContent = "Choose a stream."; return; }
  blind = !partitions[stream];
  const all = partitions[stream] ?? [0];
  at = all.slice(0, PARTITIONS_MAX).join(",");
  partial = all.length > PARTITIONS_MAX ? ` · the first ${PARTITIONS_MAX} of ${all.length} partitions` : "";
  history.replaceState(null, "", `#/tail?stream=${encodeURIComponent(stream)}`);
  hold(false);
}

async function look(mine) {
  const query = new URLSearchParams({ stream: fields.stream.value.trim(), at });
  if (fields.subject.value.trim()) query.set("subject", fields.subject.value.trim());
  if (fields.text.value.trim()) query.set("text", fields.text.value.trim());
  try {
    const answer = await ask(`/api/records?${query}`);
    if (mine !== generation) return;
    at = Object.entries(answer.at).map(([partition, offset]) => `${partition}:${offset}`).join(",");
    show(answer);
  } catch (error) {
    if (mine !== generation) return;
    note.textContent = error.message;
  }
  timer = setTimeout(look, INTERVAL_MS, mine);
}

function show(answer) {
  const made = answer.records.map(record).reverse();
  list.prepend(...made);
  kept += made.length;
  while (list.childElementCount > KEPT_MAX) list.lastElementChild.remove();
  const skipped = answer.skipped ? ` · ${count(answer.skipped)} passed over: they come faster than they can be shown` : "";
  note.textContent = `${counted(kept, "record")} shown${partial}${skipped}`;
}

function record(one) {
  const text = gist(one.value);
  const details = el("details", {}, el("summary", {},
    el("span", { class: "num muted" }, time(one.time_ms)), el("span", { title: one.subject }, one.subject),
    el("span", { class: "muted num place" }, `${one.partition}:${one.offset}`), el("span", { class: "text" }, text.slice(0, 400))));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(el("pre", {}, whole(one)));
  });
  return el("li", {}, details);
}

function whole(one) {
  const head = [`offset ${one.offset} of partition ${one.partition}`, new Date(one.time_ms).toISOString(), one.subject];
  if (one.key !== null) head.push(`key ${one.key}`);
  for (const [name, value] of one.headers) head.push(`${name}: ${value}`);
  const cut = one.cut ? `\n… and ${one.cut} characters more` : "";
  return `${head.join("\n")}\n\n${pretty(one.value)}${cut}`;
}

/** What a record says, in a line: of Penstock's own kinds the body or the name, else all of it. */
function gist(value) {
  if (value === null) return "(tombstone)";
  try {
    const { severity_text: severity, body, name, value: figure } = JSON.parse(value);
    if (typeof body === "string") return [severity, body].filter(Boolean).join("  ");
    if (typeof name === "string") return [name, typeof figure === "number" ? figure : ""].join("  ");
  } catch { /* it is no JSON: it is shown as it is */ }
  return value;
}

export function pretty(value) {
  if (value === null) return "(tombstone)";
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch { return value; }
}
