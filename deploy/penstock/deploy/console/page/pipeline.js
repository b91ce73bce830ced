// The pipeline as a picture: sources, parts in the order of the data path, sinks.

import { el, figure, patch, pill, say, set, svg, table, tone } from "./dom.js";
import { count, counted, rate, span } from "./format.js";

const TITLES = { collector: "Collector", nats: "NATS", logd: "Log", router: "Router" };
const ROWS_MAX = 6;
const ROW_PX = 22;
const HEAD_PX = 34;
const NODE_PX = 142;
const NARROW_PX = 820;

let shape = "";
let drawn = {};
let picture;
let parts;
let lastPipeline = null;

export const view = {
  title: "Pipeline",
  mount(root) {
    shape = "";
    picture = el("div", { class: "picture" });
    parts = el("div");
    root.append(
      el("div", { class: "head" }, el("h1", {}, "Pipeline"), el("p", {}, "Records per second, from the sources to the sinks")),
      el("section", { class: "card", "aria-label": "The pipeline as a picture" }, picture),
      parts);
    new ResizeObserver(() => { if (lastPipeline) draw(lastPipeline); }).observe(picture);
  },
  update(snapshot) {
    lastPipeline = snapshot.pipeline;
    draw(snapshot.pipeline);
    patch(parts, [partsCard(snapshot.parts)]);
  },
};

const busiest = (stages) => [...stages].sort((a, b) => (b.in_rate ?? 0) - (a.in_rate ?? 0) || b.received - a.received || a.name.localeCompare(b.name));

function listed(id, title, stages, key) {
  const shown = busiest(stages).slice(0, ROWS_MAX).sort((a, b) => a.name.localeCompare(b.name));
  return { id, title, list: shown, more: stages.length - shown.length, key,
    total: stages.reduce((sum, stage) => sum + (stage[key] ?? 0), 0) };
}

function draw(pipeline) {
  const wide = picture.clientWidth >= NARROW_PX;
  const boxes = [listed("sources", "Sources", pipeline.sources, "in_rate"), ...pipeline.nodes,
    listed("sinks", "Sinks", pipeline.sinks, "out_rate")];
  const now = JSON.stringify([wide, boxes.map((box) => [box.id, box.list?.length ?? 0])]);
  if (now !== shape) {
    shape = now;
    build(boxes, wide);
  }
  boxes.forEach((box, index) => {
    const refs = drawn.boxes[index];
    if (box.list) fillList(refs, box); else fillNode(refs, box);
  });
  drawn.pipes.forEach((pipe) => flow(pipe, pipe.rate(boxes)));
  drawn.svg.setAttribute("aria-label", spoken(pipeline));
}

/** Where boxes lie: beside each other, or where it is narrow below each other. */
function place(boxes, wide) {
  const height = (box) => (box.list ? HEAD_PX + Math.max(1, box.list.length) * ROW_PX + 28 : NODE_PX);
  if (!wide) {
    let top = 0;
    return { width: 360, places: boxes.map((box) => {
      const at = { x: 0, y: top, w: 360, h: height(box) };
      top += at.h + 36;
      return at;
    }), height: top - 36 };
  }
  const tallest = Math.max(...boxes.map(height));
  const side = 196;
  const middle = boxes.length - 2;
  const gap = 42;
  const node = Math.min(190, (1240 - 2 * side - (middle + 1) * gap) / Math.max(1, middle));
  const width = 2 * side + middle * node + (middle + 1) * gap;
  let left = 0;
  return { width, height: tallest, places: boxes.map((box) => {
    const at = { x: left, y: (tallest - height(box)) / 2, w: box.list ? side : node, h: height(box) };
    left += at.w + gap;
    return at;
  }) };
}

