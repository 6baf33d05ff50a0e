// Arrays: one or two axes at a time, as a curve or a heat map, with a slider for every other axis.

import { address, ApiError, wait } from "../api.js";
import { MAPS, ofClass, ramp } from "../colours.js";
import { h, number, put } from "../dom.js";
import { histogram, lines } from "../plots.js";
import * as plain from "./plain.js";

/** In a card of the grid the slice in the middle; in a table words. */
export function small(cell, ctx) {
  if (!cell.map || !ctx?.card) return plain.small(cell);
  const image = h("img.heat-small", { src: address(`heat/${ctx.sample}/${encodeURIComponent(cell.field)}`), alt: `The middle of ${cell.field}`, title: cell.text, loading: "lazy",
    onerror: () => image.replaceWith(plain.small(cell)) });
  return image;
}

// Pixels of the screen that a value of a heat map is wide.
const LARGEST_PIXEL = 48;
// So few numbers are read, not drawn.
const FEW = 64;
// Axes of a volume are longer than this; shorter ones are channels.
const PLANES_FROM = 4;

/** The values of a slice and what is known of it. */
async function slice(cell, ctx, params, signal) {
  const response = await fetch(address(`slice/${ctx.sample}/${encodeURIComponent(cell.field)}`, params), { signal });
  if (!response.ok) throw new ApiError((await response.json()).error, response.status);
  const facts = JSON.parse(response.headers.get("X-Slice"));
  const data = await response.arrayBuffer();
  return { ...facts, data: facts.type === "f4" ? new Float32Array(data) : new Float64Array(data) };
}

export function large(cell, ctx, { told = true } = {}) {
  if (cell.values && cell.shape.length === 1 && cell.values.length <= FEW) return h("div", {}, numbers(cell), statistics(cell, ctx));
  if (!cell.shape.length) return h("p", {}, String(cell.values?.[0] ?? ""));
  const drawn = h("div.drawn"), places = h("div.places"), facts = h("p.dim.facts"), wrong = h("p.error", { role: "alert" });
  const choose = (name, options, change) => h("select", { "aria-label": `${name} of ${cell.field}`, onchange: change }, options.map(([value, text]) => h("option", { value }, text)));
  const rows = h("select", { "aria-label": `Rows of ${cell.field}`, onchange: () => turned(rows, columns, axes.at(-2)) });
  const columns = h("select", { "aria-label": `Columns of ${cell.field}`, onchange: () => turned(columns, rows, axes.at(-1)) });
  const map = choose("Colours", Object.entries(MAPS), () => paint());
  const scale = choose("Range", [["all", "least to most"], ["middle", "middle 98 %"]], () => paint());
  const log = h("input", { type: "checkbox", onchange: () => paint() });
  const every = h("input", { type: "checkbox", onchange: () => { axes = at = null; look(); } });
  // Whole numbers under the name of a mask are classes.
  if (/mask|segm|label_?map/i.test(cell.field) && /int|bool/.test(cell.dtype)) map.value = "classes";
  // A volume: three slices through one voxel.
  const wide = cell.shape.flatMap((size, axis) => (size > PLANES_FROM ? [axis] : [])).slice(0, 3);
  const three = h("input", { type: "checkbox", onchange: () => { volume = three.checked ? planes(cell, ctx, wide, () => style()) : null; every.disabled = three.checked; for (const element of [places, rows.parentElement, columns.parentElement]) element.hidden = three.checked; paint(); } });
  const style = () => ({ map: map.value, middle: scale.value === "middle", log: log.checked });
  let volume = null;
  let axes = null, at = null, shape = cell.shape, current = null, asking = null, again = false;

  async function look() {
    // While a slice comes, only the last place that was chosen is remembered: a slider can ask faster than it gets.
    if (asking) { again = true; return; }
    asking = slice(cell, ctx, { axes: axes?.join(","), at: at?.join(","), every: every.checked });
    try {
      const now = await asking;
      const other = !axes || JSON.stringify(now.whole) !== JSON.stringify(shape);
      current = now;
      if (!again) ({ axes, at, whole: shape } = now);
      wrong.textContent = "";
      if (other) controls();
      paint();
    } catch (error) {
      put(wrong, error.message);
    } finally {
      asking = null;
      if (again) { again = false; look(); }
    }
  }

  const name = (axis) => (every.checked && axis === 0 ? "sample" : `axis ${every.checked ? axis - 1 : axis}`);

  function controls() {
    for (const [select, chosen] of [[rows, axes.at(-2)], [columns, axes.at(-1)]]) {
      put(select, select === rows ? h("option", { value: "", selected: chosen === undefined }, "– (a curve)") : null,
        shape.map((size, axis) => h("option", { value: axis, selected: axis === chosen }, `${name(axis)} (${number(size)})`)));
    }
    put(places, shape.map((size, axis) => {
      if (axes.includes(axis) || size < 2) return null;
      const value = h("output", {}, at[axis]);
      return h("div.place", {}, h("span", { "aria-hidden": "true" }, name(axis)), h("input", { type: "range", "aria-label": `${name(axis)} of ${cell.field}`, min: 0, max: size - 1, step: 1, value: at[axis],
        oninput: (event) => { at[axis] = Number(event.target.value); value.textContent = at[axis]; look(); } }), value, h("span.dim", {}, `of ${number(size)}`));
    }));
  }

  function turned(changed, other, before) {
    // The one that is taken already changes places.
    if (other.value === changed.value) other.value = before ?? "";
    axes = [rows, columns].filter((select) => select.value !== "").map((select) => Number(select.value));
    controls();
    look();
  }

  function paint() {
    if (volume) { put(drawn, volume.element); facts.textContent = ""; volume.draw(); return; }
    if (!current) return;
    const flat = current.shape.length < 2;
    for (const element of [map, scale, log.parentElement]) if (element) element.hidden = flat;
    put(drawn, !current.values ? h("p.dim", {}, "empty") : flat ? curve(cell, current) : heat(cell, current, style()));
    const thinned = current.steps.some((step) => step > 1) ? `every ${current.steps.map((step) => number(step)).join(" and ")}. value is shown` : null;
    facts.textContent = [current.low === null ? null : `${show(current.low)} to ${show(current.high)}, mean ${show(current.mean)}`, current.odd ? `${number(current.odd)} not finite` : null, thinned].filter(Boolean).join(" · ");
  }

  const many = cell.shape.length > 1;
  const tools = h("div.row.tools-of-array", {},
    many ? [h("label", {}, "Down ", rows), h("label", {}, "Across ", columns)] : null,
    map, scale, h("label", {}, log, " log"),
    wide.length === 3 ? h("label", {}, three, " three planes") : null,
    cell.every && cell.shape.length ? h("label", {}, every, " through all samples") : null);
  look();
  return h("figure.array.own-keys", {}, tools, places, drawn, wrong, facts, cell.values ? h("details", { open: cell.values.length <= FEW }, h("summary", {}, "Numbers"), numbers(cell)) : null, told ? statistics(cell, ctx) : null);
}

