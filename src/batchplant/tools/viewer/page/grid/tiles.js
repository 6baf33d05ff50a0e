// Samples as cards: an image (or what stands for one) and what it is.

import { small } from "../cells/index.js";
import { h, number, put, visible } from "../dom.js";

const GAP = 8, CAPTION = 22;
// Sizes in which thumbnails are asked for, so that a little change of size needs no new ones.
const SIZES = [64, 96, 128, 192, 256, 384, 512];

export class Tiles {
  constructor(layer, ctx, open) {
    Object.assign(this, { layer, ctx, open });
    this.tiles = new Map();
    this.size = 160;
    this.columns = 1;
  }

  /** Lays out for a width: how many lines there are, how high one is. */
  lay(count, width, size) {
    this.columns = Math.max(1, Math.round((width - GAP) / (size + GAP)));
    // As wide as fills the line.
    this.size = Math.floor((width - GAP) / this.columns) - GAP;
    this.clear();
    return { lines: Math.ceil(count / this.columns), height: this.size + CAPTION + GAP, above: GAP };
  }

  line(row) { return Math.floor(row / this.columns); }
  rows(first, last, count) { return [first * this.columns, Math.min(count, (last + 1) * this.columns) - 1]; }

  /** How large thumbnails have to be. */
  get thumbnails() {
    const needed = this.size * Math.min(2, devicePixelRatio || 1);
    return SIZES.find((size) => size >= needed) ?? SIZES.at(-1);
  }

  paint(scroller, source, cursor) {
    const [from, to] = this.rows(...scroller.seen(), source.count);
    for (const [row, tile] of this.tiles) {
      if (row < from || row > to) { tile.element.remove(); this.tiles.delete(row); }
    }
    for (let row = from; row <= to; row += 1) {
      let tile = this.tiles.get(row);
      if (!tile) {
        tile = this.make(row, source.count);
        this.tiles.set(row, tile);
        this.layer.append(tile.element);
      }
      const x = GAP + (row % this.columns) * (this.size + GAP);
      tile.element.style.transform = `translate(${x}px, ${scroller.top(this.line(row))}px)`;
      tile.element.setAttribute("aria-selected", String(row === cursor));
      this.fill(tile, row, source);
    }
  }

  make(row, count) {
    const shot = h("div.shot"), caption = h("div.caption");
    const element = h("div.tile", {
      id: `row-${row}`, role: "option", "aria-setsize": count, "aria-posinset": row + 1, "aria-selected": "false",
      style: { width: `${this.size}px`, height: `${this.size + CAPTION}px` }, onclick: () => this.open(row),
    }, shot, caption);
    shot.style.height = `${this.size}px`;
    return { element, shot, caption, sample: null, url: null };
  }

  fill(tile, row, source) {
    const sample = source.sample(row);
    if (sample && tile.sample !== sample) {
      tile.sample = sample;
      this.describe(tile, sample);
      tile.url = null;
    }
    if (!sample || !source.image) return;
    const place = source.tile(row);
    if (!place || place.url === tile.url) return;
    tile.url = place.url;
    this.image(tile, sample, place, source.image);
  }

  describe(tile, sample) {
    const { dataset } = this.ctx;
    const ctx = { ...this.ctx, sample: sample.sample, card: true };
    const label = dataset.label && sample.cells[dataset.label];
    const name = sample.key ?? `${number(sample.sample)}`;
    put(tile.caption, h("span.name", { title: name }, sample.key ? name.split("/").at(-1) : name), label ? h("span.label", {}, small(label, ctx)) : null);
    tile.element.setAttribute("aria-label", [`sample ${sample.sample}`, label && !label.missing && label.text ? visible(label.text) : null].filter(Boolean).join(", "));
    const main = sample.cells[this.ctx.main];
    if (main && (main.error || main.missing || !["image", "mask"].includes(main.shows))) put(tile.shot, h("div.other", {}, small(main, ctx)));
  }

  image(tile, sample, place, field) {
    const cell = sample.cells[field];
    if (!cell || cell.missing || cell.error) return;
    if (place.broken) { put(tile.shot, h("div.other", {}, h("span.error", {}, "✕ cannot be decoded"))); return; }
    const longest = Math.max(cell.width, cell.height) || 1;
    const width = Math.max(1, Math.round((cell.width / longest) * this.size)), height = Math.max(1, Math.round((cell.height / longest) * this.size));
    const shown = h("div.image", { style: {
      width: `${width}px`, height: `${height}px`, backgroundImage: `url(${place.url})`,
      backgroundSize: `${width * place.columns}px ${height * place.rows}px`, backgroundPosition: `${-place.x * width}px ${-place.y * height}px`,
    } });
    put(tile.shot, shown);
    this.ctx.decorate?.(shown, sample, cell, { width, height });
  }

  /** The next row in a direction, for the arrows. */
  step(row, key, page) {
    return { ArrowRight: row + 1, l: row + 1, j: row + 1, ArrowLeft: row - 1, h: row - 1, k: row - 1, ArrowDown: row + this.columns, ArrowUp: row - this.columns,
      PageDown: row + this.columns * page, PageUp: row - this.columns * page }[key];
  }

  clear() {
    this.tiles.clear();
    put(this.layer);
  }
}
