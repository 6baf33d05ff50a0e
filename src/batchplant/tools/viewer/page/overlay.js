// What belongs onto an image: boxes, points, polygons and masks out of other fields of its sample. How their numbers
// are meant is a guess of the server's, which is shown and can be changed; changes stay in the address.

import { address, ask, wait } from "./api.js";
import { ofLabel } from "./colours.js";
import { h, put, svg } from "./dom.js";
import * as state from "./state.js";

const FORMATS = { xyxy: "two corners", xywh: "corner, width, height", cxcywh: "middle, width, height" };
// Samples whose shapes are remembered.
const KEPT = 2000;

const drawn = new Map();
let known = null, pending = null;
// How to draw anew what is on the page; what left it is forgotten.
const paints = new WeakMap();

/** The overlays of a dataset; none where they cannot be told. */
export function overlays() {
  known ??= wait("overlays").catch(() => { known = null; return []; });
  return known;
}

/** How the boxes of a field are meant, as far as that is known: "xyxy", … */
export async function formatOf(field) {
  const boxes = (await overlays()).find((overlay) => overlay.field === field && overlay.draws === "boxes");
  return boxes && meant(boxes).format;
}

/** What people chose: FIELD → {off, format, relative}. In the address as FIELD~off or FIELD~format~relative, with ";" between. */
function chosen() {
  const choices = {};
  for (const part of (state.get().overlays ?? "").split(";").filter(Boolean)) {
    const [field, first, second] = part.split("~");
    const name = decodeURIComponent(field);
    choices[name] = first === "off" ? { off: true } : { format: first in FORMATS ? first : undefined, relative: second === undefined ? undefined : second === "1" };
  }
  return choices;
}

function choose(field, change) {
  const all = { ...chosen(), [field]: change };
  const text = Object.entries(all).filter(([, choice]) => choice).map(([name, choice]) => `${encodeURIComponent(name)}~${choice.off ? "off" : `${choice.format}~${choice.relative ? 1 : 0}`}`).join(";");
  state.set({ overlays: text }, { replace: true });
  for (const element of document.querySelectorAll(".overlay, .overlay-controls")) paints.get(element)?.();
}

/** How an overlay is drawn now: the guess, or what was chosen. */
function meant(overlay, choice = chosen()[overlay.field] ?? {}) {
  return { ...overlay, off: choice.off ?? false, format: choice.format ?? overlay.format, relative: choice.relative ?? overlay.relative };
}

/** What there is to draw of a sample, in the order of the overlays. Many that are asked for together are one request. */
function shapes(sample) {
  if (drawn.has(sample)) return drawn.get(sample);
  const answer = new Promise((resolve) => {
    if (!pending) { pending = new Map(); setTimeout(flush, 20); }
    pending.set(sample, resolve);
  });
  drawn.set(sample, answer);
  if (drawn.size > KEPT) drawn.delete(drawn.keys().next().value);
  return answer;
}

async function flush() {
  const asked = pending;
  pending = null;
  const samples = [...asked.keys()];
  for (let from = 0; from < samples.length; from += 200) {
    const part = samples.slice(from, from + 200);
    let drawnShapes = {};
    try { drawnShapes = await ask("drawn", { samples: part.join(",") }); } catch { for (const number of part) drawn.delete(number); }
    for (const number of part) asked.get(number)(drawnShapes[number] ?? []);
  }
}

/** An element to lie over an image of this size in pixels; it fills itself. */
export function layer({ sample, field, width, height, labels = true, mask = 1024 }) {
  const box = h("div.overlay", { "aria-hidden": "true" });
  async function paint() {
    const all = (await overlays()).map((overlay) => meant(overlay));
    if (!all.some((overlay) => overlay.image === field && !overlay.off)) { put(box); return; }
    const drawnShapes = all.every((overlay) => overlay.draws === "mask") ? [] : await shapes(sample);
    put(box, all.map((overlay, at) => (overlay.image !== field || overlay.off ? null : overlay.draws === "mask"
      ? h("img.over", { src: address(`mask/${sample}/${encodeURIComponent(overlay.field)}`, { over: 1, max: mask }), alt: "" })
      : shape(overlay, drawnShapes[at] ?? {}, width, height, labels))));
  }
  paints.set(box, paint);
  paint();
  return box;
}

