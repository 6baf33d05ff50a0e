// A scroll bar over more lines than a browser makes an element high.
//
// Browsers end elements at some ten million pixels. Beyond TALLEST the bar stands for the whole by proportion, and
// small movements (a wheel, a finger) still move by as many pixels as they say: `position` is where we really are.

const TALLEST = 6_000_000;
const SETTLED = 150;

export class Scroller {
  /** element scrolls, layer is its first child and stays in view, changed() is called once a frame. */
  constructor(element, layer, spacer, changed) {
    Object.assign(this, { element, layer, spacer, changed });
    this.position = 0;
    this.known = 0;
    this.lines = 0;
    this.height = 1;
    this.above = 0;
    this.frame = 0;
    this.timer = 0;
    element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.ask()).observe(element);
  }

  /** So many lines, each so high; `above`: pixels of a header that stays. Keeps the line that is first. */
  lay(lines, height, above = 0) {
    const line = this.position / this.height;
    Object.assign(this, { lines, height, above });
    this.spacer.style.height = `${Math.min(this.total, TALLEST)}px`;
    this.go(line * height);
  }

  get view() { return this.element.clientHeight; }
  get total() { return this.lines * this.height + this.above; }
  get last() { return Math.max(0, this.total - this.view); }
  get real() { return Math.max(0, Math.min(this.total, TALLEST) - this.view); }

  /** The first and the last line that are seen. */
  seen() {
    const first = Math.floor(this.position / this.height);
    return [Math.min(first, Math.max(0, this.lines - 1)), Math.min(this.lines - 1, Math.floor((this.position + this.view - this.above) / this.height))];
  }

  /** Where a line stands now, in pixels below the top. */
  top(line) { return line * this.height - this.position + this.above; }

  go(position) {
    this.position = Math.max(0, Math.min(position, this.last));
    this.sync();
    this.ask();
  }

  /** Scrolls as little as is needed to see a line. */
  reveal(line) {
    const top = line * this.height;
    if (top < this.position) this.go(top);
    else if (top + this.height > this.position + this.view - this.above) this.go(top + this.height + this.above - this.view);
  }

  sync() {
    const wanted = this.total <= TALLEST ? this.position : this.last ? (this.position / this.last) * this.real : 0;
    if (Math.abs(this.element.scrollTop - wanted) >= 1) this.element.scrollTop = wanted;
    this.known = this.element.scrollTop;
  }

  scrolled() {
    const top = this.element.scrollTop, moved = top - this.known;
    if (!moved) return;
    this.known = top;
    if (this.total <= TALLEST) this.position = top;
    else if (Math.abs(moved) < 2 * this.view) {
      this.position = Math.max(0, Math.min(this.position + moved, this.last));
      // Before the bar ends where the lines do not.
      if (top <= 0 || top >= this.real) this.sync();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.sync(), SETTLED);
    } else this.position = this.real ? (top / this.real) * this.last : 0;
    this.ask();
  }

  /** Has changed() called in the next frame. */
  ask() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.changed();
    });
  }
}
