"""The rules, one small function each, in the order in which `advise --explain` prints them.

A rule examines a :class:`Case` and returns its observation, the requirements on the format, and settings. It
knows no format by name; the capabilities of a format are in its ``can``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ...formats.registry import get_format
from ...schema import Image
from ...storage.limits import human_size
from .case import (
    COLUMNS,
    GUIDE,
    KNOWN,
    QUESTIONS,
    RANDOM,
    RANGES,
    SAFE,
    SCHEMA,
    STREAMED,
    Case,
    Question,
    Requirement,
)
from .facts import FieldFacts


@dataclasses.dataclass(frozen=True)
class RuleResult:
    """The observation of a rule, the requirements and settings that follow from it."""

    message: str
    applies: bool = True
    requirements: tuple[Requirement, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The user has to know it, though no setting fixes it.
    is_warning: bool = False


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule with its sentence and the section of the guide that explains it."""

    name: str
    sentence: str
    doc: str
    look: Callable[[Case], RuleResult]


RULES: dict[str, Rule] = {}


def rule(sentence: str, doc: str) -> Callable[[Callable[[Case], RuleResult]], Callable[[Case], RuleResult]]:
    """Register a function in :data:`RULES`, under its name with hyphens."""

    def add(look: Callable[[Case], RuleResult]) -> Callable[[Case], RuleResult]:
        name = look.__name__.replace("_", "-")
        RULES[name] = Rule(name, sentence, doc if "docs/" in doc else f"{GUIDE}#{doc}", look)
        return look

    return add


def not_applicable(message: str) -> RuleResult:
    """Return that the rule does not apply, and why."""
    return RuleResult(message, applies=False)


# -- the data: problems of its current storage ------------------------------------------------------

TINY_FILE_BYTES = 256 << 10
MANY_FILES = 500
# Encoded bytes per pixel above which a PNG is a photo; drawings and screenshots take far less.
PHOTO_PIXEL_BYTES = 0.8
# Pixels of a side below which a PNG is decoded as fast as it is scaled up.
SMALL_SIDE_PIXELS = 64
LARGE_BLOCK_BYTES = 32 << 20
# Decompressing more than so many times the bytes of a sample wastes most of the time.
WASTEFUL_AMPLIFICATION = 4.0
MAX_PADDING_SHARE = 0.3
MAX_MISSING_SHARE = 0.5
BLOCK_BYTES = 4 << 20
CHUNK_BYTES = 256 << 10

ONE_FILE = Requirement("hold many samples in one file", lambda format: format.media is None, optional=True)


def _side(field: FieldFacts) -> float:
    """Return the length of the shorter side."""
    return min(field.width, field.height)


@rule("Thousands of small files cost an open, a look-up and a seek for each sample.", "tiny-files")
def tiny_files(case: Case) -> RuleResult:
    facts = case.facts
    if not facts.file_per_sample:
        return not_applicable(f"{facts.files:,} files for {facts.samples:,} samples")
    if facts.samples < MANY_FILES or facts.sample_bytes > TINY_FILE_BYTES:
        return not_applicable(f"{facts.samples:,} files of {human_size(facts.sample_bytes)}")
    message = f"{facts.samples:,} files of {human_size(facts.sample_bytes)} each"
    # It speeds up copying, listing and backups as much as reading.
    return RuleResult(message, requirements=(ONE_FILE,))


def _exact_photo(field: FieldFacts) -> bool:
    encoding = max(field.encodings, key=lambda name: field.encodings[name], default="")
    colours = isinstance(field.field, Image) and not field.field.mask
    return encoding in ("png", "bmp", "tiff") and field.pixel_bytes > PHOTO_PIXEL_BYTES and colours


