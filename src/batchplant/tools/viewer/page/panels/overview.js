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
  let made = null;

  function show(now) {
    const asked = { ...chosen(now), exact: now.overview_exact };
    const log = now.overview_log === "1";
    const key = JSON.stringify([asked, log]);
    if (key === made) return;
    made = key;
    put(note, filterNote(now));
    runs.run(asked.exact ? "Counting all samples" : "Looking at some samples", async (told, signal) =>
      draw(await result("overview", asked, told, signal), log));
  }

  // What takes long goes on while another part of the page is shown.
  return { element, show, hide() {} };
}

function draw(found, log) {
  return [
    h("div.row.toolbar", {},
      found.exact
        ? h("p", {}, `All ${number(found.samples)} samples.`)
        : h("p", {}, h("span.sampled", {}, "sampled"), ` ${number(found.looked_at)} of ${number(found.samples)} samples, drawn at random.`),
      found.exact ? null : h("button.main", { onclick: () => state.set({ overview_exact: 1 }) }, "Count all, exactly"),
      h("label.check", {}, h("input", { type: "checkbox", checked: log, onchange: (event) => state.set({ overview_log: event.target.checked ? 1 : null }, { replace: true }) }), "Logarithmic bars")),
    h("div.cards", {}, summary(found), found.fields.map((field) => card(field, found, log))),
  ];
}

function summary(found) {
  const facts = [
    ["bytes", bytes(found.bytes)],
    ["cannot be read", found.unreadable ? h("span.error", {}, number(found.unreadable)) : "none"],
    found.copies && ["the same as another", copies(found.copies, found.exact)],
  ].filter(Boolean);
  const sizes = found.fields.filter((one) => one.bytes).sort((a, b) => b.bytes - a.bytes);
  return h("article.card", {}, h("h2", {}, "All fields"),
    h("dl.facts", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    found.problems.length ? h("ul.problems", {}, found.problems.map((one) =>
      h("li.error", {}, one.sample === null ? null : sampleLink(one.sample), one.sample === null ? null : ": ", one.message))) : null,
    sizes.length > 1 ? [h("h3", {}, "Bytes by field"), plots.bars(sizes.map((one) => ({ label: one.name, value: one.bytes, note: percent(one.bytes / Math.max(found.bytes, 1), 0) })), { label: "Bytes by field", name: bytes })] : null,
    found.remarks.map((remark) => h("p.dim", {}, remark)));
}

function copies(found, exact) {
  if (!found.count) return exact ? "none" : "none among these";
  const about = found.one_in > 1 ? "about " : "";
  return h("span", {}, `${about}${number(found.count)} `, h("details", {}, h("summary", {}, "which"),
    h("ul", {}, found.groups.map((group) => h("li", {}, group.map((sample, at) => [at ? ", " : null, sampleLink(sample, number(sample))]))))));
}

function card(field, found, log) {
  const parts = [];
  if (field.missing) {
    parts.push(plots.bars([{ label: "missing", value: field.missing, note: percent(field.missing / Math.max(found.looked_at, 1)), pick: picks(field.missing_where), title: field.missing_where }], { label: `Missing in ${field.name}` }));
  }
  if (field.unknown) parts.push(h("p.warn", {}, `${number(field.unknown)} cells do not say what they are.`));
  const values = field.values.values;
  const named = values && (field.kind !== "int" || values.items.length <= FEW || values.items.some((one) => Number.isNaN(Number(one.label))));
  if (named) parts.push(counts(values, `Values of ${field.name}`, log));
  for (const [what, one] of Object.entries(field.numbers)) {
    if (what === "values" && named) continue;
    parts.push(measured(field, what, one, log));
  }
  if (field.resolutions.length) {
    parts.push(h("h3", {}, "Resolutions"), plots.scatter([{ name: field.name, points: field.resolutions }],
      { label: `Resolutions of ${field.name}: width and height in pixels`, xlabel: "width", ylabel: "height", xrange: [0], yrange: [0], diagonal: true, pick: ([width, height]) => measureBy(field.name, "resolutions", `${width}×${height}`) }));
  }
  for (const [what, one] of Object.entries(field.values)) {
    // One of a kind, or each of a kind of its own, tells nothing.
    if (what === "values" || one.items.length < 2 || one.items[0].count < 0.02 * found.looked_at) continue;
    const items = one.items.map((item) => ({ ...item, measure: [field.name, what, item.label] }));
    const chart = counts({ ...one, items }, `${what} of ${field.name}`, log, what === "resolutions" ? 5 : 8);
    parts.push(what === "resolutions" ? chart : [h("h3", {}, what), chart]);
  }
  if (field.copies?.count) parts.push(h("p", {}, "The same as in an earlier sample: ", copies(field.copies, found.exact)));
  if (!parts.length) parts.push(h("p.dim", {}, field.count ? `${number(field.count)} values, all different.` : "nothing here"));
  return h("article.card", {}, h("h2", {}, h("bdi", {}, field.name)), h("p.dim.kind", {}, field.type), parts);
}

/** Times on an axis: the day, or also the time where all are of one day. */
function date(texts, told) {
  const same = texts.every((one) => one.slice(0, 10) === texts[0].slice(0, 10));
  return (value) => told(value).slice(0, same ? 16 : 10).replace("T", " ");
}

const picks = (where) => (where ? () => filterBy(where) : undefined);

function counts(found, label, log, shown = 10) {
  const items = found.items.map((one) => ({ label: one.label, value: one.count, pick: one.measure ? () => measureBy(...one.measure) : picks(one.where), title: one.where }));
  const most = found.different > found.items.length ? ` (the most frequent of ${number(found.different)})` : "";
  return h("div", {}, plots.bars(items, { label: label + most, shown, log }),
    found.exact ? null : h("p.dim", {}, `Rare values are left out, and a count may be up to ${number(found.slack)} too low.`));
}

function measured(field, what, one, log) {
  const name = UNITS[what] ?? plots.short;
  const told = one.texts ? (value) => one.texts[one.edges.indexOf(value)] ?? String(value) : name;
  // Boxes may be parts of their image instead of pixels.
  const title = field.kind === "boxes" ? what : TITLES[what] ?? what;
  if (one.min === one.max && !one.nan && !one.infinite) return h("p", {}, `${title}: `, h("span.dim", {}, `always ${one.texts ? one.texts[0] : name(one.min)}`));
  const rows = one.counts.map((count, at) => [`${told(one.edges[at])} to ${told(one.edges[at + 1])}`, count]);
  const last = one.counts.length - 1;
  const pick = one.wheres.length
    ? (at) => one.wheres[at] && filterBy(one.wheres[at])
    : what === "values" ? undefined : (at) => measureBy(field.name, what, one.edges[at], one.edges[at + 1] + (at === last ? "=" : ""));
  const odd = [one.nan ? `${number(one.nan)} NaN` : null, one.infinite ? `${number(one.infinite)} infinite` : null].filter(Boolean);
  return h("div", {}, h("h3", {}, title),
    plots.histogram(one, { label: `Histogram of ${title} of ${field.name}`, name: told, axis: one.texts ? date(one.texts, told) : told, log, pick }),
    one.texts ? null : h("p.dim.numbers", {}, `min ${name(one.min)} · median ${name(one.median)} · mean ${name(one.mean)} · max ${name(one.max)} · std ${name(one.std)}`),
    odd.length ? h("p.warn", {}, odd.join(", ")) : null,
    plots.table([title, "samples"], rows));
}
