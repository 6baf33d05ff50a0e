// Samples as rows of a table.

import { small } from "../cells/index.js";
import { h, number, put, visible } from "../dom.js";

const HEIGHT = 32, TALL = 56, HEADER = 34;
const WIDTHS = { number: 120, class: 140, bool: 80, time: 180, text: 320, tree: 280, image: 110, mask: 110, video: 140, sound: 220, array: 200, boxes: 160, labels: 220, tokens: 260, bytes: 220 };
// Of these the letters tell how wide they are.
const TEXTS = new Set(["number", "class", "bool", "time", "text", "tree", "tokens", "labels"]), LETTER = 8;
const ROOMY = new Set(["tokens", "tree", "labels", "array", "bytes"]);
const RIGHT = new Set(["number"]);
const SEEN = new Set(["image", "mask", "video", "sound"]);

export class Table {
  /** sort(field) is called when a header is clicked. */
  constructor(layer, ctx, open, sort) {
    Object.assign(this, { layer, ctx, open, sort });
    this.made = new Map();
    this.fields = ctx.dataset.fields;
    this.tall = this.fields.some((field) => SEEN.has(field.shows));
    this.widths = this.fields.map((field) => WIDTHS[field.shows] ?? 160);
    this.fitted = false;
    this.head = h("div.head", { role: "row", "aria-rowindex": 1 });
  }

  lay(count) {
    this.clear();
    this.layer.append(this.head);
    this.dress();
    return { lines: count, height: this.tall ? TALL : HEIGHT, above: HEADER };
  }

  /** As wide as what the first samples hold needs; the text that is longest takes the rest. */
  fit(samples) {
    this.fitted = true;
    const letters = this.fields.map((field) => Math.max(field.name.length + 2, ...samples.map((row) => visible(row.cells[field.name]?.text ?? "").length)));
    this.widths = this.fields.map((field, at) => {
      const most = WIDTHS[field.shows] ?? 160;
      return TEXTS.has(field.shows) ? Math.max(56, Math.min(most, letters[at] * LETTER + 12)) : most;
    });
    // Texts first; without one, what else can use the room.
    const longest = (kinds) => {
      const texts = this.fields.map((field, at) => (kinds.has(field.shows) ? letters[at] : 0));
      return Math.max(0, ...texts) ? texts.indexOf(Math.max(...texts)) : -1;
    };
    this.longest = longest(new Set(["text"]));
    if (this.longest < 0) this.longest = longest(ROOMY);
  }

  /** The columns as CSS says them. */
  get columns() {
    return `90px ${this.ctx.dataset.keys ? "180px " : ""}${this.widths.map((width, at) => (at === this.longest ? `minmax(${width}px, 1fr)` : `${width}px`)).join(" ")}`;
  }

  dress() {
    const least = 90 + (this.ctx.dataset.keys ? 192 : 0) + this.widths.reduce((sum, width) => sum + width + 12, 0);
    this.layer.style.minWidth = `${least + 2 * 12}px`;
    for (const line of this.layer.children) line.style.gridTemplateColumns = this.columns;
  }

  /** Names of the columns, and which one is sorted by. */
  header({ sort, down }) {
    const header = (field) => {
      const now = sort === field.name ? (down ? "descending" : "ascending") : "none";
      const mark = { ascending: " ▲", descending: " ▼", none: "" }[now];
      return h(`div.cell${RIGHT.has(field.shows) ? ".right" : ""}`, { role: "columnheader", "aria-sort": now },
        h("button.sort", { title: `${field.kind}. Click to sort.`, onclick: () => this.sort(field.name) }, field.name, mark));
    };
    put(this.head, h("div.cell.right", { role: "columnheader" }, "sample"), this.ctx.dataset.keys ? h("div.cell", { role: "columnheader" }, "key") : null, this.fields.map(header));
  }

  line(row) { return row; }
  rows(first, last, count) { return [first, Math.min(last, count - 1)]; }
  get thumbnails() { return 0; }

  paint(scroller, source, cursor) {
    const [from, to] = this.rows(...scroller.seen(), source.count);
    if (!this.fitted && source.sample(from)) {
      this.fit(Array.from({ length: to - from + 1 }, (_, at) => source.sample(from + at)).filter(Boolean));
      this.dress();
    }
    for (const [row, line] of this.made) {
      if (row < from || row > to) { line.element.remove(); this.made.delete(row); }
    }
    for (let row = from; row <= to; row += 1) {
      let line = this.made.get(row);
      if (!line) {
        line = { sample: null, element: h("div.line", { id: `row-${row}`, role: "row", "aria-rowindex": row + 2, onclick: () => this.open(row), style: { gridTemplateColumns: this.columns, height: `${scroller.height}px` } }, h("div.cell", { role: "gridcell" })) };
        this.made.set(row, line);
        this.layer.append(line.element);
      }
      line.element.style.transform = `translateY(${scroller.top(row)}px)`;
      line.element.setAttribute("aria-selected", String(row === cursor));
      const sample = source.sample(row);
      if (sample && sample !== line.sample) { line.sample = sample; this.fill(line.element, sample); }
    }
  }

  fill(element, sample) {
    const ctx = { ...this.ctx, sample: sample.sample };
    put(element,
      h("div.cell.right.dim", { role: "gridcell" }, number(sample.sample)),
      this.ctx.dataset.keys ? h("div.cell", { role: "gridcell", title: sample.key }, sample.key ?? "") : null,
      this.fields.map((field) => h(`div.cell${RIGHT.has(field.shows) ? ".right" : ""}`, { role: "gridcell" }, small(sample.cells[field.name], ctx))));
  }

  step(row, key, page) {
    return { ArrowDown: row + 1, j: row + 1, ArrowUp: row - 1, k: row - 1, PageDown: row + page, PageUp: row - page }[key];
  }

  clear() {
    this.made.clear();
    put(this.layer);
    this.layer.style.minWidth = "";
  }
}
