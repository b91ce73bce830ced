// Lines over time: axes with units, a legend, and the values under the pointer or the arrow keys.

import { el, say, set, svg } from "./dom.js";
import { clock, day, rate, weekday } from "./format.js";

const LEFT = 62;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 26;
const HEIGHT = 190;
const WIDTH_MIN = 260;
const X_TICK_PX = 68;
const STEPS_S = [60, 180, 300, 900, 3600, 7200, 21600, 43200, 86400, 172800];

/** A step of 1, 2 or 5 times a power of the base's own units, that divides `most` in about four. */
function niceStep(most, binary) {
  const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024))) : 1;
  const rough = most / unit / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough) * unit;
}

/** A chart of one unit. `lines`: [{figure, title}], `show(value)`: the value with its unit. */
export class Chart {
  constructor(title, about, lines, show, binary = false) {
    Object.assign(this, { title, lines, show, binary });
    this.data = null;
    this.at = null;
    this.legend = lines.map((line, index) => ({
      key: line.figure, value: el("span", { class: "num value" }, "–"), swatch: el("span", { class: `swatch line-${index}` }), title: line.title }));
    this.when = el("span", { class: "muted num" });
    this.plot = el("div", { class: "plot", tabindex: "0", role: "group",
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event), onpointerleave: () => this.move(null),
      onkeydown: (event) => this.key(event), onblur: () => this.move(null) });
    this.spoken = el("p", { class: "unseen", "aria-live": "polite" });
    this.element = el("section", { class: "card chart" },
      el("header", {}, el("h2", {}, title), el("p", { class: "muted" }, about), this.when),
      el("ul", { class: "legend" }, this.legend.map((one) => el("li", {}, one.swatch, el("span", {}, one.title), one.value))),
      this.plot, this.spoken);
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.plot);
  }

  close() { this.watch.disconnect(); }

  /** Takes what `/api/history` answers. */
  update(data) {
    this.data = data;
    this.draw();
  }

  values(figure) { return this.data?.figures[figure] ?? []; }

  draw() {
    if (!this.data || !this.plot.clientWidth) return;
    const width = Math.max(WIDTH_MIN, this.plot.clientWidth);
    const { start_s: start, step_s: step } = this.data;
    const slots = Math.max(2, ...Object.values(this.data.figures).map((values) => values.length));
    const most = Math.max(0, ...this.lines.flatMap((line) => this.values(line.figure).map((value) => value ?? 0)));
    const least = this.show === rate ? 0.1 : 1; // smaller ones would all be written alike
    const tick = Math.max(least, niceStep(most > 0 ? most : 4, this.binary));
    const top = Math.max(tick, Math.ceil(most / tick) * tick);
    const x = (slot) => LEFT + (slot / (slots - 1)) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    this.place = { x, y, slots, width };
    const ticks = Array.from({ length: Math.round(top / tick) + 1 }, (_, index) => index * tick);
    const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": this.summary() },
      ticks.map((value) => [svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, this.show(value))]),
      timeTicks(start, start + (slots - 1) * step, width).map(([unix, words]) =>
        svg("text", { x: x((unix - start) / step), y: HEIGHT - 8, "text-anchor": "middle" }, words)),
      this.lines.map((line, index) => svg("path", { class: `series line-${index}`, d: path(this.values(line.figure), x, y) })));
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
    this.dots = this.lines.map((_, index) => svg("circle", { class: `dot line-${index}`, r: 4 }));
    root.append(this.cursor, ...this.dots);
    if (!most && !Object.keys(this.data.figures).some((figure) => this.lines.some((line) => line.figure === figure))) {
      root.append(svg("text", { class: "none", x: (LEFT + width - RIGHT) / 2, y: HEIGHT / 2 - 8, "text-anchor": "middle" }, "nothing measured yet"));
    }
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.plot.replaceChildren(root, this.tip);
    set(this.plot, { "aria-label": `${this.title}: arrow keys show the values of a time` });
    this.mark();
  }

  /** What is heard instead of the picture. */
  summary() {
    return `${this.title}. ${this.lines.map((line) => {
      const known = this.values(line.figure).filter((value) => value !== null);
      return known.length ? `${line.title}: now ${this.show(known.at(-1))}, highest ${this.show(Math.max(...known))}` : `${line.title}: not measured`;
    }).join("; ")}`;
  }

  point(event) {
    if (!this.place) return;
    const { left, width } = this.plot.getBoundingClientRect();
    const px = ((event.clientX - left) / width) * this.place.width;
    this.move(Math.round(((px - LEFT) / (this.place.width - LEFT - RIGHT)) * (this.place.slots - 1)));
  }

  key(event) {
    if (!this.place) return;
    const last = this.place.slots - 1;
    const to = { ArrowLeft: (this.at ?? last + 1) - 1, ArrowRight: (this.at ?? last) + 1, Home: 0, End: last, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.move(to);
    say(this.spoken, this.at === null ? "" : `${this.when.textContent}: ${this.legend.map((one) => `${one.title} ${one.value.textContent}`).join(", ")}`);
  }

  move(slot) {
    this.at = slot === null ? null : Math.min(this.place.slots - 1, Math.max(0, slot));
    if (this.place) this.mark();
  }

  /** Shows the values of the slot that is pointed at, or the newest. */
  mark() {
    const { x, y, width } = this.place;
    const shown = this.lines.map((line) => {
      const values = this.values(line.figure);
      return this.at === null ? values.findLast((value) => value !== null) : values[this.at];
    });
    this.legend.forEach((one, index) => say(one.value, shown[index] === null || shown[index] === undefined ? "–" : this.show(shown[index])));
    const on = this.at !== null;
    set(this.cursor, { x1: on ? x(this.at) : 0, x2: on ? x(this.at) : 0, visibility: on ? "visible" : "hidden" });
    this.dots.forEach((dot, index) => {
      const there = on && shown[index] !== null && shown[index] !== undefined;
      set(dot, { visibility: there ? "visible" : "hidden", ...(there ? { cx: x(this.at), cy: y(shown[index]) } : {}) });
    });
    const when = on ? this.data.start_s + this.at * this.data.step_s : null;
    say(this.when, on ? `${day(when)} ${clock(when)}` : "newest");
    this.tip.hidden = !on;
    if (!on) return;
    this.tip.replaceChildren(el("div", { class: "muted" }, `${day(when)} ${clock(when)}`), ...this.legend.map((one, index) =>
      el("div", {}, el("span", { class: `swatch line-${index}` }), el("span", {}, one.title), el("strong", { class: "num" }, one.value.textContent))));
    const far = x(this.at) > width / 2;
    this.tip.style.left = far ? "auto" : `${x(this.at) + 12}px`;
    this.tip.style.right = far ? `${width - x(this.at) + 12}px` : "auto";
  }
}

function path(values, x, y) {
  let pen = "M";
  let made = "";
  values.forEach((value, slot) => {
    if (value === null) { pen = "M"; return; }
    made += `${pen}${x(slot).toFixed(1)} ${y(value).toFixed(1)}`;
    if (pen === "M" && (values[slot + 1] ?? null) === null) made += "h.01"; // one value alone is a point
    pen = "L";
  });
  return made;
}

/** Whole times of the day between two, and how they are written. */
function timeTicks(from, to, width) {
  const room = Math.max(2, Math.floor((width - LEFT - RIGHT) / X_TICK_PX));
  const step = STEPS_S.find((one) => (to - from) / one <= room) ?? STEPS_S.at(-1);
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let unix = Math.ceil((from - offset) / step) * step + offset; unix <= to; unix += step) {
    const away = Math.min(unix - from, to - unix) / (to - from);
    if (away > 0.03) found.push([unix, step >= 43200 ? weekday(unix) : clock(unix).slice(0, 5)]);
  }
  return found;
}
