"""The engine on one core: images a second, beside Pillow and, where installed, OpenCV and simplejpeg.

JPEG (sequential and progressive), PNG, WebP (lossy and lossless) and raw pixels. Random resized crop (8 to
100 % of the area) to 224, half of the images flipped; and raw images as they are, beside memcpy. Every
side does the same work on one thread, in turn. Processor time is measured, and the best of several rounds
counts, since whatever else runs on the machine only slows. Copies are slower then: all share the memory.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import math
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from _common import arguments, others, photos, save
from PIL import Image

from batchplant import _native

SIZE = 224
Side = Callable[[], Any]


class Batch:
    """Cells one after the other in one buffer, a box and a flip for each, and a place for the result."""

    def __init__(self, cells: list[bytes], shapes: list[tuple[int, int, int]], *, encoded: bool) -> None:
        rng = random.Random(1)
        self.cells = cells
        self.data = np.frombuffer(b"".join(cells), np.uint8)
        self.size = np.array([len(cell) for cell in cells], np.int64)
        self.start = np.cumsum(self.size) - self.size
        self.base = np.zeros(len(cells), np.int32)
        self.shape = None if encoded else np.array(shapes, np.int32)
        self.box = np.array([crop(rng, width, height) for height, width, _ in shapes], np.float64)
        self.flip = np.array([rng.random() < 0.5 for _ in cells])
        self.out = np.zeros((len(cells), SIZE, SIZE, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def is_jpeg(self) -> bool:
        return self.cells[0].startswith(b"\xff\xd8")

    def decode(self, engine: _native.Engine, out: npt.NDArray[Any] | None = None, **options: Any) -> None:
        options = {"layout": "nhwc", "filter": "area"} | options
        where = (self.base, self.start, self.size, self.shape, self.box, self.flip)
        status, errors, _ = engine.decode([self.data], *where, self.out if out is None else out, **options)
        assert not status.any(), errors

    def steps(self) -> zip[tuple[bytes, list[int], bool, npt.NDArray[np.uint8]]]:
        return zip(self.cells, self.box.astype(int).tolist(), self.flip.tolist(), self.out, strict=True)


def crop(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """As torchvision and FFCV draw it."""
    for _ in range(10):
        area, ratio = (
            width * height * rng.uniform(0.08, 1),
            math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = rng.randint(0, width - w), rng.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side


ENCODINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG": ("JPEG", {"quality": 90}),
    "progressive JPEG": ("JPEG", {"quality": 90, "progressive": True}),
    "PNG": ("PNG", {}),
    "WebP": ("WEBP", {"quality": 90}),
    "lossless WebP": ("WEBP", {"lossless": True}),
}


@functools.lru_cache(1)
def images(count: int, side: int) -> list[Image.Image]:
    maker = photos()
    result = []
    for index in range(count):
        a, b = random.Random(index).choice(maker.RATIOS)
        width, height = round(side * a / max(a, b)), round(side * b / max(a, b))
        result.append(Image.fromarray(maker.photo(index, width=width, height=height)))
    return result


def encoded(count: int, side: int, encoding: str) -> Batch:
    name, options = ENCODINGS[encoding]
    cells, shapes = [], []
    for image in images(count, side):
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        cells.append(buffer.getvalue())
        shapes.append((image.height, image.width, 3))
    return Batch(cells, shapes, encoded=True)


def raws(count: int, side: int) -> Batch:
    maker = photos()
    cells = [maker.photo(index, width=side, height=side).tobytes() for index in range(count)]
    return Batch(cells, [(side, side, 3)] * count, encoded=False)


# --- the other sides ----------------------------------------------------------------------------------------


def pillow(batch: Batch) -> None:
    for index, (cell, box, flip, out) in enumerate(batch.steps()):
        if batch.shape is None:
            image = Image.open(io.BytesIO(cell))
        else:
            height, width, _ = batch.shape[index]
            image = Image.frombuffer("RGB", (width, height), cell, "raw", "RGB", 0, 1)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=tuple(box))
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        out[:] = np.asarray(image)


def opencv_side(batch: Batch, to_pixels: Callable[[bytes], Any]) -> None:
    import cv2

    for index, (cell, (x0, y0, x1, y1), flip, out) in enumerate(batch.steps()):
        if batch.shape is None:
            pixels = to_pixels(cell)
        else:
            pixels = np.frombuffer(cell, np.uint8).reshape(batch.shape[index])
        cv2.resize(pixels[y0:y1, x0:x1], (SIZE, SIZE), dst=out, interpolation=cv2.INTER_AREA)
        if flip:
            out[:] = out[:, ::-1]


def peers(batch: Batch) -> dict[str, Side]:
    sides: dict[str, Side] = {"Pillow": lambda: pillow(batch)}
    if importlib.util.find_spec("cv2") is None:
        print("OpenCV is not installed: its side is skipped")
        return sides
    import cv2

    cv2.setNumThreads(1)

    def imdecode(cell: bytes) -> Any:
        return cv2.cvtColor(cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)

    sides["OpenCV"] = lambda: opencv_side(batch, imdecode)
    if batch.is_jpeg and importlib.util.find_spec("simplejpeg") is not None:
        import simplejpeg

        sides["simplejpeg + OpenCV"] = lambda: opencv_side(batch, simplejpeg.decode_jpeg)
    return sides


# --- measuring ----------------------------------------------------------------------------------------------


def measure(sides: dict[str, Side], rounds: int, count: int) -> dict[str, float]:
    """Images of each side for a second of processor time; the sides take turns."""
    best = dict.fromkeys(sides, math.inf)
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.process_time()
            side()
            best[name] = min(best[name], time.process_time() - began)
    return {name: count / seconds for name, seconds in best.items()}


def resample_share(engine: _native.Engine, batch: Batch, **options: Any) -> float:
    before = engine.seconds
    for _ in range(3):
        batch.decode(engine, **options)
    decoding, resampling = (after - then for after, then in zip(engine.seconds, before, strict=True))
    return resampling / (decoding + resampling)


def ours(
    engine: _native.Engine, libjpeg: _native.Engine, sets: dict[str, _native.Engine], batch: Batch
) -> dict[str, Side]:
    sides: dict[str, Side] = {
        f"batchplant {name}": lambda name=name: batch.decode(engine, filter=name)
        for name in ("area", "bilinear", "bicubic")
    }
    for name, other in sets.items():
        sides[f"batchplant area, {name}"] = lambda other=other: batch.decode(other)
        sides[f"batchplant bicubic, {name}"] = lambda other=other: batch.decode(other, filter="bicubic")
    if batch.is_jpeg:
        sides["batchplant area, libjpeg alone"] = lambda: batch.decode(libjpeg)
        sides["batchplant area, dct=fast"] = lambda: batch.decode(engine, dct="fast")
        sides["batchplant area, fast_scale"] = lambda: batch.decode(engine, fast_scale=True)
        sides["libjpeg whole image only"] = lambda: [_native.jpeg_decode(cell, "RGB") for cell in batch.cells]
    scale, offset = np.full(3, 1 / 58, np.float32), np.full(3, -2, np.float32)
    for dtype in (np.float16, np.float32):
        out = np.zeros((len(batch), 3, SIZE, SIZE), dtype)
        options = {"layout": "nchw", "scale": scale, "offset": offset}
        sides[f"batchplant area to {out.dtype} nchw"] = lambda out=out, options=options: batch.decode(
            engine, out, **options
        )
    return sides


def copying(engine: _native.Engine, batch: Batch) -> tuple[dict[str, Side], int]:
    """Raw images as they are, against one memcpy of as many bytes."""
    count = len(batch)
    assert batch.shape is not None
    height, width, channels = batch.shape[0]
    out = np.zeros((count, height, width, channels), np.uint8)
    source = batch.data.reshape(out.shape)
    where = (batch.base, batch.start, batch.size, batch.shape, None)
    flips = np.ones(count, bool)
    once = np.ones(count, np.int64)
    return {
        "memcpy": lambda: np.copyto(out, source),
        "memcpy to fresh memory": lambda: source.copy(),
        "batchplant copy": lambda: engine.decode(
            [batch.data], *where, None, out, layout="nhwc", filter="area"
        ),
        "batchplant copy, flipped": lambda: engine.decode(
            [batch.data], *where, flips, out, layout="nhwc", filter="area"
        ),
        "batchplant gather": lambda: engine.gather(
            [batch.data], batch.base, batch.start, batch.size, once, batch.size, out.reshape(-1), batch.start
        ),
        "gather_runs to fresh memory": lambda: _native.gather_runs(batch.data, batch.start, batch.size),
    }, count


def report(title: str, speeds: dict[str, float], against: str) -> None:
    print(f"\n{title}\n{'':2}{'':34}{'images/s':>10}{'ms':>9}   ratio to {against}")
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        print(f"{'':2}{name:<34}{speed:>10,.0f}{1e3 / speed:>9.3f}{speed / speeds[against]:>9.2f}")


def main() -> None:
    parser = arguments(__doc__ or "", rounds=7)
    parser.add_argument("--count", type=int, default=100, help="images of each kind (default 100)")
    args = parser.parse_args()
    engine, libjpeg = _native.Engine(1), _native.Engine(1, _baseline=False)
    # Loops that this machine can run and does not use.
    names = [name for name in _native.kernel_sets()[1:] if name != "portable"]
    sets = {name: _native.Engine(1, _kernels=name) for name in names}
    results: dict[str, Any] = {"size": SIZE, "rounds": args.rounds, "cases": {}}
    raw = raws(args.count, 256)
    with others(results):
        kinds = [(side, name) for side in (256, 500) for name in ENCODINGS]
        for side, name in [*kinds, (256, "raw")]:
            count = args.count * 256 // side
            batch = raw if name == "raw" else encoded(count, side, name)
            speeds = measure(ours(engine, libjpeg, sets, batch) | peers(batch), args.rounds, len(batch))
            share = resample_share(engine, batch)
            title = f"{name} {side} px to {SIZE}"
            size = float(batch.size.mean())
            report(f"{title}, {size / 1e3:.1f} kB each, random resized crop and flip", speeds, "Pillow")
            print(f"  {share:.0%} of the time of 'batchplant area' is resampling")
            ratio = speeds["batchplant bilinear"] / speeds["Pillow"]
            results["cases"][title] = {
                "bytes": size,
                "images/s": speeds,
                "resampling": share,
                "ratio to Pillow": ratio,
            }
        sides, count = copying(engine, raw)
        speeds = measure(sides, 6 * args.rounds, count)
        report("raw 256 px as they are", speeds, "memcpy")
        ratios = {name: speed / speeds["memcpy"] for name, speed in speeds.items()}
        results["cases"]["raw 256 px copied"] = {"images/s": speeds, "ratio to memcpy": ratios}
    save(args.out, "engine", results)


if __name__ == "__main__":
    sys.exit(main())
