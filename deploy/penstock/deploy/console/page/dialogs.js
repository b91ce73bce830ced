// Dialogs: confirm an action, take the token, show facts.

import { el, patch } from "./dom.js";
import { act, checkToken, listen, refresh, token } from "./store.js";

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  return dialog;
}

const ALLOWS = {
  act: "This token lets you look and act: pause streams, make them read-only, look at dead letters and deliver them again.",
  look: "This token lets you look at everything here except dead letters. It does not let you act.",
  nothing: "This is not a token of this console.",
};

function tokensThere({ acts, looks }) {
  const act = "The token in the file that the console’s token_file names lets you look and act: pause streams, make them read-only, look at dead letters and deliver them again.";
  const look = "The one that read_token_file names lets you look, and not act.";
  const none = "This console has no token_file, so nobody can act here.";
  return [acts ? act : none, looks ? look : ""].filter(Boolean).join(" ");
}

/** Asks for a token, has the console check it, and keeps it for this tab. `need`: act, look or nothing. */
export function askToken(why, then, need = "look") {
  const field = el("input", { type: "password", id: "token-field", autocomplete: "off", required: true, "aria-describedby": "token-outcome" });
  const outcome = el("p", { id: "token-outcome", role: "alert" });
  const allows = el("p", { class: "muted" });
  const use = el("button", { type: "submit", class: "main" }, "Use it");
  field.value = token.get();
  async function check(event) {
    event.preventDefault();
    use.disabled = true;
    outcome.textContent = "";
    const entered = field.value.trim();
    try {
      const told = await checkToken(entered);
      if (!told.is_known || (need === "act" && told.may !== "act")) {
        outcome.textContent = told.is_known ? `${ALLOWS[told.may]} What you want to do needs the other one.` : ALLOWS.nothing;
        field.setAttribute("aria-invalid", "true");
        field.select();
        return;
      }
      token.set(entered, told.may);
      dialog.close();
      refresh();
      then?.();
    } catch (error) {
      outcome.textContent = `Not checked: ${error.message}`;
    } finally {
      use.disabled = false;
    }
  }
  const dialog = el("dialog", { "aria-labelledby": "token-title" },
    el("form", { onsubmit: check },
      el("h2", { id: "token-title" }, "The console’s token"),
      el("p", {}, why),
      allows,
      el("label", { for: "token-field", class: "muted" }, "Token"),
      field, outcome,
      el("p", { class: "muted" }, "It is kept in this tab until you close it, and sent to nobody but this console."),
      el("div", { class: "buttons" },
        el("button", { type: "button", onclick: () => { token.set(""); dialog.close(); refresh(); } }, "Forget it"),
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), use)));
  open(dialog);
  field.focus();
  checkToken(token.get()).then((told) => {
    const now = token.get() ? ALLOWS[told.may] : "";
    allows.textContent = [tokensThere(told), now && `In this tab now: ${now}`].filter(Boolean).join(" ");
  }, () => {});
}

/** Shows facts and buttons while they change: both are functions, asked at each news.
 * `facts`: [name, value] each, without listeners; `buttons`: [words, run, attributes] each. */
export function showFacts(title, facts, buttons) {
  const body = el("dl", { class: "facts" });
  const row = el("div", { class: "buttons" });
  let shown = null;
  const dialog = el("dialog", { "aria-labelledby": "facts-title" },
    el("div", { class: "inside" }, el("h2", { id: "facts-title" }, title), body, row));
  const draw = () => {
    patch(body, facts().flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    const wanted = buttons();
    const words = JSON.stringify(wanted.map(([one]) => one));
    if (words === shown) return;
    shown = words;
    const focused = row.contains(document.activeElement) ? document.activeElement.textContent : null;
    row.replaceChildren(...wanted.map(([one, run, attributes]) =>
      el("button", { type: "button", onclick: () => { dialog.close(); run(); }, ...attributes }, one)),
    el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    if (focused !== null) ([...row.children].find((one) => one.textContent === focused) ?? row.lastChild).focus();
  };
  draw();
  const stop = listen(draw);
  dialog.addEventListener("close", stop);
  open(dialog);
  return draw;
}

/** Asks whether to do something with a stream, does it, and says how it went. */
export function confirmAction(action, stream, what, state) {
  confirm(what, () => ["Stream: ", el("code", {}, stream), ", now ", state()], () => act(action, stream));
}

/** Asks whether to do something, does it with the token, and says how it went. `about`: a function
 * of nodes and text, asked at each news. */
export function confirm(what, about, doIt) {
  const outcome = el("p", { role: "status" });
  const told = el("p");
  const go = el("button", { type: "submit", class: "main" }, "Do it");
  async function run(event) {
    event.preventDefault();
    if (!token.mayAct()) return askToken("Whoever acts needs the token of the console.", run.bind(null, new Event("submit")), "act");
    go.disabled = true;
    try {
      const answer = await doIt();
      outcome.textContent = `Done: ${answer.done}`;
      refresh();
    } catch (error) {
      outcome.textContent = `Not done: ${error.message}`;
      go.disabled = false;
      if (error.status === 401) { token.set(""); }
    }
  }
  const dialog = el("dialog", { "aria-labelledby": "confirm-title" },
    el("form", { onsubmit: run },
      el("h2", { id: "confirm-title" }, `${what.title}?`),
      el("p", {}, what.text),
      told,
      outcome,
      el("div", { class: "buttons" },
        el("button", { type: "button", onclick: () => dialog.close() }, "Close"), go)));
  const stop = listen(() => patch(told, about().map((one) => (one instanceof Node ? one : document.createTextNode(one)))));
  dialog.addEventListener("close", stop);
  open(dialog);
}
