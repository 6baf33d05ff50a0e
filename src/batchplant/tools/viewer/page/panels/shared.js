// What panels have in common: work that takes a while, links to samples, the filter that is set.

import { ask, wait } from "../api.js";
import { h, number, put } from "../dom.js";
import * as state from "../state.js";
import { measureText } from "../state.js";

/** The value of a job on the samples that the filter leaves; `told` hears how far it is. Aborted, the server stops too. */
export async function result(path, params, told, signal) {
  let over = false;
  signal.addEventListener("abort", () => { if (!over) ask(path, { ...params, stop: 1 }).catch(() => {}); }, { once: true });
  try {
    return await value(path, params, told, signal);
  } finally {
    over = true;
  }
}

async function value(path, params, told, signal) {
  const chosen = { where: params.where, search: params.search, measure: params.measure };
  if (chosen.where || chosen.search || chosen.measure) await wait("rows", chosen, told, signal);
  return wait(path, params, told, signal);
}

/** Runs one thing at a time in `box`, with progress and a button to stop it; then shows what it gives.

What was there before stays until then. */
export function runner(box, says = () => {}, stopped = () => {}) {
  let current = null;
  const stop = () => { current?.abort(); current = null; };
  async function run(label, work) {
    stop();
    const own = current = new AbortController();
    const bar = h("progress", { "aria-label": label });
    const status = h("span.dim", {}, `${label} …`);
    const shown = h("div.row.working", { role: "status" }, bar, status, h("button", { onclick: () => { stop(); end(); box.prepend(h("p.dim.working", {}, "Stopped.")); stopped(); } }, "Stop"));
    const end = () => { for (const element of box.querySelectorAll(":scope > .working")) element.remove(); box.removeAttribute("aria-busy"); };
    end();
    // What is ready at once does not flicker.
    const timer = setTimeout(() => { box.prepend(shown); box.setAttribute("aria-busy", "true"); }, 150);
    try {
      const value = await work((done, of) => {
        if (!of) return;
        Object.assign(bar, { max: of, value: done });
        status.textContent = `${label}: ${number(done)} of ${number(of)}`;
      }, own.signal);
      if (own.signal.aborted) return;
      put(box, value);
    } catch (error) {
      if (own.signal.aborted) return;
      put(box, h("p.error", { role: "alert" }, error.message));
      says(error.message);
    } finally {
      clearTimeout(timer);
      if (current === own) { current = null; end(); }
    }
  }
  return { run };
}

/** A link that shows a sample; the address can be copied. */
export function sampleLink(sample, text = `sample ${number(sample)}`, more = {}) {
  return h("a", { href: `#${new URLSearchParams({ ...state.get(), tab: "grid", sample, ...more })}` }, text);
}

/** Sets a filter, beside the one that is there, and shows the samples that it leaves. */
export function filterBy(where) {
  const now = state.get().where;
  const guarded = (text) => (/\bor\b/i.test(text) ? `(${text})` : text);
  const parts = now && now !== where ? [guarded(now), guarded(where)] : [where];
  state.set({ where: parts.join(" and "), tab: "grid", sample: null });
}

/** The same for what a condition cannot name, such as the width of an image; see measures.py. */
export function measureBy(field, what, ...rest) {
  state.set({ measure: [field, what, ...rest].join("|"), tab: "grid", sample: null });
}

/** Says which samples are meant, where a filter is set. */
export function filterNote(now) {
  if (!now.where && !now.search && !now.measure) return null;
  const texts = [now.where, now.search ? `“${now.search}”` : null, now.measure ? measureText(now.measure) : null].filter(Boolean).join(", ");
  return h("p.filter-note.row", {}, h("span", {}, "Only samples with ", h("code", {}, texts)),
    h("button", { onclick: () => state.set({ where: null, search: null, measure: null }) }, "All samples"));
}

/** The part of the state that says which samples, without the order in which they are shown. */
export const chosen = (now) => ({ where: now.where, search: now.search, measure: now.measure });

/** A labelled control. */
export const field = (label, control) => h("label.field", {}, h("span", {}, label), control);

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
