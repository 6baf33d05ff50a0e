// Boxes, as numbers; overlay.js draws them over the image of their sample.

import { h, put } from "../dom.js";
import { formatOf } from "../overlay.js";
import { numbers } from "./array.js";
import * as plain from "./plain.js";

const HEADS = { xyxy: ["left", "top", "right", "bottom"], xywh: ["left", "top", "width", "height"], cxcywh: ["middle x", "middle y", "width", "height"] };

export const { small } = plain;

export function large(cell, ctx) {
  const count = cell.shape.length > 1 ? cell.shape[0] : 1;
  const image = ctx.dataset?.image;
  const table = h("div");
  const paint = (format) => put(table, numbers(cell, { heads: HEADS[format], names: cell.names }));
  paint(cell.format);
  // What a dataset does not say of its boxes is guessed from them.
  if (!cell.format) formatOf(cell.field).then(paint);
  return h("div", {}, h("p.dim", {}, `${count} box${count === 1 ? "" : "es"}${image ? `, drawn over ${image}` : ""}`), count ? table : null);
}
