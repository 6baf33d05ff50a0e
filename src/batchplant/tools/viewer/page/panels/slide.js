// A large image: tiles of the level that fits the zoom, drawn on a canvas. Pointer, wheel and keys move and zoom.

import { address, ask } from "../api.js";
import { h, number, put } from "../dom.js";
import * as state from "../state.js";
import { field, runner } from "./shared.js";

// Tiles that are kept, and that are loaded at a time; the largest zoom; by how much a key or a button zooms, and a key moves.
const MAX_TILES = 400, MAX_LOADS = 6, MAX_ZOOM = 16, ZOOM_STEP = 1.5, MOVE = 1 / 6;
// The lowest level is shown no smaller than this: where there are no overviews, a whole image would be thousands of tiles.
const SMALLEST = 1 / 4;

export function create(context) {
  const last = context.dataset.slides - 1;
  const body = h("div"), run = runner(body, context.say).run;
  const open = (slide) => state.set({ slide: Math.max(0, Math.min(last, slide)), x: null, y: null, zoom: null, at: null });
  const chosen = h("input", { type: "number", min: 0, max: last, step: 1, onchange: () => open(Math.trunc(Number(chosen.value)) || 0) });
  const step = (by, label, text) => h("button", { title: label, "aria-label": label, onclick: () => open(Number(chosen.value) + by) }, text);
  const element = h("section.slide", { "aria-label": "Slide" },
    last > 0 ? h("div.row.toolbar", {}, step(-1, "Previous slide", "‹"), field("Slide", chosen), step(1, "Next slide", "›"), h("span.dim", {}, `of ${number(last + 1)}`)) : null, body);
  let loaded = null, shown = null;

  return {
    element,
    show(now) {
      const slide = Math.max(0, Math.min(last, Math.trunc(Number(now.slide)) || 0));
      chosen.value = slide;
      if (slide === loaded) { shown?.show(now); return; }
      shown?.stop();
      [loaded, shown] = [slide, null];
      return run(`Slide ${number(slide)}`, async () => {
        shown = view(slide, await ask(`slide/${slide}`));
        // The canvas has a size once it is in the page.
        requestAnimationFrame(() => shown.show(state.get()));
        return shown.element;
      });
    },
    hide() { shown?.stop(); },
  };
}

