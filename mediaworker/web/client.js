/**
 * mediaworker's client for browsers and Node: live events that survive reconnects, and the call routes.
 * One module, no dependencies. `docs/reference/client-js.md` has an example, `docs/reference/events.md` describes every event.
 *
 * @typedef {{v: 1, type: string, cursor: string, call_id: ?string, seq: number, at_ms: number, time: string}} Envelope
 *   What every event has; the fields of its type are beside it.
 * @typedef {Envelope & Record<string, any>} CallEvent
 * @typedef {{leg: string, role: "agent"|"customer"|"unknown", label: string, name: string, codec: string}} Leg
 * @typedef {{call_id: string, state: "live"|"held"|"ended", source: string, direction: string, from: string,
 *   to: string, external_id: string, account?: string, legs: Leg[], custom: Record<string, string>, started_at: string,
 *   ended_at: ?string, duration_ms: ?number, reason: ?string, held: string[],
 *   speaking: {leg: string, utterance_id: string, start_ms: number}[], seq: number, at_ms: number}} Call
 * @typedef {{utterance_id: string, leg: string, role: string, speaker: string, start_ms: number, end_ms: number,
 *   text: string, language: string, reason: string, error?: string}} Segment
 * @typedef {{call_id: string, state: string, segments: Segment[]}} Transcript
 * @typedef {"connecting"|"open"|"waiting"|"expired"|"unauthorized"|"forbidden"|"gone"|"closed"} State
 *   `waiting`: not connected, tried again in `retryMs`. `expired`: the cursor is no longer known, what was missed
 *   cannot be had, and the stream begins anew. `unauthorized` (401), `forbidden` (403), `gone` (404) and `closed` are
 *   the end.
 * @typedef {{resumed: boolean}} About  Whether the connection was made with a cursor: its `hello` is then ahead of
 *   what is about to be replayed; otherwise `hello` is where the stream begins.
 * @typedef {Object} StreamOptions
 * @property {string} [call]  A call's id, or `*` (the default) for every call.
 * @property {string[]} [types]  Event types; all when absent.
 * @property {string} [after]  A cursor; `start` for everything that is stored. Absent: from now on.
 * @property {(event: CallEvent, about: About) => void} [onEvent]
 * @property {(state: State, detail: {code?: number, reason?: string, retryMs?: number}) => void} [onState]
 * @property {number} [heartbeatS]  How often the worker is to send a heartbeat: 20; 0 for never.
 * @property {number} [silenceMs]  After so long without an event or a heartbeat the connection is made anew. Absent: 3 s
 *   after a heartbeat was due, or a minute where the worker sends none.
 */

const RETRY_MS = 500, MAX_RETRY_MS = 15_000;
const HEARTBEAT_S = 20, LATE_MS = 3000, SILENCE_MS = 60_000;
// A network that hangs answers nothing and refuses nothing: whatever is waited for has an end.
const CONNECT_MS = 10_000, REFUSAL_MS = 5000, REQUEST_MS = 30_000, DOWNLOAD_MS = 120_000;
const ABNORMAL = 1006, TOO_SLOW = 4008, EXPIRED = 4009;
const REFUSALS = { 401: "unauthorized", 403: "forbidden", 404: "gone" };

/** The worker refused: `status` is HTTP's, the message says why. */
export class RequestError extends Error {
  /** @param {number} status  @param {string} message */
  constructor(status, message) {
    super(message);
    this.name = "RequestError";
    this.status = status;
  }
}

export class Client {
  #fetch;

  /**
   * @param {Object} [options]
   * @param {string} [options.url]  Where the worker is; the folder of this page when absent.
   * @param {string} [options.key]  API key. Empty: the worker has none, and this is its machine.
   * @param {typeof globalThis.WebSocket} [options.WebSocket]  The class to use where there is none, as in Node before
   *   22: that of the package `ws` will do.
   * @param {typeof globalThis.fetch} [options.fetch]
   */
  constructor({ url = globalThis.location?.href, key = "", WebSocket = globalThis.WebSocket,
                fetch = globalThis.fetch } = {}) {
    if (!url) throw new TypeError("url is needed outside a browser");
    if (!fetch) throw new TypeError("there is no fetch here: use Node 18 or newer, or give one as `fetch`");
    this.url = new URL(".", url);
    this.key = key;
    this.WebSocket = WebSocket;
    this.#fetch = (...request) => fetch(...request);
    /** The store's id, the first half of every cursor, once a `hello` has told it. @type {string|undefined} */
    this.store = undefined;
  }

