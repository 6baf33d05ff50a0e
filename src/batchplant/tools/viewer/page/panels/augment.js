// A sample as the Loader yields it, beside the original, with the loader's own draws for each epoch.

import { ask, wait } from "../api.js";
import { h, number, put, svg } from "../dom.js";
import { shape } from "../overlay.js";
import { colour, lines } from "../plots.js";
import * as state from "../state.js";

const COUNTS = ["1", "4", "8", "16"];
const START = [["RandomResizedCrop", {}], ["RandomHorizontalFlip", {}]];

export async function create(context) {
  const { ops: offered, pipeline } = await ask("augment");
  const named = Object.fromEntries(offered.map((op) => [op.name, op]));
  let stop = null;
  let last = "";

  const set = (changes) => state.set(changes, { replace: true });
  const input = (name, label, low) => h("input.aug-number", {
    type: "number", min: low, step: 1, "aria-label": label,
    onchange: (event) => { if (event.target.value !== "" && event.target.checkValidity()) set({ [name]: event.target.value }); },
  });
  const sample = input("sample", "Sample", 0);
  sample.max = Math.max(0, context.dataset.samples - 1);
  const epoch = input("aug_epoch", "Epoch", 0);
  const seed = input("aug_seed", "Seed", 0);
  const count = h("select", { "aria-label": "How many epochs", onchange: () => set({ aug_count: count.value }) },
    COUNTS.map((value) => h("option", { value }, value === "1" ? "1 epoch" : `${value} epochs`)));
  const source = h("select", { "aria-label": "Pipeline", onchange: () => set({ aug_ops: source.value === "file" ? "" : JSON.stringify(START) }) },
    h("option", { value: "file" }, "The pipeline that was given"), h("option", { value: "ops" }, "Ops picked here"));
  source.hidden = !pipeline;
  const move = (by) => set({ sample: Math.min(Math.max(0, Number(sample.value || 0) + by), context.dataset.samples - 1) });
  const reroll = () => set({ aug_epoch: Number(epoch.value || 0) + Number(count.value) });
  const reseed = () => set({ aug_seed: Math.floor(Math.random() * 1e6) });

  const editor = h("div.aug-ops");
  const note = h("p.dim");
  const problem = h("p.error", { role: "alert", hidden: true });
  const originals = h("div.aug-originals");
  const views = h("div.aug-views");
  const plan = h("pre.mono.aug-plan", { tabindex: "0", "aria-label": "What the loader does" });
  const element = h("section.augment", { "aria-label": "Augment" },
    h("div.row", {},
      h("label", {}, "Sample ", sample),
      h("button", { onclick: () => move(-1), "aria-label": "Previous sample" }, "‹"),
      h("button", { onclick: () => move(1), "aria-label": "Next sample" }, "›"),
      h("label", {}, "Seed ", seed), h("label", {}, "From epoch ", epoch), count,
      h("button.main", { onclick: reroll, title: "The epochs after these" }, "Re-roll"),
      h("button", { onclick: reseed }, "Another seed"), source),
    editor, problem,
    h("div.aug-both", {}, originals, views), note,
    h("details", {}, h("summary", {}, "What the loader does"), plan));

  function picked(current) {
    if (current.aug_ops) {
      try {
        const given = JSON.parse(current.aug_ops);
        if (Array.isArray(given)) return given.filter((op) => Array.isArray(op) && named[op[0]]).map(([name, values]) => [name, values ?? {}]);
      } catch { /* a link that somebody changed by hand */ }
    }
    return pipeline ? null : START;
  }

  function edit(ops) {
    const told = (changed) => set({ aug_ops: JSON.stringify(changed) });
    const row = ([name, values], at) => h("li.row.aug-op", {},
      h("strong", {}, name),
      named[name].arguments.map((parameter) => argument(name, parameter, values, (value) => told(ops.map((old, index) => (index === at ? [name, { ...values, [parameter.name]: value }] : old))))),
      h("button", { "aria-label": `${name} earlier`, disabled: at === 0, onclick: () => told(swapped(ops, at - 1)) }, "↑"),
      h("button", { "aria-label": `${name} later`, disabled: at === ops.length - 1, onclick: () => told(swapped(ops, at)) }, "↓"),
      h("button", { "aria-label": `Remove ${name}`, onclick: () => told(ops.filter((_, index) => index !== at)) }, "✕"));
    const add = h("select", { "aria-label": "Add an op", onchange: () => { if (add.value) told([...ops, [add.value, {}]]); } },
      h("option", { value: "" }, "Add an op…"), offered.map((op) => h("option", { value: op.name }, op.name)));
    put(editor, h("ol.aug-list", {}, ops.map(row)), add);
  }

  async function load(current) {
    const ops = picked(current);
    const params = {
      seed: current.aug_seed, epoch: current.aug_epoch, count: count.value,
      ops: ops ? JSON.stringify(ops) : "",
    };
    const asked = JSON.stringify([sample.value, params]);
    if (asked === last) return;
    last = asked;
    stop?.abort();
    stop = new AbortController();
    const { signal } = stop;
    element.setAttribute("aria-busy", "true");
    try {
      const result = await wait(`augment/${Number(sample.value)}`, params, () => {}, signal);
      if (signal.aborted) return;
      problem.hidden = true;
      draw(result);
    } catch (error) {
      if (signal.aborted) return;
      last = "";
      put(problem, error.message);
      problem.hidden = false;
      put(views);
      put(originals);
    } finally {
      if (!signal.aborted) element.removeAttribute("aria-busy");
    }
  }

  function draw(result) {
    if (seed.value === "") seed.placeholder = String(result.seed);
    put(plan, result.plan);
    note.textContent = result.mixes
      ? `Some steps work on whole batches: each was made with the ${number(result.batch_size)} samples of its batch in ${result.order} order.`
      : "Drawn as the Loader draws: by seed, epoch and sample, whatever the batch, the rank or the number of threads.";
    put(originals, result.originals.map((image) => original(image, result.views)));
    put(views, result.views.map((view, at) => card(view, at, result)));
  }

  return {
    element,
    show(current) {
      const ops = picked(current);
      sample.value = Number(current.sample ?? 0) || 0;
      epoch.value = Number(current.aug_epoch ?? 0) || 0;
      seed.value = current.aug_seed ?? "";
      count.value = COUNTS.includes(current.aug_count) ? current.aug_count : "4";
      source.value = ops ? "ops" : "file";
      editor.hidden = !ops;
      if (ops && !editor.contains(document.activeElement)) edit(ops);
      else if (ops) refreshed(editor, () => edit(ops));
      return load(current);
    },
    hide() {
      stop?.abort();
      last = "";
    },
  };
}

