// Two datasets side by side: the cells that differ first, and an image of what differs.

import { address, ask } from "../api.js";
import { large } from "../cells/index.js";
import { h, number, put } from "../dom.js";
import * as state from "../state.js";
import { field, filterNote, result, runner, sampleLink } from "./shared.js";

const LISTED = 200;

export function create(context) {
  const [note, controls, list, pair] = [h("div"), h("form.row.controls", { "aria-label": "How samples are matched", onsubmit: (event) => event.preventDefault() }), h("div"), h("div")];
  const element = h("section.compare", { "aria-label": "Compare" }, note, h("article.card", {}, h("h2", {}, "What differs"), controls, list), h("article.card", {}, pair));
  const [ofList, ofPair] = [runner(list, context.say), runner(pair, context.say)];
  // Tensors of a model go by their names.
  const usual = context.dataset.layout === "model" ? "key" : "position";
  let [made, shown, ways, other, found] = [null, null, [{ by: "position", title: "position" }], null, null];

  function form(now) {
    const by = now.compare_by ?? usual;
    const focused = controls.contains(document.activeElement);
    const select = h("select", { onchange: (event) => state.set({ compare_by: event.target.value === usual ? null : event.target.value, compare_pair: null }) },
      ways.map((way) => h("option", { value: way.by, selected: way.by === by }, way.title)));
    put(controls, field("Match samples by", select));
    if (focused) select.focus();
  }

  async function sides() {
    other ??= await ask("dataset", { side: "b" });
    return [context.dataset, other];
  }

  function show(now) {
    form(now);
    const asked = { where: now.where, search: now.search, measure: now.measure, by: now.compare_by ?? usual };
    const key = JSON.stringify(asked);
    if (key !== made) {
      made = key;
      found = null;
      put(note, filterNote(now));
      ofList.run("Comparing", async (told, signal) => {
        found = await result("compare", asked, told, signal);
        ({ ways } = found);
        form(state.get());
        const first = found.cells[0];
        if (first && !state.get().compare_pair) queueMicrotask(() => state.set({ compare_pair: `${first.sample}:${first.other}` }, { replace: true }));
        return differences(found, state.get().compare_pair, await sides());
      });
    }
    mark(list, now.compare_pair);
    const wanted = now.compare_pair ?? "0:0";
    if (wanted === shown) return;
    shown = wanted;
    ofPair.run("Reading the two samples", async (told, signal) => pairOf(wanted, now, await sides(), signal));
  }

  return { element, show, hide() {} };
}

function mark(list, pair) {
  for (const one of list.querySelectorAll("[data-pair]")) one.setAttribute("aria-current", String(one.dataset.pair === pair));
}

function differences(found, now, [mine, other]) {
  const cells = found.cells.slice(0, LISTED);
  const byField = {};
  for (const cell of found.cells) byField[cell.field] = (byField[cell.field] ?? 0) + 1;
  const counted = Object.entries(byField).map(([name, count]) => `${name} ${number(count)}`).join(", ");
  const whole = [
    mine.samples === other.samples ? null : `${mine.title} has ${number(mine.samples)} samples, ${other.title} ${number(other.samples)}.`,
    found.only_here.length ? `Only in ${mine.title}: ${found.only_here.join(", ")}.` : null,
    found.only_there.length ? `Only in ${other.title}: ${found.only_there.join(", ")}.` : null,
    found.again ? `${number(found.again)} keys of ${other.title} are there more than once; the first counts.` : null,
  ].filter(Boolean);
  return [
    h(`p.verdict.${found.cells.length || found.damaged.length ? "bad" : "good"}`, { role: "status" },
      found.cells.length ? `${number(found.cells.length)}${found.stopped ? " or more" : ""} cells differ (${counted})` : found.damaged.length ? "No cell differs, but some cannot be read" : "✓ No cell differs",
      h("span.dim", {}, ` in ${number(found.compared)} of ${number(found.pairs)} pairs of samples; fields: ${found.fields.join(", ") || "none in common"}`)),
    whole.map((one) => h("p.warn", {}, one)),
    alone(found.alone, `without a partner in ${other.title}`, "a"), alone(found.others_alone, `of ${other.title} without a partner here`, "b"),
    found.damaged.length ? h("ul.problems", {}, found.damaged.slice(0, 20).map((one) => h("li.error", {}, sampleLink(one.sample), `: ${one.message}`))) : null,
    cells.length ? h("ol.differences", { "aria-label": "Cells that differ, the most different first" }, cells.map((cell) => {
      const pair = `${cell.sample}:${cell.other}`;
      return h("li", {}, h("button", { "data-pair": pair, "aria-current": String(pair === now), onclick: () => state.set({ compare_pair: pair }) },
        h("span", {}, `sample ${number(cell.sample)}${cell.other === cell.sample ? "" : ` and ${number(cell.other)}`} `, h("b", {}, cell.field)), h("span.dim", {}, cell.said)));
    })) : null,
    found.cells.length > LISTED ? h("p.dim", {}, `… and ${number(found.cells.length - LISTED)} more`) : null,
  ];
}