function build(boxes, wide) {
  const { width, height, places } = place(boxes, wide);
  const pipes = [];
  const layer = svg("g");
  boxes.slice(1).forEach((box, index) => {
    const from = { box: boxes[index], at: places[index] };
    const to = { box, at: places[index + 1] };
    const passes = (all) => (all[index].list ? all[index].total : all[index].out_rate);
    if (!wide || (!from.box.list && !to.box.list)) {
      pipes.push(pipe(layer, edge(from.at, to.at, wide), passes));
    } else if (from.box.list) {
      from.box.list.forEach((_, row) => pipes.push(pipe(layer, fan(from.at, to.at, row, true), (all) => all[index].list[row]?.in_rate)));
    } else {
      to.box.list.forEach((_, row) => pipes.push(pipe(layer, fan(to.at, from.at, row, false), (all) => all[index + 1].list[row]?.out_rate)));
    }
  });
  const groups = boxes.map((box, index) => (box.list ? buildList(box, places[index]) : buildNode(places[index])));
  const root = svg("svg", { viewBox: `-2 -2 ${width + 4} ${height + 4}`, role: "img" }, layer, groups.map((refs) => refs.group));
  picture.replaceChildren(root);
  drawn = { svg: root, boxes: groups, pipes };
}

function edge(a, b, wide) {
  return wide
    ? `M${a.x + a.w} ${a.y + a.h / 2}H${b.x}`
    : `M${a.x + a.w / 2} ${a.y + a.h}V${b.y}`;
}

/** From a row of a list to the box beside it; `out`: the list is on the left. */
function fan(list, box, row, out) {
  const y = list.y + HEAD_PX + row * ROW_PX + ROW_PX / 2;
  const [x1, x2] = out ? [list.x + list.w, box.x] : [box.x + box.w, list.x];
  const [y1, y2] = out ? [y, box.y + box.h / 2] : [box.y + box.h / 2, y];
  const half = (x1 + x2) / 2;
  return `M${x1} ${y1}C${half} ${y1} ${half} ${y2} ${x2} ${y2}`;
}

function pipe(layer, path, passes) {
  const refs = { back: svg("path", { class: "pipe", d: path }), flow: svg("path", { class: "flow", d: path }), rate: passes };
  refs.group = svg("g", {}, refs.back, refs.flow);
  layer.append(refs.group);
  return refs;
}

function flow(refs, perSecond) {
  const strength = perSecond > 0 ? Math.min(9, 2 + Math.log10(1 + perSecond) * 1.6) : 1.5;
  refs.back.style.strokeWidth = `${strength}px`;
  refs.flow.style.strokeWidth = `${Math.max(1.5, strength * 0.5)}px`;
  set(refs.group, { class: perSecond > 0 ? "" : "still" });
}

function buildNode(at) {
  const refs = {
    title: svg("text", { class: "title", x: at.x + 30, y: at.y + 25 }),
    mark: svg("circle", { class: "mark", cx: at.x + 18, cy: at.y + 20, r: 5 }),
    rate: svg("text", { class: "rate", x: at.x + 14, y: at.y + 54 }),
    lag: svg("text", { class: "small", x: at.x + 14, y: at.y + 74 }),
    state: svg("text", { class: "small state", x: at.x + 14, y: at.y + 90 }),
    fill: svg("path", { class: "fill" }), line: svg("path", { class: "line" }), at,
  };
  refs.group = svg("g", {}, svg("rect", { class: "box", x: at.x, y: at.y, width: at.w, height: at.h, rx: 12 }),
    refs.fill, refs.line, refs.mark, refs.title, refs.state, refs.rate, refs.lag);
  return refs;
}

