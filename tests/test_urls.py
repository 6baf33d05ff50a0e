"""Whatever opens locally opens by URL, against a real S3 server: every format that the registry knows.

A bucket of the server is a folder of this machine, so the same dataset is opened twice and compared. Where
the server is, only the option ``endpoint`` says: a reader that loses the options of its URL finds nothing.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import registry
from batchplant.summary import summarize
from batchplant.testing import base, models
from batchplant.testing.cases import cells, film, jpeg, sound
from servers import Bucket

GOLDEN = Path(__file__).parent / "golden"
# A folder has one picture, sound or video for each sample, and cannot do without.
BESIDE = {
    "imagefolder": {"image": (bp.Image(), jpeg())},
    "audiofolder": {"audio": (bp.Audio(), sound(4))},
    "videofolder": {"video": (bp.Video(), film(1))},
}
OPEN = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}}
# Facts that are true of local files only: a server is not mapped.
IN_MEMORY = ("mapped columns", "used in place")
ROWS = 7


def copied(source: Path) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        target = folder / source.name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        return source.name

    return make


def list_file(folder: Path) -> str:
    os.makedirs(folder / "pictures")
    lines = []
    for number in range(ROWS):
        (folder / f"pictures/{number}.jpg").write_bytes(jpeg(8, 8 + number))
        lines.append(f"{number}\t{number % 3}\tpictures/{number}.jpg\n")
    (folder / "data.lst").write_text("".join(lines))
    return "data.lst"


# How the formats that are only read come to a dataset.
MADE: dict[str, Callable[[Path], str]] = {
    "lst": list_file,
    "pmml": copied(GOLDEN / "models/tree.pmml"),
    "savedmodel": copied(GOLDEN / "models/saved_model"),
}


def every_format() -> Iterator[Any]:
    """Every format with every suffix that it writes: compressed, zipped, as a folder or a file."""
    for name, one in registry.all_formats().items():
        for suffix in one.suffixes if one.writer is not None and one.suffixes else ("",):
            if not suffix.endswith(".index.json"):
                yield pytest.param(name, suffix, id=name + suffix)


def write(name: str, suffix: str, folder: Path) -> str:
    """A dataset of a format; its name in the folder."""
    one = registry.get_format(name)
    if one.writer is None:
        return MADE[name](folder)
    bench = (models.ModelSuite if one.tensors else base.Bench)()
    bench.format, bench.suffix, bench.beside = name, suffix, BESIDE.get(name, {})  # type: ignore[misc]
    if name == "onnx":
        bench.dtypes = ("float32", "int64")  # type: ignore[attr-defined]
    try:
        return os.path.basename(bench.written(folder, ROWS))
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))


def same(local: bp.Reader, remote: bp.Reader) -> None:
    assert remote.format == local.format
    assert remote.schema == local.schema
    assert len(remote) == len(local)
    assert cells(remote) == cells(local)
    assert remote.metadata == local.metadata
    assert dict(remote.attributes).keys() == dict(local.attributes).keys()


@pytest.mark.parametrize(("name", "suffix"), list(every_format()))
def test_every_format(name: str, suffix: str, bucket: Bucket) -> None:
    file = write(name, suffix, Path(bucket.root))
    options, place = OPEN.get(name, {}), {"endpoint": bucket.endpoint}
    with (
        bp.open(os.path.join(bucket.root, file), **options) as local,
        bp.open(f"{bucket.url}/{file}", **options, **place) as remote,
    ):
        same(local, remote)
        row = len(local) // 2
        assert repr(remote[row]) == repr(local[row])
        with pickle.loads(pickle.dumps(remote)) as again:
            assert cells(again) == cells(local)
        facts = [summarize(one) for one in (remote, local)]
        assert facts[0].pop("path") == f"{bucket.url}/{file}"
        facts[1].pop("path")
        for one in facts:
            one["facts"] = {key: value for key, value in one["facts"].items() if key not in IN_MEMORY}
        assert facts[0] == facts[1]
        if hasattr(local, "tensors") and registry.get_format(name).tensors:
            for key, array in local.tensors().items():
                assert np.asarray(remote.tensors()[key]).tobytes() == np.asarray(array).tobytes()
    found = bp.verify(f"{bucket.url}/{file}", decode=True, **options, **place)
    assert found.problems == []
    assert found.samples == len(local)
