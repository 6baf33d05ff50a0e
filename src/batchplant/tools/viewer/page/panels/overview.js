// What the samples hold: histograms, classes, resolutions, sizes, what is missing or there twice.

import { bytes, h, number, put } from "../dom.js";
import * as plots from "../plots.js";
import * as state from "../state.js";
import { chosen, filterBy, filterNote, measureBy, percent, result, runner, sampleLink } from "./shared.js";

// Whole numbers without names that are so few are bars, not a histogram.
const FEW = 12;
const UNITS = { bytes, seconds: (value) => `${plots.short(value)} s` };
const TITLES = { values: "values", length: "length", bytes: "bytes of a cell", width: "width in pixels", height: "height in pixels", seconds: "seconds" };

export function create(context) {
  const box = h("div");
  const note = h("div");
  const element = h("section.overview", { "aria-label": "Overview" }, note, box);
  // Stopped while it counted all, it is of some samples as before.
  const runs = runner(box, context.say, () => state.set({ overview_exact: null }, { replace: true }));
  let shownKey = null;

  function show(now) {
    const asked = { ...chosen(now), exact: now.overview_exact };
    const log = now.overview_log === "1";
    const key = JSON.stringify([asked, log]);
    if (key === shownKey) return;
    shownKey = key;
    put(note, filterNote(now));
    runs.run(asked.exact ? "Counting all samples" : "Looking at some samples", async (progress, signal) =>
      draw(await result("overview", asked, progress, signal), log));
  }

  // What takes long goes on while another part of the page is shown.
  return { element, show, hide() {} };
}

function draw(report, log) {
  return [
    h("div.row.toolbar", {},
      report.exact
        ? h("p", {}, `All ${number(report.samples)} samples.`)
        : h("p", {}, h("span.sampled", {}, "sampled"), ` ${number(report.looked_at)} of ${number(report.samples)} samples, drawn at random.`),
      report.exact ? null : h("button.main", { onclick: () => state.set({ overview_exact: 1 }) }, "Count all, exactly"),
      h("label.check", {}, h("input", { type: "checkbox", checked: log, onchange: (event) => state.set({ overview_log: event.target.checked ? 1 : null }, { replace: true }) }), "Logarithmic bars")),
    h("div.cards", {}, summary(report), report.fields.map((field) => card(field, report, log))),
  ];
}

function summary(report) {
  const facts = [
    ["bytes", bytes(report.bytes)],
    ["cannot be read", report.unreadable ? h("span.error", {}, number(report.unreadable)) : "none"],
    report.copies && ["the same as another", copies(report.copies, report.exact)],
  ].filter(Boolean);
  const sizes = report.fields.filter((entry) => entry.bytes).sort((a, b) => b.bytes - a.bytes);
  return h("article.card", {}, h("h2", {}, "All fields"),
    h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    report.problems.length ? h("ul.problems", {}, report.problems.map((entry) =>
      h("li.error", {}, entry.sample === null ? null : sampleLink(entry.sample), entry.sample === null ? null : ": ", entry.message))) : null,
    sizes.length > 1 ? [h("h3", {}, "Bytes by field"), plots.bars(sizes.map((entry) => ({ label: entry.name, value: entry.bytes, note: percent(entry.bytes / Math.max(report.bytes, 1), 0) })), { label: "Bytes by field", name: bytes })] : null,
    report.remarks.map((remark) => h("p.dim", {}, remark)));
}

function copies(copied, exact) {
  if (!copied.count) return exact ? "none" : "none among these";
  const about = copied.one_in > 1 ? "about " : "";
  return h("span", {}, `${about}${number(copied.count)} `, h("details", {}, h("summary", {}, "which"),
    h("ul", {}, copied.groups.map((group) => h("li", {}, group.map((sample, at) => [at ? ", " : null, sampleLink(sample, number(sample))]))))));
}

