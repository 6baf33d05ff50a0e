"""Rules about the data: what is wrong with how it lies now, and what to do when it is written anew."""

from __future__ import annotations

from ...registry import get_format
from ...schema import Image
from ..fields import FieldFacts
from .base import Case, Must, Seen, no, rule

TINY = 256 << 10
MANY_FILES = 500
# Encoded bytes a pixel above which a PNG is a photo; drawings and screenshots take far less.
PHOTO = 0.8
# Pixels of a side below which a PNG is decoded as fast as it is scaled up.
SMALL_SIDE = 64
LARGE_BLOCK = 32 << 20
# A read that unpacks more than so many times the sample wastes most of its time.
WASTEFUL = 4.0
PADDED = 0.3
MISSING = 0.5
UNIT = 4 << 20
CHUNK = 256 << 10

ONE_FILE = Must("hold many samples in one file", lambda one: one.media is None)


def _side(one: FieldFacts) -> float:
    """The shorter one."""
    return min(one.width, one.height)


@rule("Thousands of small files cost an open, a look-up and a seek for each sample.", "tiny-files")
def tiny_files(case: Case) -> Seen:
    facts = case.facts
    if not facts.file_per_sample:
        return no(f"{facts.files:,} files for {facts.samples:,} samples")
    if facts.samples < MANY_FILES or facts.sample_bytes > TINY:
        return no(f"{facts.samples:,} files of {facts.sample_bytes / 1000:,.0f} kB")
    said = f"{facts.samples:,} files of {facts.sample_bytes / 1000:,.1f} kB each"
    # For copying, listing and backing up as much as for reading.
    return Seen(said, must=(ONE_FILE,))


def _exact_photo(one: FieldFacts) -> bool:
    most = max(one.encodings, key=lambda name: one.encodings[name], default="")
    colours = isinstance(one.field, Image) and not one.field.mask
    return most in ("png", "bmp", "tiff") and one.pixel_bytes > PHOTO and colours


