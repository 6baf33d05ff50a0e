// Charts as SVG, drawn anew when their width changes. What can be picked is a button, reachable by keyboard.

import { h, number, put, svg } from "./dom.js";

const COLOURS = 8;
const PAD = { left: 46, right: 10, top: 8, bottom: 30 };

/** The class that gives the colour of series N; what comes after the last colour shares a grey one. */
export const colour = (index) => (index < COLOURS ? `c${index + 1}` : "c0");

/** The class of line N: behind the last colour they begin anew, dashed. */
const stroke = (index) => `${colour(index % COLOURS)}${index < COLOURS ? "" : ".dashed"}`;

/** A number in few letters, for an axis. */
export function short(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size >= 1e15 || (size && size < 1e-3)) return value.toExponential(1);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${trim(value / (unit === 1e4 ? 1e3 : unit))}${letter}`;
  }
  return trim(value);
}

const trim = (value) => String(Number(value.toPrecision(3)));

/** Round values from low to high, about `count` of them. */
export function ticks(low, high, count = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const marks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) marks.push(Number(at.toPrecision(12)));
  return marks;
}

/** An element as wide as there is room; draw(width) gives what is in it. */
function sized(kind, draw, minimum = 160) {
  const box = h(`div.plot.${kind}`);
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.max(minimum, Math.floor(entry.contentRect.width));
    if (now !== width) put(box, draw(width = now));
  }).observe(box);
  return box;
}

/** What a chart shows, as a table that opens on request. */
export function table(head, rows, summary = "As a table") {
  const inside = h("div.plot-table", { tabindex: "0", role: "region", "aria-label": summary });
  return h("details.plot-details", { ontoggle: (event) => {
    if (!event.target.open || inside.firstChild) return;
    inside.append(h("table", {},
      h("thead", {}, h("tr", {}, head.map((value, at) => h(at ? "th.number" : "th", { scope: "col" }, value)))),
      h("tbody", {}, rows.slice(0, 1000).map((row) => h("tr", {}, row.map((value, at) => h(at ? "td.number" : "td", {}, number(value))))))));
  } }, h("summary", {}, summary), inside);
}

export function legend(names, note = () => null, of = colour) {
  return h("ul.plot-legend", {}, names.map((name, at) => h("li", {}, h(`span.swatch.${of(at)}`, { "aria-hidden": "true" }), name, note(at))));
}

/** Values and how often they are there, one bar below the other. items: {label, value, pick, note, colour} */
export function bars(items, { label, shown = 12, log = false, name = number } = {}) {
  const most = items.reduce((largest, item) => Math.max(largest, item.value), 0);
  const share = (value) => (!most ? 0 : log ? Math.log1p(value) / Math.log1p(most) : value / most);
  const bar = (item) => {
    const inside = [
      h(`span.bar-fill${item.colour === undefined ? "" : `.${colour(item.colour)}`}`, { "aria-hidden": "true", style: { width: `${(100 * share(item.value)).toFixed(2)}%` } }),
      h("span.bar-label", { title: item.label }, h("bdi", {}, item.label)),
      h("span.bar-value", {}, name(item.value), item.note ? h("span.dim", {}, ` ${item.note}`) : null),
    ];
    return h("li", {}, item.pick ? h("button.bar", { onclick: item.pick, title: item.title }, inside) : h("div.bar", {}, inside));
  };
  const list = h("ol.bars", { "aria-label": label }, items.slice(0, shown).map(bar));
  if (items.length <= shown) return list;
  const more = h("button.more", { onclick: () => { list.append(...items.slice(shown, 500).map(bar)); more.remove(); } },
    `${number(Math.min(items.length, 500) - shown)} more`);
  return h("div", {}, list, more);
}

/** Counts between edges. pick(index) is called with a bin that was chosen. */
export function histogram({ edges, counts }, { label, pick, name = short, axis = name, height = 130, log = false } = {}) {
  if (!counts.length) return h("p.dim", {}, "nothing to count");
  const most = Math.max(...counts);
  const tall = (count) => (!count ? 0 : log ? Math.log1p(count) / Math.log1p(most) : count / most);
  const range = (at) => (edges[at] === edges[at + 1] ? name(edges[at]) : `${name(edges[at])} to ${name(edges[at + 1])}`);
  return sized("histogram", (width) => {
    const inner = width - PAD.left - PAD.right;
    const floor = height - PAD.bottom;
    const step = inner / counts.length;
    const bins = counts.map((count, at) => {
      const top = PAD.top + (floor - PAD.top) * (1 - tall(count));
      const label = `${range(at)}: ${number(count)}`;
      const parts = [
        svg("title", {}, label),
        svg("rect.hit", { x: PAD.left + at * step, y: PAD.top, width: step, height: floor - PAD.top }),
        svg("rect.c1", { x: PAD.left + at * step + 0.5, y: count ? Math.min(top, floor - 1) : floor, width: Math.max(step - 1, 0.5), height: count ? Math.max(floor - top, 1) : 0 }),
      ];
      if (!pick || !count) return svg("g", {}, parts);
      return svg("g.pick", { role: "button", tabindex: "0", "aria-label": label, onclick: () => pick(at), onkeydown: pressed(() => pick(at)) }, parts);
    });
    const texts = edges.map(axis);
    // Long names leave room for the ends only.
    const marks = Math.max(...texts.map((text) => text.length)) * 7 * 3 < inner ? [0, Math.floor(counts.length / 2), counts.length] : [0, counts.length];
    return svg("svg", { width, height, role: pick ? "group" : "img", "aria-label": label },
      axisY(most, floor, width, tall, log), bins,
      marks.map((at) => svg("text", { x: PAD.left + at * step, y: height - 10, "text-anchor": at === 0 ? "start" : at === counts.length ? "end" : "middle" }, texts[Math.min(at, edges.length - 1)])));
  });
}

const pressed = (act) => (event) => {
  if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  event.stopPropagation();
  act();
};

function axisY(most, floor, width, tall, log) {
  const at = log ? [most] : ticks(0, most, 3).filter((mark) => mark > 0);
  return at.map((value) => {
    const y = PAD.top + (floor - PAD.top) * (1 - tall(value));
    return [
      svg("line.gridline", { x1: PAD.left, x2: width - PAD.right, y1: y, y2: y }),
      svg("text", { x: PAD.left - 6, y: y + 4, "text-anchor": "end" }, short(value)),
    ];
  });
}

/** A frame with two axes; x and y map values to pixels. */
function frame(width, height, xs, ys, { xlabel, ylabel, xname = short, yname = short }) {
  const [left, right, top, bottom] = [PAD.left + (ylabel ? 14 : 0), width - PAD.right, PAD.top, height - PAD.bottom - (xlabel ? 12 : 0)];
  const x = (value) => left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (right - left);
  const y = (value) => bottom - ((value - ys[0]) / (ys[1] - ys[0] || 1)) * (bottom - top);
  const parts = [
    ticks(...ys).map((value) => [
      svg("line.gridline", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, yname(value)),
    ]),
    ticks(...xs, Math.max(2, Math.floor(width / 110))).map((value) => [
      svg("line.gridline", { x1: x(value), x2: x(value), y1: top, y2: bottom }),
      svg("text", { x: x(value), y: bottom + 16, "text-anchor": x(value) > right - 16 ? "end" : "middle" }, xname(value)),
    ]),
    xlabel && svg("text.axis", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, xlabel),
    ylabel && svg("text.axis", { x: 12, y: (top + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(top + bottom) / 2})` }, ylabel),
  ];
  return { x, y, left, right, top, bottom, parts };
}

