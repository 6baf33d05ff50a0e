// Classes of objects: their names, in the colours that their boxes have over the image.

import { ofLabel } from "../colours.js";
import { h, number } from "../dom.js";
import { numbers } from "./array.js";
import * as plain from "./plain.js";

export const { small } = plain;

export function large(cell) {
  if (!cell.of) return h("p.dim", {}, "no objects");
  const chips = h("ol.classes", { "aria-label": `Classes of ${cell.field}` }, cell.names.map((name, at) =>
    h("li", { title: `object ${at}: class ${cell.classes[at]}` }, h("span.swatch", { "aria-hidden": "true", style: { background: ofLabel(name) } }), h("bdi", {}, name))));
  const rest = cell.of > cell.names.length ? h("p.dim", {}, `and ${number(cell.of - cell.names.length)} more`) : null;
  return h("div", {}, chips, rest, cell.values ? h("details", {}, h("summary", {}, "Numbers"), numbers(cell)) : null);
}
