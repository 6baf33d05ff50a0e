"""The formats of other houses in place: loading images, random records, opening manifests, indexing archives.

loading    the same JPEGs (256 px, crop 224, flip) from .beton and from formats of others, no conversion
reading    records of 20 KB by number, in random order, one thread, batches of 256; peer: array_record
opening    manifests of 10^5 rows, CPU seconds of one process, no index
indexing   an archive of archives (ILSVRC's training set), and the same file read at once

All sides of a part run in turn in one process, several rounds. A library that is missing is left out.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _common import all_of, interleaved, others, part_arguments, photos, save, timed, workplace
from _record_peers import array_record

import batchplant
from batchplant.formats import energon
from batchplant.loading.loader import Loader
from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

BATCH, CROP = 256, 224
# Format → file name; the first is what the others are compared with.
FILES = {
    "beton": "photos.beton",
    "arrayrecord": "photos.array_record",
    "webdataset": "photos.tar",
    "energon": "photos.energon",
    "parquet": "photos.parquet",
    "lance": "photos.lance",
}

Results = dict[str, Any]


def loading(folder: Path, args: argparse.Namespace) -> Results:
    count = BATCH if args.quick else 10 * BATCH
    photos().make_folder(folder / "photos", count, size=256)
    files = dict(FILES)
    for format, name in FILES.items():
        try:
            if format == "energon":
                # Shards of WebDataset, prepared.
                (folder / name).mkdir()
                batchplant.convert(folder / "photos", folder / name / "photos.tar")
                energon.prepare(folder / name)
            else:
                batchplant.convert(folder / "photos", folder / name)
        except batchplant.MissingLibraryError as error:
            print(f"  {format} is left out: {error}")
            del files[format]
    image = [RandomResizedCrop(CROP), RandomHorizontalFlip()]
    with ExitStack() as stack:
        epochs: dict[str, Callable[[], float]] = {}
        for format, name in files.items():
            loader = Loader(folder / name, BATCH, order="random", pipelines={"image": image})
            stack.callback(loader.close)
            epochs[format] = lambda loader=loader: timed(lambda: sum(len(batch["image"]) for batch in loader))
            epochs[format]()
        seconds = interleaved(epochs, args.rounds)
    ratios = {
        format: {key: seconds["beton"][key] / second[key] for key in ("best", "median")}
        for format, second in seconds.items()
    }
    return {"images": count, "seconds": seconds, "ratio to beton": ratios}


def reading(folder: Path, args: argparse.Namespace) -> Results:
    count = 2 * BATCH if args.quick else 8000
    cells = np.random.default_rng(0).integers(0, 256, (count, 20_000), dtype=np.uint8)
    order = np.random.default_rng(1).permutation(count)[: 20 * BATCH]
    batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
    with ExitStack() as stack:
        try:
            read = array_record(folder, cells, stack)
        except ImportError as error:
            return {"left out": str(error)}
        reader = stack.enter_context(batchplant.open(folder / "peer.array_record"))
        field = next(iter(reader.schema))
        tasks = {
            "array_record": lambda: timed(lambda: all_of(read, batches)),
            "batchplant": lambda: timed(lambda: all_of(lambda rows: reader.read(rows, [field]), batches)),
        }
        seconds = interleaved(tasks, args.rounds)
    ratio = {key: seconds["array_record"][key] / seconds["batchplant"][key] for key in ("best", "median")}
    return {"records": len(order), "seconds": seconds, "ratio": ratio}


def opening(folder: Path, args: argparse.Namespace) -> Results:
    rows = 1000 if args.quick else 100_000
    paths = manifests(folder / "manifests", rows)

    def opened(path: Path) -> float:
        begin = time.process_time()
        media = {"media": "path=image"} if path.suffix == ".csv" else {}
        index = {} if path.is_dir() else {"index": "memory"}
        batchplant.open(path, **media, **index).close()
        return time.process_time() - begin

    tasks = {name: (lambda path=path: opened(path)) for name, path in paths.items()}
    for task in tasks.values():
        task()
    return {"rows": rows, "CPU seconds": interleaved(tasks, args.rounds)}


def manifests(folder: Path, rows: int) -> dict[str, Path]:
    """Write manifests whose files are nowhere: opening looks at few of them."""
    for below in ("kaldi", "voice/clips"):
        (folder / below).mkdir(parents=True)
    recording = {
        "id": "r",
        "sources": [{"type": "file", "channels": [0], "source": "a.wav"}],
        "duration": 1.0,
    }
    cut = {"start": 0.0, "duration": 1.0, "channel": 0, "recording": recording, "type": "MonoCut"}
    lines: dict[str, Callable[[int], str]] = {
        "table.csv": lambda n: f"{n}.jpg,{n % 10}",
        "nemo.json": lambda n: json.dumps(
            {"audio_filepath": f"{n}.wav", "duration": 1.0, "text": "some words"}
        ),
        "cuts.jsonl": lambda n: json.dumps({"id": f"{n}", **cut}),
        "kaldi/wav.scp": lambda n: f"r{n:06d} {n}.wav",
        "kaldi/segments": lambda n: f"u{n:06d} r{n:06d} 0.5 1.5",
        "kaldi/text": lambda n: f"u{n:06d} some words",
        "voice/train.tsv": lambda n: f"{n:032x}\t{n}.mp3\tsome words\t2\t0",
    }
    headers = {
        "table.csv": "path,label\n",
        "voice/train.tsv": "client_id\tpath\tsentence\tup_votes\tdown_votes\n",
    }
    for name, line in lines.items():
        (folder / name).write_text(headers.get(name, "") + "".join(f"{line(n)}\n" for n in range(rows)))
    return {
        "CSV, media=": folder / "table.csv",
        "NeMo": folder / "nemo.json",
        "lhotse cuts": folder / "cuts.jsonl",
        "Kaldi": folder / "kaldi",
        "Common Voice": folder / "voice",
    }


def indexing(folder: Path, args: argparse.Namespace) -> Results:
    members = 2000 if args.quick else 100_000
    path = folder / "ILSVRC2012_img_train.tar"
    with tarfile.open(path, "w") as out:
        for number in range(10):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as archive:
                for row in range(members // 10):
                    member = tarfile.TarInfo(f"n{number:08d}_{row}.JPEG")
                    member.size = 3000
                    archive.addfile(member, io.BytesIO(bytes(3000)))
            member = tarfile.TarInfo(f"n{number:08d}.tar")
            member.size = len(inner.getvalue())
            out.addfile(member, io.BytesIO(inner.getvalue()))
    tasks = {
        "index": lambda: timed(lambda: batchplant.open(path, index="memory").close()),
        "read": lambda: timed(lambda: len(path.read_bytes())),
    }
    for task in tasks.values():
        task()
    return {"members": members, "GB": path.stat().st_size / 1e9, "seconds": interleaved(tasks, args.rounds)}


PARTS = {"loading": loading, "reading": reading, "opening": opening, "indexing": indexing}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    results: Results = {"rounds": args.rounds, "batch": BATCH}
    with workplace() as folder, others(results):
        for part in args.parts:
            results[part] = PARTS[part](folder, args)
    save(args.out, "formats2", results)


if __name__ == "__main__":
    main()
