"""Metadatasets of Megatron-Energon: a YAML file whose splits blend, concatenate and join datasets.

A split is a reference (``path``, ``split_part``, ``subset``) or one of ``blend`` (references with a
``weight``), ``blend_epochized`` (with ``repetitions``), ``concat`` and ``join``; a reference may lead to
another metadataset. Opened, it is a :class:`~batchplant.Mix`: of the sources of a blend by their weights, of
one source otherwise. A join has the samples of all parts with one key; fields that several parts have get the
name of the part. The ``joiner``, a Python class, is never imported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..data.concat import Concat
from ..data.config import parse_yaml
from ..data.join import Join
from ..data.mix import Mix
from ..data.reader import Reader, open_reader
from ..errors import BatchplantError, DamagedError, OptionError, SampleKeyError, UnsafeError
from ..schema import EVERY_KIND
from ..storage import NOTE_ERRORS, is_below, join, parent, read_whole
from .base.format import Capabilities, Format, Probe

CLASS = re.compile(rb"^__class__:\s*Metadataset(V2)?\s*$", re.MULTILINE)
MODULE = re.compile(rb"^__module__:\s*megatron\.energon\b", re.MULTILINE)
# What a node can be besides a reference, and what version 1 called a blend.
BLEND, EPOCHIZED, CONCAT, JOIN, DATASETS = "blend", "blend_epochized", "concat", "join", "datasets"
KEY = "__key__"
# Files in files, and blends in blends; repetitions of a source.
MAX_DEPTH, MAX_REPETITIONS = 8, 1000
# Of a source of a blend, beside 1; the least is its inverse.
MAX_WEIGHT = 1e6
PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")

# A source, and its weight in the mixture.
Weighted = list[tuple[Reader, float]]


class MetadatasetReader(Mix):
    """Reads a metadataset of Megatron-Energon as a mixture.

    ``split``: one of the file (default: train). ``fields``: only these, which all sources have. ``seed``,
    ``stop``: of the Mix. ``outside``: datasets may lie outside of the folder of the file.
    """

    def __init__(
        self,
        path: str,
        *,
        split: str = "train",
        fields: Sequence[str] | None = None,
        seed: int = 0,
        stop: str | int = "first",
        outside: bool = False,
    ) -> None:
        self._outside, self._opened = outside, list[Reader]()
        try:
            sources = self._read_file(path, split, 0)
            super().__init__(sources, fields=fields, seed=seed, stop=stop)
        except BatchplantError as error:
            for reader in self._opened:
                reader.close()
            raise error.at(path=path) from None
        self.path, self.format = path, FORMAT.name

    def _read_file(self, path: str, split: str, depth: int) -> Weighted:
        if depth > MAX_DEPTH:
            raise DamagedError(f"metadatasets lead to each other more than {MAX_DEPTH} times", path=path)
        try:
            splits = parse_yaml(read_whole(path).decode())["splits"]
            if split not in splits:
                raise OptionError(f"there is no split {split!r}; split=… is one of {', '.join(splits)}")
            return self._node(splits[split], path, split, depth + 1)
        except BatchplantError as error:
            raise error.at(path=path) from None
        except (*NOTE_ERRORS, AttributeError) as error:
            message = f"the metadataset is damaged: {type(error).__name__}: {error}"
            raise DamagedError(message, path=path) from None

    def _node(self, node: Mapping[str, Any], path: str, split: str, depth: int) -> Weighted:
        """Return the sources of a node; the weights of several are relative."""
        if depth > 2 * MAX_DEPTH:
            raise DamagedError("blends lie in each other too deeply", path=path)
        if DATASETS in node or BLEND in node:
            blended: Weighted = []
            for entry in node.get(BLEND) or node[DATASETS]:
                weight = float(entry.get("weight", 1))
                if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
                    raise ValueError(f"a source has the weight {weight}")
                inner = self._node(entry, path, split, depth + 1)
                total = sum(part for _, part in inner)
                blended += [(reader, weight * part / total) for reader, part in inner]
            return [(_subset(reader, node, absolute=False), weight) for reader, weight in blended]
        if EPOCHIZED in node:
            entries = [(self._one(entry, path, split, depth), entry) for entry in node[EPOCHIZED]]
            readers = [
                part for reader, entry in entries for part in _repeated(reader, entry.get("repetitions", 1))
            ]
            return [(_subset(_together(readers), node, absolute=False), 1.0)]
        if CONCAT in node:
            readers = [self._one(entry, path, split, depth) for entry in node[CONCAT]]
            return [(_subset(_together(readers), node, absolute=False), 1.0)]
        if JOIN in node:
            joined = self._join(node[JOIN], path, str(node.get("split_part") or split), depth)
            return [(_subset(joined, node, absolute=False), 1.0)]
        return self._reference(node, path, str(node.get("split_part") or split), depth)

    def _one(self, node: Mapping[str, Any], path: str, split: str, depth: int) -> Reader:
        sources = self._node(node, path, split, depth + 1)
        if len(sources) > 1:
            raise OptionError("a blend by weights cannot be repeated, joined or concatenated")
        return sources[0][0]

    def _reference(self, node: Mapping[str, Any], path: str, split: str, depth: int) -> Weighted:
        named = str(node["path"])
        if not self._outside and not is_below(named.removeprefix("./")):
            raise UnsafeError(f"{named!r} is outside of the folder of the file; outside=True allows it")
        is_absolute = "://" in named or named.startswith("/")
        place = named if is_absolute else join(parent(path), named.removeprefix("./"))
        if named.endswith((".yaml", ".yml")):
            sources = self._read_file(place, split, depth)
        else:
            sources = [(open_reader(place, format="energon", split=split), 1.0)]
            self._opened.append(sources[0][0])
        return [(_subset(reader, node), weight) for reader, weight in sources]

    def _join(self, node: Any, path: str, split: str, depth: int) -> Reader:
        entries = dict(node) if isinstance(node, Mapping) else dict(enumerate(node))
        readers = [self._one(entry, path, split, depth) for entry in entries.values()]
        how = {str(entry.get("nonmatch", "error")) for entry in list(entries.values())[1:]}
        if how not in ({"error"}, {"skip"}):
            raise OptionError(f"nonmatch of all parts of a join is error, or skip, not {sorted(how)}")
        # The key of the first part is that of all.
        for number, reader in enumerate(readers[1:], 1):
            readers[number] = reader.select([name for name in reader.schema if name != KEY])
        names = [name for reader in readers for name in reader.schema]
        parts = [
            reader.rename({name: f"{name}.{label}" for name in reader.schema if names.count(name) > 1})
            for label, reader in zip(entries, readers, strict=True)
        ]
        # Samples of later parts that the first one lacks do not matter.
        joined = Join(parts, on="key", how="inner")
        if how == {"error"} and len(joined) < len(parts[0]):
            lost = len(parts[0]) - len(joined)
            raise SampleKeyError(f"{lost} samples have no partner in a join; nonmatch: skip leaves them out")
        return joined


def _together(readers: Sequence[Reader]) -> Reader:
    return readers[0] if len(readers) == 1 else Concat(list(readers))


def _repeated(reader: Reader, repetitions: Any) -> list[Reader]:
    count, rest = divmod(float(repetitions), 1)
    if not 0 < count + rest <= MAX_REPETITIONS:
        raise ValueError(f"{repetitions} repetitions")
    some = [reader.subset(range(int(len(reader) * rest)))] if rest else []
    return [*itertools.repeat(reader, int(count)), *some]


def _subset(reader: Reader, node: Mapping[str, Any], *, absolute: bool = True) -> Reader:
    """Return the range of samples that a node has: numbers, or shares such as 25%."""
    if "subset" not in node:
        return reader
    bounds = []
    for bound in node["subset"]["range"]:
        share = PERCENT.fullmatch(str(bound))
        if share is None and not (bound == "end" or (absolute and isinstance(bound, int))):
            raise ValueError(f"{bound!r} is no bound of a subset here")
        bounds.append(len(reader) if bound == "end" else bound if share is None else float(share[1]) / 100)
    first, last = (int(len(reader) * bound) if isinstance(bound, float) else bound for bound in bounds)
    if not 0 <= first <= last <= len(reader):
        raise ValueError(f"a subset from {first} to {last} of {len(reader)} samples")
    return reader.subset(range(first, last))


def sniff(probe: Probe) -> bool:
    return MODULE.search(probe.head) is not None and CLASS.search(probe.head) is not None


FORMAT = Format(
    name="metadataset",
    title="Metadataset of Megatron-Energon",
    suffixes=(),
    spec="https://nvidia.github.io/Megatron-Energon/basic/metadataset.html",
    reader=MetadatasetReader,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    extra="yaml",
    notes="blends, repetitions, concatenations and joins of prepared folders, as a Mix",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        human_readable=True,
        ecosystem=("Megatron-Energon",),
    ),
)
