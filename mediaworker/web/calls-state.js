/** What the list shows of every call, folded from events and records. No DOM. */

/** Event types that the list needs: no partials, however many calls there are. */
export const LIST_TYPES = [
  "call.started", "call.ended", "call.held", "call.resumed", "leg.updated", "speech.started", "transcript.final",
  "alert", "engine.state",
];

/** A call's time: the sample clock of its events, which may run faster or slower than the clock on the wall. That one only
 * says how long ago the latest event was. Milliseconds. */
export class CallClock {
  #latest = { atMs: 0, wallMs: Infinity };

  /** @param [startedMs]  When the call started, by the worker's clock. */
  constructor(startedMs = Infinity) {
    this.#latest.wallMs = startedMs;
    /** How long the call is, as far as it has been told. */
    this.lengthMs = 0;
    /** What `now` was the last time. */
    this.shownMs = 0;
  }

  hear({ at_ms: atMs, end_ms: endMs = 0, time }) {
    this.lengthMs = Math.max(this.lengthMs, atMs, endMs);
    if (atMs >= this.#latest.atMs) this.#latest = { atMs, wallMs: Date.parse(time) };
  }

  /** What it shows while the call lasts; it never goes back. @param wallMs  The worker's clock. */
  now(wallMs) {
    const { atMs, wallMs: thenMs } = this.#latest;
    this.shownMs = Math.max(this.shownMs, this.lengthMs, atMs + wallMs - thenMs);
    return this.shownMs;
  }
}

export class Calls {
  /** call id → what is known of the call */
  all = new Map();

  /** A call as `/v1/calls` and `hello` have it. */
  record(record) {
    const before = this.all.get(record.call_id);
    const call = {
      id: record.call_id, source: record.source, direction: record.direction, from: record.from, to: record.to,
      externalId: record.external_id, custom: record.custom, ended: record.state === "ended",
      startedAt: Date.parse(record.started_at), reason: record.reason,
      legs: new Map(record.legs.map((leg) => [leg.leg, leg])), held: new Set(record.held),
      speaking: new Map(record.speaking.map((speech) => [speech.utterance_id, speech.leg])),
      said: record.said?.text ?? before?.said ?? "", saidMs: record.said?.start_ms ?? before?.saidMs ?? -1,
      language: before?.said === record.said?.text ? before?.language ?? "" : "",  // of what was said last
      alert: record.alert ?? before?.alert ?? null,  // the worst rule and severity, and how many there were
      // Whether one was raised while the page was open: it is news, also when the call has ended since.
      alerted: before?.alerted ?? false,
      clock: new CallClock(Date.parse(record.started_at)),
    };
    call.clock.lengthMs = Math.max(record.at_ms ?? 0, record.duration_ms ?? 0, before?.clock.lengthMs ?? 0);
    this.all.set(call.id, call);
    return call;
  }

  /** The snapshot of a new stream. Calls that were live and are not in it have ended meanwhile: their ids. */
  hello(event) {
    const live = new Set(event.calls.map((record) => this.record(record).id));
    return [...this.all.values()].filter((call) => !call.ended && !live.has(call.id)).map((call) => call.id);
  }

  remove(id) {
    this.all.delete(id);
  }

  /** Returns the id of the call that changed, or null. */
  fold(event) {
    if (event.type === "call.started") {
      return this.record({ ...event, started_at: event.time, state: "live", held: [], speaking: [] }).id;
    }
    const call = this.all.get(event.call_id);
    if (!call) return null;
    call.clock.hear(event);
    switch (event.type) {
      case "leg.updated":
        call.legs.set(event.leg, event);
        break;
      case "call.held":
        (event.leg ? [event.leg] : [...call.legs.keys()]).forEach((leg) => call.held.add(leg));
        break;
      case "call.resumed":
        if (event.leg) call.held.delete(event.leg);
        else call.held.clear();
        break;
      case "speech.started":
        call.speaking.set(event.utterance_id, event.leg);
        break;
      case "transcript.final":
        call.speaking.delete(event.utterance_id);
        if (event.text && event.start_ms >= call.saidMs) {
          Object.assign(call, { said: event.text, saidMs: event.start_ms, language: event.language });
        }
        break;
      case "alert":
        call.alert = worst(call.alert, event);
        call.alerted = true;
        break;
      case "call.ended":
        Object.assign(call, { ended: true, reason: event.reason });
        call.clock.lengthMs = Math.max(call.clock.lengthMs, event.duration_ms);
        call.held.clear();
        call.speaking.clear();
        break;
    }
    return call.id;
  }
}

const SEVERITIES = ["info", "warning", "critical"];

/** The alerts of a call in one: the worst, of equal ones the latest, and how many there were. */
export function worst(alert, { rule, severity }) {
  const count = (alert?.count ?? 0) + 1;
  return alert && rank(alert.severity) > rank(severity) ? { ...alert, count } : { rule, severity, count };
}

export function rank(severity) {
  return SEVERITIES.indexOf(severity);
}

/** Whether a word of the filter is missing in what is known of the call. */
export function matches(call, filter) {
  const legs = [...call.legs.values()].flatMap((leg) => [leg.name, leg.label]);
  const known = [call.id, call.source, call.from, call.to, call.externalId, ...Object.values(call.custom), ...legs];
  const text = known.join("\n").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

const ROLES = { agent: "Agent", customer: "Customer" };

/** A leg's name, as in transcripts: its role stands in where nobody has named it. */
export function speaker(leg) {
  return leg.name || leg.label || ROLES[leg.role] || leg.leg;
}

/** Role and name: `Customer · Jane Doe`. */
export function title(leg) {
  const role = ROLES[leg.role], name = leg.name || leg.label;
  return role && name && name !== role ? `${role} · ${name}` : role || name || leg.leg;
}

/** Who is at the other end of the line: a name where one is known, and the number. */
export function otherParty(call) {
  const number = (call.direction === "outbound" ? call.to : call.from) || "";
  const name = [...call.legs.values()].find((leg) => leg.role === "customer")?.name ?? "";
  return [name, number].filter(Boolean).join(" · ") || "unknown";
}

/** What the call is about, as far as its custom fields say: a topic, or the queue it came through. */
export function topic(call) {
  return call.custom.topic || call.custom.subject || call.custom.queue || "";
}
