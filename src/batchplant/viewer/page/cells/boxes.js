// Boxes, as numbers; overlay.js draws them over the picture of their sample.

import { h } from "../dom.js";
import { numbers } from "./array.js";
import * as plain from "./plain.js";

export const { small } = plain;

export function large(cell, ctx) {
  const count = cell.shape.length > 1 ? cell.shape[0] : 1;
  const picture = ctx.dataset?.picture;
  return h("div", {}, h("p.dim", {}, `${count} box${count === 1 ? "" : "es"}${picture ? `, drawn over ${picture}` : ""}`), numbers(cell));
}