@rule("Pixels that no crop shows are decoded in every epoch.", "images-larger-than-the-crop")
def large_images(case: Case) -> RuleResult:
    size = case.size
    large = [field for field in case.facts.having(kind="image") if _side(field) > 2.5 * size]
    if not large:
        return not_applicable(f"no images of more than 2.5 times the crop of {size} px")
    field = large[0]
    message = f"{field.name}: {field.width:.0f}×{field.height:.0f} px, and a batch takes {size}×{size}"
    if not case.loads or "lossless" in case.answers.yes:
        return not_applicable(
            f"{message}; kept, for {'they must stay' if case.loads else f'the goal is {case.goal}'}"
        )
    # The shorter side keeps a quarter more than the crop; the longer side is what the writer bounds.
    longer = max(field.width, field.height) / max(_side(field), 1)
    bound = -(-round(1.25 * size * longer) // 32) * 32
    return RuleResult(
        f"{message}; their longer side needs no more than {bound} px", settings={"max_resolution": bound}
    )


@rule(
    "A photo as PNG is several times as large as a JPEG that trains as well, and slower to decode.",
    "photos-as-png",
)
def png_photos(case: Case) -> RuleResult:
    matches = [field for field in case.facts.having(kind="image") if _exact_photo(field)]
    if not matches:
        return not_applicable("no photos in a lossless encoding")
    field = matches[0]
    message = f"{field.name}: {field.pixel_bytes:.1f} bytes a pixel, so they are photos"
    if not case.loads or "lossless" in case.answers.yes:
        reason = "they must stay" if case.loads else f"the goal is {case.goal}"
        return not_applicable(f"{message}; kept without loss, for {reason}")
    if _side(field) <= SMALL_SIDE_PIXELS:
        return not_applicable(f"{message}, but so small that decoding them costs little")
    return RuleResult(f"{message}; JPEG at quality 90", settings={"image_format": "jpeg", "quality": 90})


@rule(
    "Labels that stand together give batches of one class, unless the order mixes them well.", "sorted-labels"
)
def sorted_labels(case: Case) -> RuleResult:
    matches = [field for field in case.facts.fields.values() if field.sorted]
    if not matches:
        return not_applicable("no field is sorted")
    message = f"{matches[0].name} is sorted ({matches[0].classes:,} classes among the samples looked at)"
    if case.goal == "stream":
        return RuleResult(
            f"{message}; a stream keeps that, so shuffle once, at the conversion", settings={"shuffle": True}
        )
    if case.goal != "train":
        return not_applicable(f"{message}; it does not matter, for the goal is {case.goal}")
    return RuleResult(
        f"{message}; order windowed or sequential would learn one class after the other", is_warning=True
    )


@rule("Padding is stored, read, copied and multiplied like data.", "padding")
def padding(case: Case) -> RuleResult:
    matches = [field for field in case.facts.fields.values() if field.padding > MAX_PADDING_SHARE]
    if not matches:
        return not_applicable("no field is mostly padding")
    message = f"{matches[0].name}: {matches[0].padding:.0%} of its values are padding"
    return RuleResult(f"{message}; store rows of their own length, or pack several into one", is_warning=True)


@rule("A shuffled read unpacks a whole row group for one sample.", "row-groups")
def large_row_groups(case: Case) -> RuleResult:
    size = case.facts.block_bytes
    if size is None or not case.loads:
        return not_applicable(
            "samples are not stored in blocks" if size is None else f"the goal is {case.goal}"
        )
    if size < LARGE_BLOCK_BYTES or not _unpacked(case):
        return not_applicable(f"blocks of {human_size(size)}")
    message = f"blocks of {human_size(size)} ({case.facts.block_rows:,.0f} samples)"
    return RuleResult(
        f"{message}; {BLOCK_BYTES >> 20} MiB are enough",
        settings={"unit_bytes": BLOCK_BYTES, "rewrite": True},
    )


def _unpacked(case: Case) -> bool:
    """Return whether blocks are decompressed; the size of blocks that are used in place does not matter.

    Where pages can be compressed, not all fields are used in place.
    """
    can = get_format(case.facts.format).can if case.facts.format else None
    return can is None or not can.spans or can.compressed == "page"


@rule("A file compressed as a whole is unpacked from its start to reach a sample.", "compressed-shards")
def compressed_shards(case: Case) -> RuleResult:
    if not case.facts.packed:
        return not_applicable("files are not compressed as a whole")
    if case.goal in ("archive", "share"):
        return not_applicable(
            f"files are compressed as a whole; it does not matter, for the goal is {case.goal}"
        )
    return RuleResult(
        "files are compressed as a whole, which blocks random access", settings={"rewrite": True}
    )


@rule(
    "A chunk that holds many samples, or a slice of each, is unpacked whole for one of them.", "chunk-shape"
)
def bad_chunks(case: Case) -> RuleResult:
    amplification = case.facts.amplification
    if amplification < WASTEFUL_AMPLIFICATION:
        return not_applicable(f"{amplification:.1f} times the bytes of a sample are unpacked to read it")
    message = f"{amplification:,.0f} times the bytes of a sample are unpacked to read it"
    if not case.loads:
        return not_applicable(f"{message}; it does not matter, for the goal is {case.goal}")
    samples = max(1, round(CHUNK_BYTES / max(case.facts.sample_bytes, 1)))
    return RuleResult(
        f"{message}; chunks of {samples} whole samples", settings={"chunk_samples": samples, "rewrite": True}
    )


@rule("Labels as text are parsed, looked up and sorted in every epoch; numbers are not.", "labels-as-text")
def text_labels(case: Case) -> RuleResult:
    matches = case.facts.having(labels="text")
    if not matches or not case.loads:
        return not_applicable("no labels as text" if not matches else f"the goal is {case.goal}")
    message = f"{matches[0].name}: text of {matches[0].classes:,} values"
    return RuleResult(f"{message}; the op Categories makes numbers of it", is_warning=True)


@rule("Missing values need a format that knows them, and a model that does.", "missing-values")
def missing_values(case: Case) -> RuleResult:
    missing = {field.name: field.missing for field in case.facts.fields.values() if field.missing}
    if not missing:
        return not_applicable("nothing is missing among the samples looked at")
    name = max(missing, key=lambda format: missing[format])
    share = missing[name] / max(case.facts.looked_at, 1)
    message = f"{name}: {share:.0%} missing"
    return RuleResult(
        f"{message}; leave the field out, perhaps" if share > MAX_MISSING_SHARE else message, is_warning=True
    )


@rule("Samples that are there twice count twice, and leak from training into testing.", "duplicates")
def duplicates(case: Case) -> RuleResult:
    count = case.facts.duplicates
    if not count:
        return not_applicable("no two of the samples looked at are equal")
    return RuleResult(
        f"{count:,} of {case.facts.looked_at:,} equal another; batchplant doctor names them", is_warning=True
    )


@rule("Numbers wider than the model's cost twice the space and time.", "wide-numbers")
def wide_numbers(case: Case) -> RuleResult:
    matches = [field for field in case.facts.fields.values() if field.wide and field.kind == "tensor"]
    if not matches or not case.loads:
        return not_applicable("no float64 arrays" if not matches else f"the goal is {case.goal}")
    return RuleResult(f"{matches[0].name} is float64; models take float32", is_warning=True)


@rule("Samples that cannot be read stop an epoch.", "docs/guides/loading.md#samples-that-cannot-be-read")
def unreadable(case: Case) -> RuleResult:
    if not case.facts.unreadable:
        return not_applicable("all samples looked at can be read")
    message = f"{case.facts.unreadable:,} of the samples tried cannot be read"
    return RuleResult(
        f"{message}; batchplant verify --quarantine lists them",
        is_warning=True,
        settings={"skip_errors": True},
    )


# -- how it is written and loaded ----------------------------------------------------------------------

SHARD_BYTES = 512 << 20
NETWORK_SHARD_BYTES = 256 << 20
# With fewer shards per reader, some readers wait for others at the end of an epoch.
SHARDS_PER_READER = 4


@rule(
    "Shards let several machines read at once, and a copy that breaks off begins anew in the middle.",
    "shard-size",
)
def shards(case: Case) -> RuleResult:
    size = case.facts.bytes or 0
    readers = case.answers.gpus if case.loads else 1
    shared = case.storage != "nvme" or case.goal in ("stream", "share") or readers > 1
    unit = NETWORK_SHARD_BYTES if case.storage == "s3" else SHARD_BYTES
    if not shared:
        return not_applicable("one machine reads it from its own disk: one file")
    if size < 2 * unit and readers * SHARDS_PER_READER * (8 << 20) > size:
        return not_applicable(f"{human_size(size)}: one file")
    # At least 8 MB, so that a request or a seek is cheap in comparison.
    shard = max(8 << 20, min(unit, size // (readers * SHARDS_PER_READER)))
    return RuleResult(
        f"{human_size(size)} for {readers} readers: shards of {human_size(shard)}",
        settings={"shard_size": shard},
    )


@rule("Small row groups keep shuffled reading quick; large ones suit scans.", "row-groups")
def row_groups(case: Case) -> RuleResult:
    if case.goal == "train":
        return RuleResult("samples are read in random order", settings={"unit_bytes": BLOCK_BYTES})
    if case.goal == "analyse":
        return RuleResult("columns are read from start to end", settings={"unit_bytes": 16 * BLOCK_BYTES})
    return not_applicable(f"the goal is {case.goal}: as the format has it")


@rule("Random order where any sample is near; by blocks where each costs a request or a seek.",
      "docs/guides/shuffling.md#which-one-to-take")  # fmt: skip
def order(case: Case) -> RuleResult:
    if case.goal == "stream":
        return RuleResult("a stream is read as it lies", settings={"order": "sequential"})
    if case.goal != "train":
        return not_applicable(f"the goal is {case.goal}")
    if case.storage == "s3" and not _cached(case):
        return RuleResult("samples come from a bucket: block by block", settings={"order": "quasi_random"})
    if case.larger_than_memory:
        return RuleResult("larger than the memory: block by block", settings={"order": "quasi_random"})
    return RuleResult("it fits into memory: any order is as quick", settings={"order": "random"})


def _cached(case: Case) -> bool:
    """Return whether the whole dataset fits into a cache on the local disk."""
    return (case.facts.bytes or 0) < case.machine.memory


@rule("Threads decode; each rank takes its share of the cores.", "docs/guides/loading.md#several-processes")
def workers(case: Case) -> RuleResult:
    if not case.loads:
        return not_applicable(f"the goal is {case.goal}")
    rank_workers = max(1, case.machine.cores // case.answers.gpus)
    message = (
        f"{case.machine.cores} cores for {case.answers.gpus} GPUs" if case.answers.gpus > 1 else "all cores"
    )
    return RuleResult(message, settings={"workers": rank_workers})


@rule(
    "Batches made ahead bridge what is uneven: requests more than a disk.",
    "docs/guides/how-loading-works.md#prefetching",
)
def prefetch_batches(case: Case) -> RuleResult:
    if not case.loads:
        return not_applicable(f"the goal is {case.goal}")
    batches = {"nvme": 3, "nfs": 4, "s3": 6}[case.storage]
    return RuleResult(
        f"{case.storage}: {case.machine.latency_ms:,.1f} ms a request", settings={"prefetch_batches": batches}
    )


@rule(
    "What came over the network once need not come again.",
    "docs/guides/data-in-a-bucket.md#the-cache-on-disk",
)
def cache(case: Case) -> RuleResult:
    if not case.loads or case.storage != "s3":
        return not_applicable("it is not loaded from a bucket")
    if not case.facts.remote:
        return RuleResult("give the Loader bp.open(URL, cache=DIR) once it is in the bucket")
    return RuleResult("a cache on the local disk holds what was fetched", settings={"cache": True})


# -- the goal and the answers: requirements on the format --------------------------------------

# Goals: the sentence, the requirements and the settings; the section of the guide has the goal's name.
GOAL_RULES: dict[str, tuple[str, tuple[Requirement, ...], dict[str, str]]] = {
    "train": ("Training takes samples in random order, so each must be reached by itself.", (RANDOM,), {}),
    "archive": ("An archive is small, says what it holds, and is written without holding it in memory.",
                (SCHEMA, STREAMED), {"compress": "small"}),
    "share": ("What strangers get should open in the programs that they have.",
              (KNOWN,), {"compress": "known"}),
    "analyse": ("Queries touch few columns, so the others must not be read, by any program that asks.",
                (COLUMNS, KNOWN), {}),
    "stream": ("A stream is read from start to end, as it comes, by whoever is at the other end.",
               (STREAMED, RANGES, KNOWN), {}),
}  # fmt: skip


def look_at_goal(goal: str, case: Case) -> RuleResult:
    """Return what a goal requires, where it is that of the case."""
    if case.goal != goal:
        return not_applicable(f"the goal is {case.goal}")
    _, requirements, settings = GOAL_RULES[goal]
    return RuleResult(f"the goal is to {goal}", requirements=requirements, settings=settings)


def look_at_question(question: Question, case: Case) -> RuleResult:
    """Return what a yes to a question requires; data in a bucket answers ``cloud`` by itself."""
    requirements = question.requirements
    if question.name in case.answers.yes:
        return RuleResult(
            f"asked for by --{question.name}", requirements=requirements, settings=question.settings
        )
    if question.name == "cloud" and case.storage == "s3":
        return RuleResult("it will be read from a bucket", requirements=requirements)
    return not_applicable(f"not asked for (--{question.name})")


for name, (sentence, *_) in GOAL_RULES.items():
    RULES[name] = Rule(name, sentence, f"{GUIDE}#{name}", functools.partial(look_at_goal, name))
for question in QUESTIONS:
    # Rules of images look at the others.
    if question.sentence:
        look = functools.partial(look_at_question, question)
        RULES[question.name] = Rule(question.name, question.sentence, question.doc, look)


@rule("Another program must find the format among those that it reads.", "interop")
def interop(case: Case) -> RuleResult:
    program = case.answers.interop
    if program is None:
        return not_applicable("no program is named (--interop)")
    requirement = Requirement(
        f"be read by {program}",
        lambda format: any(program.lower() in who.lower() for who in format.can.ecosystem),
    )
    return RuleResult(f"{program} must read it", requirements=(requirement,))


@rule("A file that can run code when it is opened is not advised to anybody.", "pickles")
def no_code(case: Case) -> RuleResult:
    return RuleResult("formats that can run code are left out", requirements=(SAFE,))
