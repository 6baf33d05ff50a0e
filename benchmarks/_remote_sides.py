"""One side of the remote benchmark, in a process of its own: `python _remote_sides.py NAME JOB`.

It runs in any interpreter and imports what its side needs, nothing else. It says when that is done. Then, for
every line on standard input, it runs an epoch and answers with a line of JSON; the first one begins with
opening the data. `python _remote_sides.py --convert NAME JOB` writes the files that a library needs.

Credentials and the endpoint are in the environment. A side is a function of the job that imports its library
and returns `build`; `build` makes the loader and returns `epoch`; `epoch` yields the images of every batch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from _sides import DECODERS, Build, Epoch, flipped

Job = dict[str, Any]
PART = 8 << 20
# What peers that shuffle in memory hold.
SHUFFLED = 1000
SHARD = 64 << 20


# -- ours ----------------------------------------------------------------------------------------------------


def batchplant_side(job: Job) -> Build:
    import batchplant
    from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

    def build() -> Epoch:
        image = [RandomResizedCrop(job["crop"]), RandomHorizontalFlip()]
        options = {"cache": job["folder"]} if job.get("cache") else {}
        loader = batchplant.Loader(
            batchplant.open(job["path"], **options), job["batch"], order=job["order"],
            pipelines={"image": image}, workers=job["workers"],
        )  # fmt: skip
        job["stats"] = loader.stats
        return lambda: (len(batch["image"]) for batch in loader)

    return build


def items_side(job: Job) -> Build:
    """Single samples: the first epoch only opens the data, each one more gives samples by `ds[i]`."""
    import batchplant

    def build() -> Epoch:
        data = batchplant.open(job["path"])

        def epoch() -> Iterator[int]:
            yield 0
            for index in job.pop("samples", ()):
                _ = data[index]
            job["samples"] = random.sample(range(len(data)), job["items"])

        return epoch

    return build


def obstore_side(job: Job) -> Build:
    """obstore alone: the same bytes in GETs of 8 MiB by threads, into memory and away."""
    import obstore
    from obstore.store import S3Store

    def build() -> Epoch:
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        store = S3Store(job["bucket"], endpoint=endpoint, client_options={"allow_http": True})

        def epoch() -> Iterator[int]:
            with ThreadPoolExecutor(job["in flight"]) as threads:
                result = [row for row in obstore.list(store, "tar").collect() if row["path"].endswith(".tar")]
                parts = [(row["path"], at, min(at + PART, row["size"]))
                         for row in result for at in range(0, row["size"], PART)]  # fmt: skip
                moved = threads.map(
                    lambda part: len(obstore.get_range(store, part[0], start=part[1], end=part[2])), parts
                )
                yield from moved

        return epoch

    return build


# -- peers ---------------------------------------------------------------------------------------------------


def decoded(data: bytes, crop: int) -> Any:
    """The same for all peers: a random crop by the fastest decoder that is here, flipped or not."""
    library = "opencv" if importlib.util.find_spec("cv2") else "pillow"
    return flipped(DECODERS[library](data, crop))


def in_batches(dataset: Any, job: Job, **options: Any) -> Epoch:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        dataset, batch_size=job["batch"], num_workers=job["workers"], persistent_workers=True, **options
    )
    return lambda: (len(batch[0]) for batch in loader)


def images(job: Job) -> list[tuple[bytes, int]]:
    """The JPEG files that are converted, in the order of their names, with their classes."""
    files = sorted(Path(job["photos"]).glob("*/*.jpg"), key=lambda path: path.name)
    classes = sorted({path.parent.name for path in files})
    return [(path.read_bytes(), classes.index(path.parent.name)) for path in files]


def webdataset_side(job: Job) -> Build:
    import webdataset

    def one(sample: dict[str, Any]) -> tuple[Any, int]:
        return decoded(sample["jpg"], job["crop"]), int(sample["cls"])

    def build() -> Epoch:
        cache = {"cache_dir": job["folder"]} if job.get("cache") else {}
        dataset = webdataset.WebDataset(
            [f"{os.environ['AWS_ENDPOINT_URL']}/{job['bucket']}/{name}" for name in job["shards"]],
            shardshuffle=len(job["shards"]), **cache,
        )  # fmt: skip
        return in_batches(dataset.shuffle(SHUFFLED).map(one), job)

    return build


def litdata_side(job: Job) -> Build:
    import litdata
    from litdata.streaming import downloader

    # It has no option for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    def one(sample: dict[str, Any]) -> tuple[Any, int]:
        return decoded(sample["jpg"], job["crop"]), sample["cls"]

    def build() -> Epoch:
        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        dataset = litdata.StreamingDataset(
            f"s3://{job['bucket']}/litdata", cache_dir=job["folder"], shuffle=True, transform=one,
            storage_options=options,
        )  # fmt: skip
        loader = litdata.StreamingDataLoader(
            dataset, batch_size=job["batch"], num_workers=job["workers"], persistent_workers=True
        )
        return lambda: (len(batch[0]) for batch in loader)

    return build


def litdata_convert(job: Job) -> None:
    import litdata

    result = images(job)
    litdata.optimize(
        fn=lambda number: {"jpg": result[number][0], "cls": result[number][1]},
        inputs=list(range(len(result))), output_dir=job["target"], chunk_bytes=SHARD, num_workers=1,
        start_method="fork",
    )  # fmt: skip


def mosaic() -> ModuleType:
    """The library; where torchvision is missing, without its data sets of images, which we do not use."""
    if importlib.util.find_spec("torchvision") is None:
        importlib.import_module("transformers.feature_extraction_utils")
        for part, names in (
            ("torchvision", ()), ("torchvision.datasets", ("VisionDataset",)),
            ("torchvision.transforms", ()), ("torchvision.transforms.functional", ("to_tensor",)),
        ):  # fmt: skip
            module = ModuleType(part)
            for each in names:
                setattr(module, each, type(each, (), {}))
            sys.modules[part] = module
    return importlib.import_module("streaming")


def mosaic_side(job: Job) -> Build:
    streaming = mosaic()

    class Images(streaming.StreamingDataset):  # type: ignore[name-defined,misc]
        def __getitem__(self, index: int) -> tuple[Any, int]:
            sample = super().__getitem__(index)
            return decoded(sample["jpg"], job["crop"]), sample["cls"]

    def build() -> Epoch:
        os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
        dataset = Images(
            remote=f"s3://{job['bucket']}/mds", local=job["folder"], shuffle=True, batch_size=job["batch"]
        )
        return in_batches(dataset, job)

    return build


def mosaic_convert(job: Job) -> None:
    columns = {"jpg": "bytes", "cls": "int"}
    with mosaic().MDSWriter(out=job["target"], columns=columns, size_limit=SHARD) as out:
        for data, label in images(job):
            out.write({"jpg": data, "cls": label})


def datasets_side(job: Job) -> Build:
    import datasets

    def one(sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": decoded(sample["jpg"], job["crop"])}

    def build() -> Epoch:
        options = {"client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}}
        files = [f"s3://{job['bucket']}/parquet/{number:04d}.parquet" for number in range(job["files"])]
        data = datasets.load_dataset(
            "parquet", data_files=files, split="train", streaming=True, storage_options=options
        )
        data = data.shuffle(seed=1, buffer_size=SHUFFLED).map(one, remove_columns=["jpg"])
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            data, batch_size=job["batch"], num_workers=job["workers"], persistent_workers=True
        )
        return lambda: (len(batch["image"]) for batch in loader)

    return build


def datasets_convert(job: Job) -> None:
    import pyarrow
    import pyarrow.parquet

    result = images(job)
    each = -(-len(result) // job["files"])
    for number in range(job["files"]):
        part = result[number * each : (number + 1) * each]
        table = pyarrow.table({"jpg": [data for data, _ in part], "cls": [label for _, label in part]})
        target = Path(job["target"]) / f"{number:04d}.parquet"
        pyarrow.parquet.write_table(
            table, target, row_group_size=100, compression="none", use_dictionary=False
        )


def s3fs_side(job: Job) -> Build:
    import s3fs
    from torch.utils.data import Dataset

    def connect() -> Any:
        return s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True)

    class Files(Dataset):  # type: ignore[type-arg,misc]
        def __init__(self) -> None:
            self.files = [name for name in connect().find(f"{job['bucket']}/photos") if name.endswith(".jpg")]
            self.classes = sorted({name.split("/")[-2] for name in self.files})
            self.store: Any = None

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            self.store = self.store or connect()
            name = self.files[index]
            return decoded(self.store.cat_file(name), job["crop"]), self.classes.index(name.split("/")[-2])

    return lambda: in_batches(Files(), job, shuffle=True)


SIDES: dict[str, Callable[[Job], Build]] = {
    "batchplant": batchplant_side,
    "items": items_side,
    "obstore": obstore_side,
    "webdataset": webdataset_side,
    "litdata": litdata_side,
    "mosaicml-streaming": mosaic_side,
    "datasets": datasets_side,
    "s3fs + torch": s3fs_side,
}
CONVERTED: dict[str, tuple[str, Callable[[Job], None]]] = {
    "litdata": ("litdata", litdata_convert),
    "mosaicml-streaming": ("mds", mosaic_convert),
    "datasets": ("parquet", datasets_convert),
}


def main(name: str, text: str) -> None:
    job = json.loads(text)
    # What a library prints is not the answer to a question.
    answers, sys.stdout = sys.stdout, sys.stderr
    build = SIDES[name](job)
    print("{}", file=answers, flush=True)
    epoch: Epoch | None = None
    for _ in sys.stdin:
        began = time.perf_counter()
        epoch = epoch or build()
        batches = epoch()
        images = next(batches)
        first = time.perf_counter() - began
        for count in batches:
            images += count
        output = {"images": images, "seconds": time.perf_counter() - began, "first batch": first}
        output["stats"] = job["stats"]() if "stats" in job else {}
        print(json.dumps(output), file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--import":
        for each in ("torch", *sys.argv[2].split(",")):
            mosaic() if each == "streaming" else importlib.import_module(each)
    elif sys.argv[1] == "--convert":
        CONVERTED[sys.argv[2]][1](json.loads(sys.argv[3]))
    else:
        main(*sys.argv[1:])
