// All streams: who leads, who is in sync, how much there is and how fast it grows.

import { confirmAction, showFacts } from "./dialogs.js";
import { el, pill } from "./dom.js";
import { bytes, count, counted, keeps, rate, span } from "./format.js";
import { Rows } from "./rows.js";

const ACTIONS = {
  pause: { title: "Pause the stream", text: "It leaves its subject and stores nothing until it is resumed: what is published meanwhile is lost to it." },
  resume: { title: "Resume the stream", text: "It stores again what is published on its subject." },
  "make-read-only": { title: "Make the stream read-only", text: "What is published to it is refused until it is made writable." },
  "make-writable": { title: "Make the stream writable", text: "It stores again what is published to it." },
};

let rows;
let note;
let filter;
let onlyTrouble;
let snapshotNow = null;

const isWell = (row) => row.state === "ok";

export const view = {
  title: "Streams",
  mount(root, context) {
    filter = el("input", { type: "search", placeholder: "name, subject or leader", oninput: apply });
    onlyTrouble = el("input", { type: "checkbox", onchange: apply });
    note = el("p", { role: "status" });
    rows = new Rows("Streams", columns(context), "label");
    root.append(
      el("div", { class: "head" }, el("h1", {}, "Streams"), note),
      el("section", { class: "card", "aria-label": "All streams" },
        el("div", { class: "tools" },
          el("label", {}, "Show", filter),
          el("label", { class: "check" }, onlyTrouble, "only what needs attention")),
        rows.port));
  },
  update(snapshot) {
    snapshotNow = snapshot;
    apply();
  },
};

function apply() {
  if (!snapshotNow) return;
  const { rows: all, problem, age_ms: age } = snapshotNow.streams;
  const wanted = filter.value.trim().toLowerCase();
  const chosen = all.filter((row) => (!onlyTrouble.checked || !isWell(row)) &&
    (!wanted || [row.label, row.subject, row.leader ?? ""].some((text) => text.toLowerCase().includes(wanted))));
  rows.update(chosen);
  const troubled = all.filter((row) => !isWell(row)).length;
  const told = chosen.length === all.length ? counted(all.length, "partition") : `${count(chosen.length)} of ${counted(all.length, "partition")}`;
  note.textContent = [told, troubled ? `${count(troubled)} ${troubled === 1 ? "needs" : "need"} attention` : "all well",
    problem ? `as of ${span(age)} ago: ${problem}` : ""].filter(Boolean).join(" · ");
}

function columns(context) {
  return [
    { key: "label", title: "Stream", width: "18%", value: (row) => row.label,
      cell: (row) => el("button", { type: "button", class: "link", "data-name": row.label, title: row.label, onclick: () => show(row, context) }, row.label) },
    { key: "state", title: "State", width: "13%", value: (row) => row.state, cell: (row) => pill(row.state) },
    { key: "leader", title: "Leader", width: "11%", value: (row) => row.leader, cell: (row) => row.leader ?? "none" },
    { key: "isr", title: "In sync", width: "9%", value: (row) => row.isr.length - row.replicas.length, cell: (row) => `${row.isr.length}/${row.replicas.length}` },
    { key: "rate", title: "Rate", width: "9%", number: true, value: (row) => row.rate, cell: (row) => rate(row.rate) },
    { key: "records", title: "Records", width: "10%", number: true, value: (row) => row.records, cell: (row) => count(row.records) },
    { key: "end", title: "High watermark", width: "12%", number: true, value: (row) => row.end, cell: (row) => (row.end === null ? "–" : row.end === 0 ? "none" : (row.end - 1).toLocaleString("en")) },
    { key: "size", title: "Size", width: "9%", number: true, value: (row) => row.size, cell: (row) => bytes(row.size) },
    { key: "keeps", title: "Keeps", width: "13%", value: (row) => keeps(row.keep), cell: (row) => keeps(row.keep) },
  ];
}

function show(chosen, context) {
  const now = () => snapshotNow.streams.rows.find((row) => row.label === chosen.label);
  const state = () => { const row = now(); return row ? pill(row.state) : pill("gone"); };
  showFacts(chosen.label, () => facts(now()), () => {
    const row = now();
    const actions = row && !whyNoActions(row) ? wantedOf(row) : [];
    return [
      ["History", () => context.go("overview", { kind: "stream", name: chosen.stream })],
      ["Look at records", () => context.go("tail", { stream: chosen.stream })],
      ...actions.map((action) => [`${ACTIONS[action].title} …`, () => confirmAction(action, chosen.stream, ACTIONS[action], state), {}]),
    ];
  });
}

const wantedOf = (row) => [row.state === "paused" || row.state === "held" ? "resume" : "pause", row.state === "read-only" ? "make-writable" : "make-read-only"];

function whyNoActions(row) {
  if (!snapshotNow.actions.token) return "the console has no token_file";
  if (!snapshotNow.actions.clustered) return "a lone logd has no such modes";
  return row.stream.startsWith("__") ? "it is logd’s own" : "";
}

function facts(row) {
  if (!row) return [["State", pill("gone")], ["Stream", "logd does not name it any more."]];
  const why = whyNoActions(row);
  return [
    ["State", pill(row.state)],
    ...(row.problem ? [["Problem", row.problem]] : []),
    ["Subject", el("code", {}, row.subject)],
    ["Leader", row.leader ?? "none"],
    ["In sync", row.isr.join(", ") || "none"],
    ["Replicas", row.replicas.join(", ") || "none"],
    ["Offsets", row.end === null ? "not known" : `${row.start.toLocaleString("en")} to ${row.end.toLocaleString("en")}, end exclusive`],
    ["Rate", rate(row.rate)],
    ["Size", bytes(row.size)],
    ["Keeps", keeps(row.keep)],
    ...(why ? [["Actions", `none: ${why}`]] : []),
  ];
}
