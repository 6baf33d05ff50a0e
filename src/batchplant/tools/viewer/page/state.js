// What the page shows, kept in the address after "#", so that a link can be shared: #tab=…&sample=…&where=…

const listeners = new Set();

export function get() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Changes some values ("" or null removes one). replace: without a new entry in the history. */
export function set(changes, { replace = false } = {}) {
  const now = get();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") delete now[name];
    else now[name] = String(value);
  }
  const text = `#${new URLSearchParams(now)}`;
  if (text === location.hash || (text === "#" && !location.hash)) return;
  if (replace) history.replaceState(null, "", text);
  else history.pushState(null, "", text);
  tell();
}

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The part of the state that says which samples: what rows, samples and sheets take as parameters. */
export function query() {
  const { where, search, measure, sort, down } = get();
  return { where, search, measure, sort, down };
}

/** A measure in words. */
export function measureText(measure) {
  const parts = measure.replace(/=$/, "").split("|");
  const numbers = parts.length > 3 && parts.slice(-2).every((part) => part !== "" && !Number.isNaN(Number(part)));
  const [low, high] = numbers ? parts.splice(-2).map((part) => String(Number(Number(part).toPrecision(4)))) : [parts.pop()];
  const what = parts.pop();
  return `${what} of ${parts.join("|")} ${high === undefined ? low : low === high ? low : `${low} to ${high}`}`;
}

function tell() {
  const now = get();
  for (const listener of [...listeners]) listener(now);
}

addEventListener("popstate", tell);
addEventListener("hashchange", tell);
