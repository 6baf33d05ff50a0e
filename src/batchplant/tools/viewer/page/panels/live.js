// A loader while it runs: how fast it is, what its queues hold, where the time goes. Asks for what is new once a second.

import { ask } from "../api.js";
import { bytes, h, number, put } from "../dom.js";
import { lines, short } from "../plots.js";
import * as state from "../state.js";

// Seconds that the charts show, and the columns that are drawn at most.
const SPANS = [["120", "2 minutes"], ["600", "10 minutes"], ["3600", "1 hour"]];
const DRAWN = 240;
const KEPT = 3600;

export function create() {
  let rows = [];
  let names = {};
  let about = null;
  let next = 0;
  let every = 1;
  let loader = null;
  let timer = null;
  let paused = false;
  let shown = false;
  let asked = 0;

  const now = h("div.live-now");
  const advice = h("p.live-advice");
  const charts = h("div.live-charts");
  const title = h("h2");
  const facts = h("p.dim");
  const plan = h("pre.mono.live-plan", { tabindex: "0", "aria-label": "What runs where" });
  const problem = h("p.error", { role: "alert", hidden: true });
  const which = h("select", { "aria-label": "Loader", onchange: () => state.set({ live_loader: which.value === "0" ? "" : which.value }) });
  const span = h("select", { "aria-label": "Time shown", onchange: () => state.set({ live_span: span.value }, { replace: true }) },
    SPANS.map(([value, text]) => h("option", { value }, text)));
  const pause = h("button", { "aria-pressed": "false", onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) draw();
  } }, "Pause");
  const element = h("section.live", { "aria-label": "Live" },
    h("div.row", {}, title, which, span, pause), problem, facts, now, advice, charts,
    h("details", {}, h("summary", {}, "What runs where"), plan));

  async function look() {
    const turn = asked;
    try {
      const update = await ask("live", { since: next, loader });
      if (turn !== asked) return;
      problem.hidden = true;
      take(update);
      if (update.ended) say("This loader has ended.");
    } catch (error) {
      if (turn !== asked) return;
      say(error.status ? error.message : "The program has ended, or does not answer.");
    }
    if (shown && turn === asked) timer = setTimeout(look, every * 1000);
  }

  function say(text) {
    put(problem, text);
    problem.hidden = false;
  }

  function take(update) {
    names = Object.fromEntries(update.columns.map((name, at) => [name, at]));
    about = update.about;
    ({ next, every } = update);
    rows = [...rows, ...update.rows].slice(-KEPT);
    title.textContent = update.loaders.length < 2 ? "Loader" : `Loader ${update.loader}`;
    facts.textContent = `${number(about.samples)} samples in batches of ${number(about.batch_size)}, order ${about.order}, `
      + `${about.threads === 1 ? "1 thread" : `${about.threads} threads`}${about.world_size > 1 ? `, rank ${about.rank} of ${about.world_size}` : ""}${about.mesh ? `, ${about.mesh}` : ""}${about.device ? `, on ${about.device}` : ""}, process ${about.pid}`;
    put(plan, about.plan);
    advice.textContent = rows.length > 2 && update.advice ? `${update.advice[0].toUpperCase()}${update.advice.slice(1)}.` : "";
    which.hidden = update.loaders.length < 2;
    if (which.children.length !== update.loaders.length) {
      put(which, update.loaders.map((entry) => h("option", { value: entry.loader }, `${entry.loader}: ${entry.path}`)));
    }
    which.value = String(update.loader);
    if (!paused) draw();
  }

  const at = (row, name) => row[names[name]];
  /** How much a sum grew from one row to another, for each second between them. */
  const rate = (before, after, name) => (at(after, name) - at(before, name)) / (at(after, "time") - at(before, "time") || 1);

  function draw() {
    if (!rows.length) return;
    const last = rows[rows.length - 1];
    const since = Number(span.value);
    const recent = rows.filter((row) => at(row, "time") >= at(last, "time") - since - 1.5 * every);
    const some = thinned(recent);
    const before = rows[Math.max(0, rows.length - 1 - Math.round(5 / every))];
    numbers(before, last);
    const x = some.slice(1).map((row) => at(row, "time") - at(last, "time"));
    const rates = (name) => some.slice(1).map((row, index) => rate(some[index], row, name));
    const values = (name) => some.slice(1).map((row) => at(row, name));
    const axis = { xrange: [-since, 0], xname: ago };
    const chart = (heading, text, drawn) => h("div.card", {}, h("h3", {}, heading), h("p.dim", {}, text), drawn);
    const series = (list) => list.map(([name, y]) => ({ name, x, y }));
    const fetched = at(last, "fetched") > 0;
    put(charts,
      chart("Samples a second", "that your loop took",
        lines(series([["samples/s", rates("samples")]]), { label: `Samples a second, now ${short(rate(before, last, "samples"))}`, area: true, ...axis })),
      chart("Your loop waits", "the share of its time in which it has no batch; the rest is its own step",
        lines(series([["waits", rates("waited").map((value) => Math.max(0, Math.min(1, value)))]]), { label: "Share of the loop's time in which it waits", area: true, yrange: [0, 1], yname: percent, ...axis })),
      chart("Queue", `batches, of at most ${about.prefetch_batches} ahead; none ready means that your loop waits`,
        lines(series([["ready", values("ready")], ["being made", values("making")]]), { label: "Batches that are ready and that are being made", yrange: [0, about.prefetch_batches], ...axis })),
      chart("Where batches spend their time", "seconds of background threads in each second; decode includes waiting for a free thread",
        lines(series(["storage", "decode", "transforms", "device"].map((name) => [name, rates(name)]).filter(([, y]) => y.some((value) => value > 0))), { label: "Seconds in each second by part", ...axis })),
      chart("Decoding threads", `how many of ${about.threads} are busy`,
        lines(series([["decode", rates("thread_decode")], ["resize", rates("thread_resize")]]), { label: "Threads that decode and resize", yrange: [0, about.threads], ...axis })),
      chart("This process", "memory in use",
        lines(series([["memory", values("memory")]]), { label: `Memory, now ${bytes(at(last, "memory"))}`, yname: size, ...axis })),
      fetched && chart("Network", "bytes fetched a second",
        lines(series([["bytes/s", rates("fetched")]]), { label: "Bytes fetched a second", yname: size, ...axis })));
  }

  /** Some of the rows, equally far apart; the last one always. Sums stay exact. */
  function thinned(list) {
    const step = Math.max(1, Math.ceil(list.length / DRAWN));
    return list.filter((_, index) => (list.length - 1 - index) % step === 0);
  }

  function numbers(before, last) {
    const speed = rate(before, last, "samples");
    const wait = Math.max(0, Math.min(1, rate(before, last, "waited")));
    const epoch = at(last, "epoch");
    const figure = (value, text, kind = "") => h(`div.live-figure${kind}`, {}, h("strong", {}, value), h("span.dim", {}, text));
    put(now,
      figure(before === last ? "…" : short(speed), "samples/s"),
      figure(before === last ? "…" : `${Math.round(100 * wait)} %`, "of the time your loop waits", wait > 0.5 ? ".warn" : ""),
      figure(`${at(last, "ready")} of ${about.prefetch_batches}`, "batches ready"),
      figure(epoch < 0 ? "–" : number(epoch), epoch < 0 ? "no epoch yet" : `epoch: ${number(at(last, "given"))} of ${number(at(last, "of"))} batches`),
      figure(number(at(last, "samples")), "samples so far"),
      figure(`${before === last ? "…" : rate(before, last, "cpu").toFixed(1)}`, "cores busy"),
      at(last, "skipped") > 0 && figure(number(at(last, "skipped")), "samples left out", ".warn"));
  }

  return {
    element,
    show(current) {
      span.value = SPANS.some(([seconds]) => seconds === current.live_span) ? current.live_span : SPANS[0][0];
      const wanted = current.live_loader ?? "0";
      if (wanted !== loader || !shown) {
        if (wanted !== loader) { rows = []; next = 0; put(charts); put(now); }
        loader = wanted;
        shown = true;
        asked += 1;
        clearTimeout(timer);
        return look();
      }
      draw();
    },
    hide() {
      shown = false;
      asked += 1;
      clearTimeout(timer);
    },
  };
}

const percent = (value) => `${Math.round(100 * value)} %`;
/** Bytes in few letters, for an axis. */
const size = (value) => bytes(value).replace(/\.\d+ /, " ");

function ago(seconds) {
  const whole = Math.round(-seconds);
  return whole === 0 ? "now" : whole >= 120 && whole % 60 === 0 ? `−${whole / 60} min` : `−${whole} s`;
}
