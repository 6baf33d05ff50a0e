// The bar above the samples: a condition, a text to find, what to sort by, how large.

import { h, number, put, visible } from "../dom.js";
import * as state from "../state.js";

export class Bar {
  constructor(context, { resized, layout, jump, help }) {
    this.context = context;
    this.where = h("input.mono", { id: "where", name: "where", "aria-label": "Filter: a condition", autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
    this.search = h("input", { id: "search", type: "search", name: "search", placeholder: "Search texts  /", "aria-label": "Search in texts, classes and keys", autocomplete: "off" });
    this.sort = h("select", { id: "sort", "aria-label": "Sort by", onchange: () => state.set({ sort: this.sort.value, down: "" }) });
    this.down = h("button", { type: "button", "aria-label": "Largest first", title: "Largest first", onclick: () => state.set({ down: state.get().down ? "" : "1" }) }, "↓");
    this.size = h("input", { id: "size", type: "range", min: 64, max: 480, step: 8, "aria-label": "Size of images", oninput: () => resized(Number(this.size.value)) });
    this.layout = h("button", { type: "button", onclick: layout }, "");
    this.count = h("span.count", { role: "status" });
    this.error = h("div.wrong", { role: "alert", hidden: true });
    this.clear = h("button", { type: "button", hidden: true, onclick: () => state.set({ where: "", search: "", measure: "", sort: "", down: "" }) }, "Clear");
    this.measure = h("button", { type: "button", hidden: true, title: "Leave this out of the filter", onclick: () => state.set({ measure: "" }) });
    const form = h("form.asking", { role: "search", "aria-label": "Which samples", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      this.where, this.search, this.measure, h("button.main", { type: "submit" }, "Filter"), h("span.sorting", {}, this.sort, this.down), this.clear,
      h("span.spring"), this.size, this.layout,
      h("button", { type: "button", title: "Go to a sample (g)", onclick: jump }, "Go to…"), h("button", { type: "button", "aria-label": "Keys", title: "Keys (?)", onclick: help }, "?"));
    // The cross in a search field empties it without submitting.
    this.search.addEventListener("search", () => { if (!this.search.value && state.get().search) this.submit(); });
    this.element = h("div.filter", {}, form, this.error, this.count);
  }

  submit() {
    state.set({ where: this.where.value.trim(), search: this.search.value.trim() });
  }

  /** As the state says; not what is being typed in. */
  show(now, dataset, layout, size) {
    for (const name of ["where", "search"]) {
      if (document.activeElement !== this[name] || this.shown !== (now[name] ?? "")) this[name].value = now[name] ?? "";
    }
    this.where.placeholder = example(dataset.fields);
    put(this.sort, h("option", { value: "" }, "as stored"), dataset.fields.map((field) => h("option", { value: field.name, selected: field.name === now.sort }, `by ${field.name}`)));
    this.sort.value = now.sort ?? "";
    this.down.hidden = !now.sort;
    this.down.textContent = now.down ? "↓" : "↑";
    this.down.setAttribute("aria-pressed", String(Boolean(now.down)));
    this.clear.hidden = !(now.where || now.search || now.measure || now.sort);
    this.measure.hidden = !now.measure;
    put(this.measure, now.measure ? `${state.measureText(now.measure)} ✕` : null);
    this.size.hidden = layout !== "grid";
    this.size.value = size;
    this.layout.textContent = layout === "grid" ? "Table" : "Grid";
    this.layout.setAttribute("aria-label", layout === "grid" ? "Show as a table" : "Show as a grid");
  }

  /** How many samples there are; while it is being found out, how far that is. */
  working(done, of) {
    this.count.textContent = of ? `looking… ${Math.floor((100 * done) / of)} %` : "looking…";
  }

  matched({ count, of, note }) {
    this.error.hidden = true;
    this.where.removeAttribute("aria-invalid");
    const all = count === of;
    this.count.textContent = `${all ? "" : `${number(count)} of `}${number(of)} sample${of === 1 ? "" : "s"}${note ? ` · ${note}` : ""}`;
  }

  /** An error, under the place of the condition that it speaks of where it names one. */
  failed(error, where) {
    const match = /column (\d+) of the filter,? (['"])(.*?)\2: (.*)$/s.exec(error.message);
    this.error.hidden = false;
    this.count.textContent = "";
    if (match && where) {
      this.where.setAttribute("aria-invalid", "true");
      const at = Number(match[1]) - 1, [, , , condition, reason] = match;
      const word = /^(\w+|.|)/s.exec(condition.slice(at))[0];
      put(this.error, h("pre.mono", {}, condition.slice(0, at), h("mark", {}, word || " "), condition.slice(at + word.length)), h("span.error", {}, reason));
    } else put(this.error, h("span.error", {}, error.message));
  }
}

/** A condition on fields that are there; empty where none can be compared. */
function example(fields) {
  const named = (name) => (/^[A-Za-z_]\w*$/.test(name) ? name : `\`${name}\``);
  const example = [
    fields.filter((field) => field.shows === "class" && field.names).map((field) => `${named(field.name)} == ${JSON.stringify(field.names[0].slice(0, 20))}`)[0],
    fields.filter((field) => field.shows === "number").map((field) => `${named(field.name)} > 5`)[0],
    fields.filter((field) => field.shows === "text").map((field) => `${named(field.name)} like "%a%"`)[0],
  ].filter(Boolean).slice(0, 2).join(" and ");
  return example ? visible(`Filter: ${example}`) : "Filter: a condition";
}
