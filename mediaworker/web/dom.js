/** Elements, and how times are written. What came over a phone line becomes text nodes here, never markup. */

const SVG = "http://www.w3.org/2000/svg";

/** `on…` attributes are listeners, `true` is an attribute without a value, null and false are none. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === "") node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const LANGUAGE = /^[a-z]{2,3}(-[a-z0-9]{1,8})*$/i;

/** Of what was spoken: the page's own words are English, and a text whose language nobody knows must not pass for it. */
export function setLanguage(node, language) {
  const lang = LANGUAGE.test(language ?? "") ? language : "";
  if (node.getAttribute("lang") !== lang) node.setAttribute("lang", lang);
}

/** `2:05`, `1:02:05`. */
export function clock(ms) {
  const s = Math.max(0, Math.floor(ms / 1000)), two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(s / 3600), minutes = Math.floor(s / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(s % 60)}` : `${minutes}:${two(s % 60)}`;
}

/** A length for a reader: `0.4 s`, `12 s`, `2:05`. */
export function length(ms) {
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 60_000 ? `${Math.round(ms / 1000)} s` : `${clock(ms)} min`;
}

/** Whole percents of each, which add up to 100 (largest remainders); zeros where there is nothing to share. */
export function shares(amounts) {
  const names = Object.keys(amounts), sum = names.reduce((all, name) => all + amounts[name], 0);
  const exact = Object.fromEntries(names.map((name) => [name, sum ? 100 * amounts[name] / sum : 0]));
  const whole = Object.fromEntries(names.map((name) => [name, Math.floor(exact[name])]));
  const left = sum ? 100 - names.reduce((all, name) => all + whole[name], 0) : 0;
  names.sort((one, other) => exact[other] % 1 - exact[one] % 1).slice(0, left).forEach((name) => { whole[name] += 1; });
  return whole;
}

const names = new Intl.DisplayNames(["en"], { type: "language" });

/** The English name of a language; empty for what an event calls one and is none. */
export function languageName(code) {
  return LANGUAGE.test(code ?? "") ? names.of(code.split("-")[0]) : "";
}

/** [name, code] of languages, in the order of their names. */
export function named(codes) {
  return codes.map((code) => [names.of(code), code]).sort(([one], [other]) => one.localeCompare(other));
}

/** `1 alert`, `2 alerts`. */
export function many(count, what) {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

const TIME = { hour: "2-digit", minute: "2-digit" };
const today = new Intl.DateTimeFormat(undefined, TIME);
const otherDay = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", ...TIME });

/** Wall clock: the time, and the day when it is not today. */
export function when(epochMs) {
  if (!Number.isFinite(epochMs)) return "";
  const date = new Date(epochMs);
  return (date.toDateString() === new Date().toDateString() ? today : otherDay).format(date);
}

/** Calls `work` once in the next animation frame, however often it is asked for. */
export function perFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

/** Calls `work` at most once in so many milliseconds, and once after the last time it was asked for. */
export function perPause(pauseMs, work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    setTimeout(() => {
      asked = false;
      work();
    }, pauseMs);
  };
}

/** Who is called by whom, for headings and lists. */
export function parties(call) {
  return [call.from || "unknown", call.to].filter(Boolean).join(" → ");
}
