/** One call's conversation, folded from its events. No DOM: the views draw what changed. */

import { CallClock, rank, speaker, title } from "./calls-state.js";

/** What the conversation is made of; times of words are for others. */
export const CALL_TYPES = [
  "call.started", "leg.updated", "call.held", "call.resumed", "speech.started", "speech.ended", "transcript.partial",
  "transcript.final", "dtmf", "alert", "metrics", "call.ended",
];
const DIGITS_TOGETHER_MS = 4000;
const LONGEST_UTTERANCE_MS = 60_000;  // 30 s by default: how far back another utterance may overlap

/**
 * @typedef {Object} Item  One row of the conversation: `said`, `alert`, `dtmf`, `hold`, `resume` or `end`.
 * @property {string} kind  @property {number} at  Call milliseconds.  @property {string|null} leg
 * @property {Object} [who]  Who had the leg then: {leg, role, name, label, title}. A correction changes it.
 * @property {boolean} [gone]  Taken out again: an utterance without words.
 */

export class Conversation {
  #lastAlert = null;
  #shown = "";  // of the legs, in the rows that are drawn

  constructor(id) {
    this.id = id;
    this.started = null;
    this.ended = null;
    /** leg → {leg, role, name, label, codec, index, side: "left"|"right", title, since, who} */
    this.legs = new Map();
    /** In the order in which it happened. @type {Item[]} */
    this.items = [];
    /** Equal ones are one: {name, rule, severity, leg, count, text, latest}, `latest` being what it is about. */
    this.alerts = [];
    this.raised = 0;
    this.digits = [];
    /** Stretches of {leg, start, end}; `end` null while it lasts. */
    this.holds = [];
    /** Stretches of {start, end} in which two talked at once. */
    this.overtalk = [];
    this.metrics = null;
    this.clock = new CallClock();
    this.words = 0;
    this.said = new Map();
  }

  /** How long the call is, as far as it has been told. */
  get lengthMs() {
    return this.clock.lengthMs;
  }

  get live() {
    return this.started !== null && this.ended === null;
  }

  /** What an event changes: items to be drawn (again), and whether all of them are because a leg is another now. */
  fold(event) {
    this.clock.hear(event);
    switch (event.type) {
      case "call.started":
        this.started = event;
        event.legs.forEach((leg) => this.#leg(leg));
        return this.#arrange();
      case "leg.updated":
        this.#leg(event);
        return this.#arrange();
      case "speech.started":
        return [this.#utterance(event)];
      case "speech.ended":
        return this.#spoken(event);
      case "transcript.partial":
        return this.#partial(event);
      case "transcript.final":
        return this.#final(event);
      case "dtmf":
        return [this.#digit(event)];
      case "alert":
        return this.#alert(event);
      case "call.held":
        return [this.#held(event)];
      case "call.resumed":
        return [this.#resumed(event)];
      case "metrics":
        this.metrics = event;
        return [];
      case "call.ended":
        this.ended = event;
        this.clock.lengthMs = Math.max(this.lengthMs, event.duration_ms);  // nothing of it lies behind its end
        this.holds.forEach((hold) => { hold.end ??= this.lengthMs; });
        return [this.#insert({ kind: "end", at: Infinity, leg: null, reason: event.reason, length: this.lengthMs })];
      default:
        return [];
    }
  }

  /** Names given to an ended call's legs are in its record and in no event. Returns what is to be drawn again. */
  rename(legs) {
    legs.forEach((leg) => this.#leg(leg));
    return this.#arrange();
  }

  /** Of who has the leg now. */
  title(leg) {
    return this.legs.get(leg)?.title ?? leg ?? "";
  }

  /** The conversation as text, as `GET …/transcript?format=txt` has it, with what is still being said. */
  text() {
    const lines = this.items.filter((item) => item.kind === "said" && item.text);
    return lines.map((item) => `[${stamp(item.at)}] ${speaker(item.who)}: ${item.text}\n`).join("");
  }

  #leg(info) {
    const known = this.legs.get(info.leg) ?? { index: this.legs.size };
    const { leg, role, name, label, codec, since_ms: since = known.since ?? 0 } = info;
    const now = { leg, role, name, label, title: title(info) };
    // Who takes the leg over leaves what was said to who had it.
    if (known.since !== since) Object.assign(known, { since, who: {} });
    Object.assign(known.who, now);
    this.legs.set(leg, Object.assign(known, now, { codec }));
    return known;
  }

  /** Customers left, agents right, and who is unknown where there is room. */
  #arrange() {
    const sides = { customer: "left", agent: "right" }, count = { left: 0, right: 0 };
    for (const leg of this.legs.values()) if ((leg.side = sides[leg.role])) count[leg.side] += 1;
    for (const leg of this.legs.values()) {
      leg.side ??= count.left <= count.right ? "left" : "right";
      if (!sides[leg.role]) count[leg.side] += 1;
    }
    const shown = [...this.legs.values()].map((leg) => leg.side + leg.title).join("\n"), same = shown === this.#shown;
    this.#shown = shown;
    return same ? [] : [...this.items];
  }

  /** Sorted by time; what happens at the same time stays in the order in which it was told. */
  #insert(item) {
    let place = this.items.length;
    while (place > 0 && this.items[place - 1].at > item.at) place -= 1;
    this.items.splice(place, 0, item);
    item.who = this.legs.get(item.leg)?.who;
    return item;
  }

  #utterance(event) {
    let item = this.said.get(event.utterance_id);
    if (!item) {
      item = {
        kind: "said", id: event.utterance_id, at: event.start_ms, end: null, leg: event.leg, text: "", stable: 0,
        revision: -1, final: false, language: "", redactions: [], lostMs: 0, failed: false, heard: event.start_ms,
      };
      if (!this.legs.has(event.leg)) {
        this.#leg({ role: "unknown", name: "", label: "", codec: "", ...event });
        this.#arrange();
      }
      this.said.set(item.id, item);
      this.#insert(item);
    }
    return item;
  }

  #spoken(event) {
    const item = this.said.get(event.utterance_id);
    if (!item || item.end !== null) return [];
    item.end = event.end_ms;
    this.#overlap(item);
    return [item];
  }

  #partial(event) {
    const item = this.#utterance(event);
    if (item.final || event.revision <= item.revision) return [];
    Object.assign(item, {
      text: event.text, stable: event.stable_chars, revision: event.revision, language: event.language,
      heard: Math.max(item.heard, event.end_ms),
    });
    return [item];
  }

  #final(event) {
    const item = this.#utterance(event);
    if (item.final) return [];
    Object.assign(item, {
      final: true, text: event.text, stable: Infinity, revision: event.revision, language: event.language,
      lostMs: event.lost_ms, failed: event.reason === "failed", redactions: event.redactions ?? [],
    });
    if (event.language && this.legs.has(event.leg)) this.legs.get(event.leg).language = event.language;
    if (item.end === null) this.#spoken(event);
    item.end = item.heard = event.end_ms;
    if (!item.text && !item.failed) {
      item.gone = true;
      this.items.splice(this.items.lastIndexOf(item), 1);
    }
    this.words += item.text ? item.text.split(/\s+/).length : 0;
    return [item];
  }

