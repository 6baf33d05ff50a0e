"""Rules about the goal and the answers: what the format must be able to do."""

from __future__ import annotations

from ...format import Format
from ...options import own_options
from .base import Case, Must, Seen, no, rule

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
