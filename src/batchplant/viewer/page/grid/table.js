// Samples as rows of a table.

import { small } from "../cells/index.js";
import { h, number, put } from "../dom.js";

const HEIGHT = 32, TALL = 56, HEADER = 34;
const WIDTHS = { number: 120, class: 140, bool: 80, time: 180, text: 320, tree: 280, picture: 110, mask: 110, video: 140, sound: 220, array: 200, boxes: 160, tokens: 260, bytes: 220 };
const RIGHT = new Set(["number"]);
const SEEN = new Set(["picture", "mask", "video", "sound"]);

export class Table {
  /** sort(field) is called when a header is clicked. */
  constructor(layer, ctx, open, sort) {
    Object.assign(this, { layer, ctx, open, sort });
    this.made = new Map();
    this.fields = ctx.dataset.fields;
    this.tall = this.fields.some((one) => SEEN.has(one.shows));
    this.columns = `90px ${ctx.dataset.keys ? "180px " : ""}${this.fields.map((one) => `minmax(${WIDTHS[one.shows] ?? 160}px, ${one.shows === "text" ? "1fr" : `${WIDTHS[one.shows] ?? 160}px`})`).join(" ")}`;
    const least = 90 + (ctx.dataset.keys ? 180 : 0) + this.fields.reduce((sum, one) => sum + (WIDTHS[one.shows] ?? 160), 0);
    this.width = least + 12 * (this.fields.length + 1);
    this.head = h("div.head", { role: "row", "aria-rowindex": 1 });
  }

  lay(count) {
    this.clear();
    this.layer.style.minWidth = `${this.width}px`;
    this.layer.append(this.head);
    return { lines: count, height: this.tall ? TALL : HEIGHT, above: HEADER };
  }

  /** Names of the columns, and which one is sorted by. */
  header({ sort, down }) {
    const one = (field) => {
      const now = sort === field.name ? (down ? "descending" : "ascending") : "none";
      const mark = { ascending: " ▲", descending: " ▼", none: "" }[now];
      return h(`div.cell${RIGHT.has(field.shows) ? ".right" : ""}`, { role: "columnheader", "aria-sort": now },
        h("button.sort", { title: `${field.kind}. Click to sort.`, onclick: () => this.sort(field.name) }, field.name, mark));
    };
    this.head.style.gridTemplateColumns = this.columns;
    put(this.head, h("div.cell.right", { role: "columnheader" }, "sample"), this.ctx.dataset.keys ? h("div.cell", { role: "columnheader" }, "key") : null, this.fields.map(one));
  }

  line(row) { return row; }
  rows(first, last, count) { return [first, Math.min(last, count - 1)]; }
  get thumbnails() { return 0; }

  paint(scroller, source, cursor) {
    const [from, to] = this.rows(...scroller.seen(), source.count);
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
