// The samples, as images or as rows, and one of them in full.

import { wait } from "../api.js";
import { h, put } from "../dom.js";
import { Bar } from "../grid/bar.js";
import * as dialogs from "../grid/dialogs.js";
import { Scroller } from "../grid/scroller.js";
import { Source } from "../grid/source.js";
import { Table } from "../grid/table.js";
import { Tiles } from "../grid/tiles.js";
import * as kept from "../kept.js";
import * as overlay from "../overlay.js";
import { Sample } from "../sample.js";
import * as state from "../state.js";

const MAIN = ["image", "mask", "video", "sound", "array", "boxes"];

export function create(context) {
  const layer = h("div.layer"), spacer = h("div.spacer");
  const field = h("div.samples", { tabindex: "0" }, layer, spacer);
  const bar = new Bar(context, { resized, layout: () => state.set({ layout: layout === "grid" ? "table" : "grid" }), jump, help: dialogs.help });
  const sample = new Sample(context, { close: () => state.set({ sample: "", row: "" }), move });
  const empty = h("p.nothing", { hidden: true });
  const drawn = h("div.drawn-over");
  const list = h("div.list", {}, bar.element, drawn, empty, field);
  const element = h("div.grid-panel", {}, list, sample.element);
  const scroller = new Scroller(field, layer, spacer, paint);
  const { dataset } = context;
  let layout = null, view = null, source = null, query = null, looking = null;
  let cursor = 0, opening = null, visible = false, width = 0;
  let size = Number(kept.get("size")) || 160;

  async function show(now) {
    if (!visible) { visible = true; document.addEventListener("keydown", pressed); }
    const wanted = now.layout ?? (dataset.layout === "grid" ? "grid" : "table");
    const asked = JSON.stringify([state.query(), wanted]);
    bar.show(now, dataset, wanted, size);
    if (asked !== query) {
      const before = query && JSON.stringify(JSON.parse(query)[0]);
      const other = before !== JSON.stringify(JSON.parse(asked)[0]);
      query = asked;
      layout = wanted;
      await look(now, other);
    } else if (view instanceof Table) view.header(now);
    open(state.get());
  }

  /** Which samples, and how they are laid out. */
  async function look(now, other) {
    looking?.abort();
    const mine = (looking = new AbortController());
    const params = state.query();
    let matches;
    try {
      matches = await wait("rows", params, (done, of) => bar.working(done, of), mine.signal);
    } catch (error) {
      if (error.name !== "AbortError" && mine === looking) bar.failed(error, now.where);
      return;
    }
    if (mine !== looking) return;
    source?.close();
    const shows = Object.fromEntries(dataset.fields.map((field) => [field.name, field.shows]));
    const main = dataset.image ?? dataset.fields.find((field) => MAIN.includes(field.shows))?.name ?? dataset.fields[0]?.name;
    const image = layout === "grid" && ["image", "mask"].includes(shows[main]) ? main : null;
    const fields = layout === "grid" ? [...new Set([main, dataset.label].filter(Boolean))] : [];
    source = new Source({ query: params, count: matches.count, fields, image }, () => scroller.ask(), (error) => context.say(error.message));
    const ctx = { dataset, main, decorate };
    put(drawn, image ? overlay.controls(image) : null);
    view = layout === "grid" ? new Tiles(layer, ctx, pick) : new Table(layer, ctx, pick, sorted);
    field.setAttribute("role", layout === "grid" ? "listbox" : "grid");
    field.setAttribute("aria-label", "Samples");
    if (layout === "grid") field.removeAttribute("aria-rowcount");
    else { field.setAttribute("aria-rowcount", matches.count + 1); view.header(now); }
    opening = null;
    if (other) { cursor = 0; scroller.position = 0; }
    cursor = Math.min(cursor, Math.max(0, matches.count - 1));
    bar.matched(matches);
    empty.hidden = matches.count > 0;
    empty.textContent = matches.of ? "No sample fits. Change the filter or the search." : "This dataset has no samples.";
    field.hidden = !matches.count;
    width = 0;
    paint();
  }

  /** What lies over the image of a card. */
  function decorate(shown, sample, cell, { width }) {
    shown.append(overlay.layer({ sample: sample.sample, field: cell.field, width: cell.width, height: cell.height, labels: width >= 140, mask: 256 }));
  }

  function lay() {
    width = field.clientWidth;
    const { lines, height, above } = view.lay(source.count, width, size);
    scroller.lay(lines, height, above);
  }

  function paint() {
    if (!source || !view || !source.count || field.clientHeight === 0) return;
    if (field.clientWidth !== width) lay();
    const [first, last] = scroller.seen();
    source.want(...view.rows(first, last, source.count), view.thumbnails);
    view.paint(scroller, source, cursor);
    if (opening !== null && opening === cursor && source.sample(opening)) pick(opening);
    field.setAttribute("aria-activedescendant", document.getElementById(`row-${cursor}`) ? `row-${cursor}` : "");
  }

  function resized(to) {
    size = to;
    kept.set("size", String(to));
    const line = view?.line(cursor);
    width = 0;
    paint();
    if (line !== undefined) scroller.reveal(view.line(cursor));
  }

  function sorted(name) {
    const now = state.get();
    if (now.sort !== name) state.set({ sort: name, down: "" });
    else if (!now.down) state.set({ down: "1" });
    else state.set({ sort: "", down: "" });
  }

  function pick(row) {
    cursor = row;
    const sample = source.sample(row);
    // What is not there yet is opened when it comes.
    opening = sample ? null : row;
    if (sample) state.set({ sample: sample.sample, row });
    else paint();
  }

  /** The view of a single sample, or the list. */
  function open(now) {
    const single = now.sample !== undefined;
    if (single === list.hidden && !single) return;
    if (!single) {
      const back = !list.hidden ? false : true;
      list.hidden = false;
      sample.hide();
      if (!back) return;
      scroller.sync();
      if (source) { scroller.reveal(view.line(cursor)); paint(); }
      field.focus({ preventScroll: true });
      return;
    }
    if (now.row !== undefined) cursor = Number(now.row) || 0;
    list.hidden = true;
    sample.show(now, dataset);
  }

  /** From one sample to the next, in the order of the list. */
  function move(to) {
    if (to) state.set({ sample: to.sample, row: to.row }, { replace: true });
  }

  async function jump() {
    const to = await dialogs.jump(dataset);
    if (to === null) return;
    try {
      const match = await wait("find", { ...state.query(), sample: to });
      if (match.row === null) { context.say(`sample ${match.sample} is not among these`); state.set({ sample: match.sample, row: "" }); return; }
      if (state.get().sample !== undefined) { move(match); return; }
      cursor = match.row;
      scroller.go(view.line(cursor) * scroller.height);
      field.focus({ preventScroll: true });
    } catch (error) { context.say(error.message); }
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (typing && typing !== bar.size) {
      if (event.key === "Escape") field.focus();
      return;
    }
    const key = event.key;
    if (key === "?") { dialogs.help(); event.preventDefault(); }
    else if (key === "g") { jump(); event.preventDefault(); }
    else if (key === "/") { if (state.get().sample !== undefined) state.set({ sample: "", row: "" }); bar.search.focus(); bar.search.select(); event.preventDefault(); }
    else if (state.get().sample !== undefined) { if (sample.pressed(event)) event.preventDefault(); }
    else if (source?.count && listed(event)) event.preventDefault();
  }

  /** Keys in the list. */
  function listed(event) {
    if (event.target.closest("button, a, summary, [role=tab]") && ["Enter", " "].includes(event.key)) return false;
    if (event.target === bar.size) return false;
    if (event.key === "Enter") { pick(cursor); return true; }
    const page = Math.max(1, Math.floor(scroller.view / scroller.height) - 1);
    const to = { Home: 0, End: source.count - 1 }[event.key] ?? view.step(cursor, event.key, page);
    if (to === undefined) return false;
    cursor = Math.max(0, Math.min(to, source.count - 1));
    scroller.reveal(view.line(cursor));
    paint();
    return true;
  }

  function hide() {
    visible = false;
    opening = null;
    document.removeEventListener("keydown", pressed);
    sample.hide();
  }

  return { element, show, hide };
}