function card(field, report, log) {
  const parts = [];
  if (field.missing) {
    parts.push(plots.bars([{ label: "missing", value: field.missing, note: percent(field.missing / Math.max(report.looked_at, 1)), pick: picks(field.missing_where), title: field.missing_where }], { label: `Missing in ${field.name}` }));
  }
  if (field.unknown) parts.push(h("p.warn", {}, `${number(field.unknown)} cells do not say what they are.`));
  const values = field.values.values;
  const named = values && (field.kind !== "int" || values.items.length <= FEW || values.items.some((item) => Number.isNaN(Number(item.label))));
  if (named) parts.push(counts(values, `Values of ${field.name}`, log));
  for (const [what, statistic] of Object.entries(field.numbers)) {
    if (what === "values" && named) continue;
    parts.push(measured(field, what, statistic, log));
  }
  if (field.resolutions.length) {
    parts.push(h("h3", {}, "Resolutions"), plots.scatter([{ name: field.name, points: field.resolutions }],
      { label: `Resolutions of ${field.name}: width and height in pixels`, xlabel: "width", ylabel: "height", xrange: [0], yrange: [0], diagonal: true, pick: ([width, height]) => measureBy(field.name, "resolutions", `${width}×${height}`) }));
  }
  for (const [what, statistic] of Object.entries(field.values)) {
    // One of a kind, or each of a kind of its own, tells nothing.
    if (what === "values" || statistic.items.length < 2 || statistic.items[0].count < 0.02 * report.looked_at) continue;
    const items = statistic.items.map((item) => ({ ...item, measure: [field.name, what, item.label] }));
    const chart = counts({ ...statistic, items }, `${what} of ${field.name}`, log, what === "resolutions" ? 5 : 8);
    parts.push(what === "resolutions" ? chart : [h("h3", {}, what), chart]);
  }
  if (field.copies?.count) parts.push(h("p", {}, "The same as in an earlier sample: ", copies(field.copies, report.exact)));
  if (!parts.length) parts.push(h("p.dim", {}, field.count ? `${number(field.count)} values, all different.` : "nothing here"));
  return h("article.card", {}, h("h2", {}, h("bdi", {}, field.name)), h("p.dim.kind", {}, field.type), parts);
}

/** Times on an axis: the day, or also the time where all are of one day. */
function date(texts, textOf) {
  const same = texts.every((text) => text.slice(0, 10) === texts[0].slice(0, 10));
  return (value) => textOf(value).slice(0, same ? 16 : 10).replace("T", " ");
}

const picks = (where) => (where ? () => filterBy(where) : undefined);

function counts(values, label, log, shown = 10) {
  const items = values.items.map((item) => ({ label: item.label, value: item.count, pick: item.measure ? () => measureBy(...item.measure) : picks(item.where), title: item.where }));
  const most = values.different > values.items.length ? ` (the most frequent of ${number(values.different)})` : "";
  return h("div", {}, plots.bars(items, { label: label + most, shown, log }),
    values.exact ? null : h("p.dim", {}, `Rare values are left out, and a count may be up to ${number(values.slack)} too low.`));
}

function measured(field, what, numbers, log) {
  const name = UNITS[what] ?? plots.short;
  const textOf = numbers.texts ? (value) => numbers.texts[numbers.edges.indexOf(value)] ?? String(value) : name;
  // Boxes may be parts of their image instead of pixels.
  const title = field.kind === "boxes" ? what : TITLES[what] ?? what;
  if (numbers.min === numbers.max && !numbers.nan && !numbers.infinite) return h("p", {}, `${title}: `, h("span.dim", {}, `always ${numbers.texts ? numbers.texts[0] : name(numbers.min)}`));
  const rows = numbers.counts.map((count, at) => [`${textOf(numbers.edges[at])} to ${textOf(numbers.edges[at + 1])}`, count]);
  const last = numbers.counts.length - 1;
  const pick = numbers.wheres.length
    ? (at) => numbers.wheres[at] && filterBy(numbers.wheres[at])
    : what === "values" ? undefined : (at) => measureBy(field.name, what, numbers.edges[at], numbers.edges[at + 1] + (at === last ? "=" : ""));
  const odd = [numbers.nan ? `${number(numbers.nan)} NaN` : null, numbers.infinite ? `${number(numbers.infinite)} infinite` : null].filter(Boolean);
  return h("div", {}, h("h3", {}, title),
    plots.histogram(numbers, { label: `Histogram of ${title} of ${field.name}`, name: textOf, axis: numbers.texts ? date(numbers.texts, textOf) : textOf, log, pick }),
    numbers.texts ? null : h("p.dim.numbers", {}, `min ${name(numbers.min)} · median ${name(numbers.median)} · mean ${name(numbers.mean)} · max ${name(numbers.max)} · std ${name(numbers.std)}`),
    odd.length ? h("p.warn", {}, odd.join(", ")) : null,
    plots.table([title, "samples"], rows));
}