@rule("Pixels that no crop shows are decoded in every epoch.", "pictures-larger-than-the-crop")
def large_pictures(case: Case) -> Seen:
    size = case.answers.size
    large = [one for one in case.facts.having(kind="image") if _side(one) > 2.5 * size]
    if not large:
        return no(f"no pictures of more than 2.5 times the crop of {size} px")
    one = large[0]
    said = f"{one.name}: {one.width:.0f}×{one.height:.0f} px, and a batch takes {size}×{size}"
    if not case.loads or "lossless" in case.answers.yes:
        return no(f"{said}; kept, for {'they must stay' if case.loads else f'the goal is {case.goal}'}")
    # The shorter side keeps a quarter more than the crop; the longer side is what the writer bounds.
    longer = max(one.width, one.height) / max(_side(one), 1)
    bound = -(-round(1.25 * size * longer) // 32) * 32
    return Seen(
        f"{said}; their longer side needs no more than {bound} px", settings={"max_resolution": bound}
    )


@rule(
    "A photo as PNG is several times as large as a JPEG that trains as well, and slower to decode.",
    "photos-as-png",
)
def png_photos(case: Case) -> Seen:
    found = [one for one in case.facts.having(kind="image") if _exact_photo(one)]
    if not found:
        return no("no photos in a lossless encoding")
    one = found[0]
    said = f"{one.name}: {one.pixel_bytes:.1f} bytes a pixel, so they are photos"
    if not case.loads or "lossless" in case.answers.yes:
        return no(
            f"{said}; kept without loss, for {'they must stay' if case.loads else 'the goal is ' + case.goal}"
        )
    if _side(one) <= SMALL_SIDE:
        return no(f"{said}, but so small that decoding them costs little")
    return Seen(f"{said}; JPEG at quality 90", settings={"image_format": "jpeg", "quality": 90})


@rule(
    "Labels that stand together give batches of one class, unless the order mixes them well.", "sorted-labels"
)
def sorted_labels(case: Case) -> Seen:
    found = [one for one in case.facts.fields.values() if one.sorted]
    if not found:
        return no("no field is sorted")
    said = f"{found[0].name} is sorted ({found[0].classes:,} classes among the samples looked at)"
    if case.goal == "stream":
        return Seen(
            f"{said}; a stream keeps that, so shuffle once, at the conversion", settings={"shuffle": True}
        )
    if case.goal != "train":
        return no(f"{said}; it does not matter, for the goal is {case.goal}")
    return Seen(f"{said}; order windowed or sequential would learn one class after the other", warns=True)


@rule("Padding is stored, read, copied and multiplied like data.", "padding")
def padding(case: Case) -> Seen:
    found = [one for one in case.facts.fields.values() if one.padding > PADDED]
    if not found:
        return no("no field is mostly padding")
    said = f"{found[0].name}: {found[0].padding:.0%} of its values are padding"
    return Seen(f"{said}; store rows of their own length, or pack several into one", warns=True)


@rule("A shuffled read unpacks a whole row group for one sample.", "row-groups")
def large_row_groups(case: Case) -> Seen:
    size = case.facts.block_bytes
    if size is None or not case.loads:
        return no("samples are not stored in blocks" if size is None else f"the goal is {case.goal}")
    if size < LARGE_BLOCK or not _unpacked(case):
        return no(f"blocks of {size / 1e6:,.1f} MB")
    said = f"blocks of {size / 1e6:,.0f} MB ({case.facts.block_rows:,.0f} samples)"
    return Seen(f"{said}; {UNIT >> 20} MiB are enough", settings={"unit_bytes": UNIT, "rewrite": True})


def _unpacked(case: Case) -> bool:
    """Whether blocks are unpacked; those of cells that are used in place may be as large as they like.

    Where pages can be packed, not all fields are used in place.
    """
    can = get_format(case.facts.format).can if case.facts.format else None
    return can is None or not can.spans or can.compressed == "page"


@rule("A file compressed as a whole is unpacked from its start to reach a sample.", "compressed-shards")
def compressed_shards(case: Case) -> Seen:
    if not case.facts.packed:
        return no("files are not compressed as a whole")
    if case.goal in ("archive", "share"):
        return no(f"files are compressed as a whole; it does not matter, for the goal is {case.goal}")
    return Seen("files are compressed as a whole, which blocks random access", settings={"rewrite": True})


@rule(
    "A chunk that holds many samples, or a slice of each, is unpacked whole for one of them.", "chunk-shape"
)
def bad_chunks(case: Case) -> Seen:
    found = case.facts.amplification
    if found < WASTEFUL:
        return no(f"{found:.1f} times the bytes of a sample are unpacked to read it")
    said = f"{found:,.0f} times the bytes of a sample are unpacked to read it"
    if not case.loads:
        return no(f"{said}; it does not matter, for the goal is {case.goal}")
    samples = max(1, round(CHUNK / max(case.facts.sample_bytes, 1)))
    return Seen(
        f"{said}; chunks of {samples} whole samples", settings={"chunk_samples": samples, "rewrite": True}
    )


@rule("Labels as text are parsed, looked up and sorted in every epoch; numbers are not.", "labels-as-text")
def text_labels(case: Case) -> Seen:
    found = case.facts.having(labels="text")
    if not found or not case.loads:
        return no("no labels as text" if not found else f"the goal is {case.goal}")
    said = f"{found[0].name}: text of {found[0].classes:,} values"
    return Seen(f"{said}; the op Categories makes numbers of it", warns=True)


@rule("Missing values need a format that knows them, and a model that does.", "missing-values")
def missing_values(case: Case) -> Seen:
    gone = {one.name: one.missing for one in case.facts.fields.values() if one.missing}
    if not gone:
        return no("nothing is missing among the samples looked at")
    name = max(gone, key=lambda one: gone[one])
    share = gone[name] / max(case.facts.looked_at, 1)
    said = f"{name}: {share:.0%} missing"
    return Seen(f"{said}; leave the field out, perhaps" if share > MISSING else said, warns=True)


@rule("Samples that are there twice count twice, and leak from training into testing.", "duplicates")
def duplicates(case: Case) -> Seen:
    found = case.facts.duplicates
    if not found:
        return no("no two of the samples looked at are equal")
    return Seen(
        f"{found:,} of {case.facts.looked_at:,} equal another; batchplant doctor names them", warns=True
    )


@rule("Numbers wider than the model's cost twice the space and time.", "wide-numbers")
def wide_numbers(case: Case) -> Seen:
    found = [one for one in case.facts.fields.values() if one.wide and one.kind == "tensor"]
    if not found or not case.loads:
        return no("no float64 arrays" if not found else f"the goal is {case.goal}")
    return Seen(f"{found[0].name} is float64; models take float32", warns=True)


@rule("Samples that cannot be read stop an epoch.", "docs/guides/loading.md#samples-that-cannot-be-read")
def unreadable(case: Case) -> Seen:
    if not case.facts.unreadable:
        return no("all samples looked at can be read")
    said = f"{case.facts.unreadable:,} of the samples tried cannot be read"
    return Seen(
        f"{said}; batchplant verify --quarantine lists them", warns=True, settings={"skip_errors": True}
    )