function extent(values, given) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (!(low <= high)) [low, high] = [0, 1];
  if (given?.[0] !== undefined && given[0] !== null) [low] = given;
  if (given?.[1] !== undefined && given[1] !== null) [, high] = given;
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** Lines. series: {name, x, y} with arrays of numbers; a value that is not finite leaves a gap. pick(x) is called as a pointer
moves along them; mark(x) of the returned element draws a line across. */
export function lines(series, { label, xlabel, ylabel, xrange, yrange = [0], xname, yname, height = 180, area = false, pick } = {}) {
  const xs = extent(series.flatMap((line) => line.x), xrange);
  const ys = extent(series.flatMap((line) => line.y), yrange);
  const cursor = svg("line.cursor");
  let view = null, marked = null;
  const place = () => {
    if (!view || marked === null) return;
    for (const [name, value] of [["x1", view.x(marked)], ["x2", view.x(marked)], ["y1", view.top], ["y2", view.bottom]]) cursor.setAttribute(name, value);
  };
  const point = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const left = event.clientX - event.currentTarget.getBoundingClientRect().left - view.left;
    pick(Math.max(xs[0], Math.min(xs[1], xs[0] + (left / (view.right - view.left)) * (xs[1] - xs[0]))));
  };
  const chart = sized("lines", (width) => {
    view = frame(width, height, xs, ys, { xlabel, ylabel, xname, yname });
    const drawn = series.map((line, at) => {
      let path = "";
      let pen = "M";
      line.y.forEach((value, index) => {
        if (!Number.isFinite(value)) { pen = "M"; return; }
        path += `${pen}${view.x(line.x[index]).toFixed(1)} ${view.y(value).toFixed(1)}`;
        pen = "L";
      });
      return [
        area && path && series.length === 1 && svg(`path.area.${colour(at)}`, { d: `${path}V${view.bottom}H${view.x(line.x[0]).toFixed(1)}Z` }),
        svg(`path.line.${stroke(at)}`, { d: path || "M0 0" }),
      ];
    });
    place();
    const events = pick ? { onpointerdown: point, onpointermove: point } : {};
    return svg(pick ? "svg.picks" : "svg", { width, height, role: "img", "aria-label": label, ...events }, view.parts, drawn, cursor);
  });
  const element = series.length > 1 ? h("div", {}, chart, legend(series.map((line) => line.name), undefined, stroke)) : chart;
  return Object.assign(element, { mark: (x) => { marked = x; place(); } });
}

