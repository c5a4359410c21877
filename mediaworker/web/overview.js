/** What stands beside the list while no call is chosen: what this page is for, and which alerts wait. */

import { otherParty, topic } from "./calls-state.js";
import { clock, h, many, perPause, setText } from "./dom.js";
import { icon } from "./icons.js";

const KEYS = [
  ["Up, Down, Home, End", "move in the list"], ["Enter", "opens the call"], ["/", "searches in it"],
  ["Esc", "leads back to the list"],
];

export class Overview {
  #calls; #acknowledged; #shown = "";
  draw = perPause(150, () => this.#draw());

  constructor(calls, acknowledged) {
    this.#calls = calls;
    this.#acknowledged = acknowledged;
    this.lead = h("p", { class: "lead", tabindex: "-1" });
    this.text = h("p");
    this.alerts = h("ul", { class: "open" });
    this.section = h("section", { hidden: true }, h("h3", {}, "Alerts to look at"), this.alerts);
    const keys = h("dl", {}, ...KEYS.flatMap(([key, does]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, does)]));
    this.keys = h("section", {}, h("h3", {}, "Keys"), keys);
    this.element = h("div", { class: "overview" }, this.lead, this.text, this.section, this.keys);
    this.#draw();
  }

  #draw() {
    const calls = [...this.#calls.all.values()], live = calls.filter((call) => !call.ended);
    const held = live.filter((call) => call.held.size > 0).length;
    setText(this.lead, calls.length ? "Choose a call to read along." : "No calls yet");
    const now = `${live.length ? many(live.length, "call") : "No call"} now${held ? `, ${held} on hold` : ""}.`;
    setText(this.text, calls.length ? now
      : "A call appears in the list when it is answered. Here it is written down as it is spoken: customers on the left, "
        + "agents on the right, with alerts, holds and pressed keys where they happened.");
    const open = this.#acknowledged.open(calls);
    this.section.hidden = open.length === 0;
    this.keys.hidden = calls.length === 0;
    const rows = open.map((call) => [call.id, call.alert, call.ended, otherParty(call), topic(call)]);
    const shown = JSON.stringify(rows);
    if (shown === this.#shown) return;  // what is the same stays, with the focus that it may have
    this.#shown = shown;
    const at = [...this.alerts.children].findIndex((row) => row.contains(document.activeElement));
    this.alerts.replaceChildren(...open.map((call) => this.#row(call)));
    if (at >= 0) (this.alerts.children[Math.min(at, open.length - 1)]?.lastElementChild ?? this.lead).focus();
  }

  #row(call) {
    const { alert } = call, about = topic(call);
    return h("li", { "data-severity": alert.severity },
      h("a", { href: `#/calls/${encodeURIComponent(call.id)}` }, icon("alert"),
        h("span", { class: "severity" }, alert.severity), " ",
        h("span", { class: "rule" }, alert.count > 1 ? `${alert.rule} (${alert.count})` : alert.rule),
        h("span", { class: "who", dir: "auto" }, about ? `${otherParty(call)} · ${about}` : otherParty(call)),
        call.ended ? h("span", { class: "time" }, `ended after ${clock(call.clock.lengthMs)}`) : null),
      h("button", { type: "button", "aria-label": `Acknowledge ${alert.rule} of ${otherParty(call)}`,
                    onclick: () => this.#acknowledged.acknowledge(call.id, alert.count) }, "Acknowledge"));
  }
}
