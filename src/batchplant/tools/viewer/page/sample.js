// One sample in full: every field, what it is, where it lies.

import { address, ask, wait } from "./api.js";
import { large } from "./cells/index.js";
import { bytes, h, number, put, visible } from "./dom.js";
import * as state from "./state.js";

// What needs room, and how many letters of a text do.
const WIDE = new Set(["image", "mask", "video", "sound", "tree", "tokens", "array", "boxes", "labels"]), LONG = 300;

export class Sample {
  /** close() goes back to the list; move({sample, row}) to another sample. */
  constructor(context, { close, move }) {
    Object.assign(this, { context, close, move });
    this.previous = h("button", { "aria-label": "Previous sample", title: "Previous (k, ←)", onclick: () => this.step("previous") }, "←");
    this.next = h("button", { "aria-label": "Next sample", title: "Next (j, →)", onclick: () => this.step("next") }, "→");
    this.title = h("h2", { tabindex: "-1" });
    this.copied = h("span.dim", { role: "status" });
    this.body = h("div.fields");
    this.element = h("section.sample", { hidden: true, "aria-label": "Sample" },
      h("div.row.tools", {}, h("button", { title: "Back (Escape)", onclick: () => this.close() }, "Back"), this.previous, this.next, this.title,
        h("span.spring"), this.copied, h("button", { onclick: () => this.copy() }, "Copy link")), this.body);
    this.answer = null;
    this.asked = "";
  }

  async show(now, dataset) {
    const asked = JSON.stringify([now.sample, state.query()]);
    const first = this.element.hidden;
    this.element.hidden = false;
    if (asked === this.asked) return;
    this.asked = asked;
    this.controller?.abort();
    const { signal } = (this.controller = new AbortController());
    if (first) put(this.body, h("p.dim", {}, "reading…"));
    put(this.title, `Sample ${now.sample}`);
    this.copied.textContent = "";
    try {
      const answer = await ask(`sample/${encodeURIComponent(now.sample)}`, { ...state.query(), row: now.row }, signal);
      this.answer = answer;
      this.paint(answer, { sample: answer.sample, dataset });
    } catch (error) {
      if (error.name === "AbortError") return;
      this.answer = null;
      put(this.body, h("p.error", { role: "alert" }, error.message));
    }
    if (first) this.title.focus({ preventScroll: true });
  }

  hide() {
    this.element.hidden = true;
    this.controller?.abort();
    this.asked = "";
    put(this.body);
  }

  step(where) {
    const to = this.answer?.[where];
    if (to) this.move(to);
  }

  pressed(event) {
    if (event.key === "Escape") { this.close(); return true; }
    // In images that are moved through by keys, and in texts that scroll, the arrows are theirs.
    const taken = event.target.closest("input, select, video, audio, [role=slider], pre, .own-keys");
    if (["j", "k"].includes(event.key) || (!taken && ["ArrowLeft", "ArrowRight"].includes(event.key))) {
      this.step(["j", "ArrowRight"].includes(event.key) ? "next" : "previous");
      return true;
    }
    return false;
  }

  paint(answer, ctx) {
    put(this.title, `Sample ${number(answer.sample)}`, answer.key !== undefined ? [" · ", h("bdi", {}, answer.key)] : null);
    this.title.title = visible(answer.key ?? "");
    this.previous.disabled = !answer.previous;
    this.next.disabled = !answer.next;
    const wide = (cell) => WIDE.has(cell.shows) || (cell.text ?? "").length > LONG;
    const parts = [answer.cells.filter(wide), answer.cells.filter((cell) => !wide(cell))].filter((part) => part.length);
    this.body.classList.toggle("both", parts.length > 1);
    put(this.body, parts.map((part) => h(`div.cards-${wide(part[0]) ? "wide" : "small"}`, {}, part.map((cell) => this.card(cell, ctx)))));
    this.body.scrollTop = 0;
  }

  card(cell, ctx) {
    const facts = [cell.kind, cell.size !== undefined ? bytes(cell.size) : null].filter(Boolean).join(" · ");
    return h("article.card", { "aria-label": cell.field },
      h("h3", {}, cell.field, h("span.dim.kind", {}, facts)), large(cell, ctx), this.where(cell, ctx));
  }

  /** Where a cell lies, and its first bytes. */
  where(cell, ctx) {
    if (cell.missing) return null;
    const { place } = cell;
    const status = h("span", { role: "status" });
    const check = h("button", { onclick: () => this.check(cell, ctx, status) }, "Check");
    const rows = [
      place && ["file", h("span.mono.path", {}, place.file)],
      place?.start !== undefined && ["place", `${place.exact ? "" : `${place.runs} run${place.runs === 1 ? "" : "s"} from `}byte ${number(place.start)}, ${number(place.size)} bytes`],
      cell.encoding && ["encoding", cell.encoding], cell.dtype && ["dtype", cell.dtype], cell.shape && ["shape", `(${cell.shape.map((size) => size ?? "any").join(", ")})`],
      ["checksum", [check, " ", status]],
    ].filter(Boolean);
    return h("details.where", {}, h("summary", {}, "Where it lies"),
      h("table", {}, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))))),
      cell.hex ? h("pre.hex.mono", { tabindex: "0", "aria-label": "First bytes" }, dump(cell.hex)) : null,
      h("a", { href: address(`bytes/${ctx.sample}/${encodeURIComponent(cell.field)}`), download: "" }, "Download the bytes"));
  }

  async check(cell, ctx, status) {
    status.className = "dim";
    status.textContent = "checking…";
    try {
      const report = await wait(`check/${ctx.sample}`, {}, (done, of) => { status.textContent = of ? `checking… ${Math.floor((100 * done) / of)} %` : "checking…"; });
      const sums = report.checks.filter((problem) => !["structure", "bounds", "decode"].includes(problem));
      const wrong = report.problems.filter((problem) => !problem.field || problem.field === cell.field);
      status.className = wrong.length ? "error" : "good";
      put(status, wrong.length ? wrong.map((problem) => problem.message).join("; ")
        : sums.length ? `sound: ${sums.join(", ")}` : "it reads and decodes; no checksum of it is kept");
    } catch (error) {
      status.className = "error";
      put(status, error.message);
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.copied.textContent = "copied";
    } catch {
      this.copied.textContent = location.href;
    }
  }
}

/** Sixteen bytes a line: where, hexadecimal, letters. */
function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g);
    const letters = pairs.map((byte) => { const code = parseInt(byte, 16); return code >= 32 && code < 127 ? String.fromCharCode(code) : "·"; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(4, "0")}  ${pairs.join(" ").padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}