  /** Follow events. @param {StreamOptions} [options]  @returns {EventStream} */
  events(options = {}) {
    return new EventStream(this, options);
  }

  /** What the key may do. @returns {Promise<{name: string, scopes: string[]}>} */
  async access() {
    return (await this.request("v1/key")).json();
  }

  /** A page of calls, newest first; `next` is the `after` of the following page. With `text`, those in which it was said,
   * or that have it in their names and numbers.
   * @param {{limit?: number, after?: string, text?: string}} [page]
   * @returns {Promise<{items: Call[], next: ?string}>} */
  async calls({ limit, after, text } = {}) {
    return (await this.request("v1/calls", { query: { limit, after, text } })).json();
  }

  /** @param {string} id  @returns {Promise<Call>} */
  async call(id) {
    return (await this.request(callPath(id))).json();
  }

  /** @param {string} id  @param {"json"|"txt"|"srt"|"vtt"} [format]  @returns {Promise<Transcript|string>} */
  async transcript(id, format = "json") {
    const answer = await this.request(`${callPath(id)}/transcript`, { query: { format }, timeoutMs: DOWNLOAD_MS });
    return format === "json" ? answer.json() : answer.text();
  }

  /** The call ends when its last finals are out; `call.ended` tells. @param {string} id  @returns {Promise<Call>} */
  async hangup(id) {
    return (await this.request(`${callPath(id)}/hangup`, { method: "POST" })).json();
  }

  /** @param {string} id  @param {Record<string, string>} names  By leg.  @returns {Promise<Call>} */
  async rename(id, names) {
    return (await this.request(callPath(id), { method: "PATCH", body: { names } })).json();
  }

  /** Remove an ended call from the disk, for good. @param {string} id  @returns {Promise<void>} */
  async erase(id) {
    await this.request(callPath(id), { method: "DELETE" });
  }

  /** Any route. Throws RequestError when it is refused, TypeError when the worker cannot be reached or has not answered
   * in time. Reading the answer's body fails as well when the time is over.
   * @param {string} path
   * @param {{method?: string, body?: unknown, query?: Record<string, unknown>, timeoutMs?: number}} [options] */
  async request(path, { method = "GET", body, query = {}, timeoutMs = REQUEST_MS } = {}) {
    const url = new URL(path, this.url), headers = {};
    for (const [name, value] of Object.entries(query)) if (value != null) url.searchParams.set(name, value);
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const controller = new AbortController(), { signal } = controller;
    const late = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const timer = setTimeout(() => controller.abort(
      new TypeError(`the worker has not answered within ${timeoutMs / 1000} s`)), timeoutMs);
    const asked = this.#fetch(url, { method, headers, body: JSON.stringify(body), cache: "no-store", signal });
    const answer = await Promise.race([asked, late]).catch((error) => {
      clearTimeout(timer);
      throw error;
    });
    timer.unref?.();  // the body is read by the caller: in Node the deadline must not hold a process that has done
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    throw new RequestError(answer.status, problem.detail || problem.title || `the worker answered ${answer.status}`);
  }

  /** A WebSocket to one of the worker's routes. A browser cannot set a header, so the key is a subprotocol.
   * @param {string} path  @param {Record<string, unknown>} [query] */
  socket(path, query = {}) {
    const url = new URL(path, this.url);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    for (const [name, value] of Object.entries(query)) if (value != null) url.searchParams.set(name, value);
    if (!this.WebSocket) {
      throw new TypeError("there is no WebSocket here, as in Node before 22: give a class, as of the package `ws`, " +
        "to `new Client({ WebSocket })`");
    }
    return new this.WebSocket(url.href, this.key ? ["bearer", this.key] : []);
  }
}

/** What `Client.events` returns. It lives until `close()`, or until the worker says that there is no use. */
class EventStream {
  #client; #options; #socket = null; #timer; #watchdog; #heard = 0; #failures = 0;

  constructor(client, options) {
    this.#client = client;
    this.#options = options;
    /** Of the last event that was handled: give it as `after` to go on there. @type {string|undefined} */
    this.cursor = undefined;
    /** @type {State} */
    this.state = "closed";
    this.#connect();
  }

  close() {
    this.#end("closed");
  }

