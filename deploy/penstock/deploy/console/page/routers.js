// Router jobs: how far each sink is, and what it could not deliver.

import { el, figure, patch, pill, table } from "./dom.js";
import { count, rate } from "./format.js";

let body;

export const view = {
  title: "Routers",
  mount(root) {
    body = el("div");
    root.append(el("div", { class: "head" }, el("h1", {}, "Routers"), el("p", {}, "Each sink goes at its own pace")), body);
  },
  update(snapshot) {
    const cards = snapshot.routers.map(card);
    patch(body, cards.length ? cards : [el("p", { class: "card empty" }, "No router has answered yet.")]);
  },
};

function card(router) {
  const rows = router.sinks.map((sink) => [
    el("th", { scope: "row" }, sink.name),
    el("td", {}, router.health === "unreachable" ? pill("unreachable") : sink.problem ? pill("degraded", "waits") : pill("ok", "delivers")),
    figure(rate(sink.out_rate)), figure(count(sink.sent)), figure(count(sink.lag)), figure(count(sink.errors)),
    figure(count(sink.letters)), figure(count(sink.restarts)), el("td", { class: "muted" }, behind(sink.behind))]);
  return el("section", { class: "card" },
    el("header", {}, el("h2", {}, `Job ${router.job}`), pill(router.health)),
    router.sinks.filter((sink) => sink.problem).map((sink) => el("ul", { class: "reasons" }, el("li", {}, `${sink.name}: ${sink.problem}`))),
    table(`Sinks of ${router.job}`, ["Sink", "State", "#Rate", "#Delivered", "#Behind", "#Errors", "#Dead letters", "#Restarts", "Behind by stream"], rows),
    router.sinks.filter((sink) => sink.letters).map((sink) => letters(sink)));
}

function letters(sink) {
  const command = `penstock router dlq replay JOB.yaml --sink ${sink.name}`;
  return el("div", { class: "note" },
    el("span", {}, `${count(sink.letters)} records did not get into ${sink.name}. With the job stopped, deliver them again:`),
    el("code", {}, command));
}

const behind = (streams) => Object.entries(streams).filter(([, lag]) => lag).sort(([, a], [, b]) => b - a).slice(0, 4)
  .map(([name, lag]) => `${name} ${count(lag)}`).join(", ") || "nothing";
