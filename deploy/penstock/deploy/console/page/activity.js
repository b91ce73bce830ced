// What happened, when, by whom: the stream __activity.

import { el, patch, table } from "./dom.js";
import { time } from "./format.js";
import { ask } from "./store.js";

const KEPT_MAX = 200;
const INTERVAL_MS = 2000;
const STREAM = "__activity";

let body;
let note;
let filter;
let events = [];
let at = "";
let timer = 0;
let generation = 0;
let drawn = "";

export const view = {
  title: "Activity",
  mount(root) {
    events = [];
    at = "";
    drawn = "";
    note = el("p", { role: "status" }, "looking …");
    filter = el("input", { type: "search", placeholder: "kind, name or fact", oninput: draw });
    body = el("div");
    root.append(el("div", { class: "head" }, el("h1", {}, "Activity"), note),
      el("section", { class: "card", "aria-label": "Activity" }, el("div", { class: "tools" }, el("label", {}, "Show", filter)), body));
    generation += 1;
  },
  update(snapshot) {
    if (timer) return;
    const there = snapshot.streams.rows.filter((row) => row.stream === STREAM);
    if (there.length) {
      at = there.map((row) => row.partition).join(",");
      look(generation);
    } else {
      note.textContent = snapshot.streams.problem || "There is no activity to show: logd records none (it has neither `activity` nor `auth.acl`), or the console may not read `__activity`.";
    }
  },
  unmount() {
    generation += 1;
    clearTimeout(timer);
    timer = 0;
  },
};

async function look(mine) {
  timer = 1;
  try {
    const answer = await ask(`/api/records?${new URLSearchParams({ stream: STREAM, at })}`);
    if (mine !== generation) return;
    at = Object.entries(answer.at).map(([partition, offset]) => `${partition}:${offset}`).join(",");
    events = [...answer.records.map(event).reverse(), ...events].slice(0, KEPT_MAX);
    note.textContent = events.length ? "The newest first" : "Nothing has happened yet.";
    draw();
  } catch (error) {
    if (mine !== generation) return;
    note.textContent = error.message;
  }
  timer = setTimeout(look, INTERVAL_MS, mine);
}

function event(record) {
  try {
    const { kind, by, node, facts } = JSON.parse(record.value);
    return { at: record.time_ms, kind: String(kind), by: String(by?.name ?? ""), node: String(node ?? ""), facts: JSON.stringify(facts ?? {}) };
  } catch {
    return { at: record.time_ms, kind: record.subject, by: "", node: "", facts: record.value ?? "" };
  }
}

function draw() {
  const wanted = filter.value.trim().toLowerCase();
  const chosen = events.filter((one) => !wanted || [one.kind, one.by, one.node, one.facts].some((text) => text.toLowerCase().includes(wanted)));
  const now = JSON.stringify(chosen);
  if (now === drawn) return;
  drawn = now;
  patch(body, [chosen.length ? table("What happened", ["When", "What", "By", "On", "Facts"], chosen.map((one) => [
    el("td", { class: "muted", title: new Date(one.at).toISOString() }, time(one.at)), el("td", {}, one.kind), el("td", {}, one.by),
    el("td", { class: "muted" }, one.node), el("td", { class: "mono" }, one.facts.slice(0, 600))])) : el("p", { class: "empty" }, "Nothing to show.")]);
}