function fillNode(refs, box) {
  const away = box.away ? `${box.away} of ${box.parts} away` : box.health === "ready" ? "" : box.health;
  const words = box.parts === 1 && box.away ? "away" : away;
  const worst = box.away && box.away < box.parts ? "degraded" : box.health;
  set(refs.group, { class: tone(worst) });
  set(refs.mark, { class: `mark ${tone(worst)}` });
  say(refs.title, box.parts > 1 ? `${TITLES[box.id] ?? box.id} × ${box.parts}` : TITLES[box.id] ?? box.id);
  say(refs.state, words || (box.error_rate > 0 ? `errors: ${rate(box.error_rate)}` : ""));
  say(refs.rate, rate(box.in_rate));
  say(refs.lag, box.id === "nats" ? "messages" : `${count(box.lag)} waiting`);
  sparkline(refs, box.history.map(([received]) => received ?? 0));
}

function sparkline(refs, values) {
  const { x, y, w, h } = refs.at;
  const top = y + 98;
  const bottom = y + h - 8;
  const most = Math.max(1, ...values);
  const step = (w - 28) / Math.max(1, 119);
  const left = x + 14 + (120 - values.length) * step;
  const points = values.map((value, index) => `${(left + index * step).toFixed(1)} ${(bottom - (value / most) * (bottom - top)).toFixed(1)}`);
  const path = points.length > 1 ? `M${points.join("L")}` : "";
  set(refs.line, { d: path });
  set(refs.fill, { d: path ? `${path}V${bottom}H${left.toFixed(1)}Z` : "" });
}

function buildList(box, at) {
  const rows = Array.from({ length: Math.max(1, box.list.length) }, (_, row) => {
    const y = at.y + HEAD_PX + row * ROW_PX + 16;
    return { name: svg("text", { x: at.x + 14, y }), rate: svg("text", { class: "small", x: at.x + at.w - 14, y, "text-anchor": "end" }), tip: svg("title") };
  });
  const refs = { rows, total: svg("text", { class: "small", x: at.x + at.w - 14, y: at.y + 23, "text-anchor": "end" }),
    more: svg("text", { class: "small", x: at.x + 14, y: at.y + at.h - 10 }) };
  refs.group = svg("g", { class: "rows" }, svg("rect", { class: "box", x: at.x, y: at.y, width: at.w, height: at.h, rx: 12 }),
    svg("text", { class: "title", x: at.x + 14, y: at.y + 24 }, box.title), refs.total, refs.more,
    rows.map((row) => svg("g", {}, row.tip, row.name, row.rate)));
  return refs;
}

function fillList(refs, box) {
  refs.rows.forEach((row, index) => {
    const stage = box.list[index];
    say(row.name, stage ? cut(stage.name, 17) : "none yet");
    say(row.tip, stage?.name ?? "");
    say(row.rate, stage ? rate(stage[box.key]) : "");
  });
  say(refs.total, box.list.length ? rate(box.total) : "");
  say(refs.more, box.more > 0 ? `and ${box.more} more` : "");
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function spoken(pipeline) {
  const nodes = pipeline.nodes.map((node) => `${TITLES[node.id] ?? node.id} ${node.health}, ${rate(node.in_rate)} in, ${count(node.lag)} waiting`);
  return `${counted(pipeline.sources.length, "source")}; ${nodes.join("; ")}; ${counted(pipeline.sinks.length, "sink")}`;
}

function partsCard(all) {
  const rows = all.map((part) => [
    el("th", { scope: "row" }, part.name), el("td", {}, pill(part.health)), figure(rate(part.in_rate)), figure(rate(part.out_rate)),
    figure(count(part.lag)), figure(count(part.errors)), figure(span(part.age_ms)), el("td", { class: "muted" }, part.version)]);
  const troubled = all.filter((part) => part.reasons.length);
  return el("section", { class: "card" },
    el("header", {}, el("h2", {}, "Parts")),
    troubled.map((part) => el("ul", { class: `reasons ${tone(part.health)}` },
      part.reasons.map((reason) => el("li", {}, `${part.name}: ${reason}`)),
      part.reasons_more ? el("li", {}, `${part.name}: and ${part.reasons_more} more`) : null)),
    table("Parts", ["Part", "Health", "#In", "#Out", "#Waiting", "#Errors", "#Seen", "Version"], rows));
}
