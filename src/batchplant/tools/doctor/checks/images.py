"""Images: colour modes, rotation, size beyond the crop, photographs stored without loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ....codecs.media import image
from ....schema import Field
from ..check import Batch, CellCheck, Check, Finding, Subject, Tally, images, is_photo

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


class PhotoCheck(CellCheck):
    """Base class of checks of single images."""

    def concerns(self, name: str, field: Field) -> bool:
        return is_photo(field)


class ExifRotation(PhotoCheck):
    name = "exif-rotation"
    title = "images that EXIF says are to be turned"
    severity = "warning"
    sentence = "Cameras note in EXIF how to turn an image; a reader that ignores it sees it lying on a side."

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        cells = batch.ragged(name)
        raw = cells.raw
        turns = [1 if cell is None or raw[row] else image.orientation(cell) for row, cell in enumerate(cells)]
        flags = np.array(turns, dtype=np.int64) != 1
        tally.add(batch, flags, lambda row: f"orientation {turns[row]}", of=len(flags))

    def report(self, name: str, tally: Tally) -> Finding:
        mend = f"store them upright once: {self.subject.command('--orient')}\n"
        mend += "or pass orient=True to the decoder of the Loader"
        return self.cells("images are to be turned, as their EXIF data say", tally, mend)


class LargeImages(PhotoCheck):
    name = "large-images"
    title = "images far larger than the training crop"
    severity = "note"
    sentence = "Images far larger than the training crop cost disk and decoding time for pixels nobody sees."
    least_share = SOME

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._sides: dict[str, list[int]] = {name: [] for name in self.tallies}

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        headers = batch.headers(name)
        short = headers[:, 1:3].min(axis=1) if len(headers) else np.empty(0, np.int32)
        readable = short[short > 0]
        room = 100_000 - len(self._sides[name])
        self._sides[name] += readable[:room].tolist()
        tally.add(
            batch, short > LARGER * self.subject.crop,
            lambda row: f"{headers[row, 1]}×{headers[row, 2]} pixels", of=len(readable),
        )  # fmt: skip

    def report(self, name: str, tally: Tally) -> Finding:
        middle, crop = int(np.median(self._sides[name])), self.subject.crop
        size = -(-crop * 8 // 7 // 32) * 32
        return self.cells(
            f"the short side is beyond {LARGER * crop:,} pixels (the median is {middle:,}), and "
            f"training sees {crop}",
            tally,
            self.subject.command(f"--max-resolution {2 * size}")
            + f"\n(the longer side; --crop N tells doctor another size than {crop})",
            facts={"short side": middle, "crop": crop},
        )


class PngPhotographs(PhotoCheck):
    name = "png-photographs"
    title = "photographs stored as PNG"
    severity = "note"
    sentence = (
        "A photograph as PNG is several times as large as a JPEG that looks the same, and slower to decode."
    )
    least_share = SOME

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        headers = batch.headers(name)
        density = batch.ragged(name).sizes / np.maximum(headers[:, 1].astype(np.int64) * headers[:, 2], 1)
        flags = (
            (headers[:, 0] == PNG)
            & (headers[:, 4] <= 8)
            & (density > PHOTOGRAPH)
            & (headers[:, 1:3].min(axis=1) >= SMALLEST_PHOTOGRAPH)
        )
        tally.add(batch, flags, lambda row: f"{density[row]:.1f} bytes a pixel", of=len(flags))

    def report(self, name: str, tally: Tally) -> Finding:
        mend = self.subject.command("--image-format jpeg --quality 90")
        mend += "\n(lossy; `batchplant bench codecs` shows size and loss on your images)"
        return self.cells("photographs are stored as PNG", tally, mend)