  /** Do not wait any longer: the network is back. */
  reconnect() {
    if (this.#timer !== undefined || this.#socket) this.#connect();
  }

  #connect() {
    this.#drop();
    const { call = "*", types, after, silenceMs, heartbeatS = HEARTBEAT_S } = this.#options;
    const fromStart = after === "start";
    const store = this.#client.store;
    const cursor = this.cursor ?? (fromStart ? store && `${store}:0` : after), resumed = cursor !== undefined;
    this.#say("connecting");
    const socket = this.#client.socket("v1/events", { call, types: types?.join(), after: cursor });
    let greeted = false, beats = 0;
    this.#socket = socket;
    const silent = () => (greeted ? this.#connect() : this.#lost(ABNORMAL, "the worker does not answer", false));
    this.#watch(Math.min(silenceMs ?? CONNECT_MS, CONNECT_MS), silent);
    socket.onopen = () => {
      if (socket !== this.#socket) return;
      this.#watch(silenceMs ?? SILENCE_MS, silent);
      if (heartbeatS) socket.send(JSON.stringify({ type: "heartbeat", every_s: heartbeatS }));
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this.#socket) return;
      this.#heard = Date.now();
      const event = JSON.parse(data), hello = event.type === "hello";
      if (event.type === "heartbeat") {
        beats += 1;
        if (beats === 1) this.#watch(silenceMs ?? 1000 * heartbeatS + LATE_MS, silent);
        else this.#failures = 0;  // the first comes with the hello, and proves no more than that
        return;
      }
      if (hello) {
        greeted = true;
        this.#client.store = event.cursor.slice(0, event.cursor.lastIndexOf(":"));
        if (fromStart && !resumed) return this.#connect();  // now it is known where the start is
        this.#say("open");
      } else {
        this.#failures = 0;
      }
      this.#options.onEvent?.(event, { resumed });
      if (!hello || !resumed) this.cursor = event.cursor;
    };
    socket.onclose = ({ code, reason }) => {
      if (socket === this.#socket) this.#lost(code, reason, greeted);
    };
    // A browser closes after an error. Node 22 does not when the connection was refused, and `ws` ends the process when
    // nobody listens for errors: not even those of a socket that was given up before it was open.
    socket.onerror = ({ message }) => {
      if (socket === this.#socket) this.#lost(ABNORMAL, message ?? "", greeted);
    };
  }

  async #lost(code, reason, greeted) {
    this.#drop();
    if (code === EXPIRED) {
      this.cursor = this.#client.store = undefined;
      if (this.#options.after !== "start") this.#options = { ...this.#options, after: undefined };
      this.#say("expired", { code, reason });
    } else if (!greeted && code !== TOO_SLOW) {
      this.#timer = null;  // reconnect() may be faster than the answer
      const refusal = await this.#refusal();
      if (this.#timer !== null) return;
      if (refusal) return this.#end(refusal.state, { code, reason: refusal.message });
    }
    const again = code === TOO_SLOW || code === EXPIRED;  // the first time at once: there is nothing to wait for
    const most = Math.min(RETRY_MS * 2 ** this.#failures, MAX_RETRY_MS);
    const retryMs = again && this.#failures === 0 ? 0 : most * (0.5 + Math.random() / 2);
    this.#failures += 1;
    this.#timer = setTimeout(() => this.#connect(), retryMs);
    if (!again) this.#say("waiting", { code, reason, retryMs });
  }

  /** A browser does not tell why an upgrade was refused; a plain request does. */
  async #refusal() {
    const { call = "*" } = this.#options;
    try {
      const path = call === "*" ? "v1/calls" : callPath(call);
      await this.#client.request(path, { query: call === "*" ? { limit: 1 } : {}, timeoutMs: REFUSAL_MS });
    } catch (error) {
      if (REFUSALS[error.status]) return { state: REFUSALS[error.status], message: error.message };
    }
    return null;
  }

  /** A browser cannot ping: a connection that died without a word looks like one on which nothing happens. `silent` is
   * called when nothing has been heard for so long; a new connection costs little, for it resumes. */
  #watch(patienceMs, silent) {
    clearTimeout(this.#watchdog);
    this.#heard = Date.now();
    const look = () => {
      const leftMs = this.#heard + patienceMs - Date.now();
      if (leftMs <= 0) silent();
      else this.#watchdog = setTimeout(look, leftMs);
    };
    this.#watchdog = setTimeout(look, patienceMs);
  }

  #drop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watchdog);
    const socket = this.#socket;
    this.#timer = undefined;
    this.#socket = null;
    socket?.close();
  }

  #end(state, detail) {
    const over = !this.#socket && this.#timer === undefined;
    this.#drop();
    if (!over) this.#say(state, detail);
  }

  #say(state, detail = {}) {
    this.state = state;
    this.#options.onState?.(state, detail);
  }
}

const callPath = (id) => `v1/calls/${encodeURIComponent(id)}`;
