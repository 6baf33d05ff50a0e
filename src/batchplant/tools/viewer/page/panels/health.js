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
  let shownKey = null;

  const check = (sample) => verify.run(sample ? `Checking ${number(sample)} samples` : "Checking all samples", async (progress, signal) =>
    problems(await result("verify", { ...chosen(state.get()), decode: decode.checked, sample }, progress, signal)));
  const examine = (all) => doctor.run(all ? "Examining all samples" : "Examining some samples", async (progress, signal) =>
    findings(await result("doctor", { ...chosen(state.get()), all, world_size: world_size.value }, progress, signal)));

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
      if (key === shownKey) return;
      shownKey = key;
      put(note, filterNote(now));
      check(SOME);
      examine(false);
    },
    hide() {},
  };
}

function problems(report) {
  const count = report.problems.length;
  const part = report.samples < report.of ? ` of ${number(report.of)}` : "";
  return [
    h(`p.verdict.${report.ok ? "good" : "bad"}`, { role: "status" }, report.ok ? "✓ Nothing wrong" : `✕ ${number(count)} problem${count > 1 ? "s" : ""}`,
      h("span.dim", {}, ` in ${number(report.samples)}${part} samples; checked ${report.checks.join(", ")}`)),
    count ? h("ul.problems", {}, report.problems.map((problem) => h("li", {},
      place(problem, problem.message), problem.path ? h("span.dim.mono", {}, ` ${problem.path}`) : null, problem.offset === null ? null : h("span.dim", {}, ` byte ${number(problem.offset)}`)))) : null,
    report.remarks.map((remark) => h("p.dim", {}, remark)),
  ];
}

function place(entry, text) {
  if (entry.sample === null || entry.sample === undefined) return text;
  return [sampleLink(entry.sample), entry.field ? h("span.dim", {}, ` ${entry.field}`) : null, text ? `: ${text}` : null];
}

function findings(report) {
  const part = report.looked_at < report.samples ? [h("span.sampled", {}, "sampled"), ` ${number(report.looked_at)} of ${number(report.samples)} samples`] : `all ${number(report.samples)} samples`;
  return [
    h(`p.verdict.${report.findings.length ? "bad" : "good"}`, { role: "status" },
      report.findings.length ? `${number(report.findings.length)} finding${report.findings.length > 1 ? "s" : ""}` : "✓ Nothing found", h("span.dim", {}, ` by ${number(report.checks.length)} checks in `, part)),
    report.findings.map((finding) => h(`article.finding.${finding.severity}`, {},
      h("h3", {}, h(`span.severity.${finding.severity}`, {}, h("span", { "aria-hidden": "true" }, MARKS[finding.severity]), ` ${finding.severity}`), ` ${finding.check}`,
        h("span.dim", {}, ` ${finding.about ? "about " : ""}${number(finding.count)} of ${number(finding.of)} ${finding.unit}`)),
      h("p", {}, finding.message),
      finding.examples.length ? h("ul.problems", {}, finding.examples.map((example) => h("li", {}, place(example, [example.key ?? example.path, example.said].filter(Boolean).join(" – "))))) : null,
      finding.mend ? h("pre.mend", { tabindex: "0" }, finding.mend) : null,
      h("p.dim", {}, finding.why))),
    report.remarks.map((remark) => h("p.dim", {}, remark)),
  ];
}
