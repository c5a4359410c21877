/** The page: who is signed in, what the address says, and the stream that the list is made of. */

import { Acknowledged, forgetAcknowledged, tabTitle } from "./alerts.js";
import { CallView } from "./call.js";
import { CallList } from "./calls.js";
import { Calls, LIST_TYPES } from "./calls-state.js";
import { Client } from "./client.js";
import { explain, say } from "./dialogs.js";
import { named, setAttribute, setText } from "./dom.js";
import { icon } from "./icons.js";
import { Line } from "./line.js";
import { forget, keep, kept, loginForm, takeFromLink } from "./login.js";
import { Notifier } from "./notify.js";
import { Overview } from "./overview.js";
import { setTheme, theme } from "./theme.js";
import { TryIt } from "./tryit.js";

const PAGE = 50;
const UNREACHED_MS = 2000;
/** Events that change what the tab's title says. */
const TITLED = new Set(["call.started", "call.ended", "leg.updated", "alert"]);
const $ = (id) => document.getElementById(id);

/** Everything that is there while somebody is signed in. */
class Desk {
  #client; #stream; #calls = new Calls(); #aheadMs = 0; #next = null; #tryIt = null; #stopped = false; #again;
  #languages = [];  // that the engine can be asked for
  #partials = [];  // those of them with words while somebody speaks
  #acknowledged = new Acknowledged((id) => this.#onAcknowledged(id)); #chosen = null;
  #overview = new Overview(this.#calls, this.#acknowledged);
  #entered = false; #line = new Line((lost) => this.#told(lost));

