// Texts: as they are, or with what is not seen made visible. Letters that turn others around are always shown.

import { h, HIDDEN, mark, number, put } from "../dom.js";
import * as plain from "./plain.js";

export const { small } = plain;

const SPACES = /[ \t\r\n\u00a0\u00ad\u1680\u2000-\u200d\u2028\u2029\u202f\u205f\u3000]/;
const SIGNS = { " ": "·", "\t": "⇥", "\n": "↵", "\r": "␍", "\u00a0": "⍽" };

/** The parts of a text with marks for white space; without `spaces` as it is, h() marks what is hidden. */
export function parts(text, spaces = false) {
  if (!spaces) return [text];
  const pattern = new RegExp(`${HIDDEN.source}|${SPACES.source}`, "gu");
  const pieces = [];
  let after = 0;
  for (const { 0: letter, index } of text.matchAll(pattern)) {
    if (index > after) pieces.push(text.slice(after, index));
    pieces.push(mark(letter, SIGNS[letter]));
    // A line still ends there.
    if (letter === "\n") pieces.push("\n");
    if (letter === "\t") pieces.push("\t");
    after = index + letter.length;
  }
  if (after < text.length) pieces.push(text.slice(after));
  return pieces;
}

// Shorter ones, without anything to make visible, are only shown.
const SHORT = 80;

export function large(cell) {
  const text = cell.text ?? "";
  const shown = h("pre.text", { dir: "auto", tabindex: "0", "aria-label": cell.field }, text);
  const spaces = h("input", { type: "checkbox", onchange: () => put(shown, parts(text, spaces.checked)) });
  if (text.length < SHORT && !/\s\s|^\s|\s$|[^\S ]/u.test(text)) return shown;
  return h("div", {}, shown, h("div.row.dim", {}, h("label", {}, spaces, " Show white space"),
    cell.cut ? h("span.warn", {}, `The first ${number(text.length)} of ${number(cell.letters)} letters; download the bytes for all.`) : `${number([...text].length)} letters`));
}
