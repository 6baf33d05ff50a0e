"""Receipts: a Merkle tree over the samples that a run consumed, which anybody who has the dataset can verify.

A leaf is the SHA-256 of the file that a sample lies in, the number of the sample there, and how often it was
consumed; a joined sample has a leaf for each of its files. Leaves are sorted by these bytes, so two
neighbours prove that nothing is between them. Hashes are those of RFC 6962: H(0 | leaf), H(1 | left | right).
The root is H(2 | H(head) | root of the tree). The head has the dataset, the options of the run and its
stretches, as canonical JSON.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..._version import __version__
from ...codecs.cells import cell_bytes
from ...data.mix import Mix
from ...data.reader import Reader
from ...errors import DataError, OptionError, exceptions_as
from ...order.ranks import SkippedShard
from ...schema.columns import I64, Ragged
from ...storage import NOTE_ERRORS, is_remote, open_source, parse_object, read_whole
from .run import Run, Stretch, places

VERSION = 1
# Entries of a process that a head has.
PROVED = ("version", "options", "not recorded")
# Entries of a dataset that a head has, and what it means if they differ.
DATASET = {
    "samples": "it has more or fewer samples",
    "files": "it has more or fewer files",
    "sha256": "a file has another name or content",
    "values": "values beside its files are others",
}
READ_BYTES, CHUNK_ROWS = 4 << 20, 1 << 12
EMPTY_TREE = hashlib.sha256().digest()


@dataclasses.dataclass(frozen=True)
class Proof:
    """Leaves and the hashes that lead to the root: of a sample, or of the neighbours of an absent one."""

    root: str
    head: str
    size: int
    present: bool
    target: str
    leaves: tuple[tuple[int, str, tuple[str, ...]], ...]

    def check(self, receipt: Mapping[str, Any]) -> None:
        """Raise DataError unless the proof leads to the root of a receipt and proves what it says."""
        with exceptions_as(DataError, "this is no proof", *NOTE_ERRORS):
            self._check(receipt)

    def _check(self, receipt: Mapping[str, Any]) -> None:
        if self.root != receipt["root"] or self.head != _sha256(_canonical(receipt["head"])).hex():
            raise DataError("the proof is of another receipt")
        if self.size != receipt["head"]["distinct"]:
            raise DataError("the proof is of a tree of another size")
        if not self.size and _root(bytes.fromhex(self.head), EMPTY_TREE).hex() != self.root:
            raise DataError("the hashes of the proof do not lead to the root")
        for index, leaf, path in self.leaves:
            tree = root_of(bytes.fromhex(leaf), index, self.size, [bytes.fromhex(node) for node in path])
            if _root(bytes.fromhex(self.head), tree).hex() != self.root:
                raise DataError("the hashes of the proof do not lead to the root")
        if self.present:
            if not self.leaves or not self.leaves[0][1].startswith(self.target):
                raise DataError("the leaf of the proof is of another sample")
            return
        before = [index for index, leaf, _ in self.leaves if leaf < self.target]
        behind = [index for index, leaf, _ in self.leaves if leaf > self.target]
        # The neighbours of the sample: none at an end of the tree.
        expected = (before or [-1])[0] + 1 == (behind or [self.size])[0]
        if any(leaf.startswith(self.target) for _, leaf, _ in self.leaves) or not expected:
            raise DataError("the leaves of the proof are not the neighbours of the sample")


def make(run: Run, *, until: int | None = None) -> dict[str, Any]:
    """Return the receipt of a run up to a step (default: all of it), as JSON."""
    steps = run.steps if until is None else until
    return _Consumed(run, steps, run.failed(steps)).receipt()


def verify(receipt: Mapping[str, Any], *, source: object = None) -> None:
    """Recompute a receipt from its dataset and the options in it.

    source: the dataset, where it lies elsewhere.

    Raises: DataError, which says what differs.
    """
    with exceptions_as(DataError, "this is no receipt", *NOTE_ERRORS):
        if receipt["receipt"] != VERSION:
            raise DataError(f"the receipt is of version {receipt['receipt']}, and this reads {VERSION}")
        run = _run_of(receipt, source)
        mine = _Consumed(run, receipt["head"]["steps"], receipt["head"]["failed"]).receipt()
        for name, text in DATASET.items():
            if mine["head"]["dataset"][name] != receipt["head"]["dataset"][name]:
                raise DataError(f"the dataset is another one: {text}", path=run.reader.path)
        if mine["root"] != receipt["root"] or _canonical(mine["head"]) != _canonical(receipt["head"]):
            raise DataError(
                "the root differs: what was consumed is not what the receipt says", path=run.reader.path
            )


def prove(
    receipt: Mapping[str, Any], target: str | None, *, image: str | None = None, source: object = None
) -> Proof:
    """Prove that a sample was consumed, or that it was not.

    target: the key of a sample, its number, or the path of a file of the dataset. image: a file; the sample
    with these very bytes is meant. source: as for :func:`verify`.
    """
    run = _run_of(receipt, source)
    consumed = _Consumed(run, receipt["head"]["steps"], receipt["head"]["failed"])
    if consumed.receipt()["root"] != receipt["root"]:
        raise DataError("the receipt does not verify: nothing can be proved with it", path=run.reader.path)
    return consumed.proof(_target(consumed, target, image))


def _run_of(receipt: Mapping[str, Any], source: object) -> Run:
    head = receipt["head"]
    process = {**head["process"], "reader": receipt.get("reader"), "dataset": receipt["recorded"]}
    stretches = [Stretch(process, **stretch) for stretch in head["stretches"]]
    return Run.of(stretches, source=source)


class _Consumed:
    """The samples that a run consumed before a step; ``failed``: those that could not be read.

    Raises: OptionError for a dataset in memory.
    """

    def __init__(self, run: Run, steps: int, failed: list[int]) -> None:
        if not 0 <= steps <= run.steps:
            raise OptionError(f"the run has {run.steps:,} steps, and a receipt until {steps:,} was asked for")
        self.run, self.steps, self.failed = run, steps, failed
        self.base = run.reader.base if isinstance(run.reader, Mix) else run.reader
        self.counts: I64 = np.zeros(len(self.base), dtype=np.int64)
        for stretch in run.stretches:
            count = min(stretch.lasting, steps - stretch.step)
            if count > 0:
                for rows in consumed_rows(run, stretch, count):
                    self.counts += np.bincount(rows, minlength=len(self.base))
        self.counts -= np.bincount(
            run.rows_of(run.reader._check(np.array(failed, dtype=np.int64))), minlength=len(self.base)
        )
        self.files: list[tuple[str, str]] = []
        self._digests: dict[str, bytes] = {}
        # Whether some samples lie in files of their own.
        self._beside = False
        self.leaves = list(_merged(self._leaves()))
        self.levels = tree_of(self.leaves)
        self.values = self._values()

    def _leaves(self) -> Iterator[bytes]:
        """Yield a leaf for each place of each consumed sample; files of other samples are digested, too."""
        for leaf, rows, samples in places(self.base, np.arange(len(self.base))):
            counts = self.counts[samples]
            if leaf.format == "memory":
                raise OptionError("a receipt is of files, and this dataset is in memory", path=leaf.path)
            in_files = _in_files(leaf)
            self._beside |= in_files
            whole = b"" if in_files else self.digest(leaf.path)
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                digest = whole or self.digest(file_of(leaf, row), leaf.path)
                if count:
                    yield digest + row.to_bytes(8, "big") + count.to_bytes(8, "big")

    def _values(self) -> str:
        """Return the SHA-256 of values that lie beside the files of samples, such as the labels of a folder.

        Files that samples lie in besides those of their leaves are digested, too.
        """
        values = hashlib.sha256()
        for first in range(0, len(self.base), CHUNK_ROWS):
            rows = np.arange(first, min(first + CHUNK_ROWS, len(self.base)))
            for name in self.base.schema:
                ranges = self.base.ranges([name], rows)
                for path in ranges.compact().files if ranges is not None else ():
                    self.digest(path, self.base.path)
                if self._beside and (ranges is None or not ranges.sources):
                    column = self.base._read(rows, (name,))[name]
                    for row in range(len(rows)):
                        cell = cell_bytes(column, row)
                        values.update(_canonical(None if cell is None else len(cell)) + (cell or b""))
        return values.hexdigest()

    def digest(self, path: str, folder: str = "") -> bytes:
        """Return the SHA-256 of a file of the dataset, read once."""
        if path not in self._digests:
            self._digests[path] = digest_of(path)
            inside = os.path.relpath(path, folder) if folder else "."
            name = os.path.basename(path) if inside.startswith(".") else inside
            self.files.append((name, self._digests[path].hex()))
        return self._digests[path]

    def receipt(self) -> dict[str, Any]:
        stretches = []
        for part in self.run.stretches:
            if (count := min(part.lasting, self.steps - part.step)) > 0:
                values = vars(part) | {"steps": count, "lasting": count}
                stretches.append({name: value for name, value in values.items() if name != "process"})
        process = self.run.stretches[-1].process if self.run.stretches else {}
        head = {
            "dataset": {
                "samples": len(self.base), "files": len(self.files),
                "sha256": _sha256(_canonical(self.files)).hex(), "values": self.values,
            },
            "process": {name: value for name, value in process.items() if name in PROVED},
            "stretches": stretches, "steps": self.steps, "failed": self.failed,
            "consumed": int(self.counts.sum()), "distinct": len(self.leaves),
        }  # fmt: skip
        tree = self.levels[-1][0] if self.leaves else EMPTY_TREE
        root = _root(_sha256(_canonical(head)), tree).hex()
        return {
            "receipt": VERSION, "root": root, "batchplant": __version__, "head": head,
            "reader": process.get("reader"), "recorded": process.get("dataset"),
        }  # fmt: skip

    def proof(self, target: bytes) -> Proof:
        """Return the proof for a sample, given by the first bytes of its leaf."""
        index = bisect.bisect_left(self.leaves, target)
        present = index < len(self.leaves) and self.leaves[index].startswith(target)
        shown = (
            [index]
            if present
            else [number for number in (index - 1, index) if 0 <= number < len(self.leaves)]
        )
        receipt = self.receipt()
        head = _sha256(_canonical(receipt["head"])).hex()
        paths = [tuple(node.hex() for node in path_of(self.levels, number)) for number in shown]
        entries = [
            (number, self.leaves[number].hex(), path) for number, path in zip(shown, paths, strict=True)
        ]
        return Proof(receipt["root"], head, len(self.leaves), present, target.hex(), tuple(entries))


def consumed_rows(run: Run, stretch: Stretch, count: int) -> Iterator[I64]:
    """Yield the rows of the dataset that the first steps of a stretch consumed, over all ranks."""
    loader = run.loader(stretch)
    shard = run.shard(stretch, 0)
    skipped = isinstance(shard, SkippedShard)
    if loader._packing is not None or (skipped and shard.skips.replace):
        for step in range(stretch.step, stretch.step + count):
            for rank in range(stretch.world_size):
                yield run.rows_of(run.planned(step, rank))
        return
    # Every position before the end was in some batch.
    stop, chunk = shard.position_after(count), 1 << 20
    for first in range(stretch.start, stop, chunk):
        positions = np.arange(first, min(first + chunk, stop))
        numbers = shard.order.take(positions)
        if skipped:
            numbers = numbers[~(shard.skips.is_skipped(numbers) | shard.skips.within(positions))]
        yield run.rows_of(loader.ids_at(numbers))


def _in_files(reader: Reader) -> bool:
    """Whether the samples of a reader lie in files of their own, as in a folder."""
    return len(reader) > 0 and file_of(reader, 0) != reader.path


def _merged(leaves: Iterator[bytes]) -> Iterator[bytes]:
    """Yield leaves in order; the counts of a sample that is in several parts of a dataset are added."""
    for place, group in itertools.groupby(sorted(leaves), key=lambda leaf: leaf[:-8]):
        yield place + sum(int.from_bytes(leaf[-8:], "big") for leaf in group).to_bytes(8, "big")


def file_of(reader: Reader, row: int) -> str:
    """Return the file that a sample of a folder lies in; of one in an archive, that."""
    path = reader.where(row)
    return reader.path if os.path.isfile(reader.path) and not os.path.exists(path) else path


def _target(consumed: _Consumed, target: str | None, image: str | None) -> bytes:
    """Return the first bytes of the leaf of a sample."""
    base = consumed.base
    if image is not None:
        data = read_whole(image)
        row = _row_with(base, data)
        if row is None:
            # No sample has these bytes; of a folder, no file.
            return _sha256(data)
    elif target is None:
        raise OptionError("which sample? Give its key or number, the path of its file, or --image FILE")
    elif target.isdigit():
        row = int(base._check([int(target)])[0])
    elif os.path.isfile(target):
        return digest_of(target)
    else:
        row = base.keys().index(target)
    leaf, rows, _ = next(places(base, np.array([row])))
    local = int(rows[0])
    return digest_of(file_of(leaf, local) if _in_files(leaf) else leaf.path) + local.to_bytes(8, "big")


def _row_with(reader: Reader, data: bytes) -> int | None:
    """Return the first sample with a cell of these very bytes."""
    names = [name for name in reader.schema if reader.spans(name, [0]) is not None] if len(reader) else []
    for name in names:
        for first in range(0, len(reader), 1 << 16):
            rows = np.arange(first, min(first + (1 << 16), len(reader)))
            spans = reader.spans(name, rows)
            for row in rows[spans.size == len(data)].tolist() if spans is not None else ():
                cell = reader.read([row], [name])[name]
                if isinstance(cell, Ragged) and cell.data.tobytes() == data:
                    return int(row)
    return None


# -- hashes -------------------------------------------------------------------------------------------------


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _root(head: bytes, tree: bytes) -> bytes:
    return _sha256(b"\2" + head + tree)


def digest_of(path: str) -> bytes:
    """Return the SHA-256 of a file or an object; of a folder, that of the names and hashes of its files."""
    if not is_remote(path) and os.path.isdir(path):
        entries = []
        for folder, folders, names in os.walk(path):
            folders.sort()
            files = [os.path.join(folder, name) for name in sorted(names)]
            entries += [[os.path.relpath(file, path), digest_of(file).hex()] for file in files]
        return _sha256(_canonical(entries))
    digest, source = hashlib.sha256(), open_source(path)
    for start in range(0, source.size, READ_BYTES):
        digest.update(source.view(start, min(READ_BYTES, source.size - start)).data)
    return digest.digest()


def tree_of(leaves: list[bytes]) -> list[list[bytes]]:
    """Return the levels of the Merkle tree, leaves first; a node without a neighbour goes up as it is."""
    levels = [[_sha256(b"\0" + leaf) for leaf in leaves]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [_sha256(b"\1" + below[number] + below[number + 1]) for number in range(0, len(below) - 1, 2)]
        levels.append(pairs + below[len(below) // 2 * 2 :])
    return levels


def path_of(levels: list[list[bytes]], index: int) -> list[bytes]:
    """Return the hashes beside the way from a leaf to the root."""
    path = []
    for level in levels[:-1]:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        index //= 2
    return path


def root_of(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """Return the root that a leaf and its path lead to; raise DataError where the path has another length."""
    node, neighbours = _sha256(b"\0" + leaf), list(path)
    if not 0 <= index < size:
        raise DataError("a leaf of the proof is outside of the tree")
    while size > 1:
        if index ^ 1 < size:
            if not neighbours:
                raise DataError("the path of the proof is too short")
            neighbour = neighbours.pop(0)
            node = _sha256(b"\1" + (neighbour + node if index & 1 else node + neighbour))
        index, size = index // 2, (size + 1) // 2
    if neighbours:
        raise DataError("the path of the proof is too long")
    return node


# -- files --------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the receipt, or the proof, of a file."""
    with exceptions_as(DataError, "this is no receipt", *NOTE_ERRORS, path=path):
        return parse_object(read_whole(os.fspath(path)))


def proof_of(document: Mapping[str, Any]) -> Proof:
    """Return the proof that a document is."""
    with exceptions_as(DataError, "this is no proof", *NOTE_ERRORS):
        entries = tuple((int(index), str(leaf), tuple(path)) for index, leaf, path in document["leaves"])
        return Proof(**{**document, "leaves": entries})


def step_in(path: str) -> int:
    """Return the step of the loader state in a checkpoint: JSON, or what ``torch.save`` wrote."""
    if path.endswith(".json"):
        return _step_of(parse_object(read_whole(path)), path)
    from ...data import hooks

    torch = hooks.part("torch").torch
    # Only tensors and plain values: nothing in it is run.
    return _step_of(torch.load(path, map_location="cpu", weights_only=True), path)


def _step_of(value: Any, path: str) -> int:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            if {"version", "epoch", "position", "seed", "step"} <= item.keys():
                return int(item["step"])
            stack += item.values()
        elif isinstance(item, list | tuple):
            stack += item
    raise DataError("no state of a loader is in it: save loader.state_dict() with the checkpoint", path=path)
