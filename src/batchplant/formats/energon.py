"""Megatron-Energon, a folder of TAR files that was prepared: ``.nv-meta`` says what they hold.

``.info.json`` (or ``.info.yaml``) has the number of samples of each archive, ``split.yaml`` (or
``split.json``) the archives of each split, with braces, and what is excluded: archives, or samples as
``ARCHIVE/NUMBER``. The archives are opened in place, a field for each extension; where ``field_map`` of
``dataset.yaml`` names an extension, the field has the name there. Code in the folder (``sample_loader.py``)
is never imported.

:func:`prepare` writes what energon needs besides the archives: ``NAME.tar.idx`` (little-endian u64 offsets of
the samples, and the end of the last one), ``index.sqlite``, ``index.uuid`` and the files above.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import os
import re
import sqlite3
import struct
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.config import parse_yaml
from ..data.reader import ReaderWrapper, open_reader
from ..errors import (
    BatchplantError,
    DamagedError,
    ExistsError,
    NotFoundError,
    OptionError,
    SchemaError,
    exceptions_as,
    on_error,
)
from ..schema import EVERY_KIND
from ..storage import NOTE_ERRORS, is_below, is_remote, join, parse_object, read_beside, tree
from ..storage.patterns import braces, naturally
from .base.format import Capabilities, Format, Probe

__all__ = ["prepare"]

FOLDER = ".nv-meta"
INFO, SPLIT, DATASET = (".info.json", ".info.yaml"), ("split.yaml", "split.json"), ("dataset.yaml",)
INDEX, UUID = "index.sqlite", "index.uuid"
# The version whose files are written.
VERSION = "7.4.1"
MAX_EXCLUDED = 100_000
# Names that energon takes for samples: key and extension; and those that it passes over.
MEMBER = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
METADATA = re.compile(r"__[^/]*__($|/)")
CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
TABLES = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
  sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
  content_byte_offset INTEGER, content_byte_size INTEGER);
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
  ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


class EnergonReader(ReaderWrapper):
    """Reads a folder that was prepared for Megatron-Energon. ``split``: needed where there are several."""

    def __init__(self, path: str, *, split: str | None = None) -> None:
        self.path = path
        try:
            counts = {str(name): int(count) for name, count in _document(path, INFO)["shard_counts"].items()}
            names, excluded = self._choose(counts, split)
        except BatchplantError as error:
            raise error.at(path=path) from None
        except (*NOTE_ERRORS, AttributeError) as error:
            message = f"{FOLDER} is damaged: {type(error).__name__}: {error}"
            raise DamagedError(message, path=path) from None
        base = open_reader([join(path, name) for name in names])
        with on_error(base.close):
            if len(base) != sum(counts[name] for name in names):
                listed = sum(counts[name] for name in names)
                raise DamagedError(f"{len(base)} samples are there, and {FOLDER} has {listed}", path=path)
            left_out = set(_numbers(names, counts, excluded))
            if left_out:
                base = base.subset([row for row in range(len(base)) if row not in left_out])
            # Where dataset.yaml names an extension for a field, the field has the name there.
            fields = _document(path, DATASET, {}).get("field_map")
            fields = fields if isinstance(fields, dict) else {}
            new_names = {
                old: new for new, old in fields.items() if old in base.schema and new not in base.schema
            }
            super().__init__(base.rename(new_names))
        self.path, self.format = path, FORMAT.name

    def _choose(self, counts: Mapping[str, int], split: str | None) -> tuple[list[str], set[str]]:
        """Return the archives of the split, and what is excluded."""
        document = _document(self.path, SPLIT, {"split_parts": {"train": list(counts)}})
        parts = {str(name): files for name, files in document["split_parts"].items() if files}
        if split is None and len(parts) == 1:
            split = next(iter(parts))
        if split not in parts:
            why = "there are several splits" if split is None else f"there is no split {split!r}"
            raise OptionError(f"{why}; split=… is one of {', '.join(parts)}")
        self._split = split
        excluded = set(_expanded(document.get("exclude") or (), MAX_EXCLUDED))
        names = list(dict.fromkeys(_expanded(parts[split], len(counts))))
        for name in names:
            if name not in counts or not is_below(name):
                raise ValueError(f"the split names {name!r}, which is no archive of {INFO[0]}")
        names = [name for name in names if name not in excluded and counts[name]]
        if not names:
            raise DamagedError(f"the split {split!r} has no sample")
        return names, excluded

    def facts(self) -> dict[str, object]:
        return {"split": self._split, **self.base.facts()}


def _document(path: str, names: Sequence[str], default: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the first of these files in the folder of metadata."""
    for name in names:
        file = join(path, f"{FOLDER}/{name}")
        content = read_beside(file)
        if content is not None:
            with exceptions_as(DamagedError, "it is damaged", *NOTE_ERRORS, path=file):
                return parse_object(content) if name.endswith(".json") else parse_yaml(content.decode())
    if default is None:
        raise NotFoundError(f"there is no {FOLDER}/{names[0]}", path=path)
    return default


def _expanded(patterns: Iterable[str], limit: int) -> list[str]:
    names = itertools.chain.from_iterable(braces(str(pattern)) for pattern in patterns)
    listed = list(itertools.islice(names, limit + 1))
    if len(listed) > limit:
        raise ValueError(f"more than {limit} names are listed")
    return listed


