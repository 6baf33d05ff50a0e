"""The processes of a run with gloo: ``python mesh_script.py SIZE STORE DATASET`` prints JSON of each.

They are forked from one that has imported PyTorch and batchplant, which takes seconds.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

# Batches that are trained before the run is stopped.
STOP = 2


def ids(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch["ids"]]


def epochs_of(ranks: int) -> dict[str, dict[str, Any]]:
    """Options of loaders, of which each makes two epochs."""
    return {
        "train": {"order": "random"},
        "full": {"order": "random", "drop_last": True},
        # The last rank gets none of them.
        "evaluate": {"evaluate": True, "indices": list(range(7, 6 + ranks))},
        "balanced": {"order": "random"},
    }


def sizes_of(samples: int) -> list[int]:
    return [number * number % 97 for number in range(samples)]


def train(data: str) -> dict[str, Any]:
    """Return what a rank gets of every epoch, and then of one that is stopped, with its state."""
    import torch
    import torch.distributed as dist

    import batchplant as bp

    samples = len(bp.open(data))

    def batches(loader: Any) -> list[list[int]]:
        return [batch["ids"].tolist() for batch in loader]

    found: dict[str, Any] = {}
    for name, options in epochs_of(dist.get_world_size()).items():
        if name == "balanced":
            options["order"] = bp.order.Balanced(options["order"], sizes=sizes_of(samples))
        loader = bp.Loader(data, 4, ids=True, workers=1, device="cpu", **options)
        found[name] = [batches(loader), batches(loader)]
        # Metrics of an evaluation are exact: sums and counts add up to those of the dataset.
        total = torch.tensor([sum(map(sum, found[name][1])), sum(map(len, found[name][1]))])
        dist.all_reduce(total)
        found[name].append(total.tolist())
    order = bp.order.Balanced("random", sizes=sizes_of(samples))
    loader = bp.Loader(data, 4, ids=True, workers=1, order=order)
    before = batches(itertools.islice(loader, STOP))
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    assert all(state == states[0] for state in states)
    return {"found": found, "before": before, "state": states[0]}


def check_training(result: list[dict[str, Any]], samples: int) -> list[int]:
    """Check what ``train`` returned on every rank; return the samples that were trained before the stop."""
    ranks = len(result)
    for name, options in epochs_of(ranks).items():
        parts = [report["found"][name] for report in result]
        wanted = options.get("indices", list(range(samples)))
        for epoch in range(2):
            batches = [part[epoch] for part in parts]
            counts = [len(batch) for batch in batches]
            assert counts == [*[1] * (ranks - 1), 0] if name == "evaluate" else len(set(counts)) == 1
            numbers = sorted(itertools.chain(*itertools.chain(*batches)))
            if name == "full":
                assert {len(batch) for rank in batches for batch in rank} == {4}
                assert len(numbers) == len(set(numbers)) == samples // (4 * ranks) * (4 * ranks)
            else:
                assert numbers == wanted, name
        if name == "evaluate":
            assert parts[0][0] == parts[0][1]
            assert [part[2] for part in parts] == [[sum(wanted), len(wanted)]] * ranks
        else:
            assert parts[0][0] != parts[0][1]
    before = list(itertools.chain(*itertools.chain(*(report["before"] for report in result))))
    assert 0 < len(before) < samples
    return before


def report_of(rank: int, size: int, store: str, plain: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    import batchplant as bp
    from batchplant.errors import OptionError

    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(store, size))
    report: dict[str, Any] = {}

    def make(**options: Any) -> Any:
        return bp.Loader(plain, 4, order="random", ids=True, **options)

    def refused(name: str, work: Any) -> None:
        report[name] = None
        try:
            work()
        except OptionError as error:
            report[name] = str(error)

    report["trained"] = train(plain)
    report["no mesh"] = ids(make())
    early = make()
    flat: Any = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    refused("only dp", make)
    del flat
    flat = init_device_mesh("cpu", (size,))
    refused("unnamed", make)
    del flat
    whole = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    parts = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("experts", "others"))
    refused("explained", make)
    del whole
    refused("not explained", make)
    del parts
    folded = init_device_mesh("cpu", (size,), mesh_dim_names=("fsdp",))
    parts = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("batch", "cp"))
    refused("folded", make)
    del folded, parts
    sizes = {"dp": size // 2, "tp": 2}
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    refused("refused", make)
    refused("refused later", lambda: next(iter(early)))
    refused("refused in workers", lambda: next(iter(early.as_data_loader(num_workers=1))))
    report["mesh"] = ids(make(mesh=mesh))
    report["part"] = ids(make(mesh=mesh["dp"]))
    report["sizes"] = ids(make(mesh=sizes))
    report["other order"] = ids(make(mesh={"tp": 2, "dp": size // 2}))
    report["all differ"] = ids(make(mesh=mesh, batch_axes=("dp", "tp")))
    report["explicit"] = ids(make(rank=0, world_size=1))
    workers, alone = make(mesh=sizes).as_data_loader(num_workers=2), make(mesh=mesh)
    report["workers"], report["workers alone"] = ids(workers), ids(alone)
    # Ranks need not be in the order of the mesh.
    ranks = torch.arange(size).reshape(2, size // 2).T.contiguous()
    turned = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
    report["turned"] = [turned.get_coordinate()[0], make(mesh=turned).rank]
    schema = {"tokens": bp.Tensor("int32", (None,))}
    documents = bp.open({"tokens": [[n] * (n % 5 + 1) for n in range(40)]}, schema=schema)
    cut = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("fsdp", "cp"))
    pack = bp.Pack(8, labels="shifted")
    before = bp.Loader(documents, 1, pack=pack, mesh=cut, batch_axes=("fsdp",), sequence_axis="cp")
    batches = iter(before)
    report["slices"] = [next(batches)["tokens"].tolist() for _ in range(3)]
    flat = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    after = bp.Loader(documents, 2, pack=pack, mesh=flat)
    after.load_state_dict(before.state_dict())
    report["rows after"] = [batch["tokens"].tolist() for batch in after]
    alone = bp.Loader(documents, 1, pack=pack, rank=0, world_size=1)
    report["all rows"] = [batch["tokens"].tolist() for batch in alone]
    dist.destroy_process_group()
    return report


def main(size: int, store: str, plain: str) -> None:
    for module in ("torch.distributed.device_mesh", "batchplant.loading.loader", "batchplant.formats.npz"):
        importlib.import_module(module)
    with ProcessPoolExecutor(size, multiprocessing.get_context("fork")) as pool:
        work = functools.partial(report_of, size=size, store=store, plain=plain)
        print(json.dumps(list(pool.map(work, range(size)))))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
