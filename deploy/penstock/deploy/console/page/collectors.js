// Each collector: what comes from where, what waits on disk, and whether its account is even.

import { el, figure, historyLink, patch, pill, table } from "./dom.js";
import { bytes, count, counted, rate } from "./format.js";

const ALWAYS = new Set(["received", "delivered", "held"]);
const FULL = 0.9;

let body;

export const view = {
  title: "Collectors",
  mount(root) {
    body = el("div");
    root.append(el("div", { class: "head" }, el("h1", {}, "Collectors"), el("p", {}, "What comes in, what waits, and where every record went")), body);
  },
  update(snapshot) {
    const cards = snapshot.collectors.map(card);
    patch(body, cards.length ? cards : [el("p", { class: "card empty" }, "No collector has answered yet.")]);
  },
};

function card(collector) {
  const sources = collector.sources.map((source) => [
    el("th", { scope: "row" }, source.name), figure(rate(source.in_rate)), figure(count(source.received)), figure(count(source.sent)),
    figure(count(source.lag)), figure(count(source.errors)), el("td", { class: "muted" }, details(source.detail))]);
  return el("section", { class: "card" },
    el("header", {}, el("h2", {}, collector.name), pill(collector.health), historyLink("collector", collector.name)),
    el("div", { class: "section" }, el("h3", {}, "Every record is accounted for"), equation(collector.account)),
    el("div", { class: "section" }, el("h3", {}, "On disk"), el("div", { class: "spools" }, collector.spools.map(spool))),
    table(`Sources of ${collector.name}`, ["Source", "#Rate", "#Received", "#Delivered", "#Held", "#Errors", "Notes"], sources));
}

function equation(account) {
  if (!account) return el("p", { class: "muted" }, "No record yet.");
  const term = ([name, value], index, sign) => {
    const shown = el("div", {}, el("span", { class: "value" }, count(value)), el("span", { class: "label" }, name));
    return index || sign === "=" ? [el("span", { class: "sign" }, sign), shown] : [shown];
  };
  const some = (counts) => Object.entries(counts).filter(([name, value]) => ALWAYS.has(name) || value);
  const off = account.difference;
  return el("div", { class: "equation" },
    some(account.came).map((one, index) => term(one, index, "+")),
    some(account.went).map((one, index) => term(one, index, index ? "+" : "=")),
    off ? pill("failed", `off by ${count(off)}: a bug, keep the directory`) : pill("even", "even"));
}

function spool(one) {
  const share = one.max_bytes ? one.bytes / one.max_bytes : 0;
  const bar = el("progress", { max: "1", value: share.toFixed(4), class: share > FULL ? "warn" : null, "aria-label": `${one.name} is ${Math.round(share * 100)} % full` });
  const failures = one.failures ? el("p", { class: "muted" }, `${counted(one.failures, "failure")} of the disk`) : null;
  return el("div", {}, el("div", { class: "name" }, el("span", {}, one.name.replace("-", " ")), el("span", { class: "muted num" }, `${bytes(one.bytes)} of ${bytes(one.max_bytes)}`)), bar, failures);
}

const details = (detail) => Object.entries(detail).filter(([, value]) => value).slice(0, 4)
  .map(([name, value]) => `${name.replaceAll("_", " ")} ${count(value)}`).join(", ");
