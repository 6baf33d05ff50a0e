// Samples and thumbnails of the rows that are seen, by chunks. What leaves the screen is not waited for.

import { address, ask, wait } from "../api.js";

export const CHUNK = 50;
const KEPT = 24;
// Tiles in a row of a sheet.
const COLUMNS = 10;
// A jump waits for the next: nobody looks at what flies by.
const PAUSE = 60;

export class Source {
  /** options: {query, count, fields, image}; changed() when something arrived, failed(error). */
  constructor(options, changed, failed) {
    Object.assign(this, options, { changed, failed });
    this.chunks = new Map();
    this.last = null;
    this.timer = 0;
    this.closed = false;
  }

  /** The sample of a row, where it is there. */
  sample(row) {
    return this.chunks.get(Math.floor(row / CHUNK))?.samples?.[row % CHUNK];
  }

  /** The thumbnail of a row: {url, x, y, columns, rows, broken}, in tiles. */
  tile(row) {
    const chunk = this.chunks.get(Math.floor(row / CHUNK)), at = row % CHUNK;
    const sheet = chunk?.sheet;
    if (!sheet) return undefined;
    return { url: sheet.url, x: at % COLUMNS, y: Math.floor(at / COLUMNS), columns: sheet.columns, rows: sheet.rows, broken: sheet.broken.has(at) };
  }

  /** These rows are seen, thumbnails so many pixels wide (0: none). */
  want(first, last, size) {
    const [from, to] = [Math.floor(first / CHUNK), Math.floor(last / CHUNK)];
    const jumped = this.last !== null && Math.abs(from - this.last) > 2;
    const forward = this.last === null || from >= this.last;
    this.last = from;
    for (const [number, chunk] of this.chunks) {
      if (number < from - 1 || number > to + 1) chunk.controller?.abort();
    }
    const ahead = forward ? to + 1 : from - 1;
    const numbers = [];
    for (let number = from; number <= to; number += 1) numbers.push(number);
    clearTimeout(this.timer);
    const begin = () => {
      for (const number of numbers) this.load(number, size);
      this.drop(from, to);
      // What comes next, once what is seen is there.
      if (numbers.every((number) => this.chunks.get(number)?.done)) this.load(ahead, size);
    };
    if (jumped) this.timer = setTimeout(begin, PAUSE);
    else begin();
  }

  load(number, size) {
    if (number < 0 || number * CHUNK >= this.count || this.closed) return;
    let chunk = this.chunks.get(number);
    if (chunk && (chunk.controller || (chunk.done && chunk.size >= size))) return;
    chunk ??= { samples: null, sheet: null };
    this.chunks.delete(number);
    this.chunks.set(number, chunk);
    const controller = new AbortController();
    Object.assign(chunk, { controller, done: false, size });
    const arrived = () => { if (!this.closed) this.changed(); };
    const params = { ...this.query, start: number * CHUNK, count: Math.min(CHUNK, this.count - number * CHUNK) };
    const tasks = [];
    if (!chunk.samples) tasks.push(this.asked("samples", { ...params, field: this.fields }, controller.signal).then((answer) => { chunk.samples = answer.samples; arrived(); }));
    if (size && this.image) tasks.push(this.sheet(chunk, { ...params, field: this.image, size }, controller.signal).then(arrived));
    Promise.all(tasks).then(() => { chunk.done = true; }, (error) => {
      if (error.name !== "AbortError" && !this.closed) this.failed(error);
    }).finally(() => {
      if (chunk.controller === controller) chunk.controller = null;
      if (chunk.done) arrived();
    });
  }

  async asked(path, params, signal) {
    try {
      return await ask(path, params, signal);
    } catch (error) {
      // The server has forgotten which rows these are: it looks once more.
      if (error.status !== 409) throw error;
      await wait("rows", this.query, () => {}, signal);
      return ask(path, params, signal);
    }
  }

  async sheet(chunk, params, signal) {
    let response = await fetch(address("sheet", params), { signal });
    if (response.status === 409) {
      await wait("rows", this.query, () => {}, signal);
      response = await fetch(address("sheet", params), { signal });
    }
    if (!response.ok || response.status === 204) throw new Error(`the thumbnails cannot be made (${response.status})`);
    const broken = new Set(JSON.parse(response.headers.get("X-Broken") ?? "[]"));
    const url = URL.createObjectURL(await response.blob());
    const image = new Image();
    image.src = url;
    await image.decode().catch(() => {});
    if (signal.aborted || this.closed) { URL.revokeObjectURL(url); return; }
    if (chunk.sheet) URL.revokeObjectURL(chunk.sheet.url);
    const columns = Math.min(params.count, COLUMNS);
    // image is kept with its URL, so that the browser keeps the pixels.
    chunk.sheet = { url, image, broken, columns, rows: Math.ceil(params.count / COLUMNS) };
  }

  drop(from, to) {
    for (const [number, chunk] of this.chunks) {
      if (this.chunks.size <= KEPT) return;
      if (number >= from - 1 && number <= to + 1) continue;
      this.forget(chunk);
      this.chunks.delete(number);
    }
  }

  forget(chunk) {
    chunk.controller?.abort();
    if (chunk.sheet) URL.revokeObjectURL(chunk.sheet.url);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    for (const chunk of this.chunks.values()) this.forget(chunk);
    this.chunks.clear();
  }
}
