"""Token data: random reads, packing, a packed stream of a mixture, a mixture of very many files.

reads      sequences of a .bin/.idx by number, in random order, one thread, batches of 256, warm
packing    documents of log-normal lengths to rows of 8,192 tokens, one thread; batchplant reads them from a
           .bin/.idx, the others have them in memory. Each of them is compared with the same job: batchplant's
           rows alone, or with labels, positions and masks
samples    documents in random order, one after another, cut into rows of 2,048 tokens with labels, loss mask
           and positions, in batches of 16, one thread
blocks     rows of 2,049 tokens at random places of a flat file of tokens, one thread; LitData has a fifth of
           them, in chunks, and shuffles as it does
stream     two .bin files mixed 7 : 3, in random order, packed into rows of 8,192, batches of 16 rows with
           labels, positions, document numbers and loss mask; a whole loader on all cores; beside it what
           copying as many bytes in memory takes
blend      2,500 .bin/.idx of 400,000 documents each, sparse: to open and mix them, in a process of its own
fill       how full rows are, by strategy and window

All sides of a part run in turn in one process, several rounds. Peers (megatron-core, trl, grain, datatrove,
litdata) are left out where they are not installed, and said so; BATCHPLANT_TEXT_PYTHON may name a Python that
has them and batchplant.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleaved, others, part_arguments, save, timed, workplace
from _text_peers import (
    datatrove_blocks,
    grain_packs,
    litdata_blocks,
    megatron_reads,
    megatron_samples,
    trl_packs,
)

import batchplant
from batchplant import Loader, Mix, Pack, _native
from batchplant.formats.megatron import CHECKED_ENTRIES, MAGIC
from batchplant.loading.packing import PackedBatches

BATCH, ROW, ROWS = 256, 8192, 16
FILES, DOCUMENTS = 2500, 400_000
Found = dict[str, Any]


def sizes_of(count: int, seed: int = 0, mean: float = 6.0) -> Any:
    """Lengths of documents: log-normal, as those of web pages are; 665 tokens on average."""
    return np.random.default_rng(seed).lognormal(mean, 1, count).astype(np.int64).clip(1, 100_000)


def write(path: Path, count: int, seed: int) -> Path:
    sizes = sizes_of(count, seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    tokens = np.random.default_rng(seed).integers(1, 50_000, offsets[-1], dtype=np.uint16)
    with batchplant.create(path, {"tokens": batchplant.Tensor("uint16", (None,))}) as out:
        out.append(batchplant.Columns(tokens=batchplant.Ragged(tokens.view(np.uint8), 2 * offsets)))
    return path


def speeds(found: dict[str, dict[str, float]], count: float) -> Found:
    return {name: {key: count / value[key] for key in ("best", "median")} for name, value in found.items()}


def ratios(found: Found, ours: str, like: dict[str, str] | None = None) -> Found:
    """Our speed as a multiple of each of the others'; ``like``: what of ours does the same as one of them."""
    result = {}
    for name, value in found.items():
        mine = found[(like or {}).get(name, ours)]
        if mine is not value and (like is None or not name.startswith("batchplant")):
            result[name] = {key: mine[key] / value[key] for key in value}
    return result


def say(found: Found, unit: str, ratio: Found) -> None:
    for name, value in found.items():
        output = (
            f", batchplant : it {ratio[name]['median']:.1f} (best {ratio[name]['best']:.1f})"
            if name in ratio
            else ""
        )
        print(f"  {name:<36} {value['median']:>16,.0f} {unit}{output}", flush=True)


# --- reads --------------------------------------------------------------------------------------------


