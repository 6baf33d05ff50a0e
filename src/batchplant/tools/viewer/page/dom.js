// Elements. Text is always set as text: nothing that comes out of a dataset is ever parsed as HTML. Controls and marks of
// direction in it are shown as their codes, wherever it stands: a name cannot turn the text of the page around.

// Controls, and marks that change the direction of what follows: what one sees would not be what is there.
export const HIDDEN = /[\u0000-\u0008\u000b-\u000c\u000e-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]/;
const ALL_HIDDEN = new RegExp(HIDDEN.source, "gu");
// Attributes that are read, and elements that hold nothing but text.
const READ = new Set(["title", "aria-label", "alt", "placeholder"]), ONLY_TEXT = new Set(["OPTION", "TITLE", "TEXTAREA"]);

const code = (letter) => `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** The text with codes for what is hidden in it, where there can be no elements. */
export const visible = (text) => String(text).replace(ALL_HIDDEN, (letter) => `[${code(letter)}]`);

/** An element that stands for a letter that is not seen. */
export function mark(letter, sign = null) {
  return h(`bdi.hidden-letter${sign ? ".space" : ""}`, { title: code(letter), dir: "ltr" }, sign ?? code(letter));
}

/** A text as children of an element: what is hidden in it as marks. */
function marked(text, element) {
  if (!HIDDEN.test(text)) return text;
  if (element.namespaceURI !== "http://www.w3.org/1999/xhtml" || ONLY_TEXT.has(element.tagName)) return visible(text);
  const parts = [];
  let after = 0;
  for (const { 0: letter, index } of text.matchAll(ALL_HIDDEN)) {
    parts.push(text.slice(after, index), mark(letter));
    after = index + letter.length;
  }
  return [...parts, text.slice(after)];
}

const shown = (children, element) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
  .map((child) => (typeof child === "string" ? marked(child, element) : child)).flat();

/** h("div.card", {title: "x", onclick: f, hidden: true}, child, "text", …): an element. */
export function h(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return fill(document.createElement(tag || "div"), classes, attributes, children);
}

/** The same for SVG. */
export function svg(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : READ.has(name) ? visible(value) : value);
  }
  element.append(...shown(children, element));
  return element;
}

/** Takes all children out, puts these in. */
export function put(element, ...children) {
  element.replaceChildren(...shown(children, element));
  return element;
}

export const number = (value) => (typeof value === "number" ? value.toLocaleString("en") : String(value));

export function bytes(size) {
  if (size === null || size === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}