/** Draws again and puts the focus back where it was. */
function refreshed(box, again) {
  const label = document.activeElement.getAttribute("aria-label");
  again();
  [...box.querySelectorAll("[aria-label]")].find((button) => button.getAttribute("aria-label") === label && !button.disabled)?.focus();
}

function swapped(list, at) {
  const made = [...list];
  [made[at], made[at + 1]] = [made[at + 1], made[at]];
  return made;
}

function argument(op, { name, value: usual }, values, told) {
  const now = values[name] ?? usual;
  const many = Array.isArray(now);
  const shown = (many ? now : [now]).map((number) => Number(Number(number).toPrecision(4)));
  const fields = shown.map((number, at) => h("input.aug-number", {
    type: "number", step: "any", value: number, "aria-label": `${op}: ${name}${many ? (at ? ", to" : ", from") : ""}`,
    onchange: (event) => {
      const given = Number(event.target.value);
      if (event.target.value === "" || !Number.isFinite(given)) return;
      told(many ? now.map((old, index) => (index === at ? given : old)) : given);
    },
  }));
  return h("span.aug-argument", {}, h("span.dim", { "aria-hidden": "true" }, name), fields);
}

/** The whole image with the box of every view on it. */
function original(image, views) {
  const boxes = views.flatMap((view, at) => (view.outputs ?? []).filter((output) => output.field === image.field && output.turn === image.turn && output.box)
    .map((output) => ({ output, at, epoch: view.epoch })));
  const thick = Math.max(image.width, image.height) / 200;
  const drawn = boxes.map(({ output: { box: [left, top, right, bottom], flip, name }, at, epoch }) => svg(`g.${colour(at % 8)}`, {},
    svg("title", {}, `${name}, epoch ${epoch}${flip ? ", mirrored" : ""}`),
    svg("rect.aug-halo", { x: left, y: top, width: right - left, height: bottom - top, "stroke-width": 2.2 * thick }),
    svg("rect.aug-box", { x: left, y: top, width: right - left, height: bottom - top, "stroke-width": thick, "stroke-dasharray": name === boxes[0].output.name ? null : `${3 * thick} ${2 * thick}` }),
    svg("text.aug-mark", { x: left + 2 * thick, y: top + 10 * thick, "font-size": 9 * thick, "stroke-width": 2 * thick }, String(epoch))));
  return h("figure.aug-original", {},
    h("div.aug-stage", { style: { aspectRatio: `${image.width} / ${image.height}` } },
      image.error ? h("p.error", {}, image.error) : h("img", { src: image.src, alt: `${image.field}, the original` }),
      svg("svg.aug-overlay", { viewBox: `0 0 ${image.width} ${image.height}`, role: "img", "aria-label": `${boxes.length} crop boxes` }, drawn)),
    h("figcaption.dim", {}, `${image.field}: ${image.width}×${image.height}, and what each epoch cuts out of it`));
}

