/** The list: live calls, those with an open alert first, then the newest, and past ones, page by page. */

import { matches, otherParty, rank, title, topic } from "./calls-state.js";
import { clock, h, many, perFrame, setAttribute, setLanguage, setText, when } from "./dom.js";
import { icon } from "./icons.js";

const SEARCH_MS = 250;  // after the last key
const KEPT_PAST = 200;  // of calls that ended while the page was open; "More" brings any

export class CallList {
  #calls; #now; #acknowledged; #rows = new Map(); #dirty = new Set(); #draw = perFrame(() => this.#drawDirty());
  #lost = false; #selected = null; #kept = KEPT_PAST; #timer; #found = new Set(); #brought = new Set(); #searching; #onSearch;

  /** @param calls  The state.  @param acknowledged  Which alerts are.  @param now  The worker's clock, epoch milliseconds.  @param onMore  Wants a page.
   * @param onSearch  Wants the ids of the calls in which a text was said, of all that are stored. */
  constructor(calls, acknowledged, now, { onMore, onSearch }) {
    this.#calls = calls;
    this.#acknowledged = acknowledged;
    this.#now = now;
    this.#onSearch = onSearch;
    this.filter = h("input", { type: "search", placeholder: "Search all calls", "aria-label": "Search all calls",
                               autocomplete: "off", spellcheck: "false", oninput: () => this.#refilter() });
    this.live = h("ul", { class: "rows" });
    this.past = h("ul", { class: "rows" });
    this.count = h("span", { class: "count" });
    this.stale = h("span", { class: "stale", hidden: true }, "not up to date");
    this.noLive = h("p", { class: "empty" }, "No calls right now. A call appears here when it is answered.");
    this.noPast = h("p", { class: "empty" }, "None yet.");
    this.first = firstCall();
    this.status = h("p", { class: "empty", role: "status", hidden: true });
    this.more = h("button", { type: "button", class: "more", hidden: true, onclick: onMore }, "More");
    this.element = h("nav", { class: "list", "aria-label": "Calls", onkeydown: (event) => this.#key(event) },
      h("div", { class: "filter" }, this.filter, this.status),
      h("div", { class: "scroll" },
        h("h2", {}, "Live", this.count, this.stale), this.noLive, this.live, this.first,
        h("h2", {}, "Past"), this.noPast, this.past, this.more));
    this.#timer = setInterval(() => this.#tick(), 1000);
  }

  close() {
    clearInterval(this.#timer);
    clearTimeout(this.#searching);
  }

  /** The call's state has changed. */
  update(id) {
    this.#dirty.add(id);
    this.#draw();
  }

  /** A page of past calls has come; `oldest` is where the next one begins, null after the last. */
  loaded(ids, oldest) {
    this.#kept += ids.length;
    this.oldest = oldest;
    ids.forEach((id) => this.update(id));
    this.#draw();
  }

  /** Whether the worker cannot be heard: what is shown is then how it was. */
  lose(lost) {
    this.#lost = lost;
    this.stale.hidden = !lost;
    for (const { callId } of this.live.children) this.update(callId);
  }

  select(id) {
    for (const [which, value] of [[this.#selected, null], [id, "true"]]) {
      const row = this.#rows.get(which);
      if (row) setAttribute(row.link, "aria-current", value);
    }
    this.#selected = id;
  }

  /** To the selected call's row, or the list's beginning. */
  focus() {
    (this.#rows.get(this.#selected)?.link ?? this.element.querySelector("a") ?? this.filter).focus();
  }

  #drawDirty() {
    for (const id of this.#dirty) {
      const call = this.#calls.all.get(id);
      if (call) this.#drawCall(call, this.#rows.get(id) ?? this.#add(call));
      else this.#remove(id);
    }
    this.#dirty.clear();
    while (this.past.children.length > this.#kept + this.#brought.size) {
      const last = this.past.lastElementChild;
      this.#calls.remove(last.callId);
      this.#remove(last.callId);
      this.oldest = this.past.lastElementChild.callId;
    }
    this.more.hidden = !this.oldest;
    setText(this.count, this.live.children.length ? String(this.live.children.length) : "");
    this.noLive.hidden = this.live.children.length > 0;
    this.noPast.hidden = this.past.children.length > 0;
    this.first.hidden = this.#rows.size > 0 || Boolean(this.oldest);
  }

  #add(call) {
    const row = {
      who: h("span", { class: "who", dir: "auto" }), topic: h("span", { class: "topic", dir: "auto" }),
      time: h("span", { class: "time" }),
      what: h("span", { class: "what", dir: "auto" }), speaking: h("span", { class: "speaking" }),
      held: h("span", { class: "badge" }, "On hold"), rule: h("span"),
    };
    row.alert = h("span", { class: "badge alert" }, icon("alert"), icon("check"), row.rule);
    row.link = h("a", { href: `#/calls/${encodeURIComponent(call.id)}`, class: "row",
                        "aria-current": call.id === this.#selected ? "true" : null },
      h("span", { class: "party" }, row.who, row.topic), row.time, row.what,
      h("span", { class: "flags" }, row.speaking, row.held), row.alert);
    row.node = h("li", {}, row.link);
    row.node.callId = call.id;
    this.#rows.set(call.id, row);
    return row;
  }

  #remove(id) {
    this.#rows.get(id)?.node.remove();
    this.#rows.delete(id);
  }

  #drawCall(call, row) {
    const open = this.#acknowledged.isOpen(call);
    row.node.urgency = open && !call.ended ? rank(call.alert.severity) + 1 : 0;
    place(row.node, call.ended ? this.past : this.live);
    setText(row.who, otherParty(call));
    setText(row.topic, topic(call));
    setText(row.time, call.ended ? when(call.startedAt) : clock(this.#length(call)));
    setText(row.what, call.said || (call.ended ? past(call) : call.source));
    if (call.said) setLanguage(row.what, call.language);
    else setAttribute(row.what, "lang", null);
    const names = [...new Set(call.speaking.values())].map((leg) => title(call.legs.get(leg) ?? { leg }));
    setText(row.speaking, names.join(", "));
    row.speaking.hidden = names.length === 0 || this.#lost;
    row.held.hidden = call.held.size === 0;
    row.alert.hidden = !call.alert;
    if (call.alert) {
      setText(row.rule, call.alert.count > 1 ? `${call.alert.rule} (${call.alert.count})` : call.alert.rule);
      setAttribute(row.alert, "data-severity", call.alert.severity);
      setAttribute(row.alert, "title", call.alert.severity + (open ? "" : ", acknowledged or past"));
      row.alert.classList.toggle("done", !open);
    }
    row.node.hidden = !this.#shows(call);
  }

  #length(call) {
    return call.ended ? call.clock.lengthMs : call.clock.now(this.#now());
  }

  #tick() {
    if (this.#lost) return;
    for (const { callId } of this.live.children) {
      setText(this.#rows.get(callId).time, clock(this.#length(this.#calls.all.get(callId))));
    }
  }

  #shows(call) {
    return matches(call, this.filter.value) || this.#found.has(call.id);
  }

  /** What is here is filtered at once; the worker is asked for the rest when the typing pauses. */
  #refilter() {
    clearTimeout(this.#searching);
    this.#found.clear();
    if (this.filter.value.trim()) this.#searching = setTimeout(() => this.#search(), SEARCH_MS);
    else this.#forgetBrought();
    for (const [id, row] of this.#rows) row.node.hidden = !this.#shows(this.#calls.all.get(id));
    this.status.hidden = true;
    this.#draw();
  }

  async #search() {
    const text = this.filter.value, known = new Set(this.#rows.keys());
    const ids = await this.#onSearch(text.trim());
    if (ids === null || text !== this.filter.value) return;
    ids.forEach((id) => {
      this.#found.add(id);
      if (!known.has(id)) this.#brought.add(id);
      this.update(id);
    });
    this.#draw();
    const shown = new Set(ids);
    for (const [id, call] of this.#calls.all) if (this.#shows(call)) shown.add(id);
    setText(this.status, shown.size ? many(shown.size, "call") : "No call matches.");
    this.status.hidden = false;
  }

  /** What a search has brought from further back would stand behind a gap. */
  #forgetBrought() {
    for (const id of this.#brought) {
      if (id === this.#selected || !this.#calls.all.get(id)?.ended) continue;
      this.#calls.remove(id);
      this.#remove(id);
    }
    this.#brought.clear();
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    const inFilter = event.target === this.filter;
    if (!step || event.altKey || event.ctrlKey || event.metaKey || (inFilter && event.key !== "ArrowDown")) return;
    const links = [...this.element.querySelectorAll("li:not([hidden]) > a")];
    const at = inFilter ? -1 : links.indexOf(event.target.closest("a"));
    if (links.length === 0 || (at < 0 && !inFilter)) return;
    links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
    event.preventDefault();
  }
}

/** Where it belongs, with the focus that it may have: the most urgent first, then the newest, for ids grow with time. */
function place(node, list) {
  const before = (one, other) => one.urgency > other.urgency
    || (one.urgency === other.urgency && one.callId > other.callId);
  const { previousElementSibling: above, nextElementSibling: below } = node;
  if (node.parentNode === list && !(above && before(node, above)) && !(below && before(below, node))) return;
  const focused = node.contains(document.activeElement) ? document.activeElement : null;
  list.insertBefore(node, [...list.children].find((other) => other !== node && before(node, other)) ?? null);
  focused?.focus({ preventScroll: true });
}

function past(call) {
  const how = call.reason === "hangup" ? "" : ` · ${call.reason.replaceAll("_", " ")}`;
  return `${call.source} · ${clock(call.clock.lengthMs)}${how}`;
}

/** What to do where nothing is to be seen yet. */
function firstCall() {
  const host = location.hostname.includes(":") ? `[${location.hostname}]` : location.hostname;
  const ways = [
    ["From a SIP phone, or from the command line:", `mediaworker call sip:demo@${host}:5060 --play speech.wav`],
    ["As Twilio would:", `mediaworker stream ws://${host}:8081/twilio/stream --play speech.wav`],
  ];
  return h("div", { class: "first", hidden: true }, h("h3", {}, "Make a first call"),
    h("p", {}, "Here and now: ", h("a", { href: "#/try" }, "talk into the microphone or drop a recording"), "."),
    ...ways.flatMap(([how, line]) => [h("p", {}, how), h("code", {}, line)]));
}
