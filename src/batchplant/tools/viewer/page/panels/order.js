// The epoch as a Loader reads it: which rank sees which sample when, how mixed the labels are, what is in a batch.

import { small } from "../cells/index.js";
import { h, number, put } from "../dom.js";
import * as plots from "../plots.js";
import * as state from "../state.js";
import { chosen, field, filterNote, percent, result, runner, sampleLink } from "./shared.js";

const ORDERS = ["sequential", "random", "quasi_random", "shards", "windowed", "class_balanced"];
const MEANINGS = {
  sequential: "the samples as stored",
  random: "a uniform shuffle",
  quasi_random: "storage blocks in random order, samples shuffled within some blocks",
  shards: "storage blocks in random order, the samples of each as stored",
  windowed: "a shuffle buffer: no sample moves further than its window",
  class_balanced: "every class equally often",
};
// Ranks that have a colour.
const COLOURED = 8;
const DEFAULTS = { by: "random", seed: 0, epoch: 0, batch: 256, world_size: 1, window: "", lanes: 1, drop: "", label: "", step: 0, rank: 0 };

export function create(context) {
  const controls = h("form.row.controls", { "aria-label": "How the Loader reads", onsubmit: (event) => event.preventDefault() });
  const [note, image, batch, appearances] = [h("div"), h("div"), h("div"), h("div")];
  const stepControls = h("form.row.controls", { "aria-label": "Which batch", onsubmit: (event) => event.preventDefault() });
  const element = h("section.order", { "aria-label": "Order" }, note,
    h("article.card", {}, h("h2", {}, "The epoch"), controls, image),
    h("article.card", {}, h("h2", {}, "What a rank sees at a step"), stepControls, batch),
    h("article.card", {}, h("h2", {}, "When a sample is seen"), finder(), appearances));
  const [ofImage, ofBatch, ofAppearances] = [image, batch, appearances].map((box) => runner(box, context.say));
  let [madeImage, madeBatch, labels] = [null, null, null];

  const value = (now, name) => now[`order_${name}`] ?? String(DEFAULTS[name]);
  const set = (changes, options) => state.set(Object.fromEntries(Object.entries(changes).map(([name, entry]) =>
    [`order_${name}`, String(entry) === String(DEFAULTS[name]) ? null : entry])), options);
  const asked = (now) => ({
    ...chosen(now), order: value(now, "by"), seed: value(now, "seed"), epoch: value(now, "epoch"), batch_size: value(now, "batch"),
    world_size: value(now, "world_size"), window: value(now, "window"), lanes: value(now, "lanes"), drop_last: value(now, "drop"), label: value(now, "label"),
  });

  function whole(now, name, label, min, more = {}) {
    return field(label, h("input", { type: "number", min, step: 1, value: value(now, name), name, size: 6, ...more,
      onchange: (event) => set({ [name]: event.target.value === "" ? DEFAULTS[name] : Math.max(min, Math.round(Number(event.target.value) || 0)), ...(name === "step" || name === "rank" ? {} : { step: 0, rank: 0 }) }) }));
  }

  function form(now) {
    const by = value(now, "by");
    const focused = document.activeElement?.name;
    put(controls,
      field("Order", h("select", { name: "by", onchange: (event) => set({ by: event.target.value, step: 0 }) },
        ORDERS.map((name) => h("option", { value: name, selected: name === by }, name)))),
      whole(now, "seed", "Seed", 0), whole(now, "epoch", "Epoch", 0), whole(now, "batch", "Batch size", 1), whole(now, "world_size", "Ranks", 1),
      ["windowed", "quasi_random"].includes(by) ? whole(now, "window", "Window", 1, { placeholder: "default" }) : null,
      ["shards", "quasi_random"].includes(by) ? whole(now, "lanes", "Lanes", 1) : null,
      h("label.check", {}, h("input", { type: "checkbox", name: "drop", checked: value(now, "drop") === "1", onchange: (event) => set({ drop: event.target.checked ? 1 : "", step: 0 }) }), "drop_last"),
      labels?.length ? field("Classes", h("select", { name: "label", onchange: (event) => set({ label: event.target.value }) },
        h("option", { value: "" }, "found by name"), labels.map((name) => h("option", { value: name, selected: name === value(now, "label") }, name)))) : null,
      h("p.dim.wide", {}, MEANINGS[by] ?? ""));
    if (focused) controls.querySelector(`[name="${CSS.escape(focused)}"]`)?.focus();
  }

  function stepForm(now, steps, world_size) {
    const focused = document.activeElement?.name;
    const step = Number(value(now, "step"));
    put(stepControls,
      h("button", { type: "button", name: "back", disabled: step <= 0, onclick: () => set({ step: step - 1 }) }, "Previous step"),
      whole(now, "step", `Step, up to ${number(Math.max(steps - 1, 0))}`, 0, { max: Math.max(steps - 1, 0) }),
      h("button", { type: "button", name: "on", disabled: step >= steps - 1, onclick: () => set({ step: step + 1 }) }, "Next step"),
      world_size > 1 ? whole(now, "rank", `Rank, up to ${number(world_size - 1)}`, 0, { max: world_size - 1 }) : null);
    if (focused) stepControls.querySelector(`[name="${CSS.escape(focused)}"]`)?.focus();
  }

  function finder() {
    const input = h("input", { type: "number", min: 0, step: 1, size: 10, required: true });
    return h("form.row.controls", { "aria-label": "Find a sample", onsubmit: (event) => {
      event.preventDefault();
      ofAppearances.run("Looking for the sample", async (progress, signal) =>
        when(Number(input.value), await result(`when/${input.value}`, asked(state.get()), progress, signal)));
    } }, field("Sample", input), h("button", { type: "submit" }, "Find"));
  }

  function when(sample, { seen }) {
    if (!seen.length) return h("p", {}, "This epoch does not have it.");
    return h("ul", {}, seen.map((entry) => h("li", {}, entry.step === undefined
      ? `position ${number(entry.position)}, which drop_last leaves out`
      : h("button", { onclick: () => set({ step: entry.step, rank: entry.rank }) }, `step ${number(entry.step)} of rank ${number(entry.rank)}`),
      entry.step === undefined ? null : ` – position ${number(entry.position)} of the epoch`)));
  }

  function show(now) {
    form(now);
    const params = asked(now);
    const key = JSON.stringify(params);
    if (key !== madeImage) {
      madeImage = key;
      put(note, filterNote(now));
      put(appearances);
      ofImage.run("Reading the order", async (progress, signal) => {
        const value = await result("epoch", params, progress, signal);
        labels = value.labels;
        form(state.get());
        return epoch(value, params, context.dataset.samples, (step, rank = 0) => set({ step, rank }));
      });
    }
    const what = JSON.stringify([key, value(now, "step"), value(now, "rank")]);
    if (what !== madeBatch && context.dataset.samples) {
      madeBatch = what;
      ofBatch.run("Reading the batch", async (progress, signal) => {
        const seen = await result("step", { ...params, step: value(now, "step"), rank: value(now, "rank") }, progress, signal);
        stepForm(state.get(), seen.steps, seen.world_size);
        return batchOf(seen, now, context);
      });
    }
  }

  return { element, show, hide() {} };
}

