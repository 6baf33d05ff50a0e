"""Say what a training run on many machines would do, from a plan: no data, no network.

examples:
  batchplant simulate --example > plan.yaml        (a plan with every name explained)
  batchplant simulate plan.yaml
  batchplant simulate plan.yaml --set ranks=4096 --set store.latency=80ms
  batchplant simulate plan.yaml --set samples=1e10 --figure run.png
  batchplant simulate plan.toml --json

The loader's own order, prefetch and block pool run in virtual time; the plan (.yaml, .toml or .json) says how
fast links, disks and decoders are. Of large plans a few ranks and batches are simulated, and the output says
which. `--set` without a plan changes the defaults, which `--example` shows.
"""

from __future__ import annotations

import argparse

from ..errors import OptionError
from ..tools.measure import figures
from ..tools.simulation import Epoch, Plan, Simulation, example, hints, read_plan, simulate
from ..tools.simulation.results import draw
from .terminal import console, counted, human_size, progress_bar, show_result, wrapped


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", nargs="?", help="a file: .yaml, .toml or .json")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="changes",
        help="another value than the plan's, as ranks=1000 or store.bandwidth=10GB/s",
    )  # fmt: skip
    parser.add_argument("--example", action="store_true", help="print a plan to start from")
    parser.add_argument("--figure", metavar="FILE", help="draw it into a .png, .svg or .pdf")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    if args.example:
        print(example(), end="")
        return 0
    if args.plan is None and not args.changes:
        raise OptionError("which plan? `batchplant simulate --example > plan.yaml` makes one to start from")
    figures.check(args.figure)
    plan = Plan() if args.plan is None else read_plan(args.plan)
    changes = {}
    for change in args.changes:
        name, equals, value = change.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"{change!r} is not NAME=VALUE")
        changes[name.strip()] = value.strip()
    plan = plan.set(changes)
    with progress_bar("simulating", quiet=args.quiet or args.json) as progress:
        simulation = simulate(plan, progress)
    document = {**simulation.as_dict(), "hints": list(hints(simulation))}
    show_result(args, document, lambda: _print(simulation), lambda: draw(simulation))
    return 0


def _print(simulation: Simulation) -> None:
    plan, screen = simulation.plan, console()
    lanes = ", lanes" if plan.loader.lanes and plan.loader.order in ("quasi_random", "shards") else ""
    wrapped(
        f"{counted(plan.data.samples)} of {human_size(plan.data.sample_bytes)} in "
        f"{counted(plan.data.files, 'file')} ({human_size(plan.bytes)}); "
        f"{counted(plan.cluster.ranks, 'rank')} on {counted(plan.nodes, 'node')}; "
        f"{plan.loader.order}{lanes}, batches of {plan.loader.batch_size:,}"
    )
    print()
    shown = figures.table("", "first epoch", "a later one")
    epochs = (simulation.first, simulation.later)

    def row(name: str, *texts: str) -> None:
        shown.add_row(name, *texts)

    row("samples/s of all ranks", *(f"{epoch.samples_per_second:,.0f}" for epoch in epochs))
    row("an epoch", *(_time(epoch.seconds) for epoch in epochs))
    row("fetched by a rank", *(human_size(epoch.bytes) for epoch in epochs))
    row("requests of a rank", *(f"{epoch.requests:,.0f}" for epoch in epochs))
    row("from the node's cache", *(f"{epoch.hit_rate:.1%}" for epoch in epochs))
    row("most / average of a rank", *(f"{epoch.imbalance:.3f}" for epoch in epochs))
    row("first batch", *(_time(epoch.first_batch) for epoch in epochs))
    screen.print(shown)
    print()
    wrapped(f"limited by {_limits(*epochs)}")
    if demand := simulation.demand:
        store = human_size(round(demand.store_bytes_per_second))
        node = human_size(round(demand.node_bytes_per_second))
        wrapped(
            f"steps wait for batches {demand.input_bound:.0%} of the time; they need "
            f"{demand.samples_per_second:,.0f} samples/s: {store}/s of the store, {node}/s into each node "
            f"where nothing is kept, and for each rank {demand.decoders:.2g} times the plan's decode"
        )
    wrapped(
        f"until the first batch: {_time(simulation.start_seconds)} at the start, "
        f"{_time(simulation.resume_seconds)} after a resume; "
        f"opening takes {_time(simulation.open_seconds)} of it"
    )
    lowest, highest = simulation.samples_per_rank
    samples_text = f"{lowest:,}" if lowest == highest else f"{lowest:,} to {highest:,}"
    left_text = f", {simulation.left_out:,} are left out" if simulation.left_out else ""
    wrapped(f"{samples_text} samples for each rank in {plan.steps:,} batches{left_text}")
    wrapped(f"the largest batch of a step has {simulation.step_imbalance:.3f} times the average's bytes")
    if plan.node.cache:
        second, late = simulation.hit_rates
        wrapped(f"cache of a node: {second:.1%} of the bytes in the second epoch, {late:.1%} in the long run")
    if simulation.order_bytes:
        wrapped(f"the order takes {human_size(simulation.order_bytes)} of each rank's memory")
    for hint in hints(simulation):
        wrapped(f"hint: {hint}")
    wrapped(f"sampled: {simulation.sampled}")


def _limits(first: Epoch, later: Epoch) -> str:
    return first.limit if first.limit == later.limit else f"{first.limit}; later by {later.limit}"


def _time(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"
