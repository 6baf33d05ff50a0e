"""Feed damaged files to every format's reader: only exceptions of our tree may come out.

Small files are written by our own writers, mutated (bits, bytes, numbers, cuts, splices), opened, read,
decoded and verified. Memory is limited; an input that breaks the rule is kept and named.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

import batchplant as bp
from batchplant.registry import all_formats
from batchplant.tensors import TENSORS, from_array

MEMORY = 4 << 30
GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)


def sample(number: int) -> dict[str, object]:
    rng = np.random.default_rng(number)
    return {
        "image": rng.integers(0, 256, (6, 5 + number, 3), dtype=np.uint8),
        "number": number,
        "score": number / 3,
        "flag": number % 2 == 0,
        "text": "größe" * number,
        "meta": {"a": [number, None]},
        "blob": bytes(range(number)),
        "array": rng.random((2, 3)),
        "ragged": np.arange(number, dtype=np.int32),
        "table": np.ones((number, number), dtype=np.int16),
        "maybe": None if number % 2 else number,
        "sound": (GOLDEN / "audio" / "ulaw.wav").read_bytes(),
        "clip": (GOLDEN / "video" / "vp9.webm").read_bytes(),
    }


KINDS = {
    "image": bp.Image(), "number": bp.Int(), "score": bp.Float(), "flag": bp.Bool(), "text": bp.Text(),
    "meta": bp.Json(), "blob": bp.Bytes(), "array": bp.Tensor("float64", (2, 3)),
    "ragged": bp.Tensor("int32", (None,)), "table": bp.Tensor("int16", (None, None)),
    "maybe": bp.Int(optional=True), "sound": bp.Audio(), "clip": bp.Video(),
}  # fmt: skip


# What we do not write.
READ_ONLY = {"pmml": GOLDEN / "models" / "forest.pmml", "savedmodel": GOLDEN / "models" / "saved_model"}


def make_seed(name: str, folder: Path) -> Path:
    """A small dataset with every kind that the format holds; a model has tensors of several dtypes."""
    found = all_formats()[name]
    if name in READ_ONLY:
        copied = folder / READ_ONLY[name].name
        whole = READ_ONLY[name].is_dir()
        return Path(
            shutil.copytree(READ_ONLY[name], copied) if whole else shutil.copy(READ_ONLY[name], copied)
        )
    if found.tensors:
        path = folder / f"seed{found.suffixes[0]}"
        with bp.create(path, TENSORS, format=name) as out:
            for dtype in ("float32", "int64", "bool", "uint8"):
                out.append(from_array(f"layer.{dtype}", np.arange(6).reshape(2, 3).astype(dtype)))
        return path
    fields = {key: field for key, field in KINDS.items() if found.refuses(field) is None}
    path = folder / f"seed{(found.suffixes or ('',))[0]}"
    with bp.create(path, fields, format=name) as out:
        for number in range(4):
            out.append({key: value for key, value in sample(number).items() if key in fields})
    return path


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Most damage near the start and the end, where the structure is."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        near = rng.choice((64, 4096, len(out)))
        at = rng.randrange(min(near, len(out)))
        at = at if rng.random() < 0.6 else len(out) - 1 - at
        kind = rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((2, 4, 8))
            number = (rng.choice(NUMBERS) + rng.choice((-1, 0, 1))) % (1 << 8 * width)
            out[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 3:
            del out[at:]
        else:
            source = rng.randrange(len(out))
            out[at:at] = out[source : source + rng.randrange(1, 64)]
    return bytes(out)


def check(name: str, path: Path) -> None:
    """Everything a user does with a file."""
    for found in all_formats().values():
        found.matches(bp.Probe(str(path)))
    try:
        with bp.open(path, format=name) as dataset:
            for number in range(min(len(dataset), 8)):
                try:
                    dataset[number]
                except bp.BatchplantError:
                    continue
            dataset.read(range(min(len(dataset), 8)))
            for field in dataset.schema:
                dataset.spans(field, range(min(len(dataset), 8)))
            if len(dataset) <= 1000:
                dataset.blocks()
                list(dataset.verify())
    except bp.BatchplantError:
        return


def fuzz(name: str, seconds: float, seed: int, keep: Path) -> int:
    """Mutations until the time is up; the number that broke the rule."""
    rng = random.Random(f"{name} {seed}")
    bad = tried = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        origin = make_seed(name, folder)
        files = sorted(path for path in origin.rglob("*") if path.is_file()) if origin.is_dir() else [origin]
        whole = {path: path.read_bytes() for path in files}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            path = rng.choice(files)
            damaged = mutate(whole[path], rng)
            path.write_bytes(damaged)
            tried += 1
            try:
                check(name, origin)
            # Whatever it is, it is the finding.
            except BaseException as error:
                bad += 1
                keep.mkdir(parents=True, exist_ok=True)
                kept = keep / f"{name}-{bad}{path.suffix}"
                kept.write_bytes(damaged)
                print(f"{name}: {type(error).__name__} on {kept}", file=sys.stderr)
                traceback.print_exc()
                if bad == 5:
                    break
            path.write_bytes(whole[path])
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{name}: {tried} damaged files, {bad} broke the rule", flush=True)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each format (default 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", action="append", help="only this one; may be given several times")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz/found"), help="where findings go")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    written = [name for name, one in all_formats().items() if one.writer is not None]
    names = args.format or sorted([*written, *READ_ONLY])
    return 1 if sum(fuzz(name, args.seconds, args.seed, args.keep) for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
