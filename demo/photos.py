#!/usr/bin/env python3
"""Photo-like images from a seed: NumPy makes the pixels, Pillow saves them.

    python demo/photos.py OUT --count 300 --size 500 --seed 0

Each is a scene in linear light: lit, textured shapes with soft shadows before a two-part background, partly
out of focus, with sensor noise. As JPEG files they weigh about what camera images of that size weigh.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Plane = npt.NDArray[Any]  # float32 throughout

NAMES = ("brick", "amber", "moss", "jade", "lagoon", "cobalt", "violet", "rose")  # hues k/8, from red round
RATIOS = ((4, 3), (3, 2), (3, 4), (4, 3), (1, 1), (2, 3))  # width : height
STAMP = ".photos.json"
VERSION = 1  # raise when the images change, so that folders made before are made again
TILE = 768


class Bank(NamedTuple):
    """Texture tiles, zero mean; making them once per process is what makes an image cheap."""

    sharp: list[Plane]
    soft: list[Plane]  # the same out of focus
    tint: list[Plane]  # the colour variation that goes with them
    noise: list[Plane]  # of the sensor, for R, G and B


def _unit(plane: Plane) -> Plane:
    """Zero mean, unit variance, and no far outliers: `1 + 0.36 * tile` is never negative."""
    return np.asarray(np.clip((plane - plane.mean()) / plane.std(), -2.7, 2.7))


def _depth(kind: int, u: Plane, v: Plane) -> Plane:
    """About 1 in the middle of a shape of radius 1, 0 on its outline, negative outside."""
    if kind == 1:  # rounded box
        return np.asarray(1 - 1.45 * np.sqrt(np.sqrt((u * u * u) ** 2 + (v * v * v) ** 2)))
    if kind == 2:  # triangle
        return np.asarray(1 - np.maximum(np.abs(u) * 1.732 + v, v * -2))
    disc = np.asarray(1 - np.sqrt(u * u + v * v))
    return np.minimum(disc, np.sqrt((u - 0.6) ** 2 + v * v) - 0.7) if kind == 3 else disc  # 3: crescent


def _around(centre: float, reach: float, end: int) -> slice:
    return slice(int(max(centre - reach, 0)), int(min(centre + reach + 1, end)))


def _grid(at: tuple[slice, slice], cy: float, cx: float, angle: float, ry: float, rx: float) -> list[Plane]:
    """Coordinates of these pixels about a shape's centre, turned with it and in units of its radii."""
    y, x = (np.arange(a.start, a.stop, dtype=np.float32) - c for a, c in zip(at, (cy, cx), strict=True))
    c, s, y = math.cos(angle), math.sin(angle), y[:, None]
    return [x * (c / rx) + y * (s / rx), y * (c / ry) - x * (s / ry)]


def _dead_leaves(rng: random.Random, count: int = 6000) -> Plane:
    """Tone and tint of shapes of all sizes hiding each other, the classic model of natural images."""
    out = np.zeros((2, TILE, TILE), np.float32)
    for k in range(count):
        r = 80.0 if k < 100 else min(1.6 / math.sqrt(rng.uniform(0.0004, 1)), 80.0)  # sizes fall as 1/r^3
        flat, cy, cx = rng.uniform(0.35, 1), rng.uniform(0, TILE), rng.uniform(0, TILE)
        at = _around(cy, r + 1, TILE), _around(cx, r + 1, TILE)
        u, v = _grid(at, cy, cx, rng.uniform(0, math.pi), r * flat, r)
        alpha = np.clip(_depth(rng.randrange(4), u, v) * (r * flat) + 0.5, 0, 1)
        tone, tint = out[:, at[0], at[1]]
        tone += alpha * (u * rng.gauss(0, 0.5) + v * rng.gauss(0, 0.5) + rng.gauss(0, 1) - tone)
        tint += alpha * (rng.gauss(0, 1) - tint)
    return out


