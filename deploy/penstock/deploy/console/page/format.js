// Figures for people. Nothing here knows the page.

const UNITS = ["", " k", " M", " G", " T", " P"];

function scaled(value, base, units) {
  let index = 0;
  let left = value;
  while (left >= base * 0.9995 && index < units.length - 1) { left /= base; index += 1; }
  const digits = index === 0 ? (Number.isInteger(left) || left >= 100 ? 0 : 1) : left < 10 ? 2 : left < 100 ? 1 : 0;
  return `${left.toFixed(digits)}${units[index]}`;
}

/** A count, whole up to 99,999. */
export const count = (value) =>
  value === null || value === undefined ? "–" : value < 100000 ? Math.round(value).toLocaleString("en") : scaled(value, 1000, UNITS);

/** A number and what it counts: 1 record, 2 records. */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A rate per second. */
export const rate = (value) =>
  value === null || value === undefined ? "–" : `${value > 0 && value < 0.1 ? "<0.1" : scaled(value, 1000, UNITS)}/s`;

/** Bytes. */
export const bytes = (value) =>
  value === null || value === undefined ? "–" : scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);

/** A time that passed, in milliseconds. */
export function span(ms) {
  if (ms === null || ms === undefined) return "never";
  const s = ms / 1000;
  if (s < 1.5) return "now";
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** The time of day, of milliseconds since 1970. */
export function time(ms) {
  const date = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** The time of day, of seconds since 1970. */
export const clock = (unix) => time(unix * 1000).slice(0, 8);

/** A day of the year. */
export const day = (unix) => new Date(unix * 1000).toLocaleDateString("en", { weekday: "short", day: "numeric", month: "short" });

/** What a stream keeps, in a few words. */
export function keeps(keep) {
  const found = [];
  if (keep.compact) found.push("newest of each key");
  if (keep.age_s) found.push(span(keep.age_s * 1000));
  if (keep.bytes) found.push(bytes(keep.bytes));
  if (keep.messages) found.push(counted(keep.messages, "record"));
  return found.length ? found.join(", ") : "everything";
}

/** A day of the last week. */
export const weekday = (unix) => `${new Date(unix * 1000).toLocaleDateString("en", { weekday: "short" })} ${new Date(unix * 1000).getDate()}`;

/** The day, of milliseconds since 1970, as the time of day is: in the browser's zone. */
export function date(ms) {
  const day = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())}`;
}

/** A moment of nanoseconds since 1970, in UTC. */
export const instant = (ns) => new Date(ns / 1e6).toISOString().replace("T", " ");

/** A time that passed, in nanoseconds, for spans. */
export function duration(ns) {
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(ns < 1e4 ? 1 : 0)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(ns < 1e7 ? 1 : 0)} ms`;
  return ns < 6e10 ? `${(ns / 1e9).toFixed(2)} s` : span(ns / 1e6);
}