def reads(folder: Path, args: argparse.Namespace) -> Found:
    path = write(folder / "reads.idx", 20_000 if args.quick else 400_000, 1)
    reader = batchplant.open(path)
    order = np.random.default_rng(2).permutation(len(reader))[: 5_000 if args.quick else 100_000]
    print(f"random reads of {len(order):,} sequences of {path.name}", flush=True)

    def ours() -> None:
        for first in range(0, len(order), BATCH):
            reader.read(order[first : first + BATCH], ["tokens"])

    loader = Loader(reader, BATCH, order="random", indices=np.sort(order))

    def epoch() -> None:
        for _ in loader:
            pass

    tokens = np.memmap(folder / "reads.bin", dtype=np.uint16, mode="r")
    index = np.memmap(path, dtype=np.uint8, mode="r")[34:]
    lengths = np.array(index[: 4 * len(reader)].view("<i4"))
    starts = np.array(index[4 * len(reader) : 12 * len(reader)].view("<i8")) // 2

    def by_hand() -> None:
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            runs = zip(starts[rows].tolist(), lengths[rows].tolist(), strict=True)
            np.concatenate([tokens[start : start + size] for start, size in runs])

    tasks = {
        "batchplant": lambda: timed(ours),
        "batchplant, Loader": lambda: timed(epoch),
        "numpy.memmap, batches": lambda: timed(by_hand),
        **megatron_reads(folder / "reads", order, BATCH),
    }
    for task in tasks.values():
        task()
    result = speeds(interleaved(tasks, args.rounds), len(order))
    loader.close()
    ratio = ratios(result, "batchplant")
    say(result, "sequences/s", ratio)
    return {"sequences": len(order), "sequences/s": result, "ratio to": ratio}


def packed_file(path: Path, documents: list[Any]) -> Path:
    with batchplant.create(path, {"tokens": batchplant.Tensor("int32", (None,))}) as out:
        for document in documents:
            out.append({"tokens": document})
    return path


# --- packing ------------------------------------------------------------------------------------------

PLAIN = "batchplant, rows only"
WRAPPED = "batchplant, concat_split, rows only"
# What of ours does the same as a peer; the others make more than rows.
LIKE = {
    "TRL, bfd_split": PLAIN, "TRL, bfd_split, as arrays": PLAIN, "TRL, wrapped": WRAPPED,
    "TRL, wrapped, as arrays": WRAPPED,
}  # fmt: skip


def packs(reader: batchplant.Reader, pack: Pack, order: str = "sequential") -> Callable[[], float]:
    """All rows of an epoch, made in this thread, as the others do it."""

    def run() -> None:
        loader = Loader(reader, ROWS, order=order, pack=pack, workers=1)
        assert loader._packing is not None
        batches = PackedBatches(loader._packing, loader._executor, loader._shard(0, 0), loader.indices, 0)
        for number in range(len(batches.shard)):
            batches.finish(batches.prepare(range(number, number + 1)))
        loader.close()

    return lambda: timed(run)


def packing(folder: Path, args: argparse.Namespace) -> Found:
    count = 2_000 if args.quick else 30_000
    sizes = sizes_of(count, 3)
    rng = np.random.default_rng(3)
    documents = [rng.integers(1, 50_000, size, dtype=np.int32) for size in sizes]
    reader = batchplant.open(packed_file(folder / "packing.idx", documents))
    tokens = int(sizes.sum())
    print(f"packing {count:,} documents, {tokens:,} tokens, into rows of {ROW:,}", flush=True)

    def ours(strategy: str, **options: Any) -> Callable[[], float]:
        return packs(reader, Pack(ROW, strategy=strategy, dtype="int32", **options))

    tasks = {
        "batchplant": ours("best_fit"),
        "batchplant, first_fit": ours("first_fit"),
        "batchplant, concat_split": ours("concat_split"),
        PLAIN: ours("best_fit", outputs=()),
        WRAPPED: ours("concat_split", outputs=()),
        **trl_packs(documents, ROW, ROWS),
        **grain_packs(documents, ROW),
    }
    for task in tasks.values():
        task()
    result = speeds(interleaved(tasks, args.rounds), tokens)
    ratio = ratios(result, "batchplant", LIKE)
    say(result, "tokens/s", ratio)
    return {"documents": count, "tokens": tokens, "tokens/s": result, "ratio to": ratio}


# --- samples ------------------------------------------------------------------------------------------


def samples(folder: Path, args: argparse.Namespace) -> Found:
    length = 2048
    reader = batchplant.open(write(folder / "samples.idx", 2_000 if args.quick else 20_000, 6))
    tokens = int(reader.facts()["tokens"])
    print(f"{tokens:,} tokens in random order, in rows of {length:,} with labels", flush=True)
    pack = Pack(
        length, strategy="concat_split", labels="shifted", across=True,
        outputs=("labels", "loss_mask", "position_ids"),
    )  # fmt: skip
    tasks = {
        "batchplant": packs(reader, pack, "random"),
        **megatron_samples(folder / "samples", length, ROWS, tokens),
    }
    for task in tasks.values():
        task()
    result = speeds(interleaved(tasks, args.rounds), tokens)
    ratio = ratios(result, "batchplant")
    say(result, "tokens/s", ratio)
    return {"tokens": tokens, "tokens/s": result, "ratio to": ratio}


