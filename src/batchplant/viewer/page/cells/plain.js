// Numbers, classes, truth values, times, texts and bytes.

import { h } from "../dom.js";

export function small(cell) {
  if (cell.shows === "class") return h("span.class", { title: `class ${cell.value}` }, cell.text);
  if (cell.shows === "bytes") return h("span.mono.dim", { title: cell.text }, spaced(cell.hex ?? ""));
  if (cell.shows === "number" && typeof cell.value === "number" && cell.text.length > 12) return h("span.number", { title: cell.text }, String(Number(cell.value.toPrecision(8))));
  return h(`span.${cell.shows}`, { dir: "auto" }, cell.text ?? "", cell.cut ? "…" : null);
}

export function large(cell) {
  if (cell.shows === "bytes") return h("p", {}, cell.text);
  if (cell.shows === "class") return h("p", {}, cell.text, h("span.dim", {}, ` class ${cell.value}`));
  if (cell.shows === "text" || (cell.text ?? "").length > 80) {
    return h("pre.text", { dir: "auto", tabindex: "0" }, cell.text ?? "", cell.cut ? "…" : null);
  }
  return h("p", { dir: "auto" }, cell.text ?? "");
}

const spaced = (hex) => hex.replace(/../g, "$& ").trim();
