// Dialogs: confirm an action, take the token, show facts.

import { el } from "./dom.js";
import { act, refresh, token } from "./store.js";

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  return dialog;
}

/** Asks for the token, and keeps it for this tab. */
export function askToken(why, then) {
  const field = el("input", { type: "password", id: "token-field", autocomplete: "off", required: true });
  field.value = token.get();
  const dialog = el("dialog", { "aria-labelledby": "token-title" },
    el("form", { method: "dialog", onsubmit: () => { token.set(field.value.trim()); refresh(); then?.(); } },
      el("h2", { id: "token-title" }, "The console’s token"),
      el("p", {}, why),
      el("label", { for: "token-field", class: "muted" }, "Token"),
      field,
      el("p", { class: "muted" }, "It is kept in this tab until you close it, and sent to nobody but this console."),
      el("div", { class: "buttons" },
        el("button", { type: "button", onclick: () => { token.set(""); dialog.close(); refresh(); } }, "Forget it"),
        el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        el("button", { type: "submit", class: "main" }, "Use it"))));
  open(dialog);
  field.focus();
}

/** Shows facts, an element for each, and buttons. */
export function showFacts(title, facts, buttons) {
  const dialog = el("dialog", { "aria-labelledby": "facts-title" },
    el("div", { class: "inside" },
      el("h2", { id: "facts-title" }, title),
      el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      el("div", { class: "buttons" }, buttons.map(([words, run, attributes]) =>
        el("button", { type: "button", onclick: () => { dialog.close(); run(); }, ...attributes }, words)),
        el("button", { type: "button", onclick: () => dialog.close() }, "Close"))));
  open(dialog);
}

/** Asks whether to do something with a stream, does it, and says how it went. */
export function confirmAction(action, stream, what) {
  confirm(what, ["Stream: ", el("code", {}, stream)], () => act(action, stream));
}

/** Asks whether to do something, does it with the token, and says how it went. */
export function confirm(what, about, doIt) {
  const outcome = el("p", { role: "status" });
  const go = el("button", { type: "submit", class: "main" }, "Do it");
  async function run(event) {
    event.preventDefault();
    if (!token.get()) return askToken("Whoever acts needs the token of the console.", run.bind(null, new Event("submit")));
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
      el("p", {}, about),
      outcome,
      el("div", { class: "buttons" },
        el("button", { type: "button", onclick: () => dialog.close() }, "Close"), go)));
  open(dialog);
}
