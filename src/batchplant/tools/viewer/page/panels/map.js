// A map of an embedding: a point for each sample, in the colour of its class. A click shows the sample.

import { h, number } from "../dom.js";
import { scatter } from "../plots.js";
import * as state from "../state.js";
import { chosen, field, filterNote, result, runner } from "./shared.js";

export function create(context) {
  const { maps, fields } = context.dataset;
  const classes = fields.filter((field) => field.shows === "class").map((field) => field.name);
  const select = (label, names, key) => h("select", { "aria-label": label, onchange: (event) => state.set({ [key]: event.target.value }) }, names.map((name) => h("option", { value: name }, name)));
  const which = select("Embedding", maps, "map"), colour = select("Colours", [...classes, ""], "classes");
  const note = h("div"), body = h("div"), run = runner(body, context.say).run;
  const element = h("section.map", { "aria-label": "Map" },
    h("div.row.toolbar", {}, field("Embedding", which), classes.length ? field("Colours", colour) : null), note, body);
  let loaded = null;

  return {
    element,
    show(now) {
      which.value = maps.includes(now.map) ? now.map : maps[0];
      colour.value = classes.includes(now.classes) || now.classes === "" ? now.classes : classes[0] ?? "";
      const params = { ...chosen(now), field: which.value, classes: colour.value };
      const key = JSON.stringify(params);
      if (key === loaded) return;
      loaded = key;
      note.replaceChildren(...[filterNote(now)].filter(Boolean));
      return run(`Map of ${which.value}`, async (progress, signal) => {
        const { groups, samples, of, odd } = await result("map", params, progress, signal);
        const summary = [samples < of ? `${number(samples)} of ${number(of)} samples, drawn at random` : `${number(of)} samples`, odd ? `${number(odd)} not finite` : null];
        return h("div.card", {}, scatter(groups, { label: `${which.value} of ${number(samples)} samples`, xlabel: "1", ylabel: "2", dot: samples > 2000 ? 1.2 : 2.5, height: 560, pick: (sample) => state.set({ tab: "grid", sample }) }),
          h("p.dim", {}, summary.filter(Boolean).join(" · ")));
      });
    },
  };
}
