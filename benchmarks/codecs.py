"""Media: images in batches beside Pillow; windows of sounds and clips of videos beside decoding more.

images   PNG and WebP of 256 px in batches of 256: the engine beside Pillow (and OpenCV) in as many threads
sound      one second at a random place of 60-s FLAC files, beside decoding the whole file
video      16 frames at a random place of 60-s H.264 files, beside decoding from the file's start

JPEG is measured by loader.py. All sides of a part run in turn in one process, several rounds, on data in
memory that was made in this run. Sound and video are decoded in one thread by every side. A library that is
not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from _common import interleaved, others, part_arguments, photos, save, timed

from batchplant import _native
from batchplant.codecs.media import image

BATCH, SIDE = 256, 256
RATE, SECONDS = 44_100, 60
FPS, FRAMES, WIDTH, HEIGHT = 30, 16, 320, 240
Found = dict[str, Any]
Task = Callable[[], float]


def there(library: str, for_what: str) -> bool:
    if importlib.util.find_spec(library) is not None:
        return True
    print(f"{library} is not installed: {for_what} is skipped")
    return False


def compare(tasks: dict[str, Task], count: int, rounds: int, unit: str) -> Found:
    """A warm-up, then rounds in turn: speeds, and ours as a ratio to every other's."""
    for task in tasks.values():
        task()
    seconds = interleaved(tasks, rounds)
    speeds = {
        name: {key: count / second[key] for key in ("best", "median")} for name, second in seconds.items()
    }
    mine = speeds["batchplant"]
    ratios = {
        name: {key: mine[key] / speed[key] for key in mine}
        for name, speed in speeds.items()
        if name != "batchplant"
    }
    for name, ratio in ratios.items():
        print(f"  batchplant : {name}: best {ratio['best']:.2f}, median {ratio['median']:.2f}", flush=True)
    return {unit: speeds, "ratio to": ratios}


# --- images -----------------------------------------------------------------------------------------------


