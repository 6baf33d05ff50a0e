"""Options that choose an engine: --engine, --processes, --scheduler; for ranks --rank and --world-size."""

from __future__ import annotations

import argparse

from ..jobs import engines

# What results come back from.
RETURNING = tuple(name for name in engines.NAMES if name != "ranks")


def add_engine(parser: argparse._ActionsContainer, verb: str, *, ranks: bool = False) -> None:
    """``what`` they do: "writes the shards". ``ranks``: also as one of several processes."""
    parser.add_argument(
        "--engine", choices=engines.NAMES if ranks else RETURNING,
        help=f"who {verb} (default: threads of this process)",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, metavar="N", help="workers of processes, dask or ray")
    if ranks:
        parser.add_argument("--rank", type=int, metavar="R", help="of ranks, if the environment is silent")
        parser.add_argument("--world-size", type=int, metavar="N", help="how many ranks there are")
    parser.add_argument("--scheduler", metavar="ADDR", help="of dask or ray (default: a local cluster)")


def engine_of(args: argparse.Namespace, workers: int | None = None) -> engines.Engine:
    """``workers``: of engines on this machine, where nothing else is said."""
    rank, world_size = getattr(args, "rank", None), getattr(args, "world_size", None)
    usual = "threads" if rank is None else "ranks"
    if args.processes is not None and rank is None:
        usual = "processes"
    name = args.engine or usual
    if args.processes is None and args.scheduler is None and name in ("processes", "dask", "ray"):
        args.processes = workers
    return engines.make(
        name, workers=args.processes, rank=rank, world_size=world_size, scheduler=args.scheduler
    )
