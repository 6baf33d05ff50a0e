"""A field of bytes that is opened as a Tensor: the numbers that the bytes are, in every format that can."""

from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from variants import in_one_test

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 4, 6), np.uint8)
SUFFIXES = ["tar", "tar.gz", "lmdb", "msgpack", "ffr", "rec", "tfrecord", "parquet", "arrow"]


def written(tmp_path: Path, suffix: str, cells: list[bytes | None]) -> str:
    path = tmp_path / f"a.{suffix}"
    with bp.create(path, {"image": bp.Bytes(optional=None in cells), "n": bp.Int()}) as out:
        for n, cell in enumerate(cells):
            out.append({"image": cell, "n": n})
    return str(path)


def opened(path: str, field: bp.Tensor) -> bp.Reader:
    return bp.open(path, schema={"image": field, "n": bp.Int()})


@in_one_test("suffix", SUFFIXES)
def test_the_numbers_that_the_bytes_are(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, suffix, [pixel.tobytes() for pixel in PIXELS])
    with opened(path, bp.Tensor("uint8", (4, 6))) as reader:
        assert reader.schema["image"] == bp.Tensor("uint8", (4, 6))
        assert np.array_equal(reader.read([5, 0, 5])["image"], PIXELS[[5, 0, 5]])
        assert np.array_equal([sample["image"] for sample in reader], PIXELS)
        spans = reader.spans("image", [5, 1])
        for row, number in enumerate((5, 1) if spans is not None else ()):
            data = Path(spans.files[int(spans.file[row])]).read_bytes()
            start = int(spans.start[row])
            assert data[start : start + int(spans.size[row])] == PIXELS[number].tobytes()
    with opened(path, bp.Tensor("float32", (None, 2))) as reader:
        assert reader[3]["image"].tobytes() == PIXELS[3].tobytes()
        assert reader[3]["image"].shape == (3, 2)


@in_one_test("suffix", SUFFIXES)
@in_one_test("shape", [(4, 6), (None, 6)])
def test_another_number_of_bytes_is_named(tmp_path: Path, suffix: str, shape: tuple[int | None, ...]) -> None:
    cells = [pixel.tobytes() for pixel in PIXELS]
    cells[4] = cells[4][:-1]
    with opened(written(tmp_path, suffix, cells), bp.Tensor("uint8", shape)) as reader:
        if suffix not in ("parquet", "arrow"):
            # Tables are decoded by the row group.
            assert reader.read([0, 3])["n"].tolist() == [0, 3]
            with pytest.raises(bp.DataError, match="23 bytes") as caught:
                reader.read([1, 4])
            assert (caught.value.sample, caught.value.field) == (4, "image")
            assert caught.value.offset is not None
        with pytest.raises(bp.DataError) as caught:
            reader[4]
        assert (caught.value.sample, caught.value.field) == (4, "image")


@in_one_test("suffix", SUFFIXES)
def test_missing_ones_stay_missing(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, suffix, [PIXELS[0].tobytes(), None, PIXELS[2].tobytes()])
    with opened(path, bp.Tensor("uint8", (4, 6), optional=True)) as reader:
        result = [sample["image"] for sample in reader]
        assert result[1] is None
        assert np.array_equal(result[2], PIXELS[2])
