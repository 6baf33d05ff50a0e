// Keys, and the way to one sample.

import { h } from "../dom.js";

const KEYS = [
  ["j, →", "next sample"], ["k, ←", "previous sample"], ["↑ ↓ PgUp PgDn Home End", "move"], ["Enter", "open the sample"], ["Escape", "back to the list"],
  ["g", "go to a sample by number"], ["/", "search"], ["?", "these keys"],
];

function shown(dialog) {
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function help() {
  const dialog = shown(h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"),
    h("table", {}, h("tbody", {}, KEYS.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what))))),
    h("p.dim", {}, "Filters are conditions on fields: ", h("code", {}, 'label == "cat" and score > 0.5'), ", ", h("code", {}, 'caption like "%dog%"'), ", ", h("code", {}, "x is null"), "."),
    h("button.main", { onclick: () => dialog.close() }, "Close")));
}

/** The number or the key that was typed; null: none. */
export function jump(dataset) {
  return new Promise((resolve) => {
    const input = h("input", { id: "jump", inputmode: dataset.keys ? "text" : "numeric", autocomplete: "off", placeholder: `0 to ${dataset.samples - 1}` });
    let typed = null;
    const dialog = shown(h("dialog", { "aria-label": "Go to a sample" },
      h("form", { onsubmit: (event) => { event.preventDefault(); typed = input.value.trim().replace(/^#/, "") || null; dialog.close(); } },
        h("label", { for: "jump" }, dataset.keys ? "Go to the sample with this number or key" : "Go to sample"), input, h("button.main", {}, "Go"))));
    dialog.addEventListener("close", () => resolve(typed));
  });
}