def images(args: argparse.Namespace) -> Found:
    if not there("PIL", "the part images"):
        return {}
    drawn = [photos().photo(number, width=SIDE, height=SIDE) for number in range(32 if args.quick else BATCH)]
    kinds: dict[str, Callable[[Any], bytes]] = {
        "PNG": lambda pixels: image.encode(pixels, "png"),
        "WebP, quality 80": lambda pixels: image.encode(pixels, "webp", quality=80, lossless=False),
        "WebP, lossless": lambda pixels: image.encode(pixels, "webp"),
    }
    threads = len(os.sched_getaffinity(0))
    results: Found = {}
    for title, encode in kinds.items():
        cells = [encode(pixels) for pixels in drawn]
        cells = (cells * -(-BATCH // len(cells)))[:BATCH]
        size = sum(map(len, cells)) / len(cells)
        print(f"{title}, {SIDE} px, {size / 1000:.0f} kB, batches of {BATCH}, {threads} threads", flush=True)
        with ThreadPoolExecutor(threads) as pool:
            sides = image_sides(cells, threads, pool)
            if "batchplant" not in sides:
                print(f"  the engine of this build does not decode {title}: skipped")
                continue
            if title != "WebP, quality 80":
                check(sides, np.stack([drawn[number % len(drawn)] for number in range(BATCH)]))
            tasks = {name: lambda side=side: repeated(side, args) for name, (side, _) in sides.items()}
            count = BATCH * epochs(args)
            results[title] = {"bytes": size, **compare(tasks, count, args.rounds, "images/s")}
    return {"threads": threads, "cases": results}


def epochs(args: argparse.Namespace) -> int:
    return 1 if args.quick else 8


def repeated(side: Callable[[], None], args: argparse.Namespace) -> float:
    return timed(lambda: [side() for _ in range(epochs(args))])


def check(sides: dict[str, tuple[Callable[[], None], Any]], expected: Any) -> None:
    """Everybody decodes the same pixels."""
    for name, (side, out) in sides.items():
        side()
        if not np.array_equal(out, expected):
            raise RuntimeError(f"{name} decodes other pixels")


def image_sides(
    cells: list[bytes], threads: int, pool: ThreadPoolExecutor
) -> dict[str, tuple[Callable[[], None], Any]]:
    """What decodes a batch into an array, and the array."""
    import PIL.Image

    data = np.frombuffer(b"".join(cells), np.uint8)
    size = np.array([len(cell) for cell in cells], np.int64)
    start, base = np.cumsum(size) - size, np.zeros(len(cells), np.int32)
    engine = _native.Engine(threads)

    def own(out: Any) -> Any:
        return engine.decode([data], base, start, size, None, None, None, out, layout="nhwc", filter="area")

    def threaded(decode: Callable[[bytes], Any], out: Any) -> None:
        def one(row: int) -> None:
            out[row] = decode(cells[row])

        list(pool.map(one, range(len(cells))))

    def by_pillow(cell: bytes) -> Any:
        decoded = PIL.Image.open(io.BytesIO(cell))
        return np.asarray(decoded if decoded.mode == "RGB" else decoded.convert("RGB"))

    def place() -> Any:
        return np.zeros((len(cells), SIDE, SIDE, 3), np.uint8)

    sides: dict[str, tuple[Callable[[], None], Any]] = {}
    out, theirs = place(), place()
    # 2: not here.
    if not (own(out)[0] == 2).any():
        sides["batchplant"] = (lambda: own(out), out)
    sides["Pillow"] = (lambda: threaded(by_pillow, theirs), theirs)
    if importlib.util.find_spec("cv2") is None:
        print("OpenCV is not installed: its side is skipped")
        return sides
    import cv2

    def by_opencv(cell: bytes) -> Any:
        return cv2.cvtColor(cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)

    cv2.setNumThreads(1)
    third = place()
    sides["OpenCV"] = (lambda: threaded(by_opencv, third), third)
    return sides


# --- sound --------------------------------------------------------------------------------------------------


def tune(number: int) -> Any:
    """A minute of stereo: a few tones that come and go, and noise."""
    rng = np.random.default_rng(number)
    at = np.arange(RATE * SECONDS) / RATE
    result = rng.normal(0, 0.01, (len(at), 2))
    for _ in range(6):
        tone = np.sin(2 * np.pi * rng.uniform(80, 4000) * at) * (1 + np.sin(rng.uniform(0.5, 4) * at))
        result += tone[:, None] * rng.uniform(0.01, 0.06, 2)
    return (np.clip(result, -1, 1) * 32767).astype(np.int16)


def sound(args: argparse.Namespace) -> Found:
    if not there("soundfile", "the part sound"):
        return {}
    import soundfile

    from batchplant.codecs.media import audio

    files = [audio.encode(tune(number), RATE, "flac") for number in range(2 if args.quick else 4)]
    asked = places(files, 4, RATE * (SECONDS - 1))
    size = sum(map(len, files)) / len(files)
    print(f"sound: 1 s of {SECONDS} s, {RATE} Hz stereo FLAC, {size / 1e6:.1f} MB a file", flush=True)

    def seek(data: bytes, start: int) -> Any:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            file.seek(start)
            return file.read(RATE, dtype="float32", always_2d=True)

    ways: dict[str, Callable[[bytes, int], Any]] = {
        "batchplant": lambda data, start: audio.decode(data, start, RATE),
        "the whole file": lambda data, start: audio.decode(data)[start : start + RATE],
        "soundfile, the whole file": lambda data, start: soundfile.read(
            io.BytesIO(data), dtype="float32", always_2d=True
        )[0][start : start + RATE],
        "soundfile, seek": seek,
    }
    for name, way in ways.items():
        if not np.array_equal(way(*asked[0]), ways["batchplant"](*asked[0])):
            raise RuntimeError(f"{name} decodes other samples")
    result = each(ways, asked, args.rounds, "windows/s")
    return {"files": len(files), "bytes": size, **result}


def places(files: list[bytes], parts: int, end: int) -> list[tuple[bytes, int]]:
    """A random place in every part of every file, so that they are neither early nor late on average."""
    rng = np.random.default_rng(0)
    return [(data, int((part + rng.random()) * end / parts)) for data in files for part in range(parts)]


def each(
    ways: dict[str, Callable[[bytes, int], Any]], asked: list[tuple[bytes, int]], rounds: int, unit: str
) -> Found:
    """Every place once in every way; the quick ones often, so that a round is long enough to be measured."""

    def task(way: Callable[[bytes, int], Any]) -> float:
        began, done = time.perf_counter(), 0
        while not done or time.perf_counter() - began < 0.2:
            for data, start in asked:
                way(data, start)
            done += 1
        return (time.perf_counter() - began) / done

    return compare({name: lambda way=way: task(way) for name, way in ways.items()}, len(asked), rounds, unit)


# --- video --------------------------------------------------------------------------------------------------


def film(number: int, seconds: int) -> Any:
    """A camera that moves over photos, another one every five seconds, with noise as cameras have it."""
    frames = np.empty((seconds * FPS, HEIGHT, WIDTH, 3), np.uint8)
    rng = np.random.default_rng(number)
    noise = rng.integers(0, 12, (7, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for scene in range(-(-seconds // 5)):
        still = photos().photo(100 * number + scene, width=2 * WIDTH, height=2 * HEIGHT)
        first, last = rng.uniform(0, 1, (2, 2)) * (HEIGHT, WIDTH)
        part = frames[scene * 5 * FPS : (scene + 1) * 5 * FPS]
        for at, frame in enumerate(part):
            y, x = (first + (last - first) * at / len(part)).astype(int)
            frame[:] = still[y : y + HEIGHT, x : x + WIDTH] // 16 * 15 + noise[at % len(noise)]
    return frames


def video(args: argparse.Namespace) -> Found:
    if not there("av", "the part video"):
        return {}
    import av

    from batchplant.codecs.media.video import Clip, encode
    from batchplant.codecs.media.video.frames import make_index, read_frames

    seconds = 10 if args.quick else SECONDS
    files = [encode(film(number, seconds), FPS) for number in range(1 if args.quick else 3)]
    clips = {id(data): Clip(data) for data in files}
    asked = places(files, 4, seconds * FPS - FRAMES)
    size = sum(map(len, files)) / len(files)
    print(
        f"video: {FRAMES} frames of {seconds} s, H.264 {WIDTH}×{HEIGHT}, {size / 1e6:.1f} MB a file",
        flush=True,
    )

    def from_start(data: bytes, start: int) -> Any:
        answer = []
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            for number, frame in enumerate(container.decode(stream)):
                if number >= start:
                    answer.append(frame.to_ndarray(format="rgb24"))
                if len(answer) == FRAMES:
                    return np.stack(answer)
        raise RuntimeError("the file ends before the clip")

    def first_time(data: bytes, start: int) -> Any:
        view = memoryview(data)
        return read_frames(view, make_index(view), np.arange(start, start + FRAMES))

    ways: dict[str, Callable[[bytes, int], Any]] = {
        "batchplant": lambda data, start: clips[id(data)].read(start, FRAMES),
        "batchplant, index built anew": first_time,
        "PyAV, from the file's start": from_start,
    }
    for name, way in ways.items():
        wrong = np.abs(way(*asked[0]).astype(int) - ways["batchplant"](*asked[0])).max()
        # Conversions from YUV may round differently.
        if wrong > 4:
            raise RuntimeError(f"{name} decodes other frames: off by {wrong}")
    result = each(ways, asked, args.rounds, "clips/s")
    return {"files": len(files), "seconds": seconds, "bytes": size, **result}


PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "images": images,
    "sound": sound,
    "video": video,
}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    results: Found = {"rounds": args.rounds, "batch": BATCH, "side": SIDE}
    with others(results):
        for name in args.parts:
            results[name] = PARTS[name](args)
    save(args.out, "codecs", results)


if __name__ == "__main__":
    sys.exit(main())
