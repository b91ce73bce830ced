// The page: which view is shown, what is said at the top, and when the console itself is silent.

import { view as activity } from "./activity.js";
import { view as collectors } from "./collectors.js";
import { askToken } from "./dialogs.js";
import { el, say, set } from "./dom.js";
import { span } from "./format.js";
import { view as overview } from "./overview.js";
import { view as pipeline } from "./pipeline.js";
import { view as routers } from "./routers.js";
import { view as search } from "./search.js";
import { begin, isSilent, listen, silentSince, token } from "./store.js";
import { view as specs } from "./specs.js";
import { view as streams } from "./streams.js";
import { view as tail } from "./tail.js";

const VIEWS = { overview, pipeline, streams, collectors, routers, specs, search, tail, activity };
const main = document.getElementById("main");
const overall = document.getElementById("overall");
const banner = document.getElementById("banner");
const tokenButton = document.getElementById("token");
const announce = document.getElementById("announce");

let current = null;
let snapshotNow = null;
let asked = false;
let wellBefore = null;

const go = (name, parameters = {}) => {
  const query = new URLSearchParams(parameters).toString();
  location.hash = `#/${name}${query ? `?${query}` : ""}`;
};

function route(moved) {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : "overview";
  current?.unmount?.();
  current = VIEWS[name];
  main.replaceChildren();
  document.title = `${current.title} · Penstock`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === name) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "center" });
    } else link.removeAttribute("aria-current");
  }
  current.mount(main, { go, parameters: new URLSearchParams(query ?? "") });
  if (snapshotNow) current.update(snapshotNow);
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function health(snapshot) {
  const away = snapshot.parts.filter((part) => part.health === "unreachable");
  const unwell = snapshot.parts.filter((part) => part.health !== "ready" && part.health !== "unreachable");
  const streamsUnwell = snapshot.streams.rows.filter((row) => row.state === "leaderless" || row.state === "failed").length;
  const damaged = snapshot.streams.rows.filter((row) => row.state === "damaged").length;
  if (away.length) return ["bad", away.length === 1 ? `${away[0].name} does not answer` : `${away.length} parts do not answer`];
  if (streamsUnwell) return ["bad", `${streamsUnwell} stream${streamsUnwell === 1 ? "" : "s"} without a leader`];
  if (damaged) return ["bad", `${damaged} stream${damaged === 1 ? "" : "s"} with damaged records`];
  if (unwell.length) return ["warn", unwell.length === 1 ? `${unwell[0].name} is ${unwell[0].health}` : `${unwell.length} parts need attention`];
  return ["ok", "all well"];
}

function update(snapshot, state) {
  const silent = isSilent(state);
  banner.hidden = !silent;
  if (silent) say(banner, snapshot ? `The console does not answer. What you see is ${span(silentSince())} old.` : "The console does not answer.");
  if (state.needsToken && !asked) {
    asked = true;
    askToken("This console shows nothing without a token.", () => { asked = false; });
  }
  if (!snapshot) return;
  say(tokenButton, token.get() ? (token.mayAct() ? "Token: may act" : "Token: may look") : "Token");
  const [kind, words] = health(snapshot);
  set(overall, { class: `pill ${silent ? "bad" : kind}` });
  say(overall, silent ? "no news" : words);
  if (wellBefore !== null && wellBefore !== words) say(announce, words);
  wellBefore = words;
  const isNew = snapshot !== snapshotNow;
  snapshotNow = snapshot;
  if (isNew) current.update(snapshot);
}

document.getElementById("views").append(...Object.entries(VIEWS).map(([name, view]) =>
  el("a", { href: `#/${name}`, "data-view": name }, view.title)));
tokenButton.addEventListener("click", () => askToken("Enter a token to do more than you may now."));
addEventListener("hashchange", () => route(true));
route(false);
listen(update);
begin();