function epoch(chart, params, samples, pick) {
  const world_size = Number(params.world_size);
  const groups = Array.from({ length: Math.min(world_size, COLOURED + 1) }, (_, rank) => ({ name: rank < COLOURED ? `rank ${rank}` : "other ranks", points: [] }));
  for (const [position, step, sample, rank] of chart.dots) {
    groups[Math.min(rank, COLOURED)].points.push([chart.steps > 200 ? step : position * (chart.steps / chart.length), sample, 1, [step, rank]]);
  }
  const facts = [
    `${number(chart.steps)} ${chart.steps === 1 ? "step" : "steps"}`,
    world_size > 1 ? `of ${number(world_size)} ranks` : null,
    `${number(chart.length)} samples`,
    chart.left_out ? `${number(chart.left_out)} left out by drop_last` : null,
    chart.idle ? `${number(chart.idle)} ranks have nothing at the last step` : null,
  ].filter(Boolean).join(", ");
  const blocks = chart.blocks && `${number(chart.blocks.count)} storage blocks; a batch reads from ${plots.short(chart.blocks.per_batch)} of them on average.`;
  return [
    h("p", {}, `${facts}.`, blocks ? ` ${blocks}` : " This format has no storage blocks.", ` ${percent(chart.kept_neighbours)} of samples are followed by the one stored beside them.`),
    h("div.cards.wide", {},
      h("div", {}, h("h3", {}, "Which sample is read at which step"),
        plots.scatter(groups, { label: `Samples by step, ${world_size > 1 ? "colours are ranks" : "one rank"}`, xlabel: "step", ylabel: "sample", yrange: [0, samples], dot: 1.6, height: 300, pick: ([step, rank]) => pick(step, rank) }),
        h("p.dim", {}, "A line is no shuffle, an even field is a uniform one, steps of a stair are blocks. Choose a dot to see its batch.")),
      chart.mixing ? mixing(chart, params, pick) : h("div", {}, h("h3", {}, "Labels along the epoch"), h("p.dim", {}, "There is no field of classes; choose one above."))),
  ];
}

