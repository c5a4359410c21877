/** The call as a strip: a lane for each leg, over-talk, hold, alerts and digits. It grows with the call. */

import { clock, h, length, many, setAttribute, setText, svg } from "./dom.js";

const LANE = 16, GAP = 4;
const MINUTES = [1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440];

export class Timeline {
  #state; #reveal; #shapes = new Map(); #overtalk = 0; #span = 0; #lanes = 0; #titles = ""; #open = new Map(); #at = -1;

  /** @param reveal  Shows an item of the conversation. */
  constructor(state, reveal) {
    this.#state = state;
    this.#reveal = reveal;
    this.past = svg("rect", { class: "past", x: 0, y: 0 });
    this.holds = svg("g");
    this.speech = svg("g");
    this.both = svg("g");
    this.ticks = svg("g");
    this.here = svg("line", { class: "here", "vector-effect": "non-scaling-stroke", visibility: "hidden" });
    // One unit is a millisecond; a longer span is a new viewBox and nothing else.
    this.strip = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" },
      this.past, this.holds, this.speech, this.both, this.ticks, this.here);
    this.names = h("div", { class: "lanes", "aria-hidden": "true" });
    this.axis = h("div", { class: "axis", "aria-hidden": "true" });
    this.slider = h("div", {
      class: "strip", role: "slider", tabindex: "0", "aria-label": "Timeline: what was said when", "aria-valuemin": "0",
      "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "Nothing said yet",
      onkeydown: (event) => this.#key(event), onclick: (event) => this.#click(event),
    }, this.strip);
    this.words = h("figcaption", { class: "unseen" });
    this.element = h("figure", { class: "timeline" }, this.names, this.slider, this.axis, this.words);
    this.extend(0);
  }

  update(items) {
    this.#layOut([...this.#state.legs.values()]);
    for (const item of items) {
      if (item.kind === "said") this.#drawSpeech(item);
      else if (item.kind === "alert" || item.kind === "dtmf") this.#drawTick(item);
      else this.#drawHolds();
    }
    for (; this.#overtalk < this.#state.overtalk.length; this.#overtalk += 1) {
      const { start, end } = this.#state.overtalk[this.#overtalk];
      this.both.append(svg("rect", { class: "overtalk", x: start, width: end - start, y: 0, height: this.#height }));
    }
    setAttribute(this.slider, "aria-valuemax", String(Math.max(0, this.#state.items.length - 1)));
    this.extend(this.#state.lengthMs);
  }

  /** The call has got so long. */
  extend(nowMs) {
    const lengthMs = Math.max(nowMs, this.#state.lengthMs), minutes = lengthMs / 60_000;
    const span = 60_000 * (MINUTES.find((step) => step >= minutes) ?? Math.ceil(minutes));
    if (span !== this.#span) this.#scale(span);
    setAttribute(this.past, "width", String(lengthMs));
    for (const [item, shape] of this.#open) setAttribute(shape, "width", String(Math.max(item.heard, nowMs) - item.at));
    for (const hold of this.#state.holds) if (hold.end === null) this.#drawHolds(nowMs);
  }

  /** The same in words, for whom a picture says nothing. */
  describe() {
    const { metrics, raised, holds, lengthMs } = this.#state;
    const talked = ([leg, ms]) => `${this.#state.title(leg)} talked ${length(ms)}`;
    const talk = Object.entries(metrics?.talk_ms ?? {}).map(talked);
    const more = metrics ? [`both at once ${length(metrics.overtalk_ms)}`, `on hold ${length(metrics.hold_ms)}`] : [];
    const counts = [many(raised, "alert"), many(holds.length, "hold")];
    setText(this.words, `${clock(lengthMs)} long: ${[...talk, ...more, ...counts].join(", ")}.`);
  }

  get #height() {
    return Math.max(1, this.#lanes) * (LANE + GAP) + GAP;
  }

  #laneY(leg) {
    return GAP + (this.#state.legs.get(leg)?.index ?? 0) * (LANE + GAP);
  }

  #layOut(legs) {
    const titles = legs.map((leg) => leg.title).join("\n");
    if (titles !== this.#titles) {
      this.#titles = titles;
      this.names.replaceChildren(...legs.map((leg) => h("span", { class: `leg${leg.index % 6}` }, leg.title)));
    }
    if (legs.length === this.#lanes) return;
    this.#lanes = legs.length;
    this.slider.style.height = this.names.style.height = `${this.#height}px`;
    for (const node of [this.past, ...this.both.children]) setAttribute(node, "height", String(this.#height));
    this.#scale(this.#span);
    this.#drawHolds();
  }

  #scale(span) {
    this.#span = span;
    setAttribute(this.strip, "viewBox", `0 0 ${span} ${this.#height}`);
    const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
      const mark = h("span", {}, clock(span * part));
      mark.style.left = `${part * 100}%`;
      return mark;
    });
    this.axis.replaceChildren(...marks);
  }

  #drawSpeech(item) {
    let shape = this.#shapes.get(item);
    if (item.gone) {
      shape?.remove();
      this.#shapes.delete(item);
      this.#open.delete(item);
      return;
    }
    if (!shape) {
      const { index } = this.#state.legs.get(item.leg);
      shape = svg("rect", { class: `speech leg${index % 6}`, x: item.at, y: this.#laneY(item.leg), height: LANE,
                            "vector-effect": "non-scaling-stroke" });
      this.#shapes.set(item, shape);
      this.speech.append(shape);
    }
    if (item.end === null) this.#open.set(item, shape);
    else this.#open.delete(item);
    setAttribute(shape, "width", String((item.end ?? item.heard) - item.at));
  }

  #drawTick(item) {
    if (this.#shapes.has(item)) return;
    const whole = item.kind === "alert", y = whole ? 0 : this.#laneY(item.leg);
    const tick = svg("line", { class: `tick ${item.kind}`, x1: item.at, x2: item.at, y1: y,
                               y2: whole ? this.#height : y + LANE, "data-severity": item.severity,
                               "vector-effect": "non-scaling-stroke" });
    this.#shapes.set(item, tick);
    this.ticks.append(tick);
  }

  #drawHolds(nowMs = this.#state.lengthMs) {
    this.holds.replaceChildren(...this.#state.holds.map(({ leg, start, end }) => svg("rect", {
      class: "hold", x: start, width: Math.max(0, (end ?? nowMs) - start), y: leg === null ? 0 : this.#laneY(leg),
      height: leg === null ? this.#height : LANE,
    })));
  }

  /** The item nearest to where was clicked, of the lane that was clicked when somebody spoke in it then. */
  #click(event) {
    const box = this.slider.getBoundingClientRect();
    const ms = (event.clientX - box.left) / box.width * this.#span;
    const lane = Math.floor((event.clientY - box.top) / (LANE + GAP));
    const far = (item) => Math.max(item.at - ms, ms - (item.end ?? item.at), 0);
    const items = this.#state.items.filter((item) => item.kind !== "end");
    const here = items.filter((item) => this.#state.legs.get(item.leg)?.index === lane && far(item) === 0);
    const nearer = (best, item) => (best && far(best) <= far(item) ? best : item);
    const found = (here.length ? here : items).reduce(nearer, null);
    if (found) this.#show(this.#state.items.indexOf(found));
  }

  #key(event) {
    const last = this.#state.items.length - 1;
    const at = { ArrowRight: this.#at + 1, ArrowDown: this.#at + 1, ArrowLeft: this.#at - 1, ArrowUp: this.#at - 1,
                 Home: 0, End: last, Enter: this.#at }[event.key];
    if (at === undefined || last < 0) return;
    this.#show(Math.min(Math.max(at, 0), last), event.key === "Enter");
    event.preventDefault();
  }

  #show(at, focus = false) {
    const item = this.#state.items[at], ms = String(Math.min(item.at, this.#state.lengthMs));
    this.#at = at;
    for (const [name, value] of [["x1", ms], ["x2", ms], ["y1", "0"], ["y2", String(this.#height)],
                                 ["visibility", "visible"]]) setAttribute(this.here, name, value);
    setAttribute(this.slider, "aria-valuenow", String(at));
    const what = item.text ?? item.digits?.join(" ") ?? item.kind;
    const who = item.who?.title ?? item.leg ?? "";
    setAttribute(this.slider, "aria-valuetext", `${clock(Number(ms))} ${who}: ${what}`);
    this.#reveal(item, focus);
  }
}