function alone(found, said, side) {
  if (!found.count) return null;
  return h("p.warn", {}, `${number(found.count)} samples ${said}: `, found.samples.map((sample, at) => [at ? ", " : null, sampleLink(sample, number(sample), { side })]), found.count > found.samples.length ? ", …" : null);
}

async function pairOf(wanted, now, [mine, other], signal) {
  const [n, m] = wanted.split(":").map(Number);
  const [here, there, told] = await Promise.all([
    ask(`sample/${n}`, { side: "a" }, signal), ask(`sample/${m}`, { side: "b" }, signal), ask(`pair/${n}/${m}`, {}, signal)]);
  const cellsOf = (one) => new Map(one.cells.map((cell) => [cell.field, cell]));
  const [a, b] = [cellsOf(here), cellsOf(there)];
  const said = new Map(told.fields.map((one) => [one.field, one]));
  const names = [...new Set([...a.keys(), ...b.keys()])];
  names.sort((one, two) => (said.get(two)?.distance ?? 2) - (said.get(one)?.distance ?? 2));
  const go = (step) => {
    if (n + step < 0 || m + step < 0 || n + step >= mine.samples || m + step >= other.samples) return undefined;
    return () => state.set({ compare_pair: `${n + step}:${m + step}` });
  };
  const turn = (step, text) => h("button", { disabled: !go(step), onclick: go(step) }, text);
  return [
    h("div.row.toolbar", {}, h("h2", {}, `Sample ${number(n)}${n === m ? "" : ` and sample ${number(m)}`}`), n === m ? [turn(-1, "Previous"), turn(1, "Next")] : null),
    h("div.pair.heads", { "aria-hidden": "true" }, h("b", {}, mine.title), h("b", {}, other.title)),
    names.map((name) => row(name, a.get(name), b.get(name), said.get(name), { n, m, mine, other })),
  ];
}

function row(name, mine, other, told, where) {
  const side = (cell, sample, letter, dataset) => h("div", { role: "group", "aria-label": `${name} in ${dataset.title}` },
    cell ? large(cell, { sample, side: letter, dataset }) : h("p.dim", {}, "no such field"));
  const images = [mine, other].every((cell) => cell && ["image", "mask"].includes(cell.shows) && !cell.error && !cell.missing);
  const state_ = !told ? h("span.warn", {}, "only in one") : told.same ? h("span.good", {}, "✓ the same") : h("span.bad", {}, `✕ ${told.said}`);
  return h("section.field-pair", {}, h("h3", {}, h("bdi", {}, name), " ", state_),
    h("div.pair", {}, side(mine, where.n, "a", where.mine), side(other, where.m, "b", where.other)),
    told && !told.same && images && mine.width === other.width && mine.height === other.height ? apart(name, where) : null);
}

/** What differs, made brighter by a factor that can be changed. */
function apart(name, { n, m }) {
  const source = (gain) => address(`apart/${n}/${m}/${encodeURIComponent(name)}`, { gain });
  const image = h("img.apart", { src: source(4), alt: `Where ${name} differs: the brighter, the more` });
  const said = h("output", {}, "×4");
  const slider = h("input", { type: "range", min: 0, max: 6, step: 1, value: 2, oninput: () => {
    const gain = 2 ** Number(slider.value);
    said.textContent = `×${gain}`;
    image.src = source(gain);
  } });
  return h("figure", {}, image, h("figcaption.row", {}, "Difference", field("Brighter", slider), said));
}
