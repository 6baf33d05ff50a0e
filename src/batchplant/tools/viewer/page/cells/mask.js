// Masks: images whose values are classes, with what each colour means.

import { h } from "../dom.js";
import * as image from "./image.js";

export const { small } = image;

export function large(cell, ctx) {
  const shown = image.large(cell, ctx);
  shown.querySelector("img")?.classList.add("pixels");
  return h("div", {}, shown, h("ul.classes", { "aria-label": "Classes" }, (cell.legend ?? []).map((entry) =>
    h("li", {}, h("span.swatch", { "aria-hidden": "true", style: { background: entry.colour } }), entry.name ?? String(entry.class),
      h("span.dim", {}, ` ${entry.share < 0.001 ? "< 0.1" : (100 * entry.share).toFixed(1)} %`)))));
}
