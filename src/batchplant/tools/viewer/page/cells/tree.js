// Nested values as a tree. What is not there yet is asked for when it is opened.

import { ask } from "../api.js";
import { h, number, put } from "../dom.js";
import * as plain from "./plain.js";

// Containers of so few entries are open from the start, this deep.
const OPEN_ENTRIES = 12, OPEN_DEPTH = 2;

export const { small } = plain;

export function large(cell, ctx) {
  const tree = branch(cell.tree, [], cell, ctx);
  const all = (open) => () => { for (const element of [...box.querySelectorAll("details")]) element.open = open; };
  const box = h("div.tree.mono", {}, tree);
  const nested = cell.tree.entries?.some(([, child]) => child.entries);
  return h("div", {}, nested ? h("div.row", {}, h("button", { type: "button", onclick: all(true) }, "Open all"), h("button", { type: "button", onclick: all(false) }, "Close all")) : null, box);
}

function branch(node, path, cell, ctx) {
  const key = path.length ? h("span.key", {}, String(path.at(-1))) : null;
  if (!node.entries) return h("div.leaf", {}, key, key ? ": " : null, leaf(node));
  const list = node.is === "list";
  const size = `${list ? "[" : "{"}${number(node.of)}${list ? "]" : "}"}`;
  if (!node.of) return h("div.leaf", {}, key, key ? ": " : null, h("span.dim", {}, list ? "[ ]" : "{ }"));
  const inside = h("div.inside");
  let made = false;
  const fill = () => {
    if (made) return;
    made = true;
    inside.append(...node.entries.map(([name, child]) => branch(child, [...path, name], cell, ctx)));
    more(node.entries.length);
  };
  // The rest, as much at a time as the server gives.
  const more = (from) => {
    if (from >= node.of) return;
    const problem = h("span.error", { role: "alert" });
    const button = h("button", { type: "button", onclick: async () => {
      button.disabled = true;
      try {
        const page = await ask(`tree/${ctx.sample}/${encodeURIComponent(cell.field)}`, { path: JSON.stringify(path), start: from });
        line.remove();
        inside.append(...page.entries.map(([name, child]) => branch(child, [...path, name], cell, ctx)));
        more(from + page.entries.length);
      } catch (error) {
        button.disabled = false;
        put(problem, error.message);
      }
    } }, from ? `${number(node.of - from)} more` : `Show ${number(node.of)} entries`);
    const line = h("div.leaf", {}, button, problem);
    inside.append(line);
  };
  const open = path.length === 0 || (path.length <= OPEN_DEPTH && node.of <= OPEN_ENTRIES);
  if (open) fill();
  return h("details", { open, ontoggle: (event) => { if (event.target.open) fill(); } }, h("summary", {}, key, key ? " " : null, h("span.dim", {}, size)), inside);
}

function leaf(node) {
  if (node.is !== "text") return h(`span.${["number", "bool", "null"].includes(node.is) ? node.is : "other-value"}`, { title: node.is }, node.text);
  return h("span.string", { dir: "auto" }, "\u201c", node.text, node.letters ? `… (${number(node.letters)} letters)` : null, "\u201d");
}
