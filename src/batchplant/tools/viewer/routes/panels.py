"""Answers to the panels of the page: overview, health, order, augmentation and live loaders."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable
from typing import Any

from starlette.requests import Request

from ....data.reader import Reader
from ....errors import NotFoundError, Problem, shown
from ....jobs.verify import verify as verify_reader
from ....schema.columns import I64
from ... import Document, doctor
from ..augment import MAX_VIEWS, augment_sample
from ..cells import cells_of
from ..epochs import Epoch, EpochOptions, label_field
from ..jobs import Job, Progress
from ..maps import map_of
from ..overview import collect_overview
from ..pipelines import OFFERED_OPS
from ..render import summarize
from ..rows import filtered_rows
from ..session import Session, integer_param

# Problems that the page gets; verify stops there.
MAX_PROBLEMS = 1000
# Samples of a batch that are shown with their cells.
MAX_BATCH_SAMPLES = 64
# Attributes of a finding that the page shows as they are.
FINDING_PARTS = ("check", "severity", "message", "count", "of", "unit", "about", "field", "mend")
_SAMPLE_NUMBER = re.compile(r"\bsample (\d[\d,]*)")


def overview(session: Session, request: Request) -> Job:
    """Statistics of some of the samples that a filter leaves, or with ``exact`` of all of them."""
    params = request.query_params
    dataset, exact = session.dataset, bool(params.get("exact"))
    query, rows = filtered_rows(session, dataset, params)
    return session.jobs.get(
        ("overview", query, exact),
        lambda progress: collect_overview(dataset.reader, rows, exact=exact, progress=progress),
    )


def embedding(session: Session, request: Request) -> Job:
    """The points of an embedding ``field`` of the samples that a filter leaves, in groups of ``classes``."""
    params = request.query_params
    dataset, names = session.dataset, (params.get("field", ""), params.get("classes", ""))
    query, rows = filtered_rows(session, dataset, params)
    return session.jobs.get(("map", query, *names), lambda progress: map_of(dataset, *names, rows))


# -- health --------------------------------------------------------------------------------------------------


def verify(session: Session, request: Request) -> Job:
    """Problems that verify finds. ``decode``: decode every cell, too. ``sample``: check so many samples."""
    params = request.query_params
    dataset, decode = session.dataset, bool(params.get("decode"))
    sample = integer_param(params, "sample", 0, 0, 1 << 48) or None
    query, rows = filtered_rows(session, dataset, params)

    def work(progress: Progress) -> Document:
        reader = dataset.reader if rows is None else dataset.reader.subset(rows)
        report = verify_reader(
            reader, decode=decode, sample=sample, max_problems=MAX_PROBLEMS, progress=progress
        )
        return {
            "ok": report.ok,
            "samples": report.samples,
            "of": len(reader),
            "checks": list(report.checks),
            "problems": [_problem(problem, rows, dataset.reader) for problem in report.problems],
            "remarks": list(report.remarks),
        }

    return session.jobs.get(("verify", query, decode, sample), work)


def examine(session: Session, request: Request) -> Job:
    """Findings of the doctor, the worst first. ``all``: of every sample. ``world_size``: number of ranks."""
    params = request.query_params
    dataset, everything = session.dataset, bool(params.get("all"))
    world_size = integer_param(params, "world_size", 0, 0, 1 << 16) or None
    query, rows = filtered_rows(session, dataset, params)

    def work(progress: Progress) -> Document:
        reader = dataset.reader if rows is None else dataset.reader.subset(rows)
        sample = None if everything else doctor.SAMPLE
        return _findings(
            doctor.examine(reader, sample=sample, world_size=world_size, progress=progress), rows
        )

    return session.jobs.get(("doctor", query, everything, world_size), work)


def _findings(report: doctor.Report, rows: I64 | None) -> Document:
    checks = {check.name: check for check in doctor.CHECKS}
    findings = [
        {
            **{name: getattr(finding, name) for name in FINDING_PARTS},
            "title": checks[finding.check].title,
            "why": checks[finding.check].sentence,
            "examples": [
                _in_dataset(dataclasses.asdict(example), rows, report.path) for example in finding.examples
            ],
        }
        for finding in report.findings
    ]
    return {
        "ok": report.ok,
        "samples": report.samples,
        "looked_at": report.looked_at,
        "findings": findings,
        "checks": list(report.checks),
        "remarks": list(report.remarks),
    }


def _problem(problem: Problem, rows: I64 | None, reader: Reader) -> Document:
    entry = {name: getattr(problem, name) for name in ("message", "sample", "field", "offset")}
    if problem.path is not None and problem.path != reader.path:
        entry["path"] = shown(problem.path)
    return _in_dataset(entry, rows)


def _in_dataset(entry: Document, rows: I64 | None, path: str | None = None) -> Document:
    """Replace positions in ``rows`` by sample numbers; drop a path that is the dataset's."""
    sample = entry.get("sample")
    if sample is not None and rows is not None and 0 <= sample < len(rows):
        entry["sample"] = int(rows[sample])
    if rows is not None and entry.get("said"):
        # The text names another sample, such as the one that this is a copy of.
        entry["said"] = _SAMPLE_NUMBER.sub(lambda match: _sample_text(match[1], rows), entry["said"])
    if path is not None and entry.get("path") == path:
        entry["path"] = None
    return entry