/** Four numbers as [x, y, width, height] in pixels. */
export function corners([a, b, c, d], { format, relative }, width, height) {
  const [w, ht] = relative ? [width, height] : [1, 1];
  if (format === "xyxy") return [a * w, b * ht, (c - a) * w, (d - b) * ht];
  if (format === "cxcywh") return [(a - c / 2) * w, (b - d / 2) * ht, c * w, d * ht];
  return [a * w, b * ht, c * w, d * ht];
}

/** Boxes, points and polygons over an image of this size: {format, relative} says how their numbers are meant. */
export function shape(overlay, drawnShapes, width, height, labels) {
  const count = Math.max(...["boxes", "points", "polygons"].map((name) => drawnShapes[name]?.length ?? 0));
  const parts = [], names = [];
  const [w, ht] = overlay.relative ? [width, height] : [1, 1];
  for (let at = 0; at < count; at += 1) {
    const label = drawnShapes.labels?.[at], score = drawnShapes.scores?.[at];
    const colour = ofLabel(label ?? (count > 1 ? at : 0));
    const box = drawnShapes.boxes?.[at] && corners(drawnShapes.boxes[at], overlay, width, height);
    for (const polygon of drawnShapes.polygons?.[at] ?? []) {
      const points = [];
      for (let corner = 0; corner + 1 < polygon.length; corner += 2) points.push(`${polygon[corner] * w},${polygon[corner + 1] * ht}`);
      parts.push(svg("polygon", { points: points.join(" "), style: { stroke: colour, fill: colour } }));
    }
    if (box) {
      const [x, y, wide, high] = [Math.min(box[0], box[0] + box[2]), Math.min(box[1], box[1] + box[3]), Math.abs(box[2]), Math.abs(box[3])];
      // A dark line below the coloured one: it is seen on any ground.
      for (const kind of ["under", "edge"]) parts.push(svg(`rect.${kind}`, { x, y, width: wide, height: high, style: kind === "edge" ? { stroke: colour } : {} }));
      const text = [label, typeof score === "number" ? score.toFixed(2) : null].filter((part) => part !== null && part !== undefined).join(" ");
      if (labels && text !== "") names.push(h("span.box-label", { style: { left: `${clamp((100 * x) / width)}%`, top: `${clamp((100 * y) / height)}%`, borderColor: colour } }, text));
    }
    for (const [x, y, shown] of drawnShapes.points?.[at] ?? []) {
      // A line of no length with round ends: a dot that keeps its size.
      if (shown) for (const kind of ["under", "dot"]) parts.push(svg(`path.${kind}.point`, { d: `M${x * w} ${y * ht}h0`, style: kind === "dot" ? { stroke: colour } : {} }));
    }
  }
  return [svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" }, parts), names];
}

const clamp = (value) => Math.max(0, Math.min(96, value));

/** Which overlays are drawn and how they are meant; empty where there are none. */
export function controls(field = null) {
  const box = h("div.overlay-controls", { hidden: true });
  async function paint() {
    const all = (await overlays()).filter((overlay) => field === null || overlay.image === field).map((overlay) => meant(overlay));
    box.hidden = !all.length;
    put(box, all.map((overlay) => control(overlay)));
  }
  paints.set(box, paint);
  paint();
  return box;
}

function control(overlay) {
  const on = h("input", { type: "checkbox", checked: !overlay.off, onchange: () => choose(overlay.field, on.checked ? null : { off: true }) });
  const kept = () => ({ format: format.value, relative: relative.value === "1" });
  const format = h("select", { "aria-label": `How the numbers of ${overlay.field} are meant`, onchange: () => choose(overlay.field, kept()) },
    Object.entries(FORMATS).map(([value, text]) => h("option", { value, selected: value === overlay.format }, text)));
  const relative = h("select", { "aria-label": `Unit of ${overlay.field}`, onchange: () => choose(overlay.field, kept()) },
    [["0", "pixels"], ["1", "0 to 1"]].map(([value, text]) => h("option", { value, selected: (value === "1") === overlay.relative }, text)));
  return h("span.overlay-control", { title: overlay.why ? `${overlay.field} ${overlay.why}` : null }, h("label", {}, on, ` ${overlay.field}`),
    overlay.off ? null : [overlay.choices.includes("format") ? format : null, overlay.choices.includes("unit") ? relative : null]);
}
