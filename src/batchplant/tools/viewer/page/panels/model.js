// The tensors of a model: what each is; statistics, a histogram and a heat map of the one that is opened.

import { wait } from "../api.js";
import * as array from "../cells/array.js";
import { bytes, h, number, put } from "../dom.js";
import * as state from "../state.js";

const PAGE = 200;
const COLUMNS = [["name", "Name", false], ["dtype", "Dtype", false], [null, "Shape", false], ["parameters", "Parameters", true], ["bytes", "Size", true]];

export function create() {
  const search = h("input", { type: "search", placeholder: "Part of a name", "aria-label": "Find tensors by name", autocomplete: "off", oninput: () => later(),
    onkeydown: (event) => { if (event.key === "Enter") open(0); else if (event.key === "ArrowDown") focus(0); else return; event.preventDefault(); } });
  const summary = h("p.dim", { role: "status" });
  const head = h("thead", { role: "rowgroup" }), body = h("tbody", { role: "rowgroup" });
  // CSS lays the table out anew on a phone, which takes its meaning: the roles keep it.
  const table = h("table.tensors", { role: "table" }, head, body);
  const more = h("button", { hidden: true, onclick: () => load(shown) }, "Show more");
  const wrong = h("p.error", { role: "alert" });
  const element = h("div.model", {}, h("div.row", {}, search, summary), wrong, h("div.scrolling", {}, table), more);
  let shown = 0, timer = 0, asked = null, controller = null;

  const buttons = () => [...body.querySelectorAll("button.tensor")];

  function focus(at) {
    const all = buttons();
    all[Math.max(0, Math.min(at, all.length - 1))]?.focus();
  }

  /** Opens a tensor as a click does, and goes there. */
  function open(at) {
    const button = buttons()[at];
    if (button?.getAttribute("aria-expanded") === "false") button.click();
    button?.focus();
  }

  /** The keys of the list of samples: up and down, and Enter for the first one where nothing has the focus. */
  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, .opened")) return;
    const at = buttons().indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: Infinity }[event.key];
    if (to !== undefined) focus(to);
    else if (event.key === "Enter" && at < 0 && !event.target.closest?.("button, a, summary")) open(0);
    else if (event.key === "/") { search.focus(); search.select(); }
    else return;
    event.preventDefault();
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => state.set({ model_search: search.value }, { replace: true }), 200);
  }

  function sorted(name) {
    const now = state.get();
    if (now.model_sort !== name) state.set({ model_sort: name, model_down: ["parameters", "bytes"].includes(name) ? "1" : "" }, { replace: true });
    else state.set({ model_down: now.model_down ? "" : "1" }, { replace: true });
  }

  async function load(start) {
    controller?.abort();
    controller = new AbortController();
    const now = state.get();
    try {
      const answer = await wait("tensors", { search: now.model_search, sort: now.model_sort, down: now.model_down, start, count: PAGE },
        (done, of) => { summary.textContent = `reading ${number(done)} of ${number(of)} names…`; }, controller.signal);
      wrong.textContent = "";
      if (!start) put(body);
      body.append(...answer.tensors.flatMap(line));
      shown = start + answer.tensors.length;
      more.hidden = shown >= answer.count;
      const kinds = Object.entries(answer.dtypes).map(([name, count]) => `${number(count)} ${name}`).join(", ");
      summary.textContent = `${number(answer.count)}${answer.count < answer.of ? ` of ${number(answer.of)}` : ""} tensors · ${number(answer.parameters)} parameters · ${bytes(answer.bytes)}${kinds ? ` · ${kinds}` : ""}`;
    } catch (error) {
      if (error.name !== "AbortError") put(wrong, error.message);
    }
  }

  function line(tensor) {
    const inside = h("td", { colspan: COLUMNS.length, role: "cell" });
    const below = h("tr.opened", { hidden: true, role: "row" }, inside);
    const button = h("button.tensor", { "aria-expanded": "false", onclick: () => {
      below.hidden = !below.hidden;
      button.setAttribute("aria-expanded", String(!below.hidden));
      if (!below.hidden && !inside.firstChild) put(inside, opened(tensor));
    } }, tensor.name || "(no name)");
    return [h("tr", { role: "row" }, h("th", { scope: "row", role: "rowheader" }, button, tensor.error ? h("span.error", {}, ` ${tensor.error}`) : null), h("td.mono", { role: "cell" }, tensor.dtype), h("td.mono", { role: "cell" }, tensor.shape.length ? tensor.shape.join("×") : "one value"),
      h("td.number", { role: "cell" }, number(tensor.parameters)), h("td.number", { role: "cell" }, bytes(tensor.bytes))), below];
  }

  function opened(tensor) {
    const cell = { field: "data", shape: tensor.shape, dtype: tensor.dtype };
    const ctx = { sample: tensor.sample };
    return h("div.opened-tensor", {}, h("div", {}, array.statistics(cell, ctx, { open: true })), h("div", {}, array.large(cell, ctx, { told: false })),
      h("p", {}, h("a", { href: `#${new URLSearchParams({ tab: "grid", sample: tensor.sample })}` }, "Where it lies")));
  }

  async function show(now) {
    document.addEventListener("keydown", pressed);
    const key = JSON.stringify([now.model_search, now.model_sort, now.model_down]);
    if (key === asked) return;
    asked = key;
    if (document.activeElement !== search) search.value = now.model_search ?? "";
    put(head, h("tr", { role: "row" }, COLUMNS.map(([name, title, right]) => h(right ? "th.number" : "th", { scope: "col", role: "columnheader", "aria-sort": name && now.model_sort === name ? (now.model_down ? "descending" : "ascending") : null },
      name ? h("button.sort", { onclick: () => sorted(name) }, title, now.model_sort === name ? (now.model_down ? " ↓" : " ↑") : "") : title))));
    await load(0);
  }

  return { element, show, hide() { controller?.abort(); document.removeEventListener("keydown", pressed); } };
}
