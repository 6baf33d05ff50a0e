// Token numbers; with a tokenizer the pieces of text that they stand for.

import { h, number, put } from "../dom.js";
import * as plain from "./plain.js";
import { parts } from "./text.js";

// More are shown on request: each is an element.
const SHOWN = 1024;

export const { small } = plain;

export function large(cell) {
  const { tokens, pieces, of } = cell;
  const list = h("div.tokens", { role: "list", tabindex: "0", "aria-label": `Tokens of ${cell.field}` });
  const numbers = h("input", { type: "checkbox", checked: !pieces, onchange: () => paint() });
  let count = Math.min(SHOWN, tokens.length);
  const more = h("button", { type: "button", onclick: () => { count = Math.min(tokens.length, count + 4 * SHOWN); paint(); } }, "Show more");

  function paint() {
    put(list, tokens.slice(0, count).map((token, at) => h(`span.token${at % 2 ? ".odd" : ""}${pieces && pieces[at] === null ? ".unknown" : ""}`, {
      role: "listitem", title: pieces ? `${at}: token ${token}${pieces[at] === null ? ", not in the tokenizer" : ""}` : `${at}` },
    pieces && pieces[at] !== null ? parts(pieces[at], true).filter((part) => part !== "\n" && part !== "\t") : null,
    numbers.checked || !pieces || pieces[at] === null ? h("span.token-number", {}, String(token)) : null)));
    more.hidden = count >= tokens.length;
  }

  paint();
  const rest = of > tokens.length ? ` (the first ${number(tokens.length)} are here)` : "";
  return h("div", {}, list, h("div.row.dim", {}, h("span", {}, `${number(of)} tokens${rest}`), pieces ? h("label", {}, numbers, " Numbers") : h("span", {}, "Start with --tokenizer FILE to see their text."), more),
    cell.decoded !== undefined ? h("details", {}, h("summary", {}, "As text"), h("pre.text", { dir: "auto", tabindex: "0" }, cell.decoded)) : null);
}