def _sample_text(text: str, rows: I64) -> str:
    position = int(text.replace(",", ""))
    return f"sample {int(rows[position]):,}" if position < len(rows) else f"sample {text}"


# -- order of an epoch ---------------------------------------------------------------------------------------


def epoch(session: Session, request: Request) -> Job:
    """The chart of an epoch."""
    return _epoch_job(session, request, "image", lambda epoch, progress: epoch.chart(progress))


def step(session: Session, request: Request) -> Job:
    """The batch of rank ``rank`` at step ``step``, the first samples with their cells."""
    params = request.query_params
    options = EpochOptions.from_params(params)
    number = integer_param(params, "step", 0, 0, 2**48)
    rank = integer_param(params, "rank", 0, 0, options.world_size - 1)
    dataset = session.dataset

    def work(epoch: Epoch, _: Progress) -> Document:
        batch = epoch.step(number, rank)
        samples = batch["samples"][:MAX_BATCH_SAMPLES].tolist()
        rows = cells_of(dataset, samples, dataset.reader.schema)
        batch["shown"] = [
            {"sample": sample, "cells": {name: summarize(cell) for name, cell in cells.items()}}
            for sample, cells in zip(samples, rows, strict=True)
        ]
        return batch

    return _epoch_job(session, request, ("step", number, rank), work)


def when(session: Session, request: Request) -> Job:
    """The steps and ranks that see sample ``n``."""
    dataset = session.dataset
    sample = session.sample(dataset, request.path_params["n"])
    return _epoch_job(
        session,
        request,
        ("when", sample),
        lambda epoch, progress: {"seen": epoch.appearances(sample, progress)},
    )


def _epoch_job(
    session: Session, request: Request, name: Hashable, work: Callable[[Epoch, Progress], Any]
) -> Job:
    params = request.query_params
    dataset, options = session.dataset, EpochOptions.from_params(params)
    label = label_field(dataset.reader, params.get("label"))
    query, rows = filtered_rows(session, dataset, params)
    key = (query, options, label)
    # All requests about one epoch share its blocks and labels.
    job = session.jobs.get(
        ("epoch", *key), lambda progress: Epoch(dataset.reader, rows, options, label, progress)
    )
    if not job.finished.is_set() or job.error is not None:
        return job
    return session.jobs.get((name, *key), lambda progress: work(job.value, progress))


# -- augmentation and live loaders ---------------------------------------------------------------------------


def offered_ops(session: Session, request: Request) -> Document:
    """The ops that the page offers, and whether the user gave a pipeline."""
    ops = [
        {
            "name": name,
            "arguments": [{"name": argument, "value": value} for argument, value in defaults.items()],
        }
        for name, defaults in OFFERED_OPS.items()
    ]
    return {"ops": ops, "pipeline": session.pipeline is not None}


def augment(session: Session, request: Request) -> Job:
    """A sample as the loader yields it in ``count`` epochs."""
    params = request.query_params
    dataset = session.dataset
    sample = session.sample(dataset, request.path_params["sample"])
    ops = params.get("ops", "")
    seed = integer_param(params, "seed", 0, 0, 1 << 62) if "seed" in params else None
    epoch = integer_param(params, "epoch", 0, 0, 1 << 40)
    count = integer_param(params, "count", 1, 1, MAX_VIEWS)
    return session.jobs.get(
        ("augment", sample, ops, seed, epoch, count),
        lambda progress: augment_sample(
            session, dataset, sample, ops=ops, seed=seed, epoch=epoch, count=count
        ),
    )


def live(session: Session, request: Request) -> Document:
    """The measurements of a loader from row ``since`` on, and the loaders that there are."""
    if session.live is None:
        raise NotFoundError("no loader runs here; show one with loader.dashboard()")
    params = request.query_params
    watch = session.live.find(integer_param(params, "loader", 0, 0, 1 << 20))
    if watch is None:
        raise NotFoundError(f"there is no loader {params['loader'][:20]}")
    loaders = [
        {"loader": watch.number, "path": watch.about["path"], "ended": watch.ended}
        for watch in session.live.watches
    ]
    return {**watch.report(integer_param(params, "since", 0, 0, 1 << 60)), "loaders": loaders}


ROUTES = {
    "overview": overview,
    "map": embedding,
    "verify": verify,
    "doctor": examine,
    "epoch": epoch,
    "step": step,
    "when/{n}": when,
    "augment": offered_ops,
    "augment/{sample}": augment,
    "live": live,
}
