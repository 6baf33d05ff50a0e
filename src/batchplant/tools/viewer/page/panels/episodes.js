// An episode: its cameras side by side at one frame, a slider for the frame, and the curves of state and action below.

import { address, wait } from "../api.js";
import { h, number, put } from "../dom.js";
import { lines } from "../plots.js";
import * as state from "../state.js";
import { clock } from "../cells/sound.js";
import { field, runner, sampleLink } from "./shared.js";

const CAMERA_PIXELS = 640, DEFAULT_FPS = 10;

export function create(context) {
  const last = context.dataset.episodes - 1;
  const body = h("div");
  const run = runner(body, context.say).run;
  const open = (episode) => state.set({ episode: Math.max(0, Math.min(last, episode)), frame: null });
  const chosen = h("input", { type: "number", min: 0, max: last, step: 1, onchange: () => open(Math.trunc(Number(chosen.value)) || 0) });
  const step = (by, label, text) => h("button", { title: label, "aria-label": label, onclick: () => open(Number(chosen.value) + by) }, text);
  const element = h("section.episodes", { "aria-label": "Episodes" },
    h("div.row.toolbar", {}, step(-1, "Previous episode", "‹"), field("Episode", chosen), step(1, "Next episode", "›"), h("span.dim", {}, `of ${number(last + 1)}`)), body);
  let shown = null, loaded = null, now = {};

  return {
    element,
    show(current) {
      now = current;
      const episode = Math.max(0, Math.min(last, Math.trunc(Number(now.episode)) || 0));
      chosen.value = episode;
      if (episode === loaded) { shown?.show(Number(now.frame) || 0); return; }
      shown?.stop();
      [loaded, shown] = [episode, null];
      return run(`Episode ${number(episode)}`, async (progress, signal) => {
        shown = player(await wait(`episode/${episode}`, {}, progress, signal));
        shown.show(Number(now.frame) || 0);
        return shown.element;
      });
    },
    hide() { shown?.stop(); },
  };
}

function player(episode) {
  const fps = episode.fps ?? DEFAULT_FPS, end = episode.frames - 1;
  let wanted = null, loading = false, timer = null;
  const views = episode.cameras.map((name) => ({ name, box: h("div.shown") }));
  const place = h("output"), link = h("span");
  const slider = h("input", { type: "range", min: 0, max: end, step: 1, value: 0, "aria-label": "Frame", oninput: () => { stop(); show(Number(slider.value)); }, onchange: store });
  const play = h("button.main", { onclick: () => (timer ? stop() : start()) }, "Play");
  const step = (by, label, text) => h("button", { title: label, "aria-label": label, onclick: () => { stop(); show(wanted + by); store(); } }, text);
  const charts = episode.curves.map((curve) => ({ ...curve, chart: lines(
    curve.names.map((name, line) => ({ name, x: episode.at, y: curve.values[line] })),
    { label: `${curve.field} along the episode`, xrange: [0, end], yrange: [], xlabel: "frame", pick: (x) => { stop(); show(Math.round(x)); store(); } }) }));

  function store() {
    state.set({ frame: wanted || null }, { replace: true });
  }

  /** All cameras change at once, when the last image has come; meanwhile only the last wanted frame is remembered. */
  async function load() {
    loading = true;
    const frame = wanted;
    const images = await Promise.all(views.map(({ name }) => image(episode.first + frame, name, frame)));
    views.forEach(({ box }, at) => put(box, images[at]));
    element.dataset.frame = frame;
    loading = false;
    if (wanted !== frame) load();
  }

  function show(frame) {
    const next = Math.max(0, Math.min(end, frame));
    if (next === wanted) return;
    wanted = next;
    slider.value = wanted;
    place.textContent = `frame ${number(wanted)} of ${number(episode.frames)}, ${clock(wanted / fps)}`;
    put(link, sampleLink(episode.first + wanted));
    for (const { chart } of charts) chart.mark(wanted);
    if (!loading) load();
  }

  function start() {
    play.textContent = "Pause";
    if (wanted === end) show(0);
    const [from, begin] = [wanted, performance.now()];
    timer = setInterval(() => {
      if (loading) return;
      show(from + Math.floor(((performance.now() - begin) / 1000) * fps));
      if (wanted === end) stop();
    }, 1000 / Math.min(fps, 60));
  }

  function stop() {
    if (!timer) return;
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    store();
  }

  const texts = Object.entries(episode.texts).map(([name, text]) => h("p", {}, h("span.dim", {}, `${name}: `), text));
  const element = h("div", {}, texts,
    h("div.cameras", {}, views.map(({ name, box }) => h("figure", {}, box, h("figcaption.dim", {}, name)))),
    slider, h("div.row", {}, step(-1, "Previous frame", "‹"), play, step(1, "Next frame", "›"), place, link),
    h("div.curves", {}, charts.map(({ field: name, chart }) => h("article.card", { "aria-label": name }, h("h2", {}, name), chart))));
  return { element, show, stop };
}

/** The image of a camera, ready to be shown; where there is none, why not. */
async function image(sample, name, frame) {
  const shown = h("img", { src: address(`camera/${sample}/${encodeURIComponent(name)}`, { max: CAMERA_PIXELS }), alt: `Frame ${frame} of ${name}` });
  try {
    await shown.decode();
    return shown;
  } catch {
    return h("p.error", {}, "✕ this frame cannot be decoded");
  }
}
