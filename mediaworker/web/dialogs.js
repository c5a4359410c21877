/** A question in a modal dialog, and a line at the foot of the page that goes by itself. */

import { h } from "./dom.js";
import { RequestError } from "./client.js";

const SHOWN_MS = 6000;

/** Resolves to the field's text, or true where none was asked for; null when it was cancelled.
 * @param {{title: string, text?: string, label?: string, value?: string, action: string, danger?: boolean}} question */
export function ask({ title, text = "", label, value = "", action, danger = false }) {
  const lines = value.includes("\n");
  const field = label && h(lines ? "textarea" : "input", { id: "dialog-field", maxlength: lines ? null : "200",
                                                          autocomplete: "off", dir: "auto" });
  if (field) field.value = value;
  const close = (result) => () => dialog.close(result);
  const form = h("form", { method: "dialog", onsubmit: (event) => {
    event.preventDefault();
    dialog.close("yes");
  } },
    h("h2", { id: "dialog-title" }, title), text ? h("p", {}, text) : null,
    field ? h("label", { for: "dialog-field" }, label) : null, field ?? null,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: close("") }, "Cancel"),
      h("button", { class: danger ? "danger" : "primary" }, action)));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  document.body.append(dialog);
  dialog.showModal();
  field?.select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? field?.value.trim() ?? true : null);
    });
  });
}

/** Into the clipboard, or, where that is not allowed, into a field to copy from. */
export async function copy(text, title) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {  // no secure context, or not allowed: the reader copies
    await ask({ title, label: "Press Ctrl+C", value: text, action: "Done" });
  }
}

let gone;

/** Say something that needs no answer. */
export function say(text) {
  const line = document.getElementById("notice");
  line.textContent = text;
  clearTimeout(gone);
  gone = setTimeout(() => { line.textContent = ""; }, SHOWN_MS);
}

/** What went wrong, for the one who pressed the button. */
export function explain(error) {
  if (!(error instanceof RequestError)) return "The worker cannot be reached.";
  if (error.status === 403) return "This key may not do that: it lacks the scope `admin`.";
  return error.message.replace(/^./, (first) => first.toUpperCase());
}
