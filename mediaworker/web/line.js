/** Whether what is shown can still be true: nothing is said of a connection that is away for a moment. */

const NOTICED_MS = 1500;  // with the heartbeat's 23 s, a dead line is told within 25

export class Line {
  #onChange; #timer;

  /** @param onChange  Called when `lost` has changed. */
  constructor(onChange) {
    this.#onChange = onChange;
    this.lost = false;
  }

  /** The stream is in another state. */
  on(state) {
    if (state === "connecting" || state === "waiting" || state === "expired") {
      this.#timer ??= setTimeout(() => this.#set(true), NOTICED_MS);
    } else {
      this.close();
      this.#set(false);
    }
  }

  close() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #set(lost) {
    if (lost === this.lost) return;
    this.lost = lost;
    this.#onChange(lost);
  }
}
