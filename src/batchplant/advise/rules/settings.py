"""Rules about how the data is written and loaded: shards, order, workers, what is kept."""

from __future__ import annotations

from .base import Case, Seen, no, rule
from .data import UNIT

SHARD = 512 << 20
NETWORK_SHARD = 256 << 20
# Shards for each reader: with fewer, some wait for others at the end of an epoch.
EACH = 4


@rule(
    "Shards let several machines read at once, and a copy that breaks off begins anew in the middle.",
    "shard-size",
)
def shards(case: Case) -> Seen:
    size = case.facts.bytes or 0
    readers = case.answers.gpus if case.loads else 1
    shared = case.storage != "nvme" or case.goal in ("stream", "share") or readers > 1
    unit = NETWORK_SHARD if case.storage == "s3" else SHARD
    if not shared:
        return no("one machine reads it from its own disk: one file")
    if size < 2 * unit and readers * EACH * (8 << 20) > size:
        return no(f"{size / 1e6:,.0f} MB: one file")
    # A bound of both: not less than 8 MB, which a request or a seek is small beside.
    shard = max(8 << 20, min(unit, size // (readers * EACH)))
    return Seen(
        f"{size / 1e9:,.2f} GB for {readers} readers: shards of {shard / 1e6:,.0f} MB",
        settings={"shard_size": shard},
    )


@rule("Small row groups keep shuffled reading quick; large ones suit scans.", "row-groups")
def row_groups(case: Case) -> Seen:
    if case.goal == "train":
        return Seen("samples are read in random order", settings={"unit_bytes": UNIT})
    if case.goal == "analyse":
        return Seen("columns are read from start to end", settings={"unit_bytes": 16 * UNIT})
    return no(f"the goal is {case.goal}: as the format has it")


@rule("Random order where any sample is near; by blocks where each costs a request or a seek.",
      "docs/guides/shuffling.md#which-one-to-take")  # fmt: skip
def order(case: Case) -> Seen:
    if case.goal == "stream":
        return Seen("a stream is read as it lies", settings={"order": "sequential"})
    if case.goal != "train":
        return no(f"the goal is {case.goal}")
    if case.storage == "s3" and not _cached(case):
        return Seen("samples come from a bucket: block by block", settings={"order": "quasi_random"})
    if case.larger_than_memory:
        return Seen("larger than the memory: block by block", settings={"order": "quasi_random"})
    return Seen("it fits into memory: any order is as quick", settings={"order": "random"})


def _cached(case: Case) -> bool:
    """Whether a cache of the whole on the local disk is small beside the machine."""
    return (case.facts.bytes or 0) < case.machine.memory


@rule("Threads decode; each rank takes its share of the cores.", "docs/guides/loading.md#several-processes")
def workers(case: Case) -> Seen:
    if not case.loads:
        return no(f"the goal is {case.goal}")
    each = max(1, case.machine.cores // case.answers.gpus)
    said = (
        f"{case.machine.cores} cores for {case.answers.gpus} GPUs" if case.answers.gpus > 1 else "all cores"
    )
    return Seen(said, settings={"workers": each})


@rule(
    "Batches made ahead bridge what is uneven: requests more than a disk.",
    "docs/guides/how-loading-works.md#prefetching",
)
def ahead(case: Case) -> Seen:
    if not case.loads:
        return no(f"the goal is {case.goal}")
    batches = {"nvme": 3, "nfs": 4, "s3": 6}[case.storage]
    return Seen(f"{case.storage}: {case.machine.latency_ms:,.1f} ms a request", settings={"ahead": batches})


@rule(
    "What came over the network once need not come again.",
    "docs/guides/data-in-a-bucket.md#the-cache-on-disk",
)
def cache(case: Case) -> Seen:
    if not case.loads or case.storage != "s3":
        return no("it is not loaded from a bucket")
    if not case.facts.remote:
        return Seen("give the Loader source_options={'cache': DIR} once it is in the bucket")
    return Seen("a cache on the local disk holds what was fetched", settings={"cache": True})
