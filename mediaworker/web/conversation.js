/** The conversation as rows. A row is made once and changed in place; it never changes its size when it settles. */

import { clock, h, length, perFrame, setAttribute, setLanguage, setText } from "./dom.js";
import { icon } from "./icons.js";
import { marked } from "./search.js";

const AT_END_PX = 48;      // nearer to the end than this is at the end
const FRAME_MS = 20;       // drawing a long call's past is spread over frames of so much work
const SPOKEN_LATELY_MS = 10_000;

export class ConversationView {
  #state; #rows = new Map(); #dirty = new Set(); #draw = perFrame(() => this.#drawDirty());
  #following = true; #lastTop = 0; #missed = 0; #query = null; #language = ""; #announced = new WeakSet(); #observer;

  constructor(state, { follow = true } = {}) {
    this.#state = state;
    this.#following = this.follow = follow;
    this.rows = h("div", { class: "items" });
    // Partials change many times a second: what is read out are the finals, one by one, from `spoken`.
    this.log = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: "0",
                          onscroll: () => this.#scrolled() }, this.rows);
    this.spoken = h("div", { class: "unseen", "aria-live": "polite" });
    this.jump = h("button", { type: "button", class: "jump", hidden: true, onclick: () => this.toEnd() });
    this.element = h("div", { class: "conversation" }, this.log, this.jump, this.spoken);
    this.#observer = new ResizeObserver(() => { if (this.#following) this.#pin(); });
    this.#observer.observe(this.log);
    this.#observer.observe(this.rows);
  }

  close() {
    this.#observer.disconnect();
  }

  /** @param items  That are new or changed.  @param ageMs  How long ago it was said: only what is new is read out. */
  update(items, ageMs = Infinity) {
    for (const item of items) {
      this.#dirty.add(item);
      const fresh = item.kind === "said" && item.final && item.text && ageMs < SPOKEN_LATELY_MS;
      if (fresh && !this.#announced.has(item)) {
        this.#announced.add(item);
        this.#announce(item);
        if (!this.#following) this.#missed += 1;
      }
    }
    this.#draw();
  }

  /** Mark what a search has found; null ends it. */
  highlight(query) {
    this.#query = query;
    for (const item of this.#state.items) if (item.kind === "said") this.#dirty.add(item);
    this.#draw();
  }

  /** The marks of a row that has been drawn. */
  marks(item) {
    this.#drawDirty(Infinity);
    return [...(this.#rows.get(item)?.node.querySelectorAll("mark.found") ?? [])];
  }

  /** To an item, which is then shown and focused. */
  reveal(item, focus = true) {
    this.#drawDirty(Infinity);
    const node = this.#rows.get(item)?.node;
    if (!node) return;
    this.#following = false;
    node.scrollIntoView({ block: "center" });
    if (focus) node.focus({ preventScroll: true });
    node.classList.remove("flash");
    requestAnimationFrame(() => node.classList.add("flash"));
    this.#offerJump();
  }

  toEnd() {
    this.#following = true;
    this.#pin();
    this.#offerJump();
    this.log.focus({ preventScroll: true });
  }

  #announce(item) {
    const text = h("span", {}, item.text);
    setLanguage(text, item.language);
    this.spoken.append(h("p", {}, `${item.who.title}: `, text));
    while (this.spoken.children.length > 3) this.spoken.firstElementChild.remove();
  }

  #drawDirty(budgetMs = FRAME_MS) {
    const until = performance.now() + budgetMs;
    for (const item of this.#dirty) {
      this.#dirty.delete(item);
      this.#drawItem(item);
      if (performance.now() > until) break;
    }
    if (this.#following) this.#pin();
    this.#offerJump();
    if (this.#dirty.size) this.#draw();
  }

  #drawItem(item) {
    let row = this.#rows.get(item);
    if (item.gone) {
      row?.node.remove();
      this.#rows.delete(item);
      return;
    }
    if (!row) {
      row = item.kind === "said" ? saidRow(item) : eventRow(item);
      row.node.item = item;
      this.#rows.set(item, row);
      this.#place(item, row.node);
    }
    if (item.kind === "said") this.#drawSaid(item, row);
    else this.#drawEvent(item, row);
  }

  /** Nearly always at the end. */
  #place(item, node) {
    let next = null, last = this.rows.lastElementChild;
    for (; last && last.item.at > item.at; last = last.previousElementSibling) next = last;
    this.rows.insertBefore(node, next);
  }

  #drawSaid(item, row) {
    const leg = this.#state.legs.get(item.leg);
    const states = `${item.final ? "" : " unsettled"}${item.severity ? " alerted" : ""}`;
    setAttribute(row.node, "data-severity", item.severity ?? null);
    setAttribute(row.node, "class", `item said ${leg.side} leg${leg.index % 6}${states}`);
    setText(row.who, item.who.title);
    setLanguage(row.text, item.language);
    const points = item.final ? null : [...item.text];  // stable_chars counts code points, not UTF-16 units
    const solid = points ? points.slice(0, item.stable).join("") : item.text;
    const { redactions } = item;
    if (this.#query || redactions.length) row.solid.replaceChildren(...marked(solid, this.#query, redactions));
    else if (row.solid.childElementCount) row.solid.replaceChildren(solid);
    else setText(row.solid, solid);
    setText(row.loose, points ? points.slice(item.stable).join("") : "");
    row.text.classList.toggle("waiting", !item.text && !item.failed);
    if (item.final && !row.noted) this.#note(item, row);
  }

  /** Beside the text, where there is room for it: a row does not grow when it settles. */
  #note(item, row) {
    row.noted = true;
    if (item.failed) {
      setText(row.loose, "could not be recognised");
      setAttribute(row.loose, "lang", "en");
    }
    if (item.language && item.language !== this.#language) {
      if (this.#language) row.notes.append(h("span", { class: "language", title: "Language" }, item.language));
      this.#language = item.language;
    }
    if (item.lostMs > 0) {
      const title = `${item.lostMs} ms of audio never arrived`;
      row.notes.append(h("span", { class: "lost", title }, h("span", { class: "unseen" }, title),
                         h("span", { "aria-hidden": "true" }, `−${length(item.lostMs)}`)));
    }
  }

  #drawEvent(item, row) {
    const leg = item.leg === null ? "" : `${item.who?.title ?? item.leg} `;
    switch (item.kind) {
      case "alert":
        setText(row.label, item.count > 1 ? `${item.count} ×` : "");
        setText(row.text, item.rule);
        if (item.text && item.text !== item.rule) {
          const quote = h("span", { dir: "auto" }, item.text);
          setLanguage(quote, item.latest.language);
          row.text.append(": “", quote, "”");
        }
        return setAttribute(row.node, "data-severity", item.severity);
      case "dtmf":
        setText(row.label, `${leg}pressed`);
        row.text.replaceChildren(...item.digits.map((digit) => h("kbd", {}, digit)));
        if (item.masked) setAttribute(row.text, "title", "Digits are masked");
        return;
      case "hold":
        return setText(row.text, `${leg}${item.left ? "left" : "on hold"}`.replace(/^o/, "O"));
      case "resume":
        return setText(row.text, `${leg}back after ${length(item.length)}`.replace(/^b/, "B"));
      case "end":
        setText(row.text, `Call ended after ${clock(item.length)}: ${item.reason.replaceAll("_", " ")}`);
        setText(row.time, "");
    }
  }

  #pin() {
    this.log.scrollTop = this.log.scrollHeight;
    this.#lastTop = this.log.scrollTop;
  }

