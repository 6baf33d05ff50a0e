// The samples, as pictures or as rows.

import { h } from "../dom.js";

export function create() {
  return { element: h("div"), show() {}, hide() {} };
}
