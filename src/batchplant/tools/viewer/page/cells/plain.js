// Numbers, classes, truth values, times, texts and bytes.

import { h } from "../dom.js";

// Letters above which a text is seen in full when the pointer is over it, and in a box that scrolls in the sample's view.
const TITLED = 30, LONG = 80;

export function small(cell) {
  if (cell.shows === "class") return h("span.class", { title: `${cell.text}: class ${cell.value}`, dir: "auto" }, cell.text, cell.cut ? "…" : null);
  if (cell.shows === "bytes") return h("span.mono.dim", { title: cell.text }, spaced(cell.hex ?? ""));
  if (cell.shows === "number" && typeof cell.value === "number" && cell.text.length > 12) return h("span.number", { title: cell.text }, String(Number(cell.value.toPrecision(8))));
  return h(`span.${cell.shows}`, { dir: "auto", title: (cell.text ?? "").length > TITLED ? cell.text : null }, cell.text ?? "", cell.cut ? "…" : null);
}

export function large(cell) {
  if (cell.shows === "bytes") return h("p", {}, cell.text);
  const number = cell.shows === "class" ? h("span.dim", {}, ` class ${cell.value}`) : null;
  if (number && cell.text.length <= LONG) return h("p", {}, h("bdi", {}, cell.text), number);
  if (cell.shows === "text" || (cell.text ?? "").length > LONG) {
    return h("div", {}, h("pre.text", { dir: "auto", tabindex: "0", "aria-label": cell.field }, cell.text ?? "", cell.cut ? "…" : null), number);
  }
  return h("p", { dir: "auto" }, cell.text ?? "");
}

const spaced = (hex) => hex.replace(/../g, "$& ").trim();