  /** Counted when the later of two has ended, so once for each pair. */
  #overlap(item) {
    for (let at = this.items.length - 1; at >= 0; at -= 1) {
      const other = this.items[at];
      if (other.at < item.at - LONGEST_UTTERANCE_MS) return;
      if (other.kind !== "said" || other.leg === item.leg || other.end === null) continue;
      const start = Math.max(item.at, other.at), end = Math.min(item.end, other.end);
      if (start < end) this.overtalk.push({ start, end });
    }
  }

  #digit(event) {
    const last = this.digits.at(-1), digit = event.digit;
    if (last && last.leg === event.leg && event.at_ms - last.lastMs < DIGITS_TOGETHER_MS) {
      last.digits.push(digit);
      last.lastMs = event.at_ms;
      return last;
    }
    const { leg, at_ms: at, masked = false } = event;
    const item = this.#insert({ kind: "dtmf", at, leg, digits: [digit], lastMs: at, masked });
    this.digits.push(item);
    return item;
  }

  #alert(event) {
    const { severity, leg, start_ms: at, utterance_id: utterance } = event;
    const about = this.said.get(utterance), text = event.match || event.text;
    // Silence and over-talk are about no utterance: how long says more than what.
    const rule = utterance ? event.rule : `${event.rule}, ${Math.round((event.end_ms - at) / 1000)} s`;
    if (about && rank(severity) > rank(about.severity)) about.severity = severity;
    this.raised += 1;
    const name = event.rule, equal = (other) => other?.name === name && other.severity === severity && other.leg === leg;
    const before = this.alerts.find(equal), inRow = equal(this.#lastAlert);
    // Behind what it is about, even when others have spoken meanwhile; equal ones in a row are one row.
    const item = inRow ? this.#lastAlert
      : this.#insert({ kind: "alert", at: about?.at ?? at, leg, name, severity, count: 0 });
    Object.assign(item, { count: item.count + 1, rule, text, latest: about ?? item });
    this.#lastAlert = item;
    const found = before ?? { name, severity, leg, count: 0 };
    if (!before) this.alerts.push(found);
    Object.assign(found, { count: found.count + 1, rule, text, latest: item.latest });
    return about ? [about, item] : [item];
  }

  #held({ leg = null, at_ms: at, left = false }) {
    // Who has left may have been on hold before.
    const open = leg !== null && this.holds.some((hold) => hold.leg === leg && hold.end === null);
    if (!open) this.holds.push({ leg, start: at, end: null });
    return this.#insert({ kind: "hold", at, leg, left });
  }

  #resumed(event) {
    const open = this.holds.filter((hold) => hold.end === null && (!event.leg || hold.leg === event.leg));
    const start = Math.min(event.at_ms, ...open.map((hold) => hold.start));
    open.forEach((hold) => { hold.end = event.at_ms; });
    const item = { kind: "resume", at: event.at_ms, leg: event.leg ?? null, length: event.at_ms - start };
    return this.#insert(item);
  }
}

/** `00:01:02.003`, as in transcripts. */
function stamp(ms) {
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${two(ms / 3_600_000)}:${two(ms / 60_000 % 60)}:${two(ms / 1000 % 60)}.${String(ms % 1000).padStart(3, "0")}`;
}
