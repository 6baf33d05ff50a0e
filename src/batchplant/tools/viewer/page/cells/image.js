// Images.

import { address } from "../api.js";
import { h } from "../dom.js";
import * as overlay from "../overlay.js";

/** The address of an image of up to so many pixels. */
export function source(cell, ctx, max) {
  return address(`image/${ctx.sample}/${encodeURIComponent(cell.field)}`, { max });
}

export function small(cell, ctx) {
  return h("img.small", { src: source(cell, ctx, 128), alt: `${cell.field} of sample ${ctx.sample}`, loading: "lazy" });
}

// Pixels of an image that is drawn without smoothing.
const SMALL = 128;

export function large(cell, ctx) {
  const caption = h("figcaption.dim", {}, [`${cell.width}×${cell.height}`, cell.encoding, cell.mode, cell.bits > 8 ? `${cell.bits} bits` : null].filter(Boolean).join(" · "));
  const image = h("img.large", { src: source(cell, ctx, 2048), alt: `${cell.field} of sample ${ctx.sample}`, width: cell.width, height: cell.height,
    onerror: () => stage.replaceWith(h("p.error", { role: "alert" }, "This image cannot be decoded.")) });
  const { field, width, height } = cell;
  // As large as the pane is wide or the window is high; the pixels of small ones are seen as such.
  image.classList.toggle("pixels", Math.max(width, height) <= SMALL);
  const stage = h("div.stage", { style: { width: `min(100%, calc(65vh * ${width / Math.max(1, height)}))` } }, image, overlay.layer({ sample: ctx.sample, field, width, height }));
  return h("figure", {}, stage, caption, overlay.controls(field));
}
