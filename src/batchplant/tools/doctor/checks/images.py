"""Images: colour modes, rotation, size beyond the crop, photographs stored without loss."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ....codecs.media import image
from ..check import Batch, Check, Subject, Tally, images
from ..report import Finding

# Pixels beyond this multiple of the crop are decoded to be thrown away.
LARGER = 2
# Bytes a pixel of a PNG; drawings and screenshots need less, photographs rarely do.
PHOTOGRAPH = 1.0
# A few of them cost little.
SOME = 0.25
SMALLEST_PHOTOGRAPH = 64
PNG = image.ENCODINGS.index("png")


class MixedModes(Check):
    name = "mixed-modes"
    title = "grey, palette or transparent images among RGB"
    severity = "warning"
    sentence = (
        "Grey, palette, CMYK or transparent images among RGB give other channels, or colours nobody meant."
    )

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._modes: dict[str, Counter[str]] = {name: Counter() for name in images(subject)}
        self._first: dict[tuple[str, str], int] = {}

    def look(self, batch: Batch) -> None:
        for name, counts in self._modes.items():
            for row, mode in enumerate(image.modes(batch.ragged(name))):
                # An image whose header says nothing is damaged or of a kind that only libraries know.
                if mode:
                    counts[mode] += 1
                    self._first.setdefault((name, mode), int(batch.numbers[row]))

    def findings(self) -> Iterator[Finding]:
        for name, counts in self._modes.items():
            if len(counts) < 2:
                continue
            (usual, _), *unusual = counts.most_common()
            examples = [
                self.subject.place(self._first[name, mode], name, f"{mode} ({count:,})")
                for mode, count in unusual
            ]
            listed = ", ".join(f"{mode} {count:,}" for mode, count in counts.most_common())
            yield self.finding(
                f"{name}: images are not all {usual}: {listed}",
                counts.total() - counts[usual], counts.total(),
                "the Loader makes all of them RGB; for other readers: " + self.subject.command("--to-rgb"),
                examples=examples, field=name, facts={"modes": dict(counts)},
            )  # fmt: skip


class ExifRotation(Check):
    name = "exif-rotation"
    title = "images that EXIF says are to be turned"
    severity = "warning"
    sentence = "Cameras note in EXIF how to turn an image; a reader that ignores it sees it lying on a side."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._tallies = {name: Tally(subject, name) for name in images(subject)}

    def look(self, batch: Batch) -> None:
        for name, tally in self._tallies.items():
            cells = batch.ragged(name)
            raw = cells.raw
            turns = [
                1 if cell is None or raw[row] else image.orientation(cell) for row, cell in enumerate(cells)
            ]
            flags = np.array(turns, dtype=np.int64) != 1
            tally.add(
                batch,
                flags,
                [f"orientation {orientation}" for orientation in turns].__getitem__,
                of=len(flags),
            )

    def findings(self) -> Iterator[Finding]:
        for name, tally in self._tallies.items():
            if tally.count:
                yield self.finding(
                    f"{name}: images are to be turned, as their EXIF data say", tally.count, tally.of,
                    "store them upright once: " + self.subject.command("--orient")
                    + "\nor pass orient=True to the decoder of the Loader",
                    examples=tally.examples(), field=name,
                )  # fmt: skip


class LargeImages(Check):
    name = "large-images"
    title = "images far larger than the training crop"
    severity = "note"
    sentence = "Images far larger than the training crop cost disk and decoding time for pixels nobody sees."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._tallies = {name: Tally(subject, name) for name in images(subject)}
        self._sides: dict[str, list[int]] = {name: [] for name in self._tallies}

    def look(self, batch: Batch) -> None:
        for name, tally in self._tallies.items():
            headers = batch.headers(name)
            short = headers[:, 1:3].min(axis=1) if len(headers) else np.empty(0, np.int32)
            readable = short[short > 0]
            room = 100_000 - len(self._sides[name])
            self._sides[name] += readable[:room].tolist()
            tally.add(
                batch,
                short > LARGER * self.subject.crop,
                functools.partial(_resolution, headers),
                of=len(readable),
            )

    def findings(self) -> Iterator[Finding]:
        for name, tally in self._tallies.items():
            if not tally.count or tally.count < SOME * tally.of:
                continue
            middle = int(np.median(self._sides[name]))
            crop = self.subject.crop
            size = -(-crop * 8 // 7 // 32) * 32
            yield self.finding(
                f"{name}: the short side is beyond {LARGER * crop:,} pixels (the median is {middle:,}), and "
                f"training sees {crop}",
                tally.count, tally.of,
                self.subject.command(f"--max-resolution {2 * size}")
                + f"\n(the longer side; --crop N tells doctor another size than {crop})",
                examples=tally.examples(), field=name, facts={"short side": middle, "crop": crop},
            )  # fmt: skip


class PngPhotographs(Check):
    name = "png-photographs"
    title = "photographs stored as PNG"
    severity = "note"
    sentence = (
        "A photograph as PNG is several times as large as a JPEG that looks the same, and slower to decode."
    )

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._tallies = {name: Tally(subject, name) for name in images(subject)}

    def look(self, batch: Batch) -> None:
        for name, tally in self._tallies.items():
            headers, sizes = batch.headers(name), batch.ragged(name).sizes
            pixels = np.maximum(headers[:, 1].astype(np.int64) * headers[:, 2], 1)
            flags = (
                (headers[:, 0] == PNG)
                & (headers[:, 4] <= 8)
                & (sizes / pixels > PHOTOGRAPH)
                & (headers[:, 1:3].min(axis=1) >= SMALLEST_PHOTOGRAPH)
            )
            tally.add(
                batch,
                flags,
                functools.partial(_density, sizes / pixels),
                of=len(flags),
            )

    def findings(self) -> Iterator[Finding]:
        for name, tally in self._tallies.items():
            if tally.count and tally.count >= SOME * tally.of:
                yield self.finding(
                    f"{name}: photographs are stored as PNG", tally.count, tally.of,
                    self.subject.command("--image-format jpeg --quality 90")
                    + "\n(lossy; `batchplant bench codecs` shows size and loss on your images)",
                    examples=tally.examples(), field=name,
                )  # fmt: skip


def _resolution(headers: npt.NDArray[np.int32], row: int) -> str:
    return f"{headers[row, 1]}×{headers[row, 2]} pixels"


def _density(bytes_per_pixel: npt.NDArray[np.float64], row: int) -> str:
    return f"{bytes_per_pixel[row]:.1f} bytes a pixel"