  constructor(key, onRefused) {
    const now = () => Date.now() + this.#aheadMs;
    this.#client = new Client({ key });
    this.onRefused = onRefused;
    this.list = new CallList(this.#calls, this.#acknowledged, now,
                             { onMore: () => this.#more(), onSearch: (text) => this.#search(text) });
    this.call = new CallView({ client: this.#client, now, acknowledged: this.#acknowledged,
                               idle: this.#overview.element, onOpen: (record) => this.#opened(record),
                               onErased: (id) => this.#erased(id) });
    /** What the key may do. */
    this.scopes = new Set();
    this.now = now;
  }

  async start() {
    connection("", "Connecting");
    await this.#enter();
    if (this.#stopped) return;
    $("desk").replaceChildren(this.list.element, this.call.element);
    this.#stream = this.#client.events({
      types: LIST_TYPES, onEvent: (event, about) => this.#event(event, about), onState: (state) => this.#state(state),
    });
    this.route();
  }

  /** What the key may do, and the newest calls: asked for again when the worker could not be reached, though the line
   * may be open. */
  async #enter({ quiet = false } = {}) {
    clearTimeout(this.#again);
    try {
      this.scopes = new Set((await this.#client.access()).scopes);
      $("to-try").hidden = !this.scopes.has("stream");
      this.call.permit(this.scopes.has("admin"));
      await this.#load();
      this.#entered = true;
    } catch (error) {
      if (error.status === 401 || error.status === 403) this.onRefused(error.status);
      else if (!this.#stopped) {
        if (!quiet) say(explain(error));
        this.#again = setTimeout(() => this.#reenter({ quiet: true }), UNREACHED_MS);
      }
    }
  }

  async #reenter(how) {
    await this.#enter(how);
    this.route();
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#again);
    this.#stream?.close();
    this.#line.close();
    this.#acknowledged.close();
    this.list.close();
    this.call.close();
    this.#tryIt?.close();
    $("desk").replaceChildren();
    $("try").replaceChildren();
  }

  reconnect() {
    this.#stream?.reconnect();
    this.call.reconnect();
  }

  /** `#/`, `#/calls/ID`, `#/try`. */
  route() {
    if (this.#stopped) return;  // nobody is signed in
    const [, place, id] = location.hash.split("/");
    const trying = place === "try" && this.scopes.has("stream"), chosen = place === "calls" && id ? safelyDecoded(id) : null;
    $("desk").hidden = trying;
    $("try").hidden = !trying;
    document.body.dataset.pane = chosen ? "call" : "list";
    for (const [name, here] of [["calls", !trying], ["try", trying]]) {
      if (here) $(`to-${name}`).setAttribute("aria-current", "page");
      else $(`to-${name}`).removeAttribute("aria-current");
    }
    if (trying && !this.#tryIt) {
      this.#tryIt = new TryIt(this.#client, this.now, this.scopes.has("admin"), this.#languages,
                               this.#acknowledged);
      $("try").replaceChildren(this.#tryIt.element);
    }
    if (!trying) this.#tryIt?.leave();
    this.list.select(chosen);
    if (chosen && chosen !== this.call.id) this.call.show(chosen);
    else if (!chosen && this.call.id) this.call.hide();
    this.#retitle();
  }

  get trying() {
    return !$("try").hidden;
  }

  search() {
    (this.trying ? this.#tryIt.view : this.call).search();
  }

  async #load() {
    const page = await this.#client.calls({ limit: PAGE, after: this.#next });
    const fresh = page.items.filter((record) => !this.#calls.all.has(record.call_id) || record.state === "ended");
    this.#next = page.next;
    this.list.loaded(fresh.map((record) => this.#calls.record(record).id), page.next);
    this.#retitle();
  }

  async #more() {
    try {
      this.#next = this.list.oldest;
      await this.#load();
    } catch (error) {
      say(explain(error));
    }
  }

  /** The ids of calls in which it was said, or whose names and numbers have it; null when the worker cannot say. */
  async #search(text) {
    try {
      const { items } = await this.#client.calls({ limit: PAGE, text });
      return items.map((record) => (this.#calls.all.has(record.call_id) && record.state !== "ended"
        ? record.call_id : this.#calls.record(record).id));
    } catch (error) {
      say(explain(error));
      return null;
    }
  }

  #event(event, { resumed }) {
    if (event.type === "hello") {
      this.#aheadMs = Date.parse(event.time) - Date.now();
      this.#languages = event.engine.languages ?? [];
      this.#partials = event.engine.partials ?? [];
      this.#tryIt?.offer(this.#languages);
      engine(event.engine.name, event.engine.state, this.#languages, this.#partials);
      // A resumed stream tells what has happened meanwhile; a new one only what is there now.
      if (!resumed) this.#snapshot(event);
    } else if (event.type === "engine.state") {
      engine(event.engine, event.state, this.#languages, this.#partials, event.detail);
    } else {
      const id = this.#calls.fold(event);
      if (!id) return;
      this.#changed(id, TITLED.has(event.type));
      if (event.type === "alert") notifier.tell(this.#calls.all.get(id), event, this.now() - Date.parse(event.time));
    }
  }

  /** The title is set at once, for nothing is drawn in a tab that is out of sight. */
  #changed(id, titled = true) {
    this.list.update(id);
    this.#overview.draw();
    if (titled) this.#retitle();
  }

  #onAcknowledged(id) {
    this.#changed(id);
    this.call.onAcknowledged(id);
    this.#tryIt?.view.onAcknowledged(id);
  }

  /** One from further back is in no list. */
  #opened(record) {
    this.#chosen = new Calls().record(record);
    this.#retitle();
  }

  #retitle() {
    const calls = [...this.#calls.all.values()], live = calls.filter((call) => !call.ended).length;
    const open = this.#acknowledged.open(calls), id = this.call.id;
    const chosen = this.#calls.all.get(id) ?? (this.#chosen?.id === id ? this.#chosen : null);
    document.title = tabTitle({ open, chosen, live, trying: this.trying });
  }

  async #snapshot(hello) {
    const vanished = this.#calls.hello(hello);
    for (const id of this.#calls.all.keys()) this.list.update(id);
    this.#changed(null);
    for (const id of vanished) {
      try {
        this.#calls.record(await this.#client.call(id));
      } catch {
        this.#calls.remove(id);
      }
      this.#changed(id);
    }
  }

  #state(state) {
    this.#line.on(state);
    if (state === "unauthorized") return this.onRefused(401);
    if (state === "forbidden") return this.onRefused(403);
    if (state === "expired") return say("The worker has forgotten where this page was: the list begins anew.");
    if (state !== "open") return;
    connection("open", "Connected");
    if (!this.#entered) this.#reenter();
    this.call.connected();
  }

  /** Nobody is shown to speak, and no clock runs, while it is not known to be true. */
  #told(lost) {
    if (lost) connection("lost", navigator.onLine ? "Connection lost, trying again" : "Offline");
    this.list.lose(lost);
  }

  #erased(id) {
    this.#calls.remove(id);
    this.#changed(id);
    if (this.call.id === id) location.hash = "#/";
  }
}

/** Of the list's stream, which stands for all. */
function connection(state, text) {
  $("connection").dataset.state = state;
  setText($("connection"), text);
}

function engine(name, state, languages, partials, detail = "") {
  const words = { warming_up: "loading", ready: "ready", idle: "idle", failed: "failed" };
  const [known, shown] = [languages, partials].map((codes) => named(codes).map(([language]) => language));
  const live = shown.length === known.length ? "" : shown.length ? `, live: ${shown.join(", ")}` : "";
  const knows = known.length > 1 ? ` (${known.length} languages${live})` : known.length ? ` (${known[0]} only)` : "";
  const why = detail ? ` (${detail})` : "";
  setText($("engine"), `Engine ${name || "not chosen yet"}${knows}: ${words[state] ?? state}${why}`);
  const late = shown.length < known.length ? `Words while somebody speaks: ${shown.join(", ") || "in no language"}; `
    + "otherwise when a sentence ends. " : "";
  setAttribute($("engine"), "title", late + known.join(", "));
  $("engine").dataset.state = state;
}

/** On a phone they are one press away. */
function openSettings(open) {
  $("settings").setAttribute("aria-expanded", String(open));
}

function safelyDecoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

let desk = null;
const login = loginForm((key, remember) => {
  keep(key, remember);
  begin(key);
});

function begin(key) {
  desk?.stop();
  $("login").hidden = true;
  $("forget").hidden = key === "";
  desk = new Desk(key, (status) => refused(key, status));
  desk.start();
}

function refused(key, status) {
  desk.stop();
  connection("lost", "Not signed in");
  document.title = "mediaworker";
  $("login").hidden = false;
  $("forget").hidden = true;
  const asks = "The worker asks for an API key. Where none is configured, open the link that it prints at its start.";
  const unknown = linkUsed ? "This link has been used. The worker has printed another one."
    : key ? "The worker does not know this key." : asks;
  login.ask(status === 403 ? "This key may not read calls: it lacks the scope `events`." : unknown);
}

$("login").append(login.element);
const notifier = new Notifier();
$("notify").value = notifier.choice;
$("notify").addEventListener("change", async () => { $("notify").value = await notifier.choose($("notify").value); });
$("settings").append(icon("settings"));
$("settings").addEventListener("click", () => openSettings($("settings").getAttribute("aria-expanded") !== "true"));
$("theme").value = theme();
$("theme").addEventListener("change", () => setTheme($("theme").value));
$("forget").addEventListener("click", () => {
  forget();
  forgetAcknowledged();
  begin("");
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();  // the hash is the page's address
  $("main").focus();
});
document.addEventListener("click", ({ target }) => {
  if (!target.closest("#settings, #choices")) openSettings(false);
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
});
addEventListener("hashchange", () => desk.route());
addEventListener("online", () => desk.reconnect());
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    desk.search();
  } else if (event.key === "Escape" && $("settings").getAttribute("aria-expanded") === "true") {
    openSettings(false);
    $("settings").focus();
  } else if (event.key === "Escape" && !typing && !desk.trying && desk.call.id) {
    desk.list.focus();
    location.hash = "#/";
  }
});
const linkUsed = takeFromLink();
begin(kept());
