"""Every format to every other: what both can hold comes out the same, to the last bit.

Driven by the registry alone: a format that is added takes part by being there. One dataset with a field for
every kind at its limits, each also with missing values, is written in every format (the fields it can hold),
and converted from there into every other.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import batchplant as bp
from batchplant.formats import registry
from batchplant.testing.cases import Case, all_cases, cells, check_samples

ROWS = 9
# What a format cannot do although it holds the kind: values that it refuses one by one, and kinds that it
# gives back as others. Each is tested in the format's own tests.
LEFT_OUT = {
    "hdf5": {"text with NUL"},  # HDF5's strings end at a NUL
    "iceberg": {"time us", "date"},  # its library knows the years 1 to 9999
    "npy": {"tensor without axes"},  # there is only the dtype: it comes back as a number
}
OTHER_KINDS = {
    "npy": {"class"},  # no place for names
}
# A folder has one image, sound or video for each sample, and cannot do without: the field that it gets.
FOLDERS = {"imagefolder": "image", "audiofolder": "audio wav", "videofolder": "video avi"}
OPEN = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}}


# Every field costs time in hundreds of pairs; the formats' own tests try all that is left out here.
SPARED = {f"tensor {name}" for name in ("int16", "int32", "int64", "uint8", "uint16", "uint32", "float64")}
SPARED |= {"audio", "video", "int8", "int16", "uint16", "uint32", "tensor int8"}
SPARED |= {"time s", "time of day ms", "duration ns"}
# Kinds that are also tried with missing values.
OPTIONAL = (
    "bool", "class", "bytes", "text", "json", "audio wav", "video avi", "int64", "uint8", "float32",
    "tensor float32", "tensor, first size varies", "tensor, sizes vary", "image", "image jpeg",
    "time of a zone", "date", "time of day", "duration", "decimal", "uuid", "list with gaps", "struct",
)  # fmt: skip


def fields() -> dict[str, Case]:
    """Name → field and its values, as many as there are rows."""
    result = {name.replace(";", ""): case for name, case in all_cases().items() if name not in SPARED}
    for name in OPTIONAL:
        field, values = result[name]
        result[f"{name}, optional"] = dataclasses.replace(field, optional=True), [None, *values]
    return {
        name: (field, list(itertools.islice(itertools.cycle(values), ROWS)))
        for name, (field, values) in result.items()
    }


FIELDS = fields()


@functools.cache
def held(name: str) -> list[str]:
    """The fields that a format can hold."""
    result = registry.get_format(name)
    left_out = LEFT_OUT.get(name, set())
    names = [
        key
        for key, (field, _) in FIELDS.items()
        if result.refuses(field) is None and key.removesuffix(", optional") not in left_out
    ]
    if name in FOLDERS:
        own = type(FIELDS[FOLDERS[name]][0])
        names = [key for key in names if key == FOLDERS[name] or not isinstance(FIELDS[key][0], own)]
    return names


def suffix(name: str) -> str:
    return next(iter(registry.get_format(name).suffixes), "")


# Models are datasets of other fields; data/test_tensors.py converts them among themselves. Those that hold
# one field alone have tests of their own.
FORMATS = [
    name for name, spec in registry.all_formats().items()
    if spec.writer is not None and not spec.tensors and not spec.fields
]  # fmt: skip


class Sources:
    """The dataset in every format, written when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.readers: dict[str, bp.Reader] = {}

    def __getitem__(self, name: str) -> bp.Reader:
        if name not in self.readers:
            path = self.folder / f"source-{name}{suffix(name)}"
            keys = held(name)
            try:
                with bp.create(
                    path, {key: FIELDS[key][0] for key in keys}, format=name, overwrite=True
                ) as out:
                    for row in range(ROWS):
                        out.append({key: FIELDS[key][1][row] for key in keys})
                self.readers[name] = bp.open(path, format=name, **OPEN.get(name, {}))
            except bp.MissingLibraryError as error:
                pytest.skip(str(error))
        return self.readers[name]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    result = Sources(tmp_path_factory.mktemp("matrix"))
    yield result
    for reader in result.readers.values():
        reader.close()


def expected(keys: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return {key: FIELDS[key][0] for key in keys}, [
        {key: FIELDS[key][1][row] for key in keys} for row in range(ROWS)
    ]


# Rows of bytes are written to every format, and what comes of it to columns. No reader knows what its samples
# are written to, nor a writer where they come from; make test-all tries all pairs.
ROWS_OF_BYTES, COLUMNS = "tfrecord", "parquet"


@pytest.mark.parametrize("name", FORMATS)
def test_to_each_and_back(name: str, sources: Sources, tmp_path: Path) -> None:
    assert len(held(name)) > 10
    if FOLDERS.get(name, "int64") not in held(ROWS_OF_BYTES):
        pytest.skip(f"{ROWS_OF_BYTES} has nothing for {name}")
    path = converted(sources[ROWS_OF_BYTES], ROWS_OF_BYTES, name, tmp_path)
    with bp.open(path, format=name, **OPEN.get(name, {})) as reader:
        converted(reader, name, COLUMNS, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("source", "target"), list(itertools.product(FORMATS, FORMATS)))
def test_from_each_to_each(source: str, target: str, sources: Sources, tmp_path: Path) -> None:
    if FOLDERS.get(target, "int64") not in held(source):
        pytest.skip(f"{source} has nothing for {target}")
    converted(sources[source], source, target, tmp_path)


def converted(mine: bp.Reader, source: str, target: str, folder: Path) -> Path:
    """The path of these samples in another format, which were checked."""
    keys = [key for key in mine.schema if key in held(source) and key in held(target)]
    path = folder / f"{source} to {target}{suffix(target)}"
    try:
        done = bp.convert(
            mine, path, fields=keys, target_options={"format": target}, options=bp.ConvertOptions(workers=1)
        )
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    assert done.samples == ROWS
    with bp.open(path, format=target, **OPEN.get(target, {})) as reader:
        check_samples(reader, *expected(keys))
        changed = OTHER_KINDS.get(source, set()) | OTHER_KINDS.get(target, set())
        for key in keys:
            if key not in changed:
                assert plain(reader.schema[key]) == plain(FIELDS[key][0]), key
        files = [key for key in keys if key.startswith(("image jpeg", "audio", "video"))]
        assert cells(reader.select(files)) == {
            key: [FIELDS[key][1][row] for row in range(ROWS)] for key in files
        }
        # That verify says the same is tried once for each format.
        if source == ROWS_OF_BYTES:
            report = bp.verify(reader, decode=True, against=mine.select(keys))
            assert report.problems == []
    return path


def plain(field: bp.Field) -> bp.Field:
    """The field, whatever images are encoded as: that is the writer's choice."""
    return dataclasses.replace(field, encoding=None) if isinstance(field, bp.Image) else field