  /** Only the reader's own scrolling up ends the following: content that grows does not. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    const atEnd = scrollHeight - scrollTop - clientHeight < AT_END_PX;
    if (atEnd && this.follow) this.#following = true;
    else if (scrollTop < this.#lastTop) this.#following = false;
    this.#lastTop = scrollTop;
    this.#offerJump();
  }

  #offerJump() {
    if (this.#following) this.#missed = 0;
    this.log.classList.toggle("following", this.#following);
    this.jump.hidden = this.#following || !this.follow;
    const where = this.#state.live ? "Jump to live" : "Jump to the end";
    setText(this.jump, this.#missed ? `${where} · ${this.#missed} new` : where);
  }
}

function saidRow(item) {
  const solid = h("span"), loose = h("span", { class: "loose" });
  const row = { solid, loose, who: h("span", { class: "who" }), notes: h("span", { class: "notes" }),
                text: h("p", { class: "text", dir: "auto" }, solid, loose) };
  row.node = h("div", { tabindex: "-1" },
    h("span", { class: "gutter" }, h("time", {}, clock(item.at)), row.notes),
    h("div", { class: "bubble" }, row.who, row.text));
  return row;
}

function eventRow(item) {
  const row = { label: h("span", { class: "label" }), text: h("span", { class: "text", dir: "auto" }),
                time: h("time", {}, clock(item.at)) };
  row.node = h("div", { class: `item event ${item.kind}`, tabindex: "-1" },
    ...(item.kind === "alert" ? [icon("alert"), h("span", { class: "unseen" }, "Alert: ")] : []), row.time, row.label, row.text);
  return row;
}