function view(slide, { levels, tile, planes }) {
  const [height, width] = levels[0];
  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "slide", "aria-label": "Slide: arrow keys move, plus and minus zoom, 0 shows all of it" });
  const status = h("output"), wrong = h("p.error", { role: "alert" });
  const pen = canvas.getContext("2d"), tiles = new Map();
  // The middle of the view in pixels of the image; pixels of the screen that a pixel of the image is wide.
  let x = width / 2, y = height / 2, zoom = 0, at = planes.map(({ size }) => Math.trunc(size / 2));
  let loads = 0, timer = null, frame = null;
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const box = () => canvas.getBoundingClientRect();

  const fit = () => { const { width: w, height: t } = box(); return Math.min(w / width, t / height) || 1; };
  const least = () => Math.min(MAX_ZOOM, Math.max(Math.min(1, fit()), SMALLEST * levels.at(-1)[1] / width));

  function move(to) {
    ({ x, y, zoom } = { x, y, zoom, ...to });
    zoom = clamp(zoom, least(), MAX_ZOOM);
    x = clamp(x, 0, width);
    y = clamp(y, 0, height);
    later();
    clearTimeout(timer);
    timer = setTimeout(() => state.set({ x: Math.round(x), y: Math.round(y), zoom: Number(zoom.toPrecision(4)), at: at.join(",") }, { replace: true }), 250);
  }

  /** Zooms so that the place under a point of the canvas stays there. */
  function zoomAt(factor, px, py) {
    const { width: w, height: t } = box(), before = zoom;
    zoom = clamp(zoom * factor, least(), MAX_ZOOM);
    move({ x: x + (px - w / 2) * (1 / before - 1 / zoom), y: y + (py - t / 2) * (1 / before - 1 / zoom) });
  }

  const zoomMiddle = (factor) => zoomAt(factor, box().width / 2, box().height / 2);
  const whole = () => move({ x: width / 2, y: height / 2, zoom: fit() });

  function later() {
    frame ??= requestAnimationFrame(() => { frame = null; draw(); });
  }

  /** Tiles of a level that the view touches. */
  function* touched(level, w, t) {
    const [rows, columns] = levels[level], [sy, sx] = [height / rows, width / columns];
    const [top, left] = [(y - t / 2 / zoom) / sy, (x - w / 2 / zoom) / sx];
    const [bottom, right] = [Math.min(rows, (y + t / 2 / zoom) / sy), Math.min(columns, (x + w / 2 / zoom) / sx)];
    for (let row = Math.max(0, Math.floor(top / tile)); row * tile < bottom; row += 1) {
      for (let column = Math.max(0, Math.floor(left / tile)); column * tile < right; column += 1) {
        yield { level, row, column, sy, sx, key: `${level}/${row}/${column}?${at.join(",")}` };
      }
    }
  }

  function draw() {
    const { width: w, height: t } = box(), dense = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(w * dense), Math.round(t * dense)];
    if (!canvas.width || !canvas.height) return;
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.imageSmoothingEnabled = zoom * dense < 3;
    // The smallest level that is no smaller than the screen shows it.
    let level = levels.length - 1;
    while (level > 0 && levels[level][1] / width < zoom * dense * 0.75) level -= 1;
    const waiting = [];
    for (let below = levels.length - 1; below >= level; below -= 1) {
      for (const place of touched(below, w, t)) {
        const image = tiles.get(place.key);
        if (image?.ready) {
          tiles.delete(place.key);
          tiles.set(place.key, image);
          const [px, py] = [(place.column * tile * place.sx - x) * zoom + w / 2, (place.row * tile * place.sy - y) * zoom + t / 2];
          // A little more than it is wide: no lines show between tiles.
          pen.drawImage(image.element, px, py, image.element.naturalWidth * place.sx * zoom + 0.5, image.element.naturalHeight * place.sy * zoom + 0.5);
        } else if (below === level || below === levels.length - 1) {
          waiting.push(place);
        }
      }
    }
    for (const place of waiting) if (!tiles.has(place.key)) load(place);
    canvas.dataset.waiting = waiting.filter(({ key }) => !tiles.get(key)?.broken).length;
    const seen = levels.length > 1 ? ` · level ${level} of ${levels.length}` : "";
    status.textContent = `${number(width)} × ${number(height)} · ${Number((100 * zoom).toPrecision(3))} %${seen} · at ${number(Math.round(x))}, ${number(Math.round(y))}`;
  }

  function load({ level, row, column, key }) {
    // What the view has left by then is not loaded: draw() asks again for what it needs.
    if (loads === MAX_LOADS) return;
    loads += 1;
    const entry = { ready: false, element: h("img", { src: address(`slide/${slide}/${level}/${row}/${column}`, { at: at.join(",") }) }) };
    tiles.set(key, entry);
    if (tiles.size > MAX_TILES) tiles.delete(tiles.keys().next().value);
    entry.element.decode().then(() => { entry.ready = true; }, () => {
      entry.broken = true;
      put(wrong, `The tile in row ${row}, column ${column} of level ${level} cannot be read.`);
    }).finally(() => { loads -= 1; later(); });
  }

  canvas.addEventListener("keydown", (event) => {
    const { width: w, height: t } = box(), [dx, dy] = [w * MOVE / zoom, t * MOVE / zoom];
    const moves = { ArrowLeft: [-dx, 0], ArrowRight: [dx, 0], ArrowUp: [0, -dy], ArrowDown: [0, dy] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) move({ x: x + moves[event.key][0], y: y + moves[event.key][1] });
    else if (event.key === "+" || event.key === "=") zoomMiddle(ZOOM_STEP);
    else if (event.key === "-") zoomMiddle(1 / ZOOM_STEP);
    else if (event.key === "0") whole();
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomAt(Math.exp(-event.deltaY / (event.deltaMode ? 10 : 400)), event.offsetX, event.offsetY);
  }, { passive: false });
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, [event.offsetX, event.offsetY]); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const [now, other] = [[event.offsetX, event.offsetY], [...pointers].find(([id]) => id !== event.pointerId)?.[1]];
    pointers.set(event.pointerId, now);
    // Two fingers zoom, one moves.
    if (other) zoomAt(Math.hypot(now[0] - other[0], now[1] - other[1]) / (Math.hypot(before[0] - other[0], before[1] - other[1]) || 1), ...other);
    else move({ x: x - (now[0] - before[0]) / zoom, y: y - (now[1] - before[1]) / zoom });
  });
  const watcher = new ResizeObserver(later);
  watcher.observe(canvas);

  const button = (label, text, does) => h("button", { title: label, "aria-label": label, onclick: does }, text);
  const sliders = planes.map(({ name, size }, axis) => {
    const value = h("output"), slider = h("input", { type: "range", "aria-label": name, min: 0, max: size - 1, step: 1,
      oninput: () => { at[axis] = Number(slider.value); value.textContent = at[axis]; move({}); } });
    return { slider, value, element: size > 1 ? h("div.place", {}, h("span", { "aria-hidden": "true" }, name), slider, value, h("span.dim", {}, `of ${number(size)}`)) : null };
  });

  const element = h("div", {}, h("div.planes", {}, sliders.map((slider) => slider.element)), canvas,
    h("div.row", {}, button("Zoom in", "+", () => zoomMiddle(ZOOM_STEP)), button("Zoom out", "−", () => zoomMiddle(1 / ZOOM_STEP)), button("All of it", "Fit", whole), status), wrong);
  return {
    element,
    /** Shows the place that the address names. */
    show(now) {
      const numbers = (now.at ?? "").split(",").map(Number);
      if (numbers.length === planes.length && numbers.every((index, axis) => Number.isInteger(index) && index >= 0 && index < planes[axis].size)) at = numbers;
      sliders.forEach(({ slider, value }, axis) => { slider.value = at[axis]; value.textContent = at[axis]; });
      const [px, py, scale] = [now.x, now.y, now.zoom].map((text) => (text === undefined ? NaN : Number(text)));
      x = clamp(Number.isFinite(px) ? px : width / 2, 0, width);
      y = clamp(Number.isFinite(py) ? py : height / 2, 0, height);
      zoom = clamp(scale > 0 ? scale : fit(), least(), MAX_ZOOM);
      later();
    },
    stop() { clearTimeout(timer); },
  };
}
