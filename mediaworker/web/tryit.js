/** The tab in which one talks into the microphone, or drops a file, and sees what becomes of it. */

import { AudioError, Session, decode, microphone, play } from "./audio.js";
import { CallView } from "./call.js";
import { h, named, setText } from "./dom.js";

export class TryIt {
  #client; #session = null; #stopMicrophone = null; #abort = null; #turn = 0;

  constructor(client, now, admin, languages, acknowledged) {
    this.#client = client;
    this.language = h("select", { id: "language" });
    this.offer(languages);
    this.pace = h("select", { id: "pace" }, h("option", { value: "real" }, "As it is spoken"),
      h("option", { value: "fast" }, "As fast as it goes"));
    this.talk = h("button", { type: "button", class: "primary", onclick: () => this.#talk() }, "Use the microphone");
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.#finish() }, "Stop");
    this.file = h("input", { id: "file", type: "file", accept: "audio/*,video/*", class: "unseen",
                             onchange: () => this.#chosen(this.file.files[0]) });
    this.level = h("meter", { min: "0", max: "1", value: "0", hidden: true, "aria-label": "Loudness" });
    this.progress = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Sent" });
    this.message = h("p", { class: "message", role: "status" });
    this.drop = h("label", { class: "drop", for: "file" }, "Drop a recording here, or press to choose one");
    this.view = new CallView({ client, now, acknowledged });
    this.view.admin = admin;
    this.view.element.hidden = true;
    this.element = h("section", { class: "tryit", "aria-labelledby": "try-title" },
      h("div", { class: "controls" },
        h("h2", { id: "try-title" }, "Try it"),
        h("p", {}, "Talk, or drop a recording: it becomes a call like any other, with the same events. The two channels of a "
          + "stereo recording are two speakers."),
        h("div", { class: "fields" },
          h("label", { for: "language" }, "Language"), this.language,
          h("label", { for: "pace" }, "Pace of a file"), this.pace),
        h("div", { class: "buttons" }, this.talk, this.stop), this.file, this.drop,
        this.level, this.progress, this.message),
      this.view.element);
    this.element.addEventListener("dragover", (event) => event.preventDefault());
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#chosen(event.dataTransfer.files[0]);
    });
  }

  /** `languages`: codes of those that the engine can be asked for. */
  offer(languages) {
    const chosen = this.language.value, choices = named(languages);
    if (choices.length !== 1) choices.unshift(["Detect", ""]);
    this.language.replaceChildren(...choices.map(([name, code]) => h("option", { value: code }, name)));
    if (languages.includes(chosen)) this.language.value = chosen;
  }

  /** Another tab is looked at: nobody listens unseen. */
  leave() {
    this.#finish();
  }

  close() {
    this.#finish();
    this.view.close();
  }

  async #talk() {
    await this.#during(async () => {
      const heard = [], turn = this.#turn;  // until the worker is there, nothing is lost
      let target = { send: (pcm) => heard.push(pcm) };
      const stop = await microphone((pcm, peak) => {
        this.level.value = peak;
        target.send(pcm);
      });
      if (turn !== this.#turn) {  // while the browser asked, it was thought better of
        await stop();
        return this.#ended(null);
      }
      this.#stopMicrophone = stop;
      this.level.hidden = false;
      await this.#begin();
      heard.forEach((pcm) => this.#session.send(pcm));
      target = this.#session;
      setText(this.message, "Listening.");
    });
  }

  async #chosen(file) {
    if (!file || this.#session) return;
    this.file.value = "";
    await this.#during(async () => {
      setText(this.message, `Reading ${file.name} …`);
      const audio = await decode(file);
      await this.#begin(audio.channels);
      setText(this.message, `Playing ${file.name}.`);
      this.progress.hidden = false;
      const abort = this.#abort = new AbortController(), realTime = this.pace.value === "real";
      const onProgress = (part) => { this.progress.value = part; };
      await play(this.#session, audio, { realTime, signal: abort.signal, onProgress });
      if (!abort.signal.aborted) this.#finish();
    });
  }

  async #during(work) {
    this.#busy(true);
    try {
      await work();
    } catch (error) {
      if (!(error instanceof AudioError)) throw error;
      this.#ended(error.message);
    }
  }

  async #begin(channels = 1) {
    const session = this.#session = new Session(this.#client, (error) => {
      if (this.#session === session) this.#ended(error);
    });
    const id = await session.begin(this.language.value, channels);
    this.view.element.hidden = false;
    if (id) this.view.show(id, 25);  // it is opened in this moment
  }

  /** No more audio; the last words still come. */
  #finish() {
    this.#turn += 1;
    this.#abort?.abort();
    this.#stopMicrophone?.();
    this.#stopMicrophone = this.#abort = null;
    this.#session?.finalize();
  }

  #ended(error) {
    this.#stopMicrophone?.();
    this.#stopMicrophone = this.#session = null;
    this.#busy(false);
    setText(this.message, error ?? "Done.");
    this.message.classList.toggle("error", Boolean(error));
  }

  #busy(busy) {
    this.talk.hidden = this.drop.hidden = busy;
    this.stop.hidden = !busy;
    this.language.disabled = this.pace.disabled = this.file.disabled = busy;
    this.message.classList.remove("error");
    if (!busy) this.level.hidden = this.progress.hidden = true;
  }
}