@functools.lru_cache(maxsize=1)
def _bank() -> Bank:
    rng = np.random.default_rng(2024)
    fy, fx = np.fft.fftfreq(TILE)[:, None].astype(np.float32), np.fft.rfftfreq(TILE).astype(np.float32)
    f2 = fx**2 + fy**2
    crisp = 2.2 - 1.2 * np.exp(f2 / (-2 * 0.15**2))  # cameras sharpen

    def filtered(plane: Plane, gain: Plane) -> Plane:
        return np.fft.irfft2(np.fft.rfft2(plane) * gain).astype(np.float32)

    def noise(width: float) -> Plane:
        return _unit(filtered(rng.standard_normal((TILE, TILE), np.float32), np.exp(f2 / (-2 * width**2))))

    def cloud(power: float, stretch: float = 1) -> Plane:
        gain = crisp * (fx**2 + (fy / stretch) ** 2 + TILE**-2) ** (-power / 2)
        return _unit(filtered(rng.standard_normal((TILE, TILE), np.float32), gain))

    tone, tint = _dead_leaves(random.Random(2024))
    leaves, hues, mottle, grit = _unit(filtered(tone, crisp)), _unit(tint), cloud(1.15), cloud(0.8)
    sharp = [mottle, grit, cloud(0.9, 6), leaves, _unit(leaves + 0.7 * grit[::-1])]
    side = np.minimum(np.arange(TILE), TILE - np.arange(TILE))
    disc = (np.hypot(side[:, None], side) < 4.5).astype(np.float32)
    soft = [filtered(t, np.fft.rfft2(disc / disc.sum())) for t in sharp]
    # Demosaicing interpolates: noise loses its finest part, its colour more than its brightness.
    luma = noise(0.36)
    grain = [luma + 0.5 * noise(0.12) for _ in "RGB"]
    return Bank(sharp, soft, [sharp[2].T.copy(), mottle.T.copy(), mottle, hues, hues], grain)


def _crop(rng: random.Random, tiles: list[Plane], h: int, w: int) -> list[Plane]:
    """The same random window of each tile, upside down or not; a view where the tile is large enough."""
    y, x = rng.randrange(max(TILE - h, 0) + 1), rng.randrange(max(TILE - w, 0) + 1)
    flip = rng.choice((1, -1))  # rows only: reversed columns would cost the SIMD loops
    if h > TILE or w > TILE:
        tiles = [np.pad(t, ((0, max(h - TILE, 0)), (0, max(w - TILE, 0))), mode="symmetric") for t in tiles]
    return [t[y : y + h, x : x + w][::flip] for t in tiles]


def _rgb(hue: float, saturation: float, value: float) -> Plane:
    k = [(n + hue * 6) % 6 for n in (5, 3, 1)]
    rgb = [value * (1 - saturation * min(max(min(j, 4 - j), 0), 1)) for j in k]
    return np.array(rgb, np.float32)[:, None, None]


def _surface(rng: random.Random, h: int, w: int, colour: Plane, contrast: float) -> Plane:
    """A textured plane, perhaps in focus in one place and less so in another."""
    bank, kind, contrast = _bank(), rng.randrange(5), min(contrast, 0.36)
    texture, soft, tint = _crop(rng, [bank.sharp[kind], bank.soft[kind], bank.tint[kind]], h, w)
    if rng.random() < 0.45:
        y = np.linspace(-1, 1, h, dtype=np.float32)[:, None]
        texture = soft + np.clip(rng.gauss(0.7, 0.3) + rng.gauss(0, 0.6) * y, 0, 1) * (texture - soft)
    texture = texture * contrast
    texture += 1
    texture *= texture
    out: Plane = texture * colour
    shift = 1 + tint * rng.uniform(0, min(0.8 * contrast, 0.25))
    out[0] *= shift
    out[2] /= shift
    return out


def _background(rng: random.Random, h: int, w: int, detail: float) -> Plane:
    """Two surfaces that meet at a line: a horizon, a skyline, the far edge of a table."""
    line = rng.uniform(0.15, 0.75) + rng.gauss(0, 0.08) * np.linspace(-1, 1, w, dtype=np.float32)
    if rng.random() < 0.4:
        line += rng.uniform(0.005, 0.04) * _crop(rng, _bank().sharp[:1], 1, w)[0][0]
    line *= h
    blur = rng.uniform(1.2, 0.02 * h + 2)
    a, b = min(max(int(line.min() - blur), 0), h - 1), min(max(int(line.max() + blur) + 1, 0), h)
    hue, value = rng.choice((0.58, 0.09, 0.3)), rng.uniform(0.3, 1)
    far = _rgb(hue + rng.gauss(0, 0.04), rng.uniform(0.05, 0.45), value)
    hue, value = rng.choice((0.07, 0.12, 0.28)), rng.uniform(0.1, 0.5)
    near = _rgb(hue + rng.gauss(0, 0.03), rng.uniform(0.1, 0.55), value)
    calm = rng.random() < 0.25  # a clear sky, a plain wall
    out = np.empty((3, h, w), np.float32)
    out[:, :b] = _surface(
        rng, b, w, far, rng.uniform(0.01, 0.05) if calm else rng.uniform(0.08, 0.25) * detail
    )
    low = _surface(rng, h - a, w, near, rng.uniform(0.12, 0.3) * detail)
    cover = np.clip((np.arange(a, b, dtype=np.float32)[:, None] - line) / blur + 0.5, 0, 1)
    low[:, : b - a] += (1 - cover) * (out[:, a:b] - low[:, : b - a])
    out[:, a:] = low
    return out