def _numbers(names: Sequence[str], counts: Mapping[str, int], excluded: Iterable[str]) -> Iterator[int]:
    """Yield the numbers of samples that are excluded."""
    firsts = dict(zip(names, itertools.accumulate((counts[name] for name in names), initial=0), strict=False))
    for name in excluded:
        archive, _, number = name.rpartition("/")
        if archive in firsts and number.isdigit() and int(number) < counts[archive]:
            yield firsts[archive] + int(number)


def prepare(
    path: str | os.PathLike[str],
    splits: Mapping[str, str | Sequence[str]] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write the metadata of Megatron-Energon for the TAR files in a folder, so that energon prepares nothing.

    splits: patterns of the archives of each split (default: all are ``train``). overwrite: replace metadata
    that is there. A ``dataset.yaml`` that is there stays; otherwise it is one of crude samples.

    Raises: ExistsError; NotFoundError where there is no archive; SchemaError where two samples have one key.
    """
    folder = Path(path)
    if is_remote(os.fspath(path)):
        raise OptionError("metadata is written to a local folder", path=os.fspath(path))
    names = naturally(str(file.relative_to(folder)) for file in folder.rglob("*.tar"))
    if not names:
        raise NotFoundError("there is no TAR file in it", path=str(folder))
    meta = folder / FOLDER
    if (meta / INFO[0]).exists() and not overwrite:
        raise ExistsError(f"{FOLDER}/{INFO[0]} is there; overwrite=True replaces it", path=str(folder))
    parts = {}
    for split, patterns in ({"train": "*"} if splits is None else splits).items():
        chosen = [patterns] if isinstance(patterns, str) else patterns
        parts[split] = [name for name in names if any(fnmatch.fnmatchcase(name, one) for one in chosen)]
    meta.mkdir(exist_ok=True)
    # Until it is complete, energon does not take the folder for a prepared one.
    (meta / INFO[0]).unlink(missing_ok=True)
    counts = _write_index(folder, names, meta / INDEX)
    _write(meta / UUID, str(uuid.uuid4()))
    # YAML has JSON in it, and every parser of it reads that.
    _write(meta / SPLIT[0], json.dumps({"split_parts": parts, "exclude": []}, indent=2, ensure_ascii=False))
    if not (meta / DATASET[0]).exists():
        _write(meta / DATASET[0], CRUDE)
    info = {"energon_version": VERSION, "shard_counts": counts}
    _write(meta / INFO[0], json.dumps(info, indent=2, ensure_ascii=False))


def _write(path: Path, content: str | bytes) -> None:
    partial = path.with_name(f"{path.name}.tmp")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(partial, path)


def _write_index(folder: Path, names: Sequence[str], index: Path) -> dict[str, int]:
    """Write where samples and their members are, and return the number of samples of each archive."""
    partial = index.with_name(f"{index.name}.tmp")
    partial.unlink(missing_ok=True)
    counts = {}
    with contextlib.closing(sqlite3.connect(partial)) as out:
        out.executescript(TABLES)
        for number, name in enumerate(names):
            samples, members = _scan(folder / name)
            ends = [offset for _, offset in samples]
            _write((folder / name).with_suffix(".tar.idx"), struct.pack(f"<{len(ends)}Q", *ends))
            counts[name] = len(samples) - 1
            rows = [
                (number, key, row, start, samples[row + 1][1] - start)
                for row, (key, start) in enumerate(samples[:-1])
            ]
            try:
                out.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
            except sqlite3.IntegrityError:
                reason = "a key is that of another sample, too; energon needs different ones"
                raise SchemaError(reason, path=str(folder / name)) from None
            out.executemany(f"INSERT INTO sample_parts VALUES ({number}, ?, ?, ?, ?)", members)
        out.commit()
    os.replace(partial, index)
    return counts


def _scan(path: Path) -> tuple[list[tuple[str, int]], list[tuple[int, str, int, int]]]:
    """Return (key, offset) of the samples of an archive, then its end; and its members, as energon does."""
    samples: list[tuple[str, int]] = []
    members = []
    with (
        exceptions_as(DamagedError, "it is no TAR file", tarfile.TarError, path=str(path)),
        tarfile.open(path, "r:") as archive,
    ):
        for member in archive:
            match = MEMBER.match(member.name)
            if not member.isreg() or METADATA.match(member.name) or match is None:
                continue
            if not samples or samples[-1][0] != match[1]:
                samples.append((match[1], member.offset))
            members.append((len(samples) - 1, match[2], member.offset_data, member.size))
        return [*samples, ("", archive.offset)], members


def sniff(probe: Probe) -> bool:
    """Metadata of energon lies in it, beside archives."""
    # A server has listed the folder already; a folder on disk may be large, and is not listed for this.
    names = tree.names(probe.path) if is_remote(probe.path) else [FOLDER]
    return FOLDER in names and any(
        read_beside(join(probe.path, f"{FOLDER}/{name}")) is not None for name in INFO
    )


FORMAT = Format(
    name="energon",
    title="Megatron-Energon",
    suffixes=(),
    spec="https://nvidia.github.io/Megatron-Energon/",
    reader=EnergonReader,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="yaml",
    notes="a split of a prepared folder; `batchplant.formats.energon.prepare` prepares one",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        ecosystem=("Megatron-Energon", "Megatron-LM", "NeMo"),
    ),
)
