"""JPEGs decoded by both: the engine reads coefficients, a device makes pixels of them. Here it is the CPU."""

from __future__ import annotations

import io
import os
import sys

import numpy as np
import pytest

import batchplant as bp
import processes
import repository
from batchplant import _native, ops
from batchplant.codecs import image

torch = pytest.importorskip("torch")
pillow = pytest.importorskip("PIL.Image")

from batchplant.interop.gpu import jpeg as gpu_jpeg  # noqa: E402
from batchplant.loading.images import Request  # noqa: E402
from batchplant.loading.stage import Target  # noqa: E402
from batchplant.storage.spans import Located  # noqa: E402


def jpeg(rng, width, height, *, noise=True, **options):
    """Noise has large coefficients; at the best quality some leave ten bits."""
    small = rng.integers(
        0, 256, (height, width, 3) if noise else (height // 8 + 2, width // 8 + 2, 3), np.uint8
    )
    out = io.BytesIO()
    pillow.fromarray(small).resize((width, height)).save(out, "JPEG", **options)
    return out.getvalue()


def request_of(cells, boxes, sizes):
    size = np.array([len(cell) for cell in cells])
    start = np.cumsum(size) - size
    count = len(cells)
    where = Located([np.frombuffer(b"".join(cells), np.uint8)], np.zeros(count, np.int32), start, size, None)
    target = Target("RGB", "area", 8, 8, 3, as_stored=False)
    sizes = np.array(sizes, np.int32)
    return Request(
        where, sizes, np.array(boxes, np.float64), None, None, target, lambda row, size: None,
        np.arange(count), sizes,
    )  # fmt: skip


def made(request, room=None, kind=gpu_jpeg.CoefficientJpegs):
    """Pixels of every image, and the rows that were left to others."""
    cells = request.cells
    sampling = _native.device_decodable(
        cells.bases[0], cells.start, cells.size, request.sizes.astype(np.int64)
    )
    rows = np.arange(len(request))
    both = kind(request, rows, sampling)
    memory = np.empty(both.room if room is None else room, np.uint8)
    engine = _native.Engine(2)
    both.read(engine, memory)
    engine.close()
    if not len(both.rows):
        return {}, both
    both.prepare(memory, torch.from_numpy(memory))
    both.decode(torch.from_numpy(memory))
    if both.flags is not None:
        both.select(np.flatnonzero(both.flags == 0))
    part = both.part()
    return {int(row): part.sources.views[n].numpy() for n, row in enumerate(part.rows)}, both


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_pixels_are_those_of_libjpeg(subsampling):
    """Any window of any image, to the last bit."""
    rng = np.random.default_rng(subsampling)
    cells, boxes, sizes = [], [], []
    for number in range(60):
        width, height = (int(integer) for integer in rng.integers(5, 90, 2))
        how = {"quality": (30, 75, 95, 100)[number % 4], "restart_marker_blocks": 3 * (number % 5 == 0)}
        cells.append(jpeg(rng, width, height, noise=number % 3 > 0, subsampling=subsampling, **how))
        left, top = int(rng.integers(0, width)), int(rng.integers(0, height))
        boxes.append(
            (left, top, int(rng.integers(left + 1, width + 1)), int(rng.integers(top + 1, height + 1)))
        )
        sizes.append((height, width))
    result, both = made(request_of(cells, boxes, sizes))
    assert sorted(result) == list(range(60))
    for row, pixels in result.items():
        top, left, high, wide = both.window[row].tolist()
        whole = image.decode(np.frombuffer(cells[row], np.uint8), "RGB")
        assert np.array_equal(pixels, whole[top : top + high, left : left + wide]), (
            row,
            sizes[row],
            boxes[row],
        )


def test_room_is_for_the_window_however_the_detail_lies():
    """All detail lies in a quarter of the image, and that is what is asked for."""
    rng = np.random.default_rng(0)
    pixels = np.full((256, 256, 3), 128, np.uint8)
    pixels[:128, :128] = rng.integers(0, 256, (128, 128, 3), np.uint8)
    out = io.BytesIO()
    pillow.fromarray(pixels).save(out, "JPEG", quality=90)
    cell = out.getvalue()
    for box in ((0, 0, 128, 128), (32, 32, 96, 96), (0, 0, 256, 256)):
        result, _ = made(request_of([cell], [box], [(256, 256)]))
        assert sorted(result) == [0]
    smooth = jpeg(rng, 256, 256, noise=False, quality=90)
    cells, small = [cell, *[smooth] * 20], (100, 100, 140, 140)
    result, both = made(request_of(cells, [(0, 0, 128, 128), *[small] * 20], [(256, 256)] * 21))
    assert sorted(result) == list(range(21))
    whole = gpu_jpeg.CoefficientJpegs(
        request_of(cells, [(0, 0, 256, 256)] * 21, [(256, 256)] * 21), both.rows, np.full(21, 0x22, np.uint8)
    )
    assert both.room < 0.5 * whole.room


def test_what_is_out_of_the_ordinary_is_left_to_the_engine():
    rng = np.random.default_rng(0)
    good = jpeg(rng, 40, 32)
    bad = bytearray(good)
    bad[-60:-4] = bytes(56)
    narrow = jpeg(rng, 4, 32, subsampling=2)
    cells = [good, bytes(bad), narrow, good]
    sizes = [(32, 40), (32, 40), (32, 4), (32, 40)]
    boxes = [(0, 0, width, height) for height, width in sizes]
    actual, both = made(request_of(cells, boxes, sizes))
    assert both.missing.tolist() == [1, 2]
    assert sorted(actual) == [0, 3]
    # Without room nothing is read, and nobody writes where it must not.
    actual, both = made(request_of(cells, boxes, sizes), room=100)
    assert actual == {}
    assert both.missing.tolist() == [0, 1, 2, 3]


def test_parts_that_do_not_exist():
    rng = np.random.default_rng(0)
    cell = np.frombuffer(jpeg(rng, 40, 32), np.uint8)
    engine = _native.Engine(1)
    zero, size = np.zeros(1, np.int64), np.array([cell.size])
    out = np.empty(1 << 20, np.uint8)
    for part in (
        (0, 0, 41, 32),
        (0, 0, 40, 33),
        (5, 5, 5, 8),
        (9, 5, 5, 8),
        (-1, 0, 8, 8),
        (0, 0, 1 << 62, 8),
    ):
        table, _ = engine.code([cell], zero.astype(np.int32), zero, size, np.array([part]), out)
        assert table[0, 0] == -1, part
    table, used = engine.code([cell], zero.astype(np.int32), zero, size, np.array([(0, 0, 40, 32)]), out)
    assert table[0, :2].tolist() == [0, (5 * 4) + 2 * (3 * 2)]
    assert 0 < used < out.size
    with pytest.raises(ValueError, match="part has 2"):
        engine.code([cell], zero.astype(np.int32), zero, size, np.zeros((2, 4), np.int64), out)
    engine.close()


def test_a_loader_that_splits(tmp_path):
    """The same batches as on the CPU, but for the rounding of the last step; others go by the engine."""
    rng = np.random.default_rng(1)
    with bp.create(tmp_path / "a.beton", {"image": bp.Image()}) as out:
        for number in range(40):
            width, height = (int(integer) for integer in rng.integers(20, 120, 2))
            progressive = number % 8 == 0
            data = jpeg(rng, width, height, noise=False, subsampling=number % 3, progressive=progressive)
            out.append({"image": data})
    steps = [ops.RandomResizedCrop(48), ops.RandomHorizontalFlip()]
    how = {"pipelines": {"image": steps}, "seed": 3, "order": "random"}
    plain = [batch["image"] for batch in bp.Loader(tmp_path / "a.beton", 8, **how)]
    loader = bp.Loader(tmp_path / "a.beton", 8, device="cpu", decode="split", **how)
    result = [batch["image"].numpy() for batch in loader]
    assert loader.stats()["decoded"] == {"cpu": 5, "gpu": 0, "split": 35, "raw": 0}
    loader.close()
    for ours, theirs in zip(result, plain, strict=True):
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 2


def test_what_is_quicker_and_coarser_is_not_split(tmp_path):
    rng = np.random.default_rng(1)
    with bp.create(tmp_path / "a.beton", {"image": bp.Image()}) as out:
        out.append({"image": jpeg(rng, 60, 60)})
    loader = bp.Loader(
        tmp_path / "a.beton",
        1,
        device="cpu",
        decode=bp.DecodeOptions("split", dct="fast"),
        pipelines={"image": [ops.Resize(16)]},
    )
    assert len(list(loader)) == 1
    assert loader.stats()["decoded"]["cpu"] == 1
    loader.close()


# Where a child finds this module and what it imports.
MODULES = os.pathsep.join((os.path.dirname(__file__), str(repository.SUPPORT)))

INTERPRETED = """
import contextlib, os, sys
import numpy as np, torch
torch.cuda.device = lambda device: contextlib.nullcontext()
sys.path[:0] = sys.argv[1].split(os.pathsep)
import test_gpu_jpeg
from batchplant.interop.gpu import jpeg as gpu_jpeg, jpeg_kernel

rng = np.random.default_rng(5)
cells, sizes = [], []
for number in range(6):
    width, height = (int(one) for one in rng.integers(6, 24, 2))
    how = {"quality": (40, 90, 100)[number // 2], "subsampling": number % 3, "optimize": number == 3}
    cells.append(test_gpu_jpeg.jpeg(rng, width, height, **how))
    sizes.append((height, width))
boxes = [(width // 4, height // 5, width - 1, height - number % 3)
         for number, (height, width) in enumerate(sizes)]
damaged = cells[4][:-40] + cells[4][-2:]
for some in (cells, [*cells[:4], damaged, cells[5]]):
    request = test_gpu_jpeg.request_of(some, boxes, sizes)
    gpu_jpeg.kernels = lambda tensor: None
    want, _ = test_gpu_jpeg.made(request)
    gpu_jpeg.kernels = lambda tensor: jpeg_kernel
    for kind in (gpu_jpeg.CoefficientJpegs, gpu_jpeg.ScanJpegs):
        got, _ = test_gpu_jpeg.made(request, kind=kind)
        assert sorted(got) == sorted(want), (kind, sorted(got), sorted(want))
        for row in want:
            assert np.array_equal(got[row], want[row]), (kind, row)
assert len(want) == 5
"""


def test_the_kernels_do_what_torch_does():
    """Triton can interpret kernels; where it is installed, that is how they are tried without a GPU."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the kernels themselves run there")
    done = processes.run(
        [sys.executable, "-W", "ignore", "-c", INTERPRETED, MODULES],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
