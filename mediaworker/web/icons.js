/** Icons, drawn: a font may lack a sign, and shows a box in its place. */

import { svg } from "./dom.js";

const PATHS = {
  alert: "M8 2 15 14H1zM8 6.5v3.2M8 11.8v.2",
  check: "M3 8.5 6.5 12 13 4.5",
  chevron: "M4 6l4 4 4-4",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  down: "M8 3v10M3.5 8.5 8 13l4.5-4.5",
  edit: "M10.5 3 13 5.5 5.5 13 3 13.2l.2-2.7z",
  settings: "M2 4h6M12 4h2M10 2.5v3M2 8h2M8 8h6M6 6.5v3M2 12h7M13 12h1M11 10.5v3",
  up: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
};

/** A picture for who sees it; whoever does not is told by the words beside it, or by the button's label. */
export function icon(name) {
  return svg("svg", { class: "drawn", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}
