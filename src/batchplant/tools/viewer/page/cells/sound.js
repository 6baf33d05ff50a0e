// Sounds: wave, spectrogram and player. Long ones are seen and heard in windows.

import { address } from "../api.js";
import { h, number } from "../dom.js";

const place = (kind, cell, ctx, params) => address(`${kind}/${ctx.sample}/${encodeURIComponent(cell.field)}`, params);

/** Minutes and seconds; of short sounds also parts of seconds. */
export function clock(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 2 : 1))} s`;
  const whole = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return [hours || null, hours ? String(minutes).padStart(2, "0") : minutes, String(whole % 60).padStart(2, "0")].filter((part) => part !== null).join(":");
}

export function small(cell, ctx) {
  return h("span.wave", {},
    h("img", { src: place("wave", cell, ctx, { width: 240, height: 80 }), alt: `Wave of ${cell.field}`, loading: "lazy" }),
    h("span.dim", {}, clock(cell.seconds ?? 0)));
}

export function large(cell, ctx) {
  const audio = h("audio", { controls: true, preload: "metadata", "aria-label": `Play ${cell.field}`, ontimeupdate: move, onseeking: move });
  const wave = h("img", { alt: `Wave of ${cell.field}` });
  const spectrogram = h("img", { alt: `Spectrogram of ${cell.field}: frequencies up to ${number(cell.rate / 2)} Hz along the time` });
  const heads = [h("div.head-line"), h("div.head-line")];
  const ends = [h("span"), h("span")];
  let start = 0, length = Math.min(cell.seconds, cell.window);

  function look(from) {
    start = Math.max(0, Math.min(Math.floor(from), Math.floor(cell.seconds)));
    length = Math.min(cell.seconds - start, cell.window);
    wave.src = place("wave", cell, ctx, { start, width: 1000, height: 120 });
    spectrogram.src = place("spectrogram", cell, ctx, { start, width: 1000, height: 180 });
    audio.src = place("sound", cell, ctx, { start });
    ends[0].textContent = clock(start);
    ends[1].textContent = clock(start + length);
    move();
  }

  function move() {
    const at = length > 0 ? Math.min(1, audio.currentTime / length) : 0;
    for (const head of heads) head.style.left = `${100 * at}%`;
  }

  function seek(event) {
    const box = event.currentTarget.getBoundingClientRect();
    audio.currentTime = ((event.clientX - box.left) / box.width) * length;
  }

  const windows = cell.seconds > cell.window
    ? h("label.row", {}, "From", h("input", { type: "range", min: 0, max: Math.max(1, Math.floor(cell.seconds - 1)), step: 1, value: 0, "aria-label": `Second from which ${cell.field} is shown`,
      onchange: (event) => look(Number(event.target.value)), oninput: (event) => { ends[0].textContent = clock(Number(event.target.value)); } }),
    h("span.dim", {}, `${clock(cell.window)} of ${clock(cell.seconds)} at a time`)) : null;
  const facts = [cell.encoding, clock(cell.seconds), `${number(cell.rate)} Hz`, cell.channels === 1 ? "mono" : cell.channels === 2 ? "stereo" : `${cell.channels} channels`, cell.subtype];
  look(0);
  return h("figure.sound", {}, windows,
    h("div.band", { onclick: seek }, wave, heads[0]),
    h("div.band", { onclick: seek }, spectrogram, heads[1], h("span.scale.top", {}, `${number(cell.rate / 2)} Hz`), h("span.scale.bottom", {}, "0 Hz")),
    h("div.ends.dim", {}, ends), audio, h("figcaption.dim", {}, facts.filter(Boolean).join(" · ")));
}
