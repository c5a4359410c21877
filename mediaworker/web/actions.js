/** What can be done with a call: copy, download, hang up, erase, and give a leg a name. */

import { ask, copy, explain, say } from "./dialogs.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

const FORMATS = { txt: "Text file", json: "JSON", srt: "Subtitles (SRT)", vtt: "Subtitles (WebVTT)" };
const TYPES = { txt: "text/plain", json: "application/json", srt: "application/x-subrip", vtt: "text/vtt" };

export class Actions {
  #client; #state; #admin; #onErased;

  /** @param admin  Whether the key may change calls: what it may not do is not offered. */
  constructor(client, state, { admin, onErased }) {
    this.#client = client;
    this.#admin = admin;
    this.#state = state;
    this.#onErased = onErased;
    const downloads = Object.entries(FORMATS).map(([format, name]) =>
      h("button", { type: "button", onclick: () => this.#download(format) }, name));
    this.menu = h("details", { class: "menu", onkeydown: (event) => this.#key(event) },
      h("summary", {}, "Export", icon("chevron")), h("div", { class: "options" },
        h("button", { type: "button", onclick: () => this.#copy() }, "Copy as text"), ...downloads));
    this.hangup = h("button", { type: "button", class: "danger", hidden: true, onclick: () => this.#hangup() },
      "Hang up");
    this.erase = h("button", { type: "button", hidden: true, onclick: () => this.#erase() }, "Erase");
    this.element = h("div", { class: "actions" }, this.menu, this.erase, this.hangup);
  }

  update() {
    this.hangup.hidden = !this.#admin || !this.#state.live;
    this.erase.hidden = !this.#admin || this.#state.ended === null;
  }

  async rename(leg) {
    const { title, name } = this.#state.legs.get(leg);
    const given = await ask({ title: `Who is ${title}?`, label: "Name", value: name, action: "Save" });
    if (given === null) return null;
    return this.#try(() => this.#client.rename(this.#state.id, { [leg]: given }));
  }

  async #copy() {
    this.menu.open = false;
    await copy(this.#state.text(), "Copy the conversation");
  }

  async #download(format) {
    this.menu.open = false;
    const id = this.#state.id, found = await this.#try(() => this.#client.transcript(id, format));
    if (found === null) return;
    const text = format === "json" ? JSON.stringify(found, null, 2) : found;
    const url = URL.createObjectURL(new Blob([text], { type: TYPES[format] }));
    h("a", { href: url, download: `call-${id}.${format}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async #hangup() {
    const text = "It ends for everybody in it.";
    const sure = await ask({ title: "Hang up this call?", text, action: "Hang up", danger: true });
    if (sure) await this.#try(() => this.#client.hangup(this.#state.id));
  }

  async #erase() {
    const text = "Its conversation is removed from the worker for good.";
    if (!await ask({ title: "Erase this call?", text, action: "Erase", danger: true })) return;
    if (await this.#try(() => this.#client.erase(this.#state.id)) === null) return;
    say("Erased.");
    this.#onErased(this.#state.id);
  }

  /** Null when it was refused, which has then been said. */
  async #try(request) {
    try {
      return await request();
    } catch (error) {
      say(explain(error));
      return null;
    }
  }

  #key(event) {
    if (event.key !== "Escape" || !this.menu.open) return;
    this.menu.open = false;
    this.menu.querySelector("summary").focus();
    event.stopPropagation();
  }
}