function mixing(chart, params, pick) {
  const { names, counts, entropy, batch_entropy: batch, again, every } = chart.mixing;
  const columns = counts[0]?.length ?? 0;
  const share = entropy > 0 ? batch / entropy : 1;
  return h("div", {}, h("h3", {}, `Labels along the epoch: ${chart.label}`),
    plots.stacked(names.map((name, at) => ({ name, values: counts[at] })), {
      label: `Shares of classes along the epoch: ${names.join(", ")}`, xlabel: "step", x: [0, chart.steps], height: 230,
      pick: (column) => pick(Math.min(chart.steps - 1, Math.floor(((column + 0.5) / columns) * chart.steps))) }),
    h("p", {}, `A batch holds ${batch.toFixed(2)} of the ${entropy.toFixed(2)} bits that labels have (${percent(share, 0)}). `,
      again > 0.05 ? h("span.warn", {}, `The next sample has the same label ${percent(again, 0)} more often than by chance.`) : "The label of a sample does not tell the next one."),
    every ? null : h("p.dim", {}, h("span.sampled", {}, "sampled"), " some samples of each column, and some batches."),
    plots.table(["class", "share of what was looked at"], names.map((name, at) => [name, percent(sum(counts[at]) / Math.max(1, sum(counts.map(sum))))])));
}

const sum = (values) => values.reduce((total, entry) => total + entry, 0);

function batchOf(seen, now, context) {
  const { dataset } = context;
  const [image, label] = [dataset.image, dataset.label];
  const shown = seen.shown.map(({ sample, cells }) => {
    const ctx = { sample, dataset };
    const main = image ? cells[image] : null;
    const rest = label && cells[label] ? [cells[label]] : Object.values(cells).slice(0, 3);
    return h("li.seen", {}, main ? h("div.seen-image", {}, small(main, ctx)) : null,
      sampleLink(sample, number(sample)), rest.filter((cell) => cell !== main).map((cell) => h("div.seen-cell", {}, small(cell, ctx))));
  });
  const more = seen.count - seen.shown.length;
  return [
    h("p", {}, `Step ${number(seen.step)} of rank ${number(seen.rank)}: ${number(seen.count)} samples`, seen.position === null ? "." : ` from position ${number(seen.position)} of the epoch on.`),
    seen.classes ? plots.bars(seen.classes.map((entry) => ({ label: entry.label, value: entry.count })), { label: "Classes in this batch", shown: 6 }) : null,
    h("ol.batch", {}, shown),
    more > 0 ? h("details", {}, h("summary", {}, `${number(more)} more`), h("p", {}, Array.from(seen.samples.slice(seen.shown.length), (sample, at) => [at ? ", " : null, sampleLink(sample, number(sample))]))) : null,
  ];
}
