// A trace: its spans as bars over time, and its other records beside them.

import { el } from "./dom.js";
import { mark } from "./fates.js";
import { duration } from "./format.js";

const DEPTH_MAX = 8;
const BAR_MIN = 0.4; // percent

export const severityTone = (number) => (number >= 17 ? "bad" : number >= 13 ? "warn" : "");

/** Spans in the order of their tree, each with its depth: children follow their parent by time. */
export function treeOf(spans) {
  const known = new Map(spans.map((one) => [one.span_id, one]));
  const children = new Map();
  const roots = [];
  for (const one of [...spans].sort((a, b) => a.span.start_ns - b.span.start_ns)) {
    const parent = one.span.parent_span_id;
    if (parent && parent !== one.span_id && known.has(parent)) children.set(parent, [...(children.get(parent) ?? []), one]);
    else roots.push(one);
  }
  const found = [];
  const seen = new Set();
  const open = roots.map((one) => [one, 0]).reverse();
  for (;;) {
    while (open.length) {
      const [one, depth] = open.pop();
      if (seen.has(one)) continue;
      seen.add(one);
      found.push({ one, depth });
      for (const child of [...(children.get(one.span_id) ?? [])].reverse()) open.push([child, depth + 1]);
    }
    const lost = spans.find((one) => !seen.has(one)); // spans that are each other's parents
    if (!lost) return found;
    open.push([lost, 0]);
  }
}

/** The waterfall beside the logs. `linkTo(record)`: the address of a record's way; `current`: its position. */
export function waterfallOf(records, linkTo, current) {
  const spans = records.filter((one) => one.span && one.span.start_ns !== null && one.span.end_ns !== null);
  const others = records.filter((one) => !spans.includes(one)).sort((a, b) => timeOf(a) - timeOf(b));
  const begin = Math.min(...spans.map((one) => one.span.start_ns), ...others.map(timeOf));
  const end = Math.max(...spans.map((one) => one.span.end_ns), ...others.map(timeOf), begin + 1);
  const share = (ns) => Math.min(100, Math.max(0, ((ns - begin) / (end - begin)) * 100));
  return el("div", { class: "trace" },
    el("section", { "aria-label": "Spans" }, el("h3", {}, `Spans · ${duration(end - begin)}`),
      spans.length ? el("ol", { class: "spans" }, treeOf(spans).map(({ one, depth }) => span(one, depth, { begin, share, others, linkTo, current })))
        : el("p", { class: "muted" }, "The trace has no span in the log.")),
    el("section", { "aria-label": "Logs of the trace" }, el("h3", {}, "Logs and other records"),
      others.length ? el("ol", { class: "logs" }, others.map((one) => log(one, begin, linkTo, current)))
        : el("p", { class: "muted" }, "The trace has no other record in the log.")));
}

const timeOf = (record) => record.own_time_ns ?? record.time_ns ?? 0;
export const positionOf = (record) => `${record.stream}/${record.partition}/${record.offset}`;

function span(one, depth, { begin, share, others, linkTo, current }) {
  const failed = one.span.status_code === "ERROR";
  const length = one.span.end_ns - one.span.start_ns;
  const bar = el("span", { class: `length ${failed ? "bad" : ""}` });
  bar.style.left = `${Math.min(100 - BAR_MIN, share(one.span.start_ns))}%`;
  bar.style.width = `${Math.max(BAR_MIN, share(one.span.end_ns) - share(one.span.start_ns))}%`;
  const ticks = others.filter((log) => log.span_id && log.span_id === one.span_id).map((log) => {
    const tick = el("span", { class: `tick ${severityTone(log.severity)}` });
    tick.style.left = `${share(timeOf(log))}%`;
    return tick;
  });
  const name = el("span", { class: "what" },
    el("a", { href: linkTo(one), "aria-current": positionOf(one) === current ? "true" : null }, one.text || one.span_id || "span"),
    el("span", { class: "muted" }, ` ${one.service ?? "no service"}`), failed ? [" ", mark("bad", "failed")] : null);
  name.style.paddingLeft = `${Math.min(depth, DEPTH_MAX) * 12}px`;
  return el("li", {}, name,
    el("span", { class: "track", "aria-hidden": "true" }, bar, ticks),
    el("span", { class: "num took" }, el("span", { class: "unseen" }, `begins at ${duration(one.span.start_ns - begin)}, level ${depth + 1}, takes `), duration(length)));
}

function log(one, begin, linkTo, current) {
  return el("li", {},
    el("span", { class: "num muted" }, `+${duration(Math.max(0, timeOf(one) - begin))}`),
    el("span", { class: "what" },
      one.severity_text || one.kind ? [mark(severityTone(one.severity), one.severity_text ?? one.kind), " "] : null,
      el("a", { href: linkTo(one), "aria-current": positionOf(one) === current ? "true" : null }, one.text || "(empty)"),
      el("span", { class: "muted" }, ` ${one.service ?? ""}`)));
}