const show = (value) => (typeof value === "number" ? (Number.isInteger(value) ? number(value) : String(Number(value.toPrecision(5)))) : String(value));

/** One axis: a curve; of many values the least and the most of each part. */
function curve(cell, drawn) {
  const count = drawn.shape[0], all = Array.from(drawn.data), step = drawn.values / count;
  const x = Array.from({ length: count }, (_, at) => at * step * drawn.steps[0]);
  const series = drawn.peaks ? [{ name: "least", x, y: all.slice(0, count) }, { name: "most", x, y: all.slice(count) }] : [{ name: cell.field, x, y: all }];
  return lines(series, { label: `${cell.field}: ${number(drawn.values)} values from ${show(drawn.low)} to ${show(drawn.high)}`, yrange: [] });
}

/** Slices of a volume along three axes through one voxel, marked in each. A click in one moves the other two. */
function planes(cell, ctx, axes, style) {
  const at = cell.shape.map((size) => Math.trunc(size / 2));
  const boxes = axes.map(() => h("div.plane")), wrong = h("p.error", { role: "alert" });
  let drawing = false, again = false;

  async function draw() {
    if (drawing) { again = true; return; }
    drawing = true;
    try {
      const pairs = axes.map((axis) => axes.filter((other) => other !== axis));
      const slices = await Promise.all(pairs.map((pair) => slice(cell, ctx, { axes: pair.join(","), at: at.join(",") })));
      slices.forEach((plane, n) => {
        const [down, across] = pairs[n];
        const mark = [Math.trunc(at[down] / plane.steps[0]), Math.trunc(at[across] / plane.steps[1])];
        const pick = (row, column) => { at[down] = row * plane.steps[0]; at[across] = column * plane.steps[1]; draw(); };
        put(boxes[n], h("p.dim", {}, `axis ${axes[n]}: ${number(at[axes[n]])} of ${number(cell.shape[axes[n]])}`), heat(cell, plane, { ...style(), mark, pick }));
      });
      wrong.textContent = "";
    } catch (error) {
      put(wrong, error.message);
    } finally {
      drawing = false;
      if (again) { again = false; draw(); }
    }
  }

  return { element: h("div", {}, h("div.planes-of-volume", {}, boxes), wrong), draw };
}

