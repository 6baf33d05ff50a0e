"""The epoch as a Loader reads it: the image of it, what a step of a rank sees, when a sample is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from ..cells import short
from ..cells.cell import cells_of
from ..epochs import Epoch, Wish, label_of
from ..jobs import Job, Progress
from ..rows import chosen
from ..session import Session, whole

# Samples of a batch that are shown with their cells.
SHOWN = 64


def epoch(session: Session, request: Request) -> Job:
    return _job(session, request, "image", lambda one, told: one.image(told))


def step(session: Session, request: Request) -> Job:
    """What rank ``rank`` sees at step ``step``, the first samples with their cells."""
    params = request.query_params
    wish = Wish.of(params)
    number, rank = whole(params, "step", 0, 0, 2**48), whole(params, "rank", 0, 0, wish.world_size - 1)
    side = session.side(params)

    def seen(one: Epoch, _: Progress) -> dict[str, Any]:
        found = one.step(number, rank)
        numbers = found["samples"][:SHOWN].tolist()
        cells = cells_of(side, numbers, side.reader.schema)
        found["shown"] = [
            {"sample": sample, "cells": {name: short(cell) for name, cell in some.items()}}
            for sample, some in zip(numbers, cells, strict=True)
        ]
        return found

    return _job(session, request, ("step", number, rank), seen)


def when(session: Session, request: Request) -> Job:
    """When sample ``n`` is seen."""
    side = session.side(request.query_params)
    number = session.sample(side, request.path_params["n"])
    return _job(session, request, ("when", number), lambda one, told: {"seen": one.place(number, told)})


def _job(session: Session, request: Request, what: Any, work: Callable[[Epoch, Progress], Any]) -> Job:
    params = request.query_params
    side, wish = session.side(params), Wish.of(params)
    label = label_of(side.reader, params.get("label"))
    query, rows = chosen(session, side, params)
    key = (side.name, query, wish, label)
    # The blocks and labels that it goes by are the same for all that is asked of one epoch.
    job = session.jobs.get(
        ("epoch", *key), lambda told: Epoch(side.reader, rows, wish, label, told), wait=0.2
    )
    if not job.finished.is_set() or job.error is not None:
        return job
    return session.jobs.get((what, *key), lambda told: work(job.value, told), wait=0.2)


ROUTES = {"epoch": epoch, "step": step, "when/{n}": when}
