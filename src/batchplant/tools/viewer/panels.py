"""Answers to the panels of the page: overview, maps, health, order, augmentation and live loaders."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable
from typing import Any

from ...data.reader import Reader
from ...errors import NotFoundError, Problem, shown
from ...jobs.verify import verify as verify_reader
from ...schema.columns import I64
from .. import Document, doctor
from .augment import MAX_VIEWS, OFFERED_OPS, augment_sample
from .cells import Progress, cells_of
from .epochs import Epoch, EpochOptions, label_field
from .overview import collect_overview, map_of
from .render import summarize
from .rows import filtered_rows
from .session import Job, PageRequest, Routes

# Problems that the page gets; verify stops there.
MAX_PROBLEMS = 1000
# Samples of a batch that are shown with their cells.
MAX_BATCH_SAMPLES = 64
# Attributes of a finding that the page shows as they are.
FINDING_PARTS = ("check", "severity", "message", "count", "of", "unit", "about", "field", "mend")
_SAMPLE_NUMBER = re.compile(r"\bsample (\d[\d,]*)")


def overview(request: PageRequest) -> Job:
    """Statistics of some of the samples that a filter leaves, or with ``exact`` of all of them."""
    exact = bool(request.text("exact"))
    query, rows = filtered_rows(request)
    return request.job(
        ("overview", query, exact),
        lambda progress: collect_overview(request.reader, rows, exact=exact, progress=progress),
    )


def embedding(request: PageRequest) -> Job:
    """The points of an embedding ``field`` of the samples that a filter leaves, in groups of ``classes``."""
    names = request.text("field"), request.text("classes")
    query, rows = filtered_rows(request)
    return request.job(("map", query, *names), lambda progress: map_of(request.reader, *names, rows))


# -- health --------------------------------------------------------------------------------------------


def verify(request: PageRequest) -> Job:
    """Problems that verify finds. ``decode``: decode every cell, too. ``sample``: check so many samples."""
    reader, decode = request.reader, bool(request.text("decode"))
    sample = request.integer("sample", 0, 0, 1 << 48) or None
    query, rows = filtered_rows(request)

    def work(progress: Progress) -> Document:
        subset = reader if rows is None else reader.subset(rows)
        report = verify_reader(
            subset, decode=decode, sample=sample, max_problems=MAX_PROBLEMS, progress=progress
        )
        problems = [_problem(problem, rows, reader) for problem in report.problems]
        return {**vars(report), "ok": report.ok, "of": len(subset), "problems": problems}

    return request.job(("verify", query, decode, sample), work)


def examine(request: PageRequest) -> Job:
    """Findings of the doctor, the worst first. ``all``: of every sample. ``world_size``: number of ranks."""
    reader, sample = request.reader, None if request.text("all") else doctor.SAMPLE
    world_size = request.integer("world_size", 0, 0, 1 << 16) or None
    query, rows = filtered_rows(request)

    def work(progress: Progress) -> Document:
        subset = reader if rows is None else reader.subset(rows)
        report = doctor.examine(subset, sample=sample, world_size=world_size, progress=progress)
        findings = [_finding(finding, rows, report.path) for finding in report.findings]
        return {**vars(report), "ok": report.ok, "findings": findings}

    return request.job(("doctor", query, sample, world_size), work)


def _finding(finding: doctor.Finding, rows: I64 | None, path: str) -> Document:
    check = next(check for check in doctor.CHECKS if check.name == finding.check)
    return {
        **{name: getattr(finding, name) for name in FINDING_PARTS},
        "title": check.title,
        "why": check.sentence,
        "examples": [_in_dataset(dataclasses.asdict(example), rows, path) for example in finding.examples],
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


# -- order of an epoch ---------------------------------------------------------------------------------


def epoch(request: PageRequest) -> Job:
    """The chart of an epoch."""
    return _epoch_job(request, "image", lambda epoch, progress: epoch.chart(progress))


def step(request: PageRequest) -> Job:
    """The batch of rank ``rank`` at step ``step``, the first samples with their cells."""
    number = request.integer("step", 0, 0, 2**48)
    rank = request.integer("rank", 0, 0, EpochOptions.of(request).world_size - 1)
    dataset = request.dataset

    def work(epoch: Epoch, _: Progress) -> Document:
        batch = epoch.step(number, rank)
        samples = batch["samples"][:MAX_BATCH_SAMPLES].tolist()
        rows = cells_of(dataset, samples, dataset.reader.schema)
        batch["shown"] = [
            {"sample": sample, "cells": {name: summarize(cell) for name, cell in cells.items()}}
            for sample, cells in zip(samples, rows, strict=True)
        ]
        return batch

    return _epoch_job(request, ("step", number, rank), work)


def when(request: PageRequest) -> Job:
    """The steps and ranks that see sample ``n``."""
    sample = request.sample
    return _epoch_job(
        request,
        ("when", sample),
        lambda epoch, progress: {"seen": epoch.appearances(sample, progress)},
    )


def _epoch_job(request: PageRequest, name: Hashable, work: Callable[[Epoch, Progress], Any]) -> Job:
    options, label = EpochOptions.of(request), label_field(request.reader, request.params.get("label"))
    query, rows = filtered_rows(request)
    key = (query, options, label)
    # All requests about one epoch share its blocks and labels.
    job = request.job(("epoch", *key), lambda progress: Epoch(request.reader, rows, options, label, progress))
    return job if job.pending else request.job((name, *key), lambda progress: work(job.value, progress))


# -- augmentation and live loaders ---------------------------------------------------------------------


def offered_ops(request: PageRequest) -> Document:
    """The ops that the page offers, and whether the user gave a pipeline."""
    ops = [
        {
            "name": name,
            "arguments": [{"name": argument, "value": value} for argument, value in defaults.items()],
        }
        for name, defaults in OFFERED_OPS.items()
    ]
    return {"ops": ops, "pipeline": request.session.pipeline is not None}


def augment(request: PageRequest) -> Job:
    """A sample as the loader yields it in ``count`` epochs."""
    sample, ops = request.sample, request.text("ops")
    seed = request.integer("seed", 0, 0, 1 << 62) if "seed" in request.params else None
    epoch = request.integer("epoch", 0, 0, 1 << 40)
    count = request.integer("count", 1, 1, MAX_VIEWS)

    def work(progress: Progress) -> Document:
        loader = request.session.loaders.get(request.reader, request.session.pipeline, ops, seed)
        return augment_sample(loader, request.dataset, sample, epoch=epoch, count=count)

    return request.job(("augment", sample, ops, seed, epoch, count), work)


def live(request: PageRequest) -> Document:
    """The measurements of a loader from row ``since`` on, and the loaders that there are."""
    board = request.session.live
    if board is None:
        raise NotFoundError("no loader runs here; show one with loader.dashboard()")
    watch = board.find(request.integer("loader", 0, 0, 1 << 20))
    if watch is None:
        raise NotFoundError(f"there is no loader {request.text('loader')[:20]}")
    loaders = [
        {"loader": watch.number, "path": watch.about["path"], "ended": watch.ended} for watch in board.watches
    ]
    return {**watch.report(request.integer("since", 0, 0, 1 << 60)), "loaders": loaders}


ROUTES: Routes = {
    "overview": overview,
    "map": embedding,
    "verify": verify,
    "doctor": examine,
    "epoch": epoch,
    "step": step,
    "when/{n}": when,
    "augment": offered_ops,
    "augment/{n}": augment,
    "live": live,
}
