/** Alerts that nobody has acknowledged yet: which they are, and what the tab's title says of them. No DOM. */

import { otherParty, rank } from "./calls-state.js";

const NAME = "mediaworker.acknowledged", KEPT = 500;

/** What was acknowledged in this browser: of how many calls the alerts, and how many of each. Its tabs share it. */
export class Acknowledged {
  #counts = new Map(); #onChange;

  /** @param onChange  Called with the id of each call of which another tab knows more. */
  constructor(onChange) {
    this.#onChange = onChange;
    this.#read();
    addEventListener("storage", this.#heard);
  }

  close() {
    removeEventListener("storage", this.#heard);
  }

  covers(id, count) {
    return (this.#counts.get(id) ?? 0) >= count;
  }

  /** The call's alerts so far; a later one is open again. */
  acknowledge(id, count) {
    this.#counts.delete(id);  // at the end: the oldest are forgotten first
    this.#counts.set(id, count);
    localStorage.setItem(NAME, JSON.stringify([...this.#counts].slice(-KEPT)));
    this.#onChange(id);
  }

  /** Whether a call has an alert to look at. What was raised in calls that had ended before is of the past. */
  isOpen(call) {
    return call.alert !== null && (!call.ended || call.alerted) && !this.covers(call.id, call.alert.count);
  }

  /** Those calls, the worst first, of equally bad ones the newest. */
  open(calls) {
    const found = [...calls].filter((call) => this.isOpen(call));
    return found.sort((one, other) =>
      rank(other.alert.severity) - rank(one.alert.severity) || (one.id < other.id ? 1 : -1));
  }

  #read() {
    try {
      this.#counts = new Map(JSON.parse(localStorage.getItem(NAME) ?? "[]"));
    } catch {
      this.#counts = new Map();  // not ours
    }
  }

  #heard = ({ key }) => {
    if (key !== NAME) return;
    const before = this.#counts;
    this.#read();
    for (const [id, count] of this.#counts) if (before.get(id) !== count) this.#onChange(id);
  };
}

export function forgetAcknowledged() {
  localStorage.removeItem(NAME);
}

/** For the tab: how many calls have an open alert, the worst one, and what is looked at.
 * @param open  Calls with an open alert, the worst first.  @param chosen  The call that is looked at, or null. */
export function tabTitle({ open, chosen, live, trying }) {
  const place = chosen ? otherParty(chosen) : trying ? "Try it" : live ? `${live} live` : "Calls";
  const [worst] = open;
  const where = worst && worst !== chosen ? `, ${otherParty(worst)}` : "";
  const alert = worst ? [`(${open.length}) ${worst.alert.severity}: ${worst.alert.rule}${where}`] : [];
  return [...alert, place, "mediaworker"].join(" · ");
}
