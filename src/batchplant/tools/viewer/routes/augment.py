"""Samples after augmentation, and the ops that can be picked for it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ..augment import MOST_VIEWS, augmented
from ..jobs import Job
from ..pipelines import OFFERED
from ..session import Session, whole


def offered(session: Session, request: Request) -> dict[str, Any]:
    ops = [
        {"name": name, "arguments": [{"name": one, "value": value} for one, value in given.items()]}
        for name, given in OFFERED.items()
    ]
    return {"ops": ops, "pipeline": session.pipeline is not None}


def augment(session: Session, request: Request) -> Job:
    params = request.query_params
    side = session.side(params)
    sample = session.sample(side, request.path_params["sample"])
    ops = params.get("ops", "")
    seed = whole(params, "seed", 0, 0, 1 << 62) if "seed" in params else None
    epoch, count = whole(params, "epoch", 0, 0, 1 << 40), whole(params, "count", 1, 1, MOST_VIEWS)
    key = "augment", side.name, sample, ops, seed, epoch, count
    return session.jobs.get(
        key,
        lambda told: augmented(session, side, sample, ops=ops, seed=seed, epoch=epoch, count=count),
        wait=0.2,
    )


ROUTES = {"augment": offered, "augment/{sample}": augment}
