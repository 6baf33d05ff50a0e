// The frame of the page: tabs, the theme, which panel is shown.

import { ask } from "./api.js";
import { h, number, put, visible } from "./dom.js";
import * as kept from "./kept.js";
import * as state from "./state.js";

// Modules of panels/ and what their tabs say. A panel is loaded when it is first shown. Its module has
// create(context) -> {element, show(state), hide()}; `when` says for which datasets the tab is there.
const PANELS = [
  { id: "model", title: "Tensors", when: (dataset) => dataset.layout === "model" },
  { id: "grid", title: "Samples" },
  { id: "episodes", title: "Episodes", when: (dataset) => dataset.episodes },
  { id: "slide", title: "Slide", when: (dataset) => dataset.slides },
  { id: "map", title: "Map", when: (dataset) => dataset.maps.length },
  { id: "overview", title: "Overview" },
  { id: "order", title: "Order", when: (dataset) => dataset.layout !== "model" },
  { id: "health", title: "Health" },
  { id: "augment", title: "Augment", when: (dataset) => dataset.pipeline || dataset.fields.some((field) => field.shows === "image") },
  { id: "live", title: "Live", when: (dataset) => dataset.live },
];

const context = { dataset: null, say };
const shown = new Map();
let current = null, wanted = null;

function say(text) {
  put(document.getElementById("status"), text);
}

function panels() {
  return PANELS.filter((panel) => !panel.when || panel.when(context.dataset));
}

async function show(now) {
  const panel = panels().find((entry) => entry.id === (now.tab ?? panels()[0].id)) ?? panels()[0];
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.panel === panel.id));
  }
  if (!shown.has(panel.id)) {
    // Seen at once; what it stands for may take a while to come.
    current?.hide?.();
    current = null;
    put(document.getElementById("main"), loading());
    shown.set(panel.id, import(`./panels/${panel.id}.js`).then((module) => module.create(context)));
  }
  wanted = panel.id;
  const made = await shown.get(panel.id);
  // Another tab was chosen while this one came.
  if (wanted !== panel.id) return;
  if (current !== made) {
    current?.hide?.();
    put(document.getElementById("main"), made.element);
    current = made;
  }
  await made.show(state.get());
}

const loading = () => h("p.loading", { role: "status" }, "Loading …");

function tabs() {
  put(
    document.getElementById("tabs"),
    panels().map((panel) =>
      h("button.tab", { role: "tab", "data-panel": panel.id, "aria-controls": "main", onclick: () => state.set({ tab: panel.id }) }, panel.title)),
  );
}

function theme() {
  const before = kept.get("theme");
  if (before) document.documentElement.dataset.theme = before;
  const button = h("button", { title: "Light or dark", "aria-label": "Light or dark", onclick: () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    kept.set("theme", document.documentElement.dataset.theme);
  } }, "◐");
  document.getElementById("tools").append(button);
}

async function start() {
  theme();
  try {
    context.dataset = await ask("dataset");
  } catch (error) {
    put(document.getElementById("main"), h("p.error", { role: "alert" }, error.message));
    return;
  }
  document.title = visible(`${context.dataset.title} – batchplant`);
  const { title, path, samples, format } = context.dataset;
  put(document.getElementById("title"), title);
  document.getElementById("title").title = visible(path);
  say([`${number(samples)} sample${samples === 1 ? "" : "s"}`, format, path].filter(Boolean).join(" · "));
  document.querySelector(".skip").addEventListener("click", (event) => {
    // The address after "#" is the page's state.
    event.preventDefault();
    (document.querySelector("#main [tabindex='0']") ?? document.getElementById("main")).focus();
  });
  tabs();
  state.subscribe((now) => show(now).catch((error) => say(error.message)));
  await show(state.get());
}

start().catch((error) => say(error.message));
