"""The rules, one small function each. Their order is the order in which `advise --explain` prints them.

A rule looks at a :class:`Case` and says what it saw, what the format must be able to do, and which settings
follow. It knows no format by name; what a format can do is in its ``can``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...formats.base.format import Format
from ...formats.base.options import own_options
from ...formats.registry import get_format
from ...schema import Image
from ...storage.limits import human_size
from .answers import Answers
from .facts import Facts, FieldFacts, fitting_size
from .machine import Machine

GUIDE = "docs/choosing.md"


@dataclasses.dataclass(frozen=True)
class Case:
    """What a rule looks at."""

    facts: Facts
    machine: Machine
    answers: Answers

    @property
    def goal(self) -> str:
        return self.answers.goal

    @property
    def storage(self) -> str:
        return self.answers.storage or self.machine.storage

    @property
    def size(self) -> int:
        """Side of the crop: the size that was asked for, or what fits the images."""
        return self.answers.size or fitting_size(self.facts)

    @property
    def moves(self) -> bool:
        """Whether it will be read from a bucket and does not lie in one, so that it cannot be tried there."""
        return self.storage == "s3" and not self.facts.remote

    @property
    def loads(self) -> bool:
        """Whether samples go into a training loop."""
        return self.goal in ("train", "stream")

    @property
    def larger_than_memory(self) -> bool:
        return (self.facts.bytes or 0) > 0.7 * self.machine.memory


class Must(NamedTuple):
    """Something that the format has to be able to do: in words, and how to tell.

    wish: data that cannot do it may stay as it is where a conversion would be a loss.
    """

    words: str
    holds: Callable[[Format], bool]
    wish: bool = False


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a rule saw in a case. ``settings`` are what it advises, by name; see :mod:`..settings`."""

    said: str
    applies: bool = True
    must: tuple[Must, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Something that the user has to know, though no setting can mend it.
    warns: bool = False


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule with its sentence and the section that explains it."""

    name: str
    sentence: str
    doc: str
    look: Callable[[Case], Seen]


RULES: dict[str, Rule] = {}


def rule(sentence: str, doc: str) -> Callable[[Callable[[Case], Seen]], Callable[[Case], Seen]]:
    """Adds a function to :data:`RULES`, under its name with hyphens."""

    def add(look: Callable[[Case], Seen]) -> Callable[[Case], Seen]:
        name = look.__name__.replace("_", "-")
        RULES[name] = Rule(name, sentence, doc if "docs/" in doc else f"{GUIDE}#{doc}", look)
        return look

    return add


def no(said: str) -> Seen:
    """The rule does not apply, and why."""
    return Seen(said, applies=False)


# -- the data: what is wrong with how it lies now ------------------------------------------------------

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

ONE_FILE = Must("hold many samples in one file", lambda one: one.media is None, wish=True)


def _side(one: FieldFacts) -> float:
    """The shorter one."""
    return min(one.width, one.height)


@rule("Thousands of small files cost an open, a look-up and a seek for each sample.", "tiny-files")
def tiny_files(case: Case) -> Seen:
    facts = case.facts
    if not facts.file_per_sample:
        return no(f"{facts.files:,} files for {facts.samples:,} samples")
    if facts.samples < MANY_FILES or facts.sample_bytes > TINY:
        return no(f"{facts.samples:,} files of {human_size(facts.sample_bytes)}")
    said = f"{facts.samples:,} files of {human_size(facts.sample_bytes)} each"
    # For copying, listing and backing up as much as for reading.
    return Seen(said, must=(ONE_FILE,))


def _exact_photo(one: FieldFacts) -> bool:
    most = max(one.encodings, key=lambda name: one.encodings[name], default="")
    colours = isinstance(one.field, Image) and not one.field.mask
    return most in ("png", "bmp", "tiff") and one.pixel_bytes > PHOTO and colours


@rule("Pixels that no crop shows are decoded in every epoch.", "images-larger-than-the-crop")
def large_images(case: Case) -> Seen:
    size = case.size
    large = [one for one in case.facts.having(kind="image") if _side(one) > 2.5 * size]
    if not large:
        return no(f"no images of more than 2.5 times the crop of {size} px")
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
        return no(f"blocks of {human_size(size)}")
    said = f"blocks of {human_size(size)} ({case.facts.block_rows:,.0f} samples)"
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


# -- how it is written and loaded ----------------------------------------------------------------------

SHARD = 512 << 20
NETWORK_SHARD = 256 << 20
# Shards for each reader: with fewer, some wait for others at the end of an epoch.
EACH = 4


@rule(
    "Shards let several machines read at once, and a copy that breaks off begins anew in the middle.",
    "shard-size",
)
def shards(case: Case) -> Seen:
    size = case.facts.bytes or 0
    readers = case.answers.gpus if case.loads else 1
    shared = case.storage != "nvme" or case.goal in ("stream", "share") or readers > 1
    unit = NETWORK_SHARD if case.storage == "s3" else SHARD
    if not shared:
        return no("one machine reads it from its own disk: one file")
    if size < 2 * unit and readers * EACH * (8 << 20) > size:
        return no(f"{human_size(size)}: one file")
    # A bound of both: not less than 8 MB, which a request or a seek is small beside.
    shard = max(8 << 20, min(unit, size // (readers * EACH)))
    return Seen(
        f"{human_size(size)} for {readers} readers: shards of {human_size(shard)}",
        settings={"shard_size": shard},
    )


@rule("Small row groups keep shuffled reading quick; large ones suit scans.", "row-groups")
def row_groups(case: Case) -> Seen:
    if case.goal == "train":
        return Seen("samples are read in random order", settings={"unit_bytes": UNIT})
    if case.goal == "analyse":
        return Seen("columns are read from start to end", settings={"unit_bytes": 16 * UNIT})
    return no(f"the goal is {case.goal}: as the format has it")


@rule("Random order where any sample is near; by blocks where each costs a request or a seek.",
      "docs/guides/shuffling.md#which-one-to-take")  # fmt: skip
def order(case: Case) -> Seen:
    if case.goal == "stream":
        return Seen("a stream is read as it lies", settings={"order": "sequential"})
    if case.goal != "train":
        return no(f"the goal is {case.goal}")
    if case.storage == "s3" and not _cached(case):
        return Seen("samples come from a bucket: block by block", settings={"order": "quasi_random"})
    if case.larger_than_memory:
        return Seen("larger than the memory: block by block", settings={"order": "quasi_random"})
    return Seen("it fits into memory: any order is as quick", settings={"order": "random"})


def _cached(case: Case) -> bool:
    """Whether a cache of the whole on the local disk is small beside the machine."""
    return (case.facts.bytes or 0) < case.machine.memory


@rule("Threads decode; each rank takes its share of the cores.", "docs/guides/loading.md#several-processes")
def workers(case: Case) -> Seen:
    if not case.loads:
        return no(f"the goal is {case.goal}")
    each = max(1, case.machine.cores // case.answers.gpus)
    said = (
        f"{case.machine.cores} cores for {case.answers.gpus} GPUs" if case.answers.gpus > 1 else "all cores"
    )
    return Seen(said, settings={"workers": each})


@rule(
    "Batches made ahead bridge what is uneven: requests more than a disk.",
    "docs/guides/how-loading-works.md#prefetching",
)
def ahead(case: Case) -> Seen:
    if not case.loads:
        return no(f"the goal is {case.goal}")
    batches = {"nvme": 3, "nfs": 4, "s3": 6}[case.storage]
    return Seen(f"{case.storage}: {case.machine.latency_ms:,.1f} ms a request", settings={"ahead": batches})


@rule(
    "What came over the network once need not come again.",
    "docs/guides/data-in-a-bucket.md#the-cache-on-disk",
)
def cache(case: Case) -> Seen:
    if not case.loads or case.storage != "s3":
        return no("it is not loaded from a bucket")
    if not case.facts.remote:
        return Seen("give the Loader source_options={'cache': DIR} once it is in the bucket")
    return Seen("a cache on the local disk holds what was fetched", settings={"cache": True})


# -- the goal and the answers: what the format must be able to do --------------------------------------

# Programs that read a format, for data that strangers are to open.
READERS = 3

RANDOM = Must("read single samples in any order", lambda one: one.can.random_access)
COLUMNS = Must("read single columns", lambda one: one.can.column_pruning)
FILTERS = Must("skip rows that a query does not want", lambda one: one.can.row_filters == "push-down")
APPEND = Must("take more samples later", lambda one: one.can.append)
WRITERS = Must("take samples of several writers at once", lambda one: one.can.concurrent_writers)
VERSIONS = Must("give older versions back", lambda one: one.can.time_travel)
RANGES = Must("be read from a server in parts", lambda one: one.can.remote_ranges)
SPLIT = Must("be split between machines", lambda one: one.can.splittable)
PACKED = Must("compress what it holds", lambda one: bool(one.can.compression))
SCHEMA = Must("keep the fields as they are", lambda one: one.can.keeps_schema)
CHECKED = Must("find damage by checksums", lambda one: bool(one.can.checksums))
TEXT = Must("be read by people", lambda one: one.can.human_readable)
SAFE = Must("be opened without running code", lambda one: not runs_code(one))
STREAMED = Must("be written without holding it in memory", lambda one: one.can.streaming_write)
KNOWN = Must("be read by several other programs", lambda one: len(one.can.ecosystem) >= READERS)


def runs_code(found: Format) -> bool:
    """Whether opening such a file can run code: it has to be allowed, and holds any objects."""
    return "allow_pickle" in own_options(found.reader) and not (
        found.can.random_access or found.can.memory_map
    )


@rule("Training takes samples in random order, so each must be reached by itself.", "train")
def train(case: Case) -> Seen:
    if case.goal != "train":
        return no(f"the goal is {case.goal}")
    return Seen("the goal is to train", must=(RANDOM,))


@rule("An archive is small, says what it holds, and is written without holding it in memory.", "archive")
def archive(case: Case) -> Seen:
    if case.goal != "archive":
        return no(f"the goal is {case.goal}")
    return Seen("the goal is to archive", must=(SCHEMA, STREAMED), settings={"compress": "small"})


@rule("What strangers get should open in the programs that they have.", "share")
def share(case: Case) -> Seen:
    if case.goal != "share":
        return no(f"the goal is {case.goal}")
    return Seen("the goal is to share", must=(KNOWN,), settings={"compress": "known"})


@rule("Queries touch few columns, so the others must not be read, by any program that asks.", "analyse")
def analyse(case: Case) -> Seen:
    if case.goal != "analyse":
        return no(f"the goal is {case.goal}")
    return Seen("the goal is to analyse", must=(COLUMNS, KNOWN))


@rule("A stream is read from start to end, as it comes, by whoever is at the other end.", "stream")
def stream(case: Case) -> Seen:
    if case.goal != "stream":
        return no(f"the goal is {case.goal}")
    return Seen("the goal is to stream", must=(STREAMED, RANGES, KNOWN))


def _asked(case: Case, question: str, *must: Must) -> Seen:
    if question not in case.answers.yes:
        return no(f"not asked for (--{question})")
    return Seen(f"asked for by --{question}", must=must)


@rule("Queries need columns that are stored apart, and bounds by which rows are skipped.", "analytics")
def analytics(case: Case) -> Seen:
    return _asked(case, "analytics", COLUMNS, FILTERS)


@rule("Data that grows needs a format that takes samples without writing the old ones again.", "mutable-data")
def mutable(case: Case) -> Seen:
    return _asked(case, "mutable", APPEND)


@rule("Several writers at once need transactions.", "mutable-data")
def many_writers(case: Case) -> Seen:
    return _asked(case, "many-writers", APPEND, WRITERS)


@rule("Older versions stay readable only in tables with versions.", "schema-changes")
def versions(case: Case) -> Seen:
    return _asked(case, "versions", VERSIONS)


@rule("Single samples need an index or fixed places.", "random-access")
def random_access(case: Case) -> Seen:
    return _asked(case, "random-access", RANDOM)


@rule("Behind a bucket, only the bytes of the wanted samples should come over the network.", "cloud")
def cloud(case: Case) -> Seen:
    if case.storage == "s3" and "cloud" not in case.answers.yes:
        return Seen("it will be read from a bucket", must=(RANGES,))
    return _asked(case, "cloud", RANGES)


@rule("Several machines that read one stream each take their own part of it.", "streaming")
def streaming(case: Case) -> Seen:
    return _asked(case, "streaming", STREAMED, SPLIT)


@rule("Where space is dear, the format itself must compress.", "compression")
def small(case: Case) -> Seen:
    seen = _asked(case, "small", PACKED)
    return Seen(seen.said, must=seen.must, settings={"compress": "small"}) if seen.applies else seen


@rule("Fields that must come back exactly need a format that stores their kinds.", "schema-changes")
def schema(case: Case) -> Seen:
    return _asked(case, "schema", SCHEMA)


@rule("Damage that nobody notices is found by checksums only.", "safety")
def safety(case: Case) -> Seen:
    return _asked(case, "safety", CHECKED)


@rule("People read text, and nothing else, without a program.", "interop")
def readable(case: Case) -> Seen:
    return _asked(case, "readable", TEXT)


@rule("Another program must find the format among those that it reads.", "interop")
def interop(case: Case) -> Seen:
    wanted = case.answers.interop
    if wanted is None:
        return no("no program is named (--interop)")
    found = Must(
        f"be read by {wanted}", lambda one: any(wanted.lower() in who.lower() for who in one.can.ecosystem)
    )
    return Seen(f"{wanted} must read it", must=(found,))


@rule("A file that can run code when it is opened is not advised to anybody.", "pickles")
def no_code(case: Case) -> Seen:
    return Seen("formats that can run code are left out", must=(SAFE,))