def _shape(
    rng: random.Random, out: Plane, kind: int, colour: Plane, rx: float, blur: float, sun: float
) -> None:
    """Paint one lit, textured shape and the soft shadow it throws."""
    h, w = out.shape[1:]
    ry, angle = rx * rng.uniform(0.55, 1), rng.uniform(0, 2 * math.pi)
    cy, cx, c, s = rng.uniform(0, h), rng.uniform(0, w), math.cos(angle), math.sin(angle)
    up, side = 1.1 * math.hypot(rx * s, ry * c) + blur / 2, 1.1 * math.hypot(rx * c, ry * s) + blur / 2
    at = _around(cy, up, h), _around(cx, side, w)
    u, v = _grid(at, cy, cx, angle, ry, rx)
    tiles = _bank().sharp if blur < 3 else _bank().soft
    wobble, texture = _crop(rng, [tiles[0], tiles[rng.randrange(5)]], *u.shape)
    depth = _depth(kind, u, v)
    if rng.random() < 0.5:  # natural things have uneven outlines
        depth += rng.uniform(0.01, 0.04) * wobble

    if rng.random() < 0.8:  # the shadow: the same outline, displaced away from the sun
        y, x = at[0].start - int(rx * 0.2 * math.sin(sun)), at[1].start - int(rx * 0.2 * math.cos(sun))
        shadow = 0.7 - 3 * depth[max(-y, 0) : max(h - y, 0), max(-x, 0) : max(w - x, 0)]
        under = out[:, max(y, 0) : max(y + len(depth), 0), max(x, 0) : max(x + depth.shape[1], 0)]
        under *= np.clip(shadow, rng.uniform(0.25, 0.6), 1)

    alpha = np.clip(depth * (ry / blur) + 0.5, 0, 1)
    lit_u, lit_v = 0.4 * math.cos(sun - angle), 0.4 * math.sin(sun - angle)
    shade = u * lit_u + v * lit_v + 0.55
    if rng.random() < 0.6:  # round rather than flat
        shade += rng.uniform(0.2, 0.6) * np.sqrt(np.clip(depth, 0, 1))
    texture = texture * rng.uniform(0.08, 0.36)
    texture += 1
    texture *= texture
    texture *= alpha
    texture *= shade
    region = out[:, at[0], at[1]]
    region *= 1 - alpha
    region += texture * colour
    if rng.random() < 0.3:  # a glossy highlight
        spot = (u - lit_u) ** 2 + (v - lit_v) ** 2
        region += np.clip(rng.uniform(0.2, 0.6) - rng.uniform(5, 20) * spot, 0, 1) * alpha