function card(view, at, result) {
  const head = h("h2", {}, h(`span.swatch.${colour(at % 8)}`, { "aria-hidden": "true" }), `Epoch ${number(view.epoch)}`);
  if (view.error) return h("div.card.aug-view", {}, head, h("p.error", {}, view.error));
  // What is drawn over the image is read as numbers on request only.
  const drawn = new Set(view.outputs.flatMap((output) => (output.annotations ?? []).map((each) => each.field)));
  const [seen, read] = [view.outputs.filter((output) => !drawn.has(output.field)), view.outputs.filter((output) => drawn.has(output.field))];
  return h("div.card.aug-view", {}, head, seen.map((output) => value(output, view.epoch, result)),
    read.length ? h("details.dim", {}, h("summary", {}, read.map((output) => output.name).join(", ")), read.map((output) => value(output, view.epoch, result))) : null);
}

function value(output, epoch) {
  const what = output.shape ? `${output.dtype}${output.shape.length ? ` ${output.shape.join("×")}` : ""}` : "";
  if (output.src) {
    const [height, width] = output.size;
    return h("figure", {}, h("div.aug-shown", {}, h("img.aug-image", { src: output.src, alt: `${output.name} in epoch ${epoch}${output.annotations?.length ? `, with its ${output.annotations.map((each) => each.field).join(", ")}` : ""}` }),
      output.annotations?.length ? h("div.overlay", { "aria-hidden": "true" }, output.annotations.map((each) => shape(each, each, width, height, true))) : null),
      h("figcaption.dim", {}, `${output.name}: ${what}${output.flip ? ", mirrored" : ""}${output.note ? ` (${output.note})` : ""}`));
  }
  if (output.peaks) {
    const x = output.peaks.map((_, index) => index);
    return h("figure", {}, lines([{ name: "lowest", x, y: output.peaks.map(([low]) => low) }, { name: "highest", x, y: output.peaks.map(([, high]) => high) }], { label: `${output.name} in epoch ${epoch}`, yrange: [], height: 120 }),
      h("figcaption.dim", {}, `${output.name}: ${what}`));
  }
  return h("p.aug-text", {}, h("span.dim", {}, `${output.name}: `), h("bdi", {}, output.text ?? ""), output.shape?.length ? h("span.dim", {}, ` ${what}`) : null);
}
