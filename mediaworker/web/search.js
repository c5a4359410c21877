/** Search within a call: a field of its own, a count, and the way from one find to the next. */

import { h, setText } from "./dom.js";
import { icon } from "./icons.js";

const PAUSE_MS = 120;

/** A pattern for what was typed, or null for nothing. */
export function pattern(typed) {
  const words = typed.trim().replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+");
  return words ? new RegExp(words, "giu") : null;
}

/** The text as nodes: finds and redactions are marked, everything else is text. */
export function marked(text, query, redactions = []) {
  const found = query ? [...text.matchAll(query)].map((match) => [match.index, match[0].length, "found"]) : [];
  const kinds = new Set(redactions.map((redaction) => redaction.kind));
  const hidden = [...text.matchAll(/\[([^\[\]\s]+)\]/g)].filter((match) => kinds.has(match[1]));
  found.push(...hidden.map((match) => [match.index, match[0].length, "redacted"]));
  found.sort((one, other) => one[0] - other[0]);
  const nodes = [];
  let at = 0;
  for (const [start, size, kind] of found) {
    if (start < at) continue;  // a find within what was taken out
    nodes.push(text.slice(at, start), h("mark", { class: kind, title: kind === "redacted" ? "Taken out" : null },
                                        text.slice(start, start + size)));
    at = start + size;
  }
  nodes.push(text.slice(at));
  return nodes;
}

export class Search {
  #state; #view; #query = null; #finds = []; #at = -1; #current = null; #timer;

  constructor(state, view) {
    this.#state = state;
    this.#view = view;
    this.field = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in this call",
                              "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false",
                              oninput: () => this.#typed(), onkeydown: (event) => this.#key(event) });
    this.count = h("span", { class: "count", role: "status" });
    this.buttons = [["Previous", "up", -1], ["Next", "down", 1]].map(([name, sign, step]) =>
      h("button", { type: "button", class: "icon", "aria-label": `${name} find`, disabled: true,
                    onclick: () => this.#go(step) }, icon(sign)));
    this.element = h("search", { class: "search" }, this.field, this.count, ...this.buttons);
  }

  focus() {
    this.field.focus();
    this.field.select();
  }

  /** Something was said meanwhile: it may be a find. */
  update() {
    if (this.#query && this.#timer === undefined) this.#later();
  }

  #typed() {
    clearTimeout(this.#timer);
    this.#at = -1;
    this.#later();
  }

  #later() {
    this.#timer = setTimeout(() => this.#find(), PAUSE_MS);
  }

  #find() {
    this.#timer = undefined;
    const query = pattern(this.field.value), fresh = String(query) !== String(this.#query);
    this.#query = query;
    if (fresh) this.#view.highlight(query);
    const said = query ? this.#state.items.filter((item) => item.kind === "said" && item.final) : [];
    this.#finds = said.flatMap((item) => [...item.text.matchAll(query)].map((_, nth) => ({ item, nth })));
    this.buttons.forEach((button) => { button.disabled = this.#finds.length === 0; });
    if (fresh && this.#finds.length) this.#go(1, false);
    else this.#tell();
  }

  #go(step, wrap = true) {
    const count = this.#finds.length;
    if (count === 0) return;
    this.#at = wrap ? (this.#at + step + count) % count : 0;
    const { item, nth } = this.#finds[this.#at];
    this.#view.reveal(item, false);
    this.#current?.classList.remove("current");
    this.#current = this.#view.marks(item)[nth] ?? null;
    this.#current?.classList.add("current");
    this.#tell();
  }

  #tell() {
    const count = this.#finds.length;
    setText(this.count, !this.#query ? "" : count ? `${this.#at + 1} of ${count}` : "none");
  }

  #key(event) {
    if (event.key === "Enter") this.#go(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.field.value) {
      this.field.value = "";
      this.#typed();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