def photo(index: int, *, seed: int = 0, width: int, height: int, label: int = 0) -> npt.NDArray[np.uint8]:
    """Image `index` of `seed`, uint8 HWC RGB; the label sets the hue and the kind of most shapes."""
    rng = random.Random(f"{seed}/{index}")  # far cheaper for single draws than NumPy's
    size, detail, sun = max(width, height), rng.lognormvariate(0.6, 0.6), rng.uniform(-math.pi, 0)
    out = _background(rng, height, width, detail)
    focus, count = rng.uniform(0.3, 1), rng.randrange(5, 12)
    for k in range(count):
        near = k / count  # far shapes first
        blur = 1.2 + abs(near - focus) * rng.uniform(0, 0.03) * size
        radius = size * rng.uniform(0.04, 0.17) * (0.7 + 0.6 * near)
        kind, hue, saturation = rng.randrange(4), rng.random(), rng.uniform(0, 0.4)
        if k == count - 1 or rng.random() < 0.7:
            kind, hue = (label + label // len(NAMES)) % 4, label / len(NAMES) + rng.gauss(0, 0.02)
            saturation = rng.uniform(0.6, 0.95)
        _shape(rng, out, kind, _rgb(hue, saturation, rng.uniform(0.2, 0.9)), radius, blur, sun)

    # Light: a gradient, the lens's fall-off towards the corners, sometimes the shade of something unseen.
    y, x = np.linspace(-1, 1, height, dtype=np.float32)[:, None], np.linspace(-1, 1, width, dtype=np.float32)
    light = 1 + y * (rng.gauss(0, 0.25) - 0.12 * y) + x * (rng.gauss(0, 0.25) - 0.12 * x)
    if rng.random() < 0.3:
        light += 0.3 * _crop(rng, _bank().soft[3:4], height, width)[0]
    out *= np.clip(light, 0.15, 3) * (rng.uniform(0.16, 0.34) / float(out[1, ::8, ::8].mean()))
    # Photons arrive at random: variance grows with light (shot noise), above a floor (read noise).
    iso = rng.lognormvariate(0.25, 0.6)
    sigma = np.sqrt(0.0005 * iso * out[1] + 0.00002 * iso)
    for c, grain in enumerate(_crop(rng, _bank().noise, height, width)):
        out[c] += sigma * grain
    np.clip(out, 0, 1, out=out)
    np.sqrt(out, out=out)  # linear light to display values
    out *= 255
    return np.stack(list(out.astype(np.uint8)), axis=2)


def class_name(label: int) -> str:
    return NAMES[label % 8] + (f"-{label // 8 + 1}" if label >= 8 else "")


def _save(part: Path, indices: range, size: int, classes: int, seed: int, quality: int) -> Iterator[int]:
    for index in indices:
        a, b = random.Random(f"{seed}/{index}/ratio").choice(RATIOS)
        width, height = round(size * a / max(a, b)), round(size * b / max(a, b))
        pixels = photo(index, seed=seed, width=width, height=height, label=index % classes)
        Image.fromarray(pixels).save(part / class_name(index % classes) / f"{index:06d}.jpg", quality=quality)
        yield index


def _save_all(part: Path, count: int, workers: int, args: tuple[int, int, int, int]) -> Iterator[object]:
    """Save all images, yielding after each."""
    if workers == 1:
        yield from _save(part, range(count), *args)
        return
    # Processes, since threads share the interpreter lock (half as fast again here); plain children rather
    # than multiprocessing's, so that this works however the module was loaded. They print a line an image.
    command = [sys.executable, __file__, "--part", str(part), *map(str, (*args, count, workers))]
    read, write = os.pipe()
    children = [subprocess.Popen([*command, str(k)], stdout=write) for k in range(workers)]
    os.close(write)
    try:
        with open(read) as lines:
            yield from lines
        if any(child.wait() for child in children):
            raise RuntimeError("a process that saves images failed")
    finally:
        for child in children:
            child.kill()
            child.wait()


def make_folder(
    root: str | os.PathLike[str],
    count: int,
    *,
    size: int = 500,
    classes: int = 8,
    seed: int = 0,
    quality: int = 90,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `count` JPEG files, longer side `size`, in a subfolder per class; calls `progress(done, count)`.

    A folder made earlier with the same arguments is kept, one made with others is replaced, and any other
    folder that is not empty is refused.
    """
    if count < 1 or size < 16 or not 1 <= classes <= 32:
        raise ValueError("count must be at least 1, size at least 16 and classes from 1 to 32")
    root = Path(root).absolute()
    args = (size, classes, seed, quality)
    stamp = json.dumps({"version": VERSION, "count": count, "size, classes, seed, quality": args})
    if (root / STAMP).is_file():
        if (root / STAMP).read_text() == stamp:
            return
    elif root.exists() and any(root.iterdir()):
        raise FileExistsError(f"{root} has files that were not made here; choose another folder")
    part = root.parent / f".{root.name}.{os.getpid()}.part"
    workers = max(min(workers or os.cpu_count() or 1, count // 50), 1)  # a process takes a second to start
    try:
        for label in range(classes):
            (part / class_name(label)).mkdir(parents=True)
        for done, _ in enumerate(_save_all(part, count, workers, args), 1):
            if progress is not None:
                progress(done, count)
        (part / STAMP).write_text(stamp)
        if root.exists():
            shutil.rmtree(root)
        part.rename(root)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main(argv: list[str]) -> None:
    if argv[:1] == ["--part"]:  # a child of _save_all
        size, classes, seed, quality, count, workers, first = (int(v) for v in argv[2:])
        for index in _save(Path(argv[1]), range(first, count, workers), size, classes, seed, quality):
            print(index, flush=True)
        return
    parser = argparse.ArgumentParser(description="Write photo-like JPEG files, in a subfolder per class.")
    parser.add_argument("root", metavar="OUT", help="folder to make, or keep if made with the same options")
    parser.add_argument("--count", type=int, default=300, help="number of images (default 300)")
    parser.add_argument("--size", type=int, default=500, help="longer side in pixels (default 500)")
    parser.add_argument("--classes", type=int, default=8, help="number of classes, at most 32 (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other images (default 0)")
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality (default 90)")
    parser.add_argument("--workers", type=int, help="processes (default: one for each processor)")

    def progress(done: int, count: int) -> None:
        if done % 100 == 0 or done == count:
            print(f"{done} of {count} images", flush=True)

    make_folder(**vars(parser.parse_args(argv)), progress=progress)


if __name__ == "__main__":
    main(sys.argv[1:])
