// Makes elements. Text is only ever set as text: what telemetry says is never markup.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element: attributes by name, listeners as `onclick`, children as nodes or text. */
export const el = (name, attributes, ...children) =>
  make(document.createElement(name), attributes, children);

/** The same in SVG. */
export const svg = (name, attributes, ...children) =>
  make(document.createElementNS(SVG, name), attributes, children);

/** Sets an element's text when it is another. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Sets attributes when they are others. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
  }
}

/** Makes what `holder` holds look like `wanted`, and leaves in place what is there already: focus,
 * scroll positions and open details stay. What is in `wanted` must have no listeners. */
export function patch(holder, wanted) {
  [...wanted].forEach((node, index) => {
    const there = holder.childNodes[index];
    if (!there) holder.append(node);
    else if (there.nodeType !== node.nodeType || there.nodeName !== node.nodeName) there.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) say(there, node.data);
    else {
      for (const { name } of [...there.attributes]) if (name !== "open" && !node.hasAttribute(name)) there.removeAttribute(name);
      set(there, Object.fromEntries([...node.attributes].map(({ name, value }) => [name, value])));
      patch(there, [...node.childNodes]);
    }
  });
  while (holder.childNodes.length > wanted.length) holder.lastChild.remove();
}

const TONES = {
  ready: "ok", ok: "ok", even: "ok", active: "ok",
  balanced: "ok", settling: "warn", unknown: "warn", off: "bad",
  degraded: "warn", starting: "warn", draining: "warn", paused: "warn", held: "warn", "read-only": "warn",
  failed: "bad", unreachable: "bad", leaderless: "bad", refusing: "bad", damaged: "bad", gone: "bad",
};

/** `ok`, `warn`, `bad`, or nothing: how a state is shown. */
export const tone = (state) => TONES[state] ?? "";

/** A state in words with its tone. */
export const pill = (state, words) => el("span", { class: `pill ${tone(state)}` }, words ?? state);

/** A link to the figures of one thing over time. */
export const historyLink = (kind, name, words = "History") =>
  el("a", { href: `#/overview?${new URLSearchParams({ kind, name })}` }, words);

/** A cell with a figure. */
export const figure = (text) => el("td", { class: "num" }, text);

/** A table: titles (of figures with a leading #), rows of cells or text. */
export function table(label, titles, rows) {
  const head = titles.map((title) =>
    title.startsWith("#")
      ? el("th", { scope: "col", class: "num" }, title.slice(1))
      : el("th", { scope: "col" }, title));
  const body = rows.map((cells) =>
    el("tr", {}, cells.map((cell) => (cell instanceof Node ? cell : el("td", {}, cell)))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el("table", {}, el("caption", { class: "unseen" }, label), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}