/** Two axes: a heat map. The value under the pointer is told. `mark`: a row and a column; `pick` gets those of a click. */
function heat(cell, drawn, { map, middle, log, mark, pick }) {
  const [height, width] = drawn.shape, { data } = drawn;
  let [low, high] = [drawn.low ?? 0, drawn.high ?? 0];
  if (middle) {
    const sorted = Float64Array.from(data.filter(Number.isFinite)).sort();
    [low, high] = [sorted[Math.floor(sorted.length * 0.01)] ?? low, sorted[Math.ceil(sorted.length * 0.99) - 1] ?? high];
  }
  if (map === "two") { const most = Math.max(Math.abs(low), Math.abs(high)); [low, high] = [-most, most]; }
  // Logarithms on both sides of zero, straight near it.
  const bent = log ? (value) => Math.sign(value) * Math.log1p(Math.abs(value)) : (value) => value;
  const [from, to] = [bent(low), bent(high)], span = to - from || 1;
  const table = map === "classes" ? null : ramp(map);
  const canvas = h("canvas", { width, height, role: "img", "aria-label": `${cell.field}: ${height} by ${width} values from ${show(drawn.low)} to ${show(drawn.high)}` });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let index = 0; index < data.length; index += 1) {
    const value = data[index];
    // What is not finite is left transparent.
    if (!Number.isFinite(value)) continue;
    const colour = table ? table[Math.max(0, Math.min(255, Math.round((255 * (bent(value) - from)) / span)))] : ofClass(Math.trunc(value));
    image.data.set([...colour, 255], 4 * index);
  }
  context.putImageData(image, 0, 0);
  if (mark) {
    context.fillStyle = "rgb(255 190 0 / 55%)";
    context.fillRect(0, mark[0], width, 1);
    context.fillRect(mark[1], 0, 1, height);
  }
  // As large as the pane is wide or most of the window is high, but no cell larger than this.
  canvas.style.width = `min(100%, ${width * LARGEST_PIXEL}px, calc(60vh * ${width / Math.max(1, height)}))`;
  const told = h("output.dim", { "aria-hidden": "true" }, "\u00a0");
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const place = [Math.floor(((event.clientY - box.top) / box.height) * height), Math.floor(((event.clientX - box.left) / box.width) * width)];
    return place[0] < 0 || place[1] < 0 || place[0] >= height || place[1] >= width ? null : place;
  };
  canvas.addEventListener("pointermove", (event) => {
    const place = under(event);
    if (place) told.textContent = `[${place[0] * drawn.steps[0]}, ${place[1] * drawn.steps[1]}] = ${show(data[place[0] * width + place[1]])}`;
  });
  if (pick) canvas.addEventListener("click", (event) => { const place = under(event); if (place) pick(...place); });
  const bar = table ? h("div.colour-bar", { "aria-hidden": "true" }, h("span", {}, show(low)), gradient(table), h("span", {}, show(high))) : null;
  return h("div", {}, h("div.heat", {}, canvas), bar, told);
}

function gradient(table) {
  const canvas = h("canvas", { width: 256, height: 1 });
  const context = canvas.getContext("2d"), image = context.createImageData(256, 1);
  table.forEach((colour, index) => image.data.set([...colour, 255], 4 * index));
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The values of a small array: rows and columns of its last two axes. heads: of columns; names: of rows. */
export function numbers(cell, { heads = null, names = null } = {}) {
  const { values, shape } = cell;
  if (!values) return h("p.dim", {}, `${shape.join("×")} values`);
  const wide = shape.at(-1) ?? 1;
  const lines = [];
  for (let from = 0; from < values.length; from += wide) lines.push(values.slice(from, from + wide));
  return h("div.numbers.own-keys", { tabindex: "0", role: "region", "aria-label": `Numbers of ${cell.field}` }, h("table.mono", {},
    heads ? h("thead", {}, h("tr", {}, names ? h("th", { scope: "col" }, "class") : null, heads.map((head) => h("th.number", { scope: "col" }, head)))) : null,
    h("tbody", {}, lines.map((line, at) => h("tr", {}, names ? h("th", { scope: "row" }, h("bdi", {}, names[at] ?? "")) : null, line.map((value) => h("td.number", {}, show(value))))))));
}

/** Statistics and a histogram of all values, on request: they have to be read. */
export function statistics(cell, ctx, { open = false } = {}) {
  const box = h("div", { "aria-live": "polite" });
  let started = false;
  const start = async () => {
    if (started) return;
    started = true;
    put(box, h("p.dim", {}, "reading…"));
    try {
      const summary = await wait(`statistics/${ctx.sample}/${encodeURIComponent(cell.field)}`, {}, (done, of) => put(box, h("progress", { max: of || undefined, value: of ? done : undefined, "aria-label": "Statistics" })));
      const rows = [["values", summary.values], ["least", summary.low], ["most", summary.high], ["mean", summary.mean], ["standard deviation", summary.spread], ["zeros", summary.zeros], ["not finite", summary.not_finite]];
      put(box, h("table", {}, h("tbody", {}, rows.filter(([, value]) => value !== undefined).map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td.number", {}, show(value)))))),
        summary.histogram ? histogram(summary.histogram, { label: `Histogram of ${cell.field}` }) : null);
    } catch (error) {
      started = false;
      put(box, h("p.error", { role: "alert" }, error.message));
    }
  };
  if (open) { start(); return box; }
  return h("details", { ontoggle: (event) => { if (event.target.open) start(); } }, h("summary", {}, "Statistics"), box);
}
