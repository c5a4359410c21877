/** The API key: asked for when the worker wants one, kept in this browser, never in an address. */

import { h } from "./dom.js";

const NAME = "mediaworker.key";

/** The key of this tab, or the one that is remembered. */
export function kept() {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
}

export function keep(key, remember) {
  sessionStorage.setItem(NAME, key);
  if (remember) localStorage.setItem(NAME, key);
}

/** From the worker's own link (`/?once=…`), which leads to `#key=…`: kept for this tab, and taken out of the address. */
export function takeFromLink() {
  const [, name, key] = /^#(key|used)=?([A-Za-z0-9._~-]*)$/.exec(location.hash) ?? [];
  if (!name) return false;
  if (key) keep(key, false);
  history.replaceState(null, "", location.pathname);
  return !key;
}

export function forget() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
}

/** @param onKey  Takes the key and whether to remember it. */
export function loginForm(onKey) {
  const key = h("input", { id: "key", type: "password", required: true, autocomplete: "current-password",
                           pattern: "[A-Za-z0-9._~\\-]+", title: "Letters, digits, and . _ ~ -",
                           "aria-describedby": "login-reason", spellcheck: "false" });
  const remember = h("input", { id: "remember", type: "checkbox" });
  const reason = h("p", { id: "login-reason", role: "status" });
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    onKey(key.value.trim(), remember.checked);
    key.value = "";
  } },
    h("h2", {}, "Sign in"), reason, h("label", { for: "key" }, "API key"), key,
    h("label", { class: "check", for: "remember" }, remember, "Remember on this device"),
    h("button", { class: "primary" }, "Sign in"));
  const element = h("section", { class: "login", "aria-label": "Sign in" }, form);
  return {
    element,
    ask(text) {
      reason.textContent = text;
      key.focus();
    },
  };
}
