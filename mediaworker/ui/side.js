/** Beside the conversation: who talked how long, alerts, digits, and what is known of the call. */

import { clock, h, length, perFrame, setText } from "./dom.js";

export class Side {
  #state; #reveal; #rename; #legs = new Map(); #drawn = { alerts: 0, digits: new Map() };

  /** @param reveal  Shows an item of the conversation.  @param rename  Asks for a leg's name. */
  constructor(state, reveal, rename) {
    this.#state = state;
    this.#reveal = reveal;
    this.#rename = rename;
    this.legs = h("ul", { class: "talk" });
    this.totals = h("dl", { class: "facts" });
    this.alerts = h("ul", { class: "alerts" });
    this.alertCount = h("span", { class: "count" });
    this.noAlerts = h("p", { class: "empty" }, "None.");
    this.digits = h("ul", { class: "digits" });
    this.facts = h("dl", { class: "facts" });
    this.digitSection = h("section", { hidden: true }, h("h3", {}, "Keys pressed"), this.digits);
    this.element = h("details", { class: "side", open: true }, h("summary", {}, "Details and alerts", this.alertCount),
      h("section", {}, h("h3", {}, "Talk"), this.legs, this.totals),
      h("section", {}, h("h3", {}, "Alerts"), this.noAlerts, this.alerts),
      this.digitSection, h("section", {}, h("h3", {}, "Call"), this.facts));
    this.update = perFrame(() => this.#draw());
  }

  #draw() {
    const { metrics, started, alerts, digits } = this.#state;
    for (const leg of this.#state.legs.values()) this.#drawLeg(leg, metrics);
    if (metrics) {
      facts(this.totals, [["Both at once", length(metrics.overtalk_ms)], ["Silence", length(metrics.silence_ms)],
                          ["On hold", length(metrics.hold_ms)]]);
    }
    for (; this.#drawn.alerts < alerts.length; this.#drawn.alerts += 1) {
      this.alerts.prepend(this.#alert(alerts[this.#drawn.alerts]));
    }
    setText(this.alertCount, alerts.length ? String(alerts.length) : "");
    this.noAlerts.hidden = alerts.length > 0;
    this.digitSection.hidden = digits.length === 0;
    digits.forEach((item) => this.#drawDigits(item));
    if (started) facts(this.facts, this.#known(started));
  }

  #drawLeg(leg, metrics) {
    let row = this.#legs.get(leg.leg);
    if (!row) {
      const [name, part, fill] = ["name", "part", "fill"].map((what) => h("span", { class: what }));
      row = { name, part, fill, bar: h("span", { class: "bar", "aria-hidden": "true" }, fill) };
      row.button = h("button", { type: "button", class: "icon", onclick: () => this.#rename(leg.leg) }, "✎");
      this.legs.append(h("li", { class: `leg${leg.index % 6}` }, row.name, row.button, row.part, row.bar));
      this.#legs.set(leg.leg, row);
    }
    const talkMs = metrics?.talk_ms[leg.leg], ratio = metrics?.talk_ratio[leg.leg] ?? 0;
    setText(row.name, leg.title);
    row.button.setAttribute("aria-label", `Rename ${leg.title}`);
    setText(row.part, talkMs === undefined ? "" : `${Math.round(ratio * 100)} % · ${length(talkMs)}`);
    row.bar.hidden = talkMs === undefined;
    row.fill.style.width = `${ratio * 100}%`;
  }

  #alert(item) {
    return h("li", {}, h("button", { type: "button", "data-severity": item.severity,
                                     onclick: () => this.#reveal(item.about ?? item) },
      h("span", { class: "severity" }, item.severity), h("span", { class: "rule" }, item.rule),
      h("time", {}, clock(item.at)),
      item.text ? h("span", { class: "quote", dir: "auto" }, item.text) : null));
  }

  #drawDigits(item) {
    let known = this.#drawn.digits.get(item);
    if (!known) {
      known = h("span", { class: "keys" });
      this.#drawn.digits.set(item, known);
      this.digits.append(h("li", {}, h("button", { type: "button", onclick: () => this.#reveal(item) },
        h("time", {}, clock(item.at)), known, h("span", { class: "by" }, this.#state.title(item.leg)))));
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
      ["External id", started.external_id], ["Call id", this.#state.id], ...Object.entries(started.custom),
    ];
  }
}

function facts(list, rows) {
  const shown = rows.filter(([, value]) => value), same = shown.flat().join("\n");
  if (list.dataset.shown === same) return;
  list.dataset.shown = same;
  list.replaceChildren(...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { dir: "auto" }, value)]));
}
