// Router jobs: how far each sink is, and what it could not deliver.

import { askToken, confirm, showFacts } from "./dialogs.js";
import { el, figure, historyLink, patch, pill, table } from "./dom.js";
import { count, counted, rate } from "./format.js";
import { aboutDeadLetters, token } from "./store.js";

let body;
let routers = [];

export const view = {
  title: "Routers",
  mount(root) {
    body = el("div", { onclick: chosen });
    root.append(el("div", { class: "head" }, el("h1", {}, "Routers"), el("p", {}, "Each sink goes at its own pace")), body);
  },
  update(snapshot) {
    routers = snapshot.routers;
    const cards = routers.map(card);
    patch(body, cards.length ? cards : [el("p", { class: "card empty" }, "No router has answered yet.")]);
  },
};

function card(router) {
  const rows = router.sinks.map((sink) => [
    el("th", { scope: "row" }, historyLink("sink", `${router.name}/${sink.name}`, sink.name)),
    el("td", {}, router.health === "unreachable" ? pill("unreachable") : sink.problem ? pill("degraded", "waits") : pill("ok", "delivers")),
    figure(rate(sink.out_rate)), figure(count(sink.sent)), figure(count(sink.lag)), figure(count(sink.errors)),
    figure(count(sink.dead_letters)), figure(count(sink.restarts)), el("td", { class: "muted" }, behind(sink.behind))]);
  return el("section", { class: "card" },
    el("header", {}, el("h2", {}, `Job ${router.job}`), pill(router.health), historyLink("job", router.name)),
    router.sinks.filter((sink) => sink.problem).map((sink) => el("ul", { class: "reasons" }, el("li", {}, `${sink.name}: ${sink.problem}`))),
    table(`Sinks of ${router.job}`, ["Sink", "State", "#Rate", "#Delivered", "#Behind", "#Errors", "#Dead letters", "#Restarts", "Behind by stream"], rows),
    replay(router),
    router.sinks.filter((sink) => sink.dead_letters || sink.dead_letter_files).map((sink) => deadLetters(router, sink)));
}

function replay({ name, replays }) {
  if (replays.under_way) return underWay(name, replays);
  const { sink, to, records, problem, by } = replays.last;
  if (!sink) return null;
  return el("p", { class: "note", role: "status" }, problem
    ? `The last replay of ${sink} failed, asked for by ${by}: ${problem}`
    : `The last replay of ${sink} brought ${counted(Number(records), "record")} to ${to}, asked for by ${by}.`);
}

function underWay(name, { under_way: sink, progress, stoppable }) {
  const { done, of, unit, records, problem } = progress;
  const far = Number(of) ? ` ${done} of ${of} ${unit}, ${counted(Number(records), "record")}.` : "";
  const what = unit === "batches" ? "A range of the log goes again" : "Dead letters go";
  const waits = problem ? ` It waits: ${problem}` : "";
  return el("div", { class: "note", role: "status" },
    el("span", {}, `${what} to ${sink}; it takes nothing else meanwhile.${far}${waits}`),
    stoppable ? el("button", { type: "button", "data-router": name, "data-stops": sink }, `Stop the replay to ${sink} …`) : null);
}

function deadLetters(router, sink) {
  const told = sink.dead_letter_files
    ? `Of ${sink.name} ${counted(sink.dead_letter_files, "file")} of dead letters ${sink.dead_letter_files === 1 ? "waits" : "wait"}.`
    : `${counted(sink.dead_letters, "record")} did not get into ${sink.name}.`;
  if (router.replays.possible) {
    return el("div", { class: "note" }, el("span", {}, told),
      el("button", { type: "button", "data-router": router.name, "data-sink": sink.name }, `Dead letters of ${sink.name} …`));
  }
  return el("div", { class: "note" },
    el("span", {}, `${told} With the job stopped, deliver them again:`),
    el("code", {}, `penstock router dlq replay JOB.yaml --sink ${sink.name}`));
}

