/** Beside the conversation: who talked how long, alerts, digits, and what is known of the call. */

import { rank } from "./calls-state.js";
import { copy } from "./dialogs.js";
import { clock, h, languageName, length, perFrame, setLanguage, setText, shares } from "./dom.js";
import { icon } from "./icons.js";

export class Side {
  #state; #reveal; #rename; #acknowledged; #legs = new Map(); #drawn = { alerts: new Map(), digits: new Map() };

  /** @param reveal  Shows an item of the conversation.  @param rename  Asks for a leg's name; null: the key may not.
   * @param acknowledged  Which alerts are. */
  constructor(state, reveal, rename, acknowledged) {
    this.#state = state;
    this.#reveal = reveal;
    this.#rename = rename;
    this.#acknowledged = acknowledged;
    this.legs = h("ul", { class: "talk" });
    this.totals = h("dl", { class: "facts" });
    this.alerts = h("ul", { class: "alerts" });
    this.alertCount = h("span", { class: "count" });
    this.noAlerts = h("p", { class: "empty" }, "None.");
    this.acknowledge = h("button", { type: "button", class: "acknowledge", hidden: true,
                                     onclick: () => acknowledged.acknowledge(state.id, state.raised) },
      icon("check"), "Acknowledge");
    this.digits = h("ul", { class: "digits" });
    this.facts = h("dl", { class: "facts" });
    this.digitSection = h("section", { hidden: true }, h("h3", {}, "Keys pressed"), this.digits);
    this.element = h("details", { class: "side", open: true }, h("summary", {}, "Details",
      h("span", { class: "spacious" }, " and alerts"), this.alertCount),
      h("section", {}, h("h3", {}, "Talk"), this.legs, this.totals),
      h("section", {}, h("h3", {}, "Alerts"), this.noAlerts, this.alerts, this.acknowledge),
      this.digitSection, h("section", {}, h("h3", {}, "Call"), this.facts));
    this.update = perFrame(() => this.#draw());
  }

  #draw() {
    const { metrics, started, alerts, digits } = this.#state;
    const parts = shares(metrics?.talk_ms ?? {});
    for (const leg of this.#state.legs.values()) this.#drawLeg(leg, metrics?.talk_ms[leg.leg], parts[leg.leg] ?? 0);
    if (metrics) {
      facts(this.totals, [["Both at once", length(metrics.overtalk_ms)], ["Silence", length(metrics.silence_ms)],
                          ["On hold", length(metrics.hold_ms)]]);
    }
    const worstFirst = (one, other) => rank(other.severity) - rank(one.severity) || other.latest.at - one.latest.at;
    [...alerts].sort(worstFirst).forEach((alert, place) => this.#drawAlert(alert, place));
    setText(this.alertCount, alerts.length ? String(this.#state.raised) : "");
    this.acknowledge.hidden = alerts.length === 0 || this.#acknowledged.covers(this.#state.id, this.#state.raised);
    this.noAlerts.hidden = alerts.length > 0;
    this.digitSection.hidden = digits.length === 0;
    digits.forEach((item) => this.#drawDigits(item));
    if (started) facts(this.facts, this.#known(started));
  }

  #drawLeg(leg, talkMs, percent) {
    let row = this.#legs.get(leg.leg);
    if (!row) {
      const [name, part, fill] = ["name", "part", "fill"].map((what) => h("span", { class: what }));
      row = { name, part, fill, bar: h("span", { class: "bar", "aria-hidden": "true" }, fill) };
      row.button = h("button", { type: "button", class: "icon", hidden: this.#rename === null,
                                 onclick: () => this.#rename(leg.leg) }, icon("edit"));
      this.legs.append(h("li", { class: `leg${leg.index % 6}` }, row.name, row.button, row.part, row.bar));
      this.#legs.set(leg.leg, row);
    }
    setText(row.name, leg.title);
    row.button.setAttribute("aria-label", `Rename ${leg.title}`);
    const spoken = languageName(leg.language);
    const talked = talkMs === undefined ? "" : `${percent} % · ${length(talkMs)}`;
    setText(row.part, [spoken, talked].filter(Boolean).join(" · "));
    row.bar.hidden = talkMs === undefined;
    row.fill.style.width = `${percent}%`;
  }

  #drawAlert(item, place) {
    let row = this.#drawn.alerts.get(item);
    if (!row) {
      row = Object.fromEntries(["rule", "times", "by"].map((name) => [name, h("span", { class: name })]));
      row.time = h("time");
      row.quote = h("span", { class: "quote", dir: "auto" });
      this.#drawn.alerts.set(item, row);
      row.node = h("li", {}, h("button", { type: "button", "data-severity": item.severity,
                                                    onclick: () => this.#reveal(item.latest) },
        h("span", { class: "severity" }, item.severity), row.rule, row.times, row.time, row.by, row.quote));
    }
    const there = this.alerts.children[place];
    if (there !== row.node) this.alerts.insertBefore(row.node, there ?? null);
    setText(row.rule, item.rule);
    setText(row.times, item.count > 1 ? `${item.count} ×` : "");
    setText(row.time, clock(item.latest.at));
    setText(row.by, item.leg ? this.#state.title(item.leg) : "");
    setText(row.quote, item.text);
    setLanguage(row.quote, item.latest.language);
    row.quote.hidden = !item.text;
  }

  #drawDigits(item) {
    let known = this.#drawn.digits.get(item);
    if (!known) {
      known = h("span", { class: "keys" });
      this.#drawn.digits.set(item, known);
      this.digits.append(h("li", {}, h("button", { type: "button", onclick: () => this.#reveal(item) },
        h("time", {}, clock(item.at)), known, h("span", { class: "by" }, item.who?.title ?? item.leg ?? ""))));
    }
    setText(known, item.digits.join(" "));
  }

  #known(started) {
    const { legs, ended, words } = this.#state;
    const codecs = [...new Set([...legs.values()].map((leg) => leg.codec).filter(Boolean))].join(", ");
    const lost = ended?.legs.reduce((sum, leg) => sum + leg.lost, 0);
    return [
      ["Source", started.source], ["Direction", started.direction],
      ["Started", new Date(started.time).toLocaleString()], ["Codec", codecs],
      ["Words", String(words)], ["Packets lost", lost ? String(lost) : ""],
      ["External id", started.external_id, true], ["Call id", this.#state.id, true], ...Object.entries(started.custom),
    ];
  }
}

function facts(list, rows) {
  const shown = rows.filter(([, value]) => value), same = shown.flat().join("\n");
  if (list.dataset.shown === same) return;
  list.dataset.shown = same;
  list.replaceChildren(...shown.flatMap(([name, value, raw]) => [
    h("dt", {}, name), h("dd", { dir: "auto" }, value, raw ? copyButton(name, value) : null)]));
}

/** Beside what nobody would type. */
function copyButton(name, value) {
  const label = `Copy the ${name.toLowerCase()}`;
  return h("button", { type: "button", class: "icon copy", "aria-label": label, title: label,
                       onclick: () => copy(value, label) }, icon("copy"));
}
