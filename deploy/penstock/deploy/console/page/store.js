// Asks the console's server, again and again, and tells the views.

const INTERVAL_MS = 1000;
const HIDDEN_MS = 10000;
const PATIENCE_MS = 4000;
const KEY = "penstock-token";
const MAY = "penstock-token-may";

let last = null;
let answeredAt = performance.now();
let timer = 0;
const listeners = new Set();

/** What went wrong with a request: its message is for people, `code` for programs; of a form,
 * `fields` has what is wrong with each. */
export class Refused extends Error {
  constructor(status, document) {
    super(document.error ?? `the console answered ${status}`);
    this.status = status;
    this.code = document.code ?? "";
    this.fields = document.fields ?? {};
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  mayAct: () => sessionStorage.getItem(MAY) === "act",
  set: (value, may = "") => {
    sessionStorage.setItem(KEY, value);
    sessionStorage.setItem(MAY, value ? may : "");
  },
};

/** What the console says a token allows: {may, is_known, acts, looks}. */
export async function checkToken(value) {
  const headers = value ? { Authorization: `Bearer ${value}` } : {};
  const answer = await fetch("/api/token", { headers, signal: AbortSignal.timeout(8000) });
  const document = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, document);
  return document;
}

/** One request. Throws `Refused`, or a TypeError when nobody answers. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const answer = await fetch(path, { ...options, headers, signal: options.signal ?? AbortSignal.timeout(8000) });
  const document = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, document);
  return document;
}

/** Does something, with the token. */
export const act = (action, stream) =>
  ask("/api/actions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ action, stream }),
  });

/** Has a router list the dead letters of a sink, or deliver them again; with the token. */
export const aboutDeadLetters = (action, router, sink, to) =>
  ask("/api/actions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ action, router, sink, ...(to ? { to } : {}) }),
  });

/** Calls `listener(snapshot, state)` now and at all news; state: {silentMs, needsToken}. Returns what ends it. */
export function listen(listener) {
  listeners.add(listener);
  if (last) listener(last, { silentMs: 0, needsToken: false });
  return () => listeners.delete(listener);
}

function tell(state) {
  for (const listener of listeners) listener(last, state);
}

async function look() {
  let state = { silentMs: 0, needsToken: false };
  try {
    last = await ask("/api/snapshot");
    answeredAt = performance.now();
  } catch (error) {
    const silentMs = performance.now() - answeredAt;
    const needsToken = error instanceof Refused && error.status === 401;
    state = { silentMs: needsToken ? 0 : Math.max(silentMs, PATIENCE_MS * (last ? 0 : 1)), needsToken };
  }
  clearTimeout(timer); // of several that were under way, one goes on
  timer = setTimeout(look, document.hidden ? HIDDEN_MS : INTERVAL_MS);
  tell(state);
}

/** Looks at once. */
export function refresh() {
  clearTimeout(timer);
  look();
}

export function begin() {
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  look();
}

export const isSilent = (state) => state.silentMs >= PATIENCE_MS;
export const silentSince = () => performance.now() - answeredAt;
