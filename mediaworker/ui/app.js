// Live calls from /v1/events. Everything that came over a phone line is put in as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const calls = new Map();        // call_id -> {section, log, sides, said}
const KEPT_ENDED = 5;
let socket = null, cursor = null, key = "", retryMs = 500;

function connect() {
  const url = new URL("v1/events", location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  if (cursor) url.searchParams.set("after", cursor);
  const resuming = cursor !== null;
  const mine = socket = key ? new WebSocket(url, ["bearer", key]) : new WebSocket(url);
  mine.onopen = () => { retryMs = 500; $("status").textContent = "connected"; };
  mine.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    // When resuming, hello's cursor is ahead of what is about to be replayed.
    if (event.type !== "hello" || !resuming) cursor = event.cursor;
    handle(event);
  };
  mine.onclose = ({ code, reason }) => {
    if (mine !== socket) return;
    if (code === 4009) cursor = null;
    $("status").textContent = `not connected (${code}${reason ? " " + reason : ""}); trying again`;
    setTimeout(() => { if (mine === socket) connect(); }, retryMs);
    retryMs = Math.min(retryMs * 2, 10000);
  };
}

function handle(event) {
  const call = calls.get(event.call_id);
  switch (event.type) {
    case "hello":
      for (const [id, known] of calls) {
        if (!event.calls.some((live) => live.call_id === id)) known.section.classList.add("ended");
      }
      event.calls.forEach((live) => open(live.call_id, live));
      $("status").textContent = `connected to ${event.server}, engine ${event.engine.name || "?"} ${event.engine.state}`;
      break;
    case "call.started": open(event.call_id, event); break;
    case "leg.updated": if (call) call.sides.set(event.leg, side(event, call.sides.size)); break;
    case "speech.started": if (call) line(call, event).said.textContent = "…"; break;
    case "transcript.partial": if (call) say(call, event, event.stable_chars); break;
    case "transcript.final": if (call) say(call, event, Infinity); break;
    case "call.ended": if (call) close(call, event); break;
  }
}

function side(leg, index) {
  const right = leg.role === "agent" || (leg.role === "unknown" && index % 2 === 1);
  return { right, who: leg.name || leg.label || (leg.role === "unknown" ? leg.leg : leg.role) };
}

function open(id, call) {
  if (calls.has(id)) return;
  const section = $("call").content.cloneNode(true).querySelector("section");
  section.querySelector("h2").textContent = `${call.source}: ${call.from || "?"} → ${call.to || "?"}`;
  const sides = new Map(call.legs.map((leg, index) => [leg.leg, side(leg, index)]));
  calls.set(id, { section, log: section.querySelector(".conversation"), sides, said: new Map() });
  $("calls").prepend(section);
}

function close(call, event) {
  call.section.classList.add("ended");
  call.section.querySelector("h2").textContent += ` (${event.reason}, ${Math.round(event.duration_ms / 1000)} s)`;
  const ended = [...calls].filter(([, known]) => known.section.classList.contains("ended"));
  for (const [id, known] of ended.slice(0, -KEPT_ENDED)) { known.section.remove(); calls.delete(id); }
}

function line(call, event) {
  let found = call.said.get(event.utterance_id);
  if (!found) {
    const { right, who } = call.sides.get(event.leg) || side({ role: event.role, leg: event.leg }, 0);
    const element = document.createElement("p"), name = document.createElement("span");
    found = { element, said: document.createElement("span"), rest: document.createElement("span"), final: false };
    element.className = right ? "said right" : "said";
    name.className = "who";
    name.textContent = who;
    found.rest.className = "unstable";
    element.append(name, found.said, found.rest);
    call.said.set(event.utterance_id, found);
    call.log.append(element);
    call.log.scrollTop = call.log.scrollHeight;
  }
  return found;
}

function say(call, event, stable) {
  const found = line(call, event);
  if (found.final) return;
  found.final = event.type === "transcript.final";
  const points = [...event.text];       // stable_chars counts code points, not UTF-16 units
  found.said.textContent = points.slice(0, stable).join("");
  found.rest.textContent = points.slice(stable).join("");
  if (found.final && !event.text) found.element.remove();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  cursor = null;
  if (socket) socket.close();
  connect();
});
connect();
