/** One call on the screen: its stream of events, and the views that draw what it says. */

import { Actions } from "./actions.js";
import { ConversationView } from "./conversation.js";
import { explain, say } from "./dialogs.js";
import { clock, h, parties, perPause, setAttribute, setText } from "./dom.js";
import { Line } from "./line.js";
import { Search } from "./search.js";
import { Side } from "./side.js";
import { CALL_TYPES, Conversation } from "./state.js";
import { Timeline } from "./timeline.js";

const BESIDE_MS = 150;  // the conversation is drawn in the next frame; what stands beside it has time
const AGAIN_MS = 200;
const UNREACHED_MS = 2000;  // the line may be open all the same: then nothing else would ask again
const wide = matchMedia("(min-width: 1080px)");

export class CallView {
  #client; #now; #onOpen; #onErased; #acknowledged; #idle; #stream = null; #record = null; #parts = null;
  #changed = new Set(); #timer; #again;
  #draw = perPause(BESIDE_MS, () => this.#drawChanged()); #line = new Line(() => this.#told()); #unreached = false;

  /** @param now  The worker's clock, epoch milliseconds.  @param acknowledged  Which alerts are.
   * @param idle  What is shown while there is no call.  @param onOpen  Takes the record of a call that is shown. */
  constructor({ client, now, acknowledged, idle = h("p", { class: "blank" }), onOpen = () => {},
                onErased = () => {} }) {
    this.#client = client;
    this.#now = now;
    this.#onOpen = onOpen;
    this.#onErased = onErased;
    this.#acknowledged = acknowledged;
    this.#idle = idle;
    this.id = null;
    /** Whether the key may change calls. */
    this.admin = false;
    this.element = h("section", { class: "call", "aria-label": "Call" });
    this.#timer = setInterval(() => this.#tick(), 1000);
    wide.addEventListener("change", this.#fold);
    this.element.replaceChildren(idle);
  }

  /** Show a call from its beginning, and go on with it while it lasts.
   * @param tries  How often to ask for it: one that has just been opened may not be on the disk yet. */
  async show(id, tries = 1) {
    this.hide();
    this.id = id;
    this.#empty("Loading…");
    try {
      const record = await this.#find(id, tries);
      if (this.id === id) this.#open(record);
    } catch (error) {
      if (this.id !== id) return;
      this.#unreached = error.status === undefined;
      if (this.#unreached) this.#again = setTimeout(() => this.connected(), UNREACHED_MS);
      this.#empty(error.status === 404 ? "There is no such call." : explain(error));
    }
  }

  /** Whether the key may change calls, once that is known. */
  permit(admin) {
    const changed = this.admin !== admin;
    this.admin = admin;
    if (changed && this.#parts) this.show(this.id);
  }

  onAcknowledged(id) {
    if (id === this.id) this.#parts?.side.update();
  }

  /** The worker can be reached again. */
  connected() {
    if (this.#unreached) this.show(this.id);
  }

  hide() {
    this.id = null;
    this.#unreached = false;
    clearTimeout(this.#again);
    this.#stream?.close();
    this.#line.close();
    this.#parts?.view.close();
    this.#stream = this.#parts = null;
    this.#changed.clear();
    this.element.replaceChildren(this.#idle);
  }

  close() {
    this.hide();
    clearInterval(this.#timer);
    wide.removeEventListener("change", this.#fold);
  }

  search() {
    this.#parts?.search.focus();
  }

  /** The network is back. */
  reconnect() {
    this.#stream?.reconnect();
  }

  async #find(id, tries) {
    try {
      return await this.#client.call(id);
    } catch (error) {
      if (error.status !== 404 || tries <= 1) throw error;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      return this.#find(id, tries - 1);
    }
  }

  #empty(text) {
    this.element.replaceChildren(h("p", { class: "blank" }, text));
  }

  #open(record) {
    this.#record = record;
    this.#onOpen(record);
    this.#build();
    this.#stream = this.#client.events({
      call: record.call_id, types: CALL_TYPES, after: "start",
      onEvent: (event) => this.#event(event),
      onState: (state) => this.#state(state),
    });
  }

  #build() {
    const state = new Conversation(this.#record.call_id);
    const view = new ConversationView(state, { follow: this.#record.state !== "ended" });
    const reveal = (item, focus = true) => view.reveal(item, focus);
    const parts = this.#parts = {
      state, view, search: new Search(state, view), timeline: new Timeline(state, reveal),
      side: new Side(state, (item) => reveal(item), this.admin ? (leg) => this.#rename(leg) : null,
                     this.#acknowledged),
      actions: new Actions(this.#client, state, { admin: this.admin, onErased: (id) => this.#onErased(id) }),
      title: h("h2", { tabindex: "-1" }, parties(this.#record)), status: h("p", { class: "status" }),
    };
    const head = h("header", { class: "head" }, h("div", { class: "titles" }, parts.title, parts.status),
      parts.search.element, parts.actions.element);
    const body = h("div", { class: "body" }, view.element, parts.side.element);
    this.element.replaceChildren(head, parts.timeline.element, body);
    this.#fold();
    this.#tick();
  }

  #event(event) {
    if (event.type === "hello") return;
    const { state, view } = this.#parts, ageMs = this.#now() - Date.parse(event.time);
    const items = state.fold(event);
    view.update(items, ageMs);
    items.forEach((item) => this.#changed.add(item));
    this.#draw();
    if (event.type !== "call.ended") return;
    this.#stream.close();  // nothing follows
    if (this.#record.state === "ended") this.#renamed(this.#record);
  }

  #drawChanged() {
    if (!this.#parts) return;
    const { timeline, search, side, actions } = this.#parts;
    timeline.update([...this.#changed]);
    this.#changed.clear();
    search.update();
    side.update();
    actions.update();
    this.#tick();
  }

  #state(state) {
    this.#line.on(state);
    if (state === "gone") this.#empty("There is no such call any more.");
    if (state !== "expired") return;
    say("The worker has forgotten where this page was: the call is shown from its beginning again.");
    this.#parts.view.close();
    this.#build();
  }

  /** While the worker cannot be heard nobody is shown to go on speaking. */
  #told() {
    this.#tick();
    setAttribute(this.element, "data-line", this.#line.lost ? "lost" : null);
  }

  #tick() {
    if (!this.#parts) return;
    const { state, status, timeline } = this.#parts, record = this.#record;
    const lost = this.#line.lost && state.live;
    const nowMs = !state.live ? state.lengthMs : lost ? state.clock.shownMs : state.clock.now(this.#now());
    const held = state.live && state.holds.some((hold) => hold.end === null) ? " · on hold" : "";
    const how = state.ended ? `ended: ${state.ended.reason.replaceAll("_", " ")}` : lost ? "connection lost" : "live";
    setText(status, state.started ? `${record.source} · ${clock(nowMs)} · ${how}${held}` : record.source);
    status.classList.toggle("live", state.live && !lost);
    timeline.extend(nowMs);
    timeline.describe();
  }

  async #rename(leg) {
    const record = await this.#parts.actions.rename(leg);
    if (record && this.id === record.call_id) this.#renamed(record);
  }

  #renamed(record) {
    const items = this.#parts.state.rename(record.legs);
    this.#parts.view.update(items);
    this.#draw();
  }

  /** Details are beside the conversation where there is room, else one press away. */
  #fold = () => {
    if (this.#parts) this.#parts.side.element.open = wide.matches;
  };
}
