// Masks: pictures whose values are classes, with what each colour means.

import { h } from "../dom.js";
import * as picture from "./picture.js";

export const { small } = picture;

export function large(cell, ctx) {
  const shown = picture.large(cell, ctx);
  shown.querySelector("img")?.classList.add("pixels");
  return h("div", {}, shown, h("ul.classes", { "aria-label": "Classes" }, (cell.legend ?? []).map((one) =>
    h("li", {}, h("span.swatch", { "aria-hidden": "true", style: { background: one.colour } }), one.name ?? String(one.class),
      h("span.dim", {}, ` ${one.share < 0.001 ? "< 0.1" : (100 * one.share).toFixed(1)} %`)))));
}