/** Points. groups: {name, points: [[x, y, weight, what]]}; pick(what) is called with the nearest one on a click. */
export function scatter(groups, { label, xlabel, ylabel, xrange, yrange, xname, yname, height = 260, pick, dot = 3, diagonal = false } = {}) {
  const points = groups.flatMap((point) => point.points);
  const xs = extent(points.map((point) => point[0]), xrange);
  const ys = extent(points.map((point) => point[1]), yrange);
  const heaviest = points.reduce((largest, point) => Math.max(largest, point[2] ?? 1), 1);
  // An area for a weight, but none so large that it hides the rest.
  const radius = (weight) => dot + (9 * (Math.sqrt(weight ?? 1) - 1)) / Math.max(Math.sqrt(heaviest) - 1, 9);
  const chart = sized("scatter", (width) => {
    const view = frame(width, height, xs, ys, { xlabel, ylabel, xname, yname });
    const drawn = groups.map((group, at) => {
      if (heaviest === 1) {
        // Thousands of points are one path: a dot is a line of no length with round ends.
        const path = group.points.map(([x, y]) => `M${view.x(x).toFixed(1)} ${view.y(y).toFixed(1)}h0`).join("");
        return svg(`path.dots.${colour(at)}`, { d: path || "M0 0", "stroke-width": 2 * dot });
      }
      return group.points.map(([x, y, weight]) => svg(`circle.dot.${colour(at)}`, { cx: view.x(x), cy: view.y(y), r: radius(weight) }));
    });
    const nearest = (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      let best = null;
      let least = 24 ** 2;
      for (const point of points) {
        const distance = (view.x(point[0]) - px) ** 2 + (view.y(point[1]) - py) ** 2;
        if (distance < least) [least, best] = [distance, point];
      }
      if (best) pick(best[3] ?? best);
    };
    const slope = diagonal && svg("line.diagonal", { x1: view.x(Math.max(xs[0], ys[0])), y1: view.y(Math.max(xs[0], ys[0])), x2: view.x(Math.min(xs[1], ys[1])), y2: view.y(Math.min(xs[1], ys[1])) });
    return svg(pick ? "svg.picks" : "svg", { width, height, role: "img", "aria-label": label, onclick: pick ? nearest : undefined }, view.parts, slope, drawn);
  });
  return groups.length > 1 ? h("div", {}, chart, legend(groups.map((point) => point.name))) : chart;
}

/** Shares along an axis. series: {name, values}, all equally long; each column is scaled to its sum. x: [first, last]. */
export function stacked(series, { label, xlabel, ylabel = "share", x = null, height = 200, pick, share = true } = {}) {
  const columns = series[0]?.values.length ?? 0;
  const sums = Array.from({ length: columns }, (_, at) => series.reduce((sum, line) => sum + line.values[at], 0));
  const most = share ? 1 : Math.max(...sums, 1);
  const range = x ?? [0, columns];
  const chart = sized("stacked", (width) => {
    const view = frame(width, height, range, [0, most], { xlabel, ylabel, yname: share ? (value) => `${Math.round(value * 100)}%` : short });
    const step = (view.right - view.left) / Math.max(columns, 1);
    const below = new Array(columns).fill(0);
    const drawn = series.map((line, at) => {
      let path = "";
      line.values.forEach((value, column) => {
        const size = share ? (sums[column] ? value / sums[column] : 0) : value;
        if (!size) return;
        const [top, left] = [view.y(below[column] + size), view.left + column * step];
        path += `M${left.toFixed(2)} ${top.toFixed(2)}h${(step + 0.3).toFixed(2)}V${view.y(below[column]).toFixed(2)}h${(-step - 0.3).toFixed(2)}Z`;
        below[column] += size;
      });
      return svg(`path.${colour(at)}`, { d: path || "M0 0" });
    });
    const click = (event) => {
      const left = event.clientX - event.currentTarget.getBoundingClientRect().left - view.left;
      const at = Math.floor(left / step);
      if (at >= 0 && at < columns) pick(at);
    };
    return svg(pick ? "svg.picks" : "svg", { width, height, role: "img", "aria-label": label, onclick: pick ? click : undefined }, view.parts, drawn);
  });
  return h("div", {}, chart, legend(series.map((line) => line.name)));
}
