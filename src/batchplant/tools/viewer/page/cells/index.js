// Cells, small in grids and tables, large in the view of a sample. One module for each way of showing.

import { h } from "../dom.js";
import * as array from "./array.js";
import * as boxes from "./boxes.js";
import * as labels from "./labels.js";
import * as mask from "./mask.js";
import * as image from "./image.js";
import * as plain from "./plain.js";
import * as sound from "./sound.js";
import * as text from "./text.js";
import * as tokens from "./tokens.js";
import * as tree from "./tree.js";
import * as video from "./video.js";

// What shows a cell by its `shows`; what is not here is shown as text.
const MODULES = { image, mask, sound, video, text, tokens, tree, array, boxes, labels };

/** An element for a cell in a grid or a table. ctx: {sample, dataset}. */
export function small(cell, ctx) {
  if (!cell) return h("span.dim", {}, "");
  if (cell.missing) return h("span.dim", { title: "missing" }, "–");
  if (cell.error) return h("span.error", { title: cell.error }, "✕ broken");
  return (MODULES[cell.shows] ?? plain).small(cell, ctx);
}

/** An element for a cell in the view of its sample. */
export function large(cell, ctx) {
  if (cell.missing) return h("p.dim", {}, "missing");
  if (cell.error) return h("p.error", { role: "alert" }, cell.error);
  return (MODULES[cell.shows] ?? plain).large(cell, ctx);
}
