// Texts: as they are, or with what is not seen made visible. Letters that turn others around are always shown.

import { h, number, put } from "../dom.js";
import * as plain from "./plain.js";

export const { small } = plain;

// Controls, and marks that change the direction of what follows: what one sees would not be what is there.
const HIDDEN = /[\u0000-\u0008\u000b-\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufffe\uffff]/;
const SPACES = /[ \t\r\n\u00a0\u00ad\u1680\u2000-\u200d\u2028\u2029\u202f\u205f\u3000]/;
const SIGNS = { " ": "·", "\t": "⇥", "\n": "↵", "\r": "␍", "\u00a0": "⍽" };

/** The parts of a text, with what is hidden as marks; `spaces`: white space, too. */
export function parts(text, spaces = false) {
  const pattern = spaces ? new RegExp(`${HIDDEN.source}|${SPACES.source}`, "gu") : new RegExp(HIDDEN.source, "gu");
  const found = [];
  let after = 0;
  for (const { 0: letter, index } of text.matchAll(pattern)) {
    if (index > after) found.push(text.slice(after, index));
    found.push(mark(letter));
    // A line still ends there.
    if (letter === "\n") found.push("\n");
    if (letter === "\t") found.push("\t");
    after = index + letter.length;
  }
  if (after < text.length) found.push(text.slice(after));
  return found;
}

function mark(letter) {
  const code = `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  return h(`bdi.hidden-letter${SIGNS[letter] ? ".space" : ""}`, { title: code, dir: "ltr" }, SIGNS[letter] ?? code);
}

// Shorter ones, without anything to make visible, are only shown.
const SHORT = 80;

export function large(cell) {
  const text = cell.text ?? "";
  const shown = h("pre.text", { dir: "auto", tabindex: "0", "aria-label": cell.field }, parts(text));
  const spaces = h("input", { type: "checkbox", onchange: () => put(shown, parts(text, spaces.checked)) });
  if (text.length < SHORT && !/\s\s|^\s|\s$|[^\S ]/u.test(text)) return shown;
  return h("div", {}, shown, h("div.row.dim", {}, h("label", {}, spaces, " Show white space"),
    cell.cut ? h("span.warn", {}, `The first ${number(text.length)} of ${number(cell.letters)} letters; download the bytes for all.`) : `${number([...text].length)} letters`));
}
