"""The processes of a run with gloo: ``python mesh_script.py SIZE STORE DATASET`` prints JSON of each.

They are forked from one that has imported PyTorch, which takes seconds.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def ids(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch["ids"]]


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
    refused("refused in workers", lambda: next(iter(early.as_data_loader(num_workers=2))))
    report["mesh"] = ids(make(mesh=mesh))
    report["part"] = ids(make(mesh=mesh["dp"]))
    report["sizes"] = ids(make(mesh=sizes))
    report["other order"] = ids(make(mesh={"tp": 2, "dp": size // 2}))
    report["all differ"] = ids(make(mesh=mesh, batch_axes=("dp", "tp")))
    report["explicit"] = ids(make(rank=0, world_size=1))
    workers, alone = make(mesh=sizes).as_data_loader(num_workers=2), make(mesh=mesh)
    report["workers"] = [ids(workers) for _ in range(2)]
    report["workers alone"] = [ids(alone) for _ in range(2)]
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
    importlib.import_module("torch.distributed.device_mesh")
    with ProcessPoolExecutor(size, multiprocessing.get_context("fork")) as pool:
        work = functools.partial(report_of, size=size, store=store, plain=plain)
        print(json.dumps(list(pool.map(work, range(size)))))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
