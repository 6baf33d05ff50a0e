// What is wrong with the dataset: what verify and doctor find, with links to the samples.

import { h, number, put } from "../dom.js";
import * as state from "../state.js";
import { chosen, field, filterNote, result, runner, sampleLink } from "./shared.js";

// Samples that are checked without being asked.
const SOME = 200;
const MARKS = { error: "✕", warning: "!", note: "i" };

export function create(context) {
  const [note, ofVerify, ofDoctor] = [h("div"), h("div"), h("div")];
  const [verify, doctor] = [ofVerify, ofDoctor].map((box) => runner(box, context.say));
  const decode = h("input", { type: "checkbox", checked: true });
  const world_size = h("input", { type: "number", min: 1, step: 1, size: 6, placeholder: "any" });
  let made = null;

  const check = (sample) => verify.run(sample ? `Checking ${number(sample)} samples` : "Checking all samples", async (told, signal) =>
    problems(await result("verify", { ...chosen(state.get()), decode: decode.checked, sample }, told, signal)));
  const examine = (all) => doctor.run(all ? "Examining all samples" : "Examining some samples", async (told, signal) =>
    findings(await result("doctor", { ...chosen(state.get()), all, world_size: world_size.value }, told, signal)));

  const element = h("section.health", { "aria-label": "Health" }, note,
    h("article.card", {}, h("h2", {}, "Is it sound?"), h("p.dim", {}, "Structure, bounds and checksums of every sample, as batchplant verify does."),
      h("div.row.toolbar", {}, h("button.main", { onclick: () => check(0) }, "Check all samples"),
        context.dataset.samples > SOME ? h("button", { onclick: () => check(SOME) }, `Check ${SOME} of them`) : null, h("label.check", {}, decode, "decode every cell, too")), ofVerify),
    h("article.card", {}, h("h2", {}, "Will it spoil training?"), h("p.dim", {}, "Duplicates, sorted labels, odd images, awkward files, as batchplant doctor does."),
      h("div.row.toolbar", {}, h("button.main", { onclick: () => examine(true) }, "Examine all samples"),
        h("button", { onclick: () => examine(false) }, "Examine some"), field("Ranks", world_size)), ofDoctor));

  return {
    element,
    show(now) {
      const key = JSON.stringify(chosen(now));
      if (key === made) return;
      made = key;
      put(note, filterNote(now));
      check(SOME);
      examine(false);
    },
    hide() {},
  };
}

function problems(found) {
  const count = found.problems.length;
  const part = found.samples < found.of ? ` of ${number(found.of)}` : "";
  return [
    h(`p.verdict.${found.ok ? "good" : "bad"}`, { role: "status" }, found.ok ? "✓ Nothing wrong" : `✕ ${number(count)} problem${count > 1 ? "s" : ""}`,
      h("span.dim", {}, ` in ${number(found.samples)}${part} samples; checked ${found.checks.join(", ")}`)),
    count ? h("ul.problems", {}, found.problems.map((one) => h("li", {},
      place(one, one.message), one.path ? h("span.dim.mono", {}, ` ${one.path}`) : null, one.offset === null ? null : h("span.dim", {}, ` byte ${number(one.offset)}`)))) : null,
    found.remarks.map((remark) => h("p.dim", {}, remark)),
  ];
}

function place(one, said) {
  if (one.sample === null || one.sample === undefined) return said;
  return [sampleLink(one.sample), one.field ? h("span.dim", {}, ` ${one.field}`) : null, said ? `: ${said}` : null];
}

function findings(found) {
  const part = found.looked_at < found.samples ? [h("span.sampled", {}, "sampled"), ` ${number(found.looked_at)} of ${number(found.samples)} samples`] : `all ${number(found.samples)} samples`;
  return [
    h(`p.verdict.${found.findings.length ? "bad" : "good"}`, { role: "status" },
      found.findings.length ? `${number(found.findings.length)} finding${found.findings.length > 1 ? "s" : ""}` : "✓ Nothing found", h("span.dim", {}, ` by ${number(found.checks.length)} checks in `, part)),
    found.findings.map((one) => h(`article.finding.${one.severity}`, {},
      h("h3", {}, h(`span.severity.${one.severity}`, {}, h("span", { "aria-hidden": "true" }, MARKS[one.severity]), ` ${one.severity}`), ` ${one.check}`,
        h("span.dim", {}, ` ${one.about ? "about " : ""}${number(one.count)} of ${number(one.of)} ${one.unit}`)),
      h("p", {}, one.message),
      one.examples.length ? h("ul.problems", {}, one.examples.map((example) => h("li", {}, place(example, [example.key ?? example.path, example.said].filter(Boolean).join(" – "))))) : null,
      one.mend ? h("pre.mend", { tabindex: "0" }, one.mend) : null,
      h("p.dim", {}, one.why))),
    found.remarks.map((remark) => h("p.dim", {}, remark)),
  ];
}
