// What became of a record, in a word and a tone. Colour is never alone: each tone has its sign.

import { el } from "./dom.js";

/** By fate: tone and words. Tones: ok, warn, bad; `left`: left out on purpose; `ask`: nobody knows. */
const FATES = {
  delivered: ["ok", "delivered"], replayed: ["ok", "replayed"], waiting: ["warn", "waiting"],
  not_routed: ["", "not routed"], not_read: ["", "not read"],
  sampled: ["left", "sampled"], deduplicated: ["left", "deduplicated"],
  dead_letter: ["bad", "dead letter"], lost: ["bad", "lost"], unknown: ["ask", "unknown"],
  not_asked: ["ask", "could not be asked"],
};
const WORST_FIRST = ["bad", "ask", "warn", "left", "", "ok"];

export const toneOf = (fate) => FATES[fate]?.[0] ?? "ask";
export const wordsOf = (fate) => FATES[fate]?.[1] ?? String(fate).replaceAll("_", " ");

export const mark = (tone, words) => el("span", { class: `pill ${tone}` }, words);
export const fatePill = (fate) => mark(toneOf(fate), wordsOf(fate));

/** What collectors say of a record that is in no stream: tone and words. */
export function edgeFate(edge) {
  if (edge.fate === "quarantined") return edge.replayed ? ["left", "was in quarantine, put back since"] : ["bad", "in quarantine"];
  if (edge.fate === "unrecorded") return ["ask", "not recorded"];
  return ["left", edge.reason];
}

/** Verdicts as a pill for each kind, the worst first; at most `most` kinds. */
export function summary(sinks, most = Infinity) {
  if (!sinks.length) return [mark("", "no job reads it")];
  const counts = new Map();
  for (const { fate } of sinks) counts.set(fate, (counts.get(fate) ?? 0) + 1);
  const kinds = [...counts].sort(([a], [b]) => WORST_FIRST.indexOf(toneOf(a)) - WORST_FIRST.indexOf(toneOf(b)));
  const pills = kinds.slice(0, most).map(([fate, count]) => mark(toneOf(fate), `${count} ${wordsOf(fate)}`));
  return kinds.length > most ? [...pills, el("span", { class: "muted" }, `and ${kinds.length - most} other verdicts`)] : pills;
}