# --- blocks -------------------------------------------------------------------------------------------


def blocks(folder: Path, args: argparse.Namespace) -> Found:
    length = 2049
    count = 2_000 if args.quick else 100_000
    place = folder / "flat"
    place.mkdir()
    data = np.random.default_rng(4).integers(1, 50_000, count * length, dtype=np.uint16)
    data.tofile(place / "tokens.ds")
    order = np.random.default_rng(5).permutation(count)[: 1_000 if args.quick else 20_000]
    reader = batchplant.open(place / "tokens.ds", format="tokens", dtype="uint16", length=length)
    print(f"{len(order):,} rows of {length:,} tokens of a flat file", flush=True)

    def ours() -> None:
        for first in range(0, len(order), 64):
            reader.read(order[first : first + 64], ["tokens"])

    tasks = {
        "batchplant": lambda: timed(ours),
        **datatrove_blocks(place, length, order),
        **litdata_blocks(folder / "litdata", data.reshape(count, length)[: len(order)]),
    }
    for task in tasks.values():
        task()
    result = speeds(interleaved(tasks, args.rounds), len(order) * length)
    ratio = ratios(result, "batchplant")
    say(result, "tokens/s", ratio)
    return {"rows": len(order), "tokens/s": result, "ratio to": ratio}


# --- stream -------------------------------------------------------------------------------------------


def stream(folder: Path, args: argparse.Namespace) -> Found:
    for number, name in enumerate(("web", "books")):
        write(
            folder / f"{name}.idx",
            (20_000, 10_000)[number] if args.quick else (400_000, 200_000)[number],
            number,
        )
    mix = Mix({"web": (folder / "web.idx", 0.7), "books": (folder / "books.idx", 0.3)}, stop="all")
    print(
        f"a packed stream of {mix.blend.length:,} documents, rows of {ROW:,}, batches of {ROWS}", flush=True
    )
    tasks: dict[str, Callable[[], float]] = {}
    given: dict[str, tuple[int, int]] = {}
    loaders = []
    for dtype in ("int32", "int64"):
        loader = Loader(mix, ROWS, order="random", pack=Pack(ROW, eos=0, dtype=dtype))
        loaders.append(loader)
        # Also so that files are in memory, and buffers made.
        rows = size = 0
        for batch in loader:
            rows += len(batch["tokens"])
            size += sum(
                value.nbytes for value in batch.values() if isinstance(value, np.ndarray) and value.ndim == 2
            )
        given[f"batchplant, {dtype}"] = rows * ROW, size
        tasks[f"batchplant, {dtype}"] = lambda loader=loader: timed(lambda: sum(1 for _ in loader))
    tokens, size = given["batchplant, int32"]
    tasks["memcpy, one thread"] = lambda: copying(size, 1)
    tasks["memcpy, all cores"] = lambda: copying(size, len(os.sched_getaffinity(0)))
    result = speeds(interleaved(tasks, args.rounds), tokens)
    fill = loaders[0].stats()["packing"]["fill"]
    for loader in loaders:
        loader.close()
    ratio = {
        name: {key: value[key] / result["memcpy, all cores"][key] for key in value}
        for name, value in result.items()
    }
    for name, value in result.items():
        print(
            f"  {name:<28} {value['median'] / 1e6:>10,.0f} million tokens/s, "
            f"{ratio[name]['median']:.2f} × memcpy"
        )
    return {"tokens": tokens, "bytes": size, "fill": fill, "tokens/s": result, "ratio to memcpy": ratio}


