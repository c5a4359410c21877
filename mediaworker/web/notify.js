/** A sound or a notification for alerts, for who has asked for it. Off by default. */

import { otherParty, rank } from "./calls-state.js";
import { say } from "./dialogs.js";

const NAME = "mediaworker.notify", CHOICES = ["off", "sound", "notification", "both"];
const LEAST = "warning", QUIET_MS = 2000, NEWS_MS = 60_000;
const TONES = [[880, 0], [1175, 0.16]], TONE_S = 0.14;  // Hz, seconds from the beginning

export class Notifier {
  #context = null; #soundedMs = -Infinity;

  constructor() {
    const kept = localStorage.getItem(NAME);
    this.choice = CHOICES.includes(kept) ? kept : "off";
    // A browser lets a page sound only when somebody has touched it.
    for (const touch of ["pointerdown", "keydown"]) addEventListener(touch, () => this.#open(), { once: true });
  }

  /** Returns what holds then: the browser may not allow what was asked for. */
  async choose(choice) {
    if (choice !== "off" && choice !== "sound" && !await allowed()) {
      say("The browser does not allow this page to notify.");
      return this.choice;
    }
    this.choice = choice;
    localStorage.setItem(NAME, choice);
    this.#open();
    this.#sound();  // so it sounds
    return choice;
  }

  /** @param ageMs  How long ago it was raised: what a reconnection brings from long ago is no news. */
  tell(call, { rule, severity }, ageMs) {
    if (rank(severity) < rank(LEAST) || ageMs > NEWS_MS) return;
    this.#sound();
    if (this.choice === "notification" || this.choice === "both") notify(call, `${severity}: ${rule}`);
  }

  get #sounds() {
    return this.choice === "sound" || this.choice === "both";
  }

  #open() {
    if (!this.#sounds) return;
    this.#context ??= new AudioContext();
    this.#context.resume();
  }

  #sound() {
    if (!this.#sounds || !this.#context || performance.now() - this.#soundedMs < QUIET_MS) return;
    this.#soundedMs = performance.now();
    for (const [hertz, startS] of TONES) {
      const at = this.#context.currentTime + startS;
      const tone = new OscillatorNode(this.#context, { frequency: hertz });
      const gain = new GainNode(this.#context, { gain: 0.15 });
      gain.gain.setTargetAtTime(0, at + TONE_S / 2, TONE_S / 6);
      tone.connect(gain).connect(this.#context.destination);
      tone.start(at);
      tone.stop(at + TONE_S);
    }
  }
}

async function allowed() {
  return "Notification" in globalThis && await Notification.requestPermission() === "granted";
}

/** Who and which rule; not what was said, for the system may keep it. One for each call. */
function notify(call, text) {
  try {
    const shown = new Notification(text, { body: otherParty(call), tag: `mediaworker ${call.id}`, renotify: true });
    shown.onclick = () => {
      window.focus();
      location.hash = `#/calls/${encodeURIComponent(call.id)}`;
      shown.close();
    };
  } catch {
    say(text);  // Android has them for service workers only
  }
}