// Buttons are patched, not replaced, so a click finds its action in their own attributes.
function chosen(event) {
  const stops = event.target.closest("button[data-stops]");
  if (stops) return stop(stops.dataset.router, stops.dataset.stops);
  const button = event.target.closest("button[data-sink]");
  const router = button && routers.find((one) => one.name === button.dataset.router);
  const sink = router && router.sinks.find((one) => one.name === button.dataset.sink);
  if (sink) look(router, sink);
}

async function look(router, sink) {
  if (!token.mayAct()) return askToken("Dead letters hold records: looking at them needs the token of the console.", () => look(router, sink), "act");
  let facts = [["Files", "looking …"]];
  let waits = false;
  let known = "";
  let draw = () => {};
  const find = async () => {
    try {
      const { files } = await aboutDeadLetters("list-dead-letters", router.name, sink.name);
      facts = files.map((file) => [el("code", {}, file.name), file.problem ?? `${counted(file.dead_letters, "record")}, ${Object.keys(file.codes).join(", ")}: ${file.reason ?? ""}`]);
      waits = files.length > 0;
      if (!waits) facts = [["Files", "none wait: all were delivered again"]];
    } catch (error) {
      if (error.status === 401) token.set("");
      facts = [["Not known", error.message]];
      waits = false;
    }
    draw();
  };
  const current = () => {
    const job = routers.find((one) => one.name === router.name);
    const one = job?.sinks.find((other) => other.name === sink.name);
    const news = JSON.stringify([one?.dead_letters, one?.dead_letter_files, job?.replays.under_way]);
    if (news !== known) { known = news; find(); }
    return facts.map(([name, value]) => [name instanceof Node ? name.cloneNode(true) : name, value]);
  };
  const targets = [sink.name, ...router.sinks.map((other) => other.name).filter((name) => name !== sink.name)];
  draw = showFacts(`Dead letters of ${sink.name}`, current, () => !waits ? [] : targets.map((to) => [
    to === sink.name ? "Deliver them again …" : `Deliver them to ${to} …`, () => ask(router, sink, to), {}]));
}

function stop(router, sink) {
  const progress = routers.find((one) => one.name === router)?.replays.progress;
  const rest = progress?.unit === "batches"
    ? "penstock router replay --resume delivers the rest of the range."
    : "The rest stays among the dead letters.";
  confirm({
    title: "Stop a replay",
    text: `Records that were delivered to ${sink} stay delivered. ${rest} The job logs who asked.`,
  }, () => ["Router ", el("code", {}, router), ", to ", el("code", {}, sink), farOf(router)],
  () => aboutDeadLetters("stop-replay", router, sink));
}

const farOf = (name) => {
  const progress = routers.find((one) => one.name === name)?.replays.progress;
  return progress && Number(progress.of) ? `: ${progress.done} of ${progress.of} ${progress.unit}` : "";
};

const waitingOf = (name, wanted) => {
  const sink = routers.find((one) => one.name === name)?.sinks.find((one) => one.name === wanted);
  return sink?.dead_letter_files ? `: ${counted(sink.dead_letter_files, "file")} now` : "";
};

function ask(router, sink, to) {
  confirm({
    title: "Deliver dead letters again",
    text: `The job delivers all dead letters of ${sink.name} to ${to}, through its routes. Until it has, ${to} receives nothing else; the other sinks go on. A record that is refused again becomes a dead letter again. The job logs who asked.`,
  }, () => ["Job ", el("code", {}, router.job), ", from ", el("code", {}, sink.name), " to ", el("code", {}, to), waitingOf(router.name, sink.name)],
  () => aboutDeadLetters("replay-dead-letters", router.name, sink.name, to));
}

const behind = (streams) => Object.entries(streams).filter(([, lag]) => lag).sort(([, a], [, b]) => b - a).slice(0, 4)
  .map(([name, lag]) => `${name} ${count(lag)}`).join(", ") || "nothing";