def copying(size: int, threads: int) -> float:
    """Seconds to copy so many bytes in memory, batch by batch, into memory that is used again."""
    chunk = ROWS * ROW * 17
    arrays = [(np.ones(chunk, np.uint8), np.empty(chunk, np.uint8)) for _ in range(threads)]
    turns = max(1, size // chunk // threads)

    def work(pair: tuple[Any, Any]) -> None:
        for _ in range(turns):
            np.copyto(pair[1], pair[0])

    workers = [threading.Thread(target=work, args=(pair,)) for pair in arrays]
    for pair in arrays:
        np.copyto(pair[1], pair[0])
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for item in workers:
        item.join()
    return (time.perf_counter() - began) * size / (turns * chunk * threads)


# --- blend --------------------------------------------------------------------------------------------


def blend(folder: Path, args: argparse.Namespace) -> Found:
    files, documents = (50, 10_000) if args.quick else (FILES, DOCUMENTS)
    place = folder / "blend"
    place.mkdir()
    for number in range(files):
        sparse(place / f"{number:04d}", documents)
    print(f"a blend of {files:,} files with {files * documents:,} documents", flush=True)
    runs = []
    for _ in range(args.rounds):
        done = subprocess.run(
            [sys.executable, __file__, "--blend", str(place)], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    result: Found = {"files": files, "documents": files * documents}
    for key in ("open, s", "mix, s", "in all, s", "MB", "a position, µs"):
        values = sorted(run[key] for run in runs)
        result[key] = {"best": values[0], "median": values[len(values) // 2]}
        print(f"  {key:<16} {result[key]['median']:.3g} (best {result[key]['best']:.3g})")
    return result


def sparse(prefix: Path, documents: int) -> None:
    """Files as large as real ones, of which only what is looked at has been written."""
    head = MAGIC + (1).to_bytes(8, "little") + bytes([8])
    head += documents.to_bytes(8, "little") + (documents + 1).to_bytes(8, "little")
    listed, ends = len(head) + 12 * documents, CHECKED_ENTRIES
    with open(f"{prefix}.idx", "wb") as file:
        file.write(head)
        for start in (0, max(0, documents + 1 - ends)):
            file.seek(listed + 8 * start)
            file.write(np.arange(start, min(start + ends, documents + 1), dtype="<i8").tobytes())
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(1 << 20)


def resident() -> float:
    """Bytes of this process that are no pages of files, which the system takes back when it needs them."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status["RssAnon"].split()[0]) * 1024


def blend_alone(place: Path) -> None:
    """In a process of its own: seconds and the memory that it took."""
    before = resident()
    began = time.perf_counter()
    paths = sorted(place.glob("*.idx"))
    readers = [batchplant.open(path) for path in paths]
    opened = time.perf_counter()
    weights = np.random.default_rng(0).lognormal(0, 1, len(paths))
    mix = Mix(list(zip(readers, weights.tolist(), strict=True)), stop="all")
    order = mix.epoch_order("random", seed=1, epoch=0)
    done = time.perf_counter()
    at = np.random.default_rng(1).integers(0, order.length, 10_000)
    once = timed(lambda: order.take(at))
    print(json.dumps({
        "open, s": opened - began, "mix, s": done - opened, "in all, s": done - began,
        "MB": (resident() - before) / 1e6,
        "a position, µs": once / len(at) * 1e6,
    }))  # fmt: skip


# --- fill ---------------------------------------------------------------------------------------------


def fill(folder: Path, args: argparse.Namespace) -> Found:
    sizes = sizes_of(4096 * (4 if args.quick else 64), 7)
    found: Found = {}
    for strategy in ("best_fit", "first_fit", "concat_split", "none"):
        for window in (512, 4096):
            rows = tokens = 0
            began = time.perf_counter()
            for first in range(0, len(sizes), window):
                made = _native.pack(sizes[first : first + window], ROW, strategy, "split")
                rows, tokens = rows + len(made[0]) - 1, tokens + int(made[3].sum())
            spent = time.perf_counter() - began
            found[f"{strategy}, window {window:,}"] = {
                "fill": tokens / (rows * ROW), "documents/s": len(sizes) / spent, "tokens/s": tokens / spent
            }  # fmt: skip
    for name, one in found.items():
        print(f"  {name:<28} {one['fill']:.2%} full, planned at {one['tokens/s'] / 1e9:.2f} billion tokens/s")
    return found


PARTS = {
    "reads": reads, "packing": packing, "samples": samples, "blocks": blocks, "stream": stream,
    "blend": blend, "fill": fill,
}  # fmt: skip


def main() -> None:
    if sys.argv[1:2] == ["--blend"]:
        return blend_alone(Path(sys.argv[2]))
    python = os.environ.get("BATCHPLANT_TEXT_PYTHON")
    if python and Path(python).absolute() != Path(sys.executable).absolute():
        os.execv(python, [python, __file__, *sys.argv[1:]])
    args = part_arguments(__doc__ or "", PARTS)
    results: Found = {}
    with others(results):
        for name in args.parts:
            with workplace() as folder:
                results[name] = PARTS[name](folder, args)
    save(args.out, "text", results)


if __name__ == "__main__":
    main()
