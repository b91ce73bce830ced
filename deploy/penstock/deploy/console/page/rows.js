// A table of many rows, of which only those in sight are in the page. Sorts and filters.

import { el } from "./dom.js";

const ROW_PX = 40;
const MARGIN_ROWS = 8;

export class Rows {
  /** columns: {key, title, width, number, value(row), cell(row) → text or node}. */
  constructor(label, columns, sortKey) {
    this.columns = columns;
    this.sort = { key: sortKey, down: false };
    this.rows = [];
    this.shown = [];
    this.drawn = "";
    this.heads = columns.map((column) => el("th",
      { scope: "col", class: column.number ? "num" : null },
      el("button", { type: "button", onclick: () => this.sortBy(column.key) }, column.title)));
    this.body = el("tbody");
    this.table = el("table", { "aria-label": label },
      el("colgroup", {}, columns.map((column) => { const col = el("col"); col.style.width = column.width; return col; })),
      el("thead", {}, el("tr", { "aria-rowindex": "1" }, this.heads)), this.body);
    this.port = el("div", { class: "table-port", tabindex: "0", role: "region", "aria-label": label,
      onscroll: () => this.draw() }, this.table);
    this.mark();
  }

  mark() {
    this.columns.forEach((column, index) => {
      const on = column.key === this.sort.key;
      this.heads[index].setAttribute("aria-sort", on ? (this.sort.down ? "descending" : "ascending") : "none");
    });
  }

  sortBy(key) {
    const column = this.columns.find((one) => one.key === key);
    const same = this.sort.key === key;
    this.sort = { key, down: same ? !this.sort.down : Boolean(column.number) };
    this.mark();
    this.update(this.rows);
  }

  /** Takes rows as they are now. */
  update(rows) {
    this.rows = rows;
    const { value } = this.columns.find((column) => column.key === this.sort.key);
    const sign = this.sort.down ? -1 : 1;
    this.shown = rows.map((row) => [value(row), row]).sort(([a], [b]) => {
      if (a === b) return 0;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    }).map(([, row]) => row);
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.drawn = "";
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.port.scrollTop / ROW_PX) - MARGIN_ROWS);
    const height = this.port.clientHeight || 600;
    const end = Math.min(this.shown.length, first + Math.ceil(height / ROW_PX) + 2 * MARGIN_ROWS);
    const range = `${first}-${end}`;
    if (range === this.drawn) return;
    this.drawn = range;
    const focused = this.body.contains(document.activeElement)
      ? document.activeElement.dataset.name : null;
    const drawn = [];
    for (let index = first; index < end; index += 1) drawn.push(this.row(this.shown[index], index));
    this.body.replaceChildren(spacer(first, this.columns.length), ...drawn,
      spacer(this.shown.length - end, this.columns.length));
    if (focused !== null) {
      [...this.body.querySelectorAll("[data-name]")].find((one) => one.dataset.name === focused)?.focus();
    }
  }

  row(row, index) {
    return el("tr", { "aria-rowindex": index + 2 }, this.columns.map((column) => {
      const made = column.cell(row);
      const title = typeof made === "string" && made.length > 16 ? made : null;
      return el("td", { class: column.number ? "num" : null, title }, made);
    }));
  }
}

function spacer(rows, columns) {
  const cell = el("td", { colspan: columns });
  cell.style.height = `${rows * ROW_PX}px`;
  const row = el("tr", { class: "spacer", "aria-hidden": "true" }, cell);
  row.style.height = cell.style.height;
  row.hidden = rows === 0;
  return row;
}
