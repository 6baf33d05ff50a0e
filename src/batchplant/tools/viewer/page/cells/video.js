// Videos: the browser's player where it has one, and every frame by a scrubber, whatever the encoding.

import { address } from "../api.js";
import { h, number } from "../dom.js";
import { clock } from "./sound.js";

const place = (kind, cell, ctx, params) => address(`${kind}/${ctx.sample}/${encodeURIComponent(cell.field)}`, params);

export function small(cell, ctx) {
  const image = h("img.small", { src: place("frame", cell, ctx, { at: 0, max: 256 }), alt: `First frame of ${cell.field}`, loading: "lazy",
    onerror: () => image.replaceWith(h("span.error", {}, "✕ cannot be decoded")) });
  return h("span.film", {}, image, h("span.badge", { "aria-hidden": "true" }, "▶"));
}

export function large(cell, ctx) {
  const facts = [[cell.encoding, cell.codec && `(${cell.codec})`].filter(Boolean).join(" "), `${cell.width}×${cell.height}`, `${number(cell.frames)} frames`,
    `${Number(cell.fps.toPrecision(4))} frames a second`, clock(cell.seconds), cell.sound ? "with sound" : "no sound"];
  return h("figure.video", {}, cell.plays ? player(cell, ctx) : null, scrubber(cell, ctx), h("figcaption.dim", {}, facts.join(" · ")));
}

function player(cell, ctx) {
  const video = h("video", { controls: true, preload: "metadata", playsinline: true, "aria-label": `Play ${cell.field}`, src: place("video", cell, ctx, {}),
    onerror: () => video.replaceWith(h("p.dim", {}, "This browser does not play this encoding; here are its frames.")) });
  return video;
}

/** A frame, and a slider below a strip of frames that chooses it. */
function scrubber(cell, ctx) {
  const caption = h("output");
  let wanted = 0, loading = false;
  // One frame at a time: while one comes, only the last that was asked for is remembered.
  const next = () => {
    loading = false;
    if (Number(image.dataset.frame) !== wanted) load();
  };
  const image = h("img.frame", { alt: "", width: cell.width, height: cell.height, onload: next, onerror: () => { image.alt = "this frame cannot be decoded"; next(); } });
  function load() {
    loading = true;
    image.dataset.frame = wanted;
    image.src = place("frame", cell, ctx, { at: wanted, max: 1280 });
    image.alt = `Frame ${wanted} of ${cell.field}`;
  }
  function show(frame) {
    wanted = Math.max(0, Math.min(cell.frames - 1, frame));
    caption.textContent = `frame ${number(wanted)} of ${number(cell.frames)}, ${clock(wanted / cell.fps)}`;
    slider.value = wanted;
    if (!loading) load();
  }
  const slider = h("input", { type: "range", min: 0, max: Math.max(0, cell.frames - 1), step: 1, value: 0, "aria-label": `Frame of ${cell.field}`, oninput: () => show(Number(slider.value)) });
  const step = (by, label, text) => h("button", { type: "button", "aria-label": label, title: label, onclick: () => show(wanted + by) }, text);
  show(0);
  return h("div.scrubber", {}, image, h("img.strip", { src: place("strip", cell, ctx, { count: 12, height: 64 }), alt: "", loading: "lazy" }), slider,
    h("div.row", {}, step(-1, "Previous frame", "‹"), step(1, "Next frame", "›"), caption));
}
