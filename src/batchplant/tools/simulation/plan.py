"""The plan of a simulation: what is read, by whom, over which links. Every name stands here once."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ... import order as orders
from ...data import config
from ...errors import BatchplantError, OptionError, listed, near
from ...storage.settings import DEFAULT_FETCH_BYTES, bytes_of, size_of
from .. import Document

# Orders that need nothing but numbers.
ORDERS = ("sequential", "random", "shards", "quasi_random", "windowed")
# More blocks than this would take gigabytes, here as in a loader.
MOST_BLOCKS = 20_000_000
BITS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:s)?\s*", re.IGNORECASE)
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0}
Take = Callable[[str, Any], Any]


def count(name: str, value: Any) -> int:
    """1000000, 1e9, 1_000_000."""
    try:
        number = float(str(value).replace("_", "").replace(",", ""))
    except ValueError:
        raise OptionError(f"{name} is a number, such as 1e9, not {value!r}") from None
    if isinstance(value, bool) or not number.is_integer() or not 0 <= number <= 2**48:
        raise OptionError(f"{name} is a whole number of at most 2**48, not {value!r}")
    return int(number)


def number(name: str, value: Any) -> float:
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name} is a number, not {value!r}") from None
    if isinstance(value, bool) or not 0 <= result < math.inf:
        raise OptionError(f"{name} is a number that is not below 0, not {value!r}")
    return result


def share(name: str, value: Any) -> float:
    result = number(name, value)
    if result >= 1:
        raise OptionError(f"{name} is a share below 1, not {value!r}")
    return result


def mean_size(name: str, value: Any) -> float:
    """Bytes on average, which may be a fraction: 16, 0.5, 2kB."""
    try:
        return number(name, value)
    except OptionError:
        return size_of(name, value)


def size(name: str, value: Any) -> int:
    """100kB, 64 MiB, 4TB."""
    return int(mean_size(name, value))


def rate(name: str, value: Any) -> float:
    """Bytes per second: 3GB/s, 25Gbit/s."""
    text = re.sub(r"(/s|ps)\s*$", "", str(value).strip())
    bits = BITS.fullmatch(text)
    if bits is not None:
        return float(bits[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[bits[2].lower()] / 8
    try:
        return float(bytes_of(name, value if isinstance(value, int) else text))
    except OptionError:
        raise OptionError(f"{name} is bytes per second, such as 3GB/s or 25Gbit/s, not {value!r}") from None


def seconds(name: str, value: Any) -> float:
    """0.03, 30ms, 2s."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-zµ]*)\s*", str(value))
    if match is None or match[2] not in SECONDS:
        raise OptionError(f"{name} is a time, such as 30ms, not {value!r}")
    return float(match[1]) * SECONDS[match[2]]


def flag(name: str, value: Any) -> bool:
    if str(value).lower() not in ("true", "false", "yes", "no"):
        raise OptionError(f"{name} is true or false, not {value!r}")
    return str(value).lower() in ("true", "yes")


def order_name(name: str, value: Any) -> str:
    if value not in ORDERS:
        raise OptionError(f"{name} is none of {listed(ORDERS)}: {value!r}{near(str(value), ORDERS)}")
    return str(value)


def _is(take: Take, default: Any, about: str, shown: str | None = None) -> Any:
    """A field: how its text becomes a value, its default, what it is, how the example has it."""
    meta = {"take": take, "about": about, "shown": shown}
    return dataclasses.field(default=default, metadata=meta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Data that the run reads."""

    samples: int = _is(count, 10**9, "of the dataset", "1e9")
    sample_bytes: int = _is(size, 100_000, "of one sample in its file, on average", "100kB")
    gap_bytes: int = _is(size, 0, "between two samples, which are not read: 1536 of a tar file", "0B")
    varies: float = _is(share, 0.5, "sizes lie within this share of the average, above and below")
    files: int = _is(count, 100_000, "shards that the samples lie in", "1e5")
    block_bytes: int = _is(size, 64 << 20, "what quasi_random and shards mix: 0 for whole files", "64MiB")
    aligned: bool = _is(flag, False, "blocks begin at multiples of block_bytes, as pages of .beton do")
    index_bytes: float = _is(
        mean_size, 16.0, "of the index that opening fetches, for each sample; 0 for none", "16B"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loading:
    """How it is read: options of the Loader."""

    order: str = _is(order_name, "quasi_random", ", ".join(ORDERS))
    window: int = _is(count, 4, "of quasi_random (blocks) or windowed (samples); 0 for the default")
    lanes: bool = _is(flag, True, "each rank has blocks of its own: QuasiRandom(lanes=ranks)")
    batch_size: int = _is(count, 256, "of one rank")
    prefetch_batches: int = _is(count, 3, "batches made in advance")
    fetch_bytes: int = _is(size, DEFAULT_FETCH_BYTES, "memory of a rank for what was fetched", "576MiB")
    drop_last: bool = _is(flag, True, "only full batches")
    seed: int = _is(count, 0, "another seed, another order")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Who reads it."""

    ranks: int = _is(count, 1024, "processes that train")
    ranks_per_node: int = _is(count, 8, "of them on one machine")
    decode: float = _is(number, 3000.0, "samples/s that a rank decodes where nothing has to be waited for")
    step: float = _is(seconds, 0.0, "that a training step takes; 0: as fast as batches come", "0s")
    synchronous: bool = _is(flag, True, "every step waits for all ranks")
    request: float = _is(seconds, 0.0003, "of one core that a request costs the rank", "0.3ms")
    start: float = _is(seconds, 5.0, "from the start of a process until it opens the data", "5s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """Resources of a machine, for all of its ranks."""

    bandwidth: float = _is(rate, 3.125e9, "of its link", "25Gbit/s")
    cache: int = _is(size, 4 * 10**12, "on its disk, shared by its ranks; 0 for none", "4TB")
    cache_bandwidth: float = _is(rate, 3e9, "of that disk", "3GB/s")
    cache_latency: float = _is(seconds, 0.0002, "of a read from that disk", "0.2ms")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Store:
    """Where it lies."""

    latency: float = _is(seconds, 0.03, "until the first byte of an answer", "30ms")
    bandwidth: float = _is(rate, 200e9, "of the store, for all ranks together", "200GB/s")
    connection: float = _is(rate, 80e6, "of one request", "80MB/s")
    requests: float = _is(number, 100_000.0, "that the store answers in a second, of all ranks together")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """How closely it is looked at: what is more is sampled."""

    sampled_ranks: int = _is(count, 2, "simulated, of one node; all where there are no more")
    sampled_batches: int = _is(count, 0, "of each, in the first epoch and a later one; 0: as many as tell")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    data: Data = dataclasses.field(default_factory=Data)
    loader: Loading = dataclasses.field(default_factory=Loading)
    cluster: Cluster = dataclasses.field(default_factory=Cluster)
    node: Node = dataclasses.field(default_factory=Node)
    store: Store = dataclasses.field(default_factory=Store)
    look: Look = dataclasses.field(default_factory=Look)

    def __post_init__(self) -> None:
        at_least_one = {
            "samples": self.data.samples, "sample_bytes": self.data.sample_bytes, "files": self.data.files,
            "batch_size": self.loader.batch_size, "prefetch_batches": self.loader.prefetch_batches,
            "ranks": self.cluster.ranks,
            "ranks_per_node": self.cluster.ranks_per_node, "sampled_ranks": self.look.sampled_ranks,
        }  # fmt: skip
        more_than_none = {
            "decode": self.cluster.decode, "node.bandwidth": self.node.bandwidth,
            "cache_bandwidth": self.node.cache_bandwidth, "store.bandwidth": self.store.bandwidth,
            "connection": self.store.connection, "requests": self.store.requests,
        }  # fmt: skip
        for name, value in at_least_one.items():
            if value < 1:
                raise OptionError(f"{name} is at least 1, not {value}")
        for name, rate in more_than_none.items():
            if rate <= 0:
                raise OptionError(f"{name} is more than 0, not {rate:g}")
        if self.data.files > self.data.samples:
            raise OptionError(f"{self.data.samples:,} samples do not fill {self.data.files:,} files")
        if self.loader.order in orders.BY_BLOCKS and self.blocks > MOST_BLOCKS:
            raise OptionError(
                f"{self.blocks:,} blocks: their order takes {32 * self.blocks / 1e9:,.1f} GB of every rank; "
                f"make them larger (block_bytes), so that there are {MOST_BLOCKS:,} at most"
            )
        if self.steps < 1:
            raise OptionError("there are fewer samples than the ranks take in one step")

    @property
    def samples_per_file(self) -> int:
        return -(-self.data.samples // self.data.files)

    @property
    def samples_per_block(self) -> int:
        """Blocks are not larger than a file."""
        wanted = self.data.block_bytes // (self.data.sample_bytes + self.data.gap_bytes)
        return min(self.samples_per_file, max(1, wanted)) if self.data.block_bytes else self.samples_per_file

    @property
    def blocks(self) -> int:
        full_files, remaining = divmod(self.data.samples, self.samples_per_file)
        in_file = -(-self.samples_per_file // self.samples_per_block)
        return full_files * in_file + -(-remaining // self.samples_per_block)

    @property
    def period(self) -> int:
        """Batches of a rank after which its blocks are others; 1 where that changes all the time."""
        if self.loader.order not in orders.BY_BLOCKS:
            return 1
        window = (self.loader.window or orders.WINDOW) if self.loader.order == "quasi_random" else 1
        lanes = 1 if self.loader.lanes else self.cluster.ranks
        return max(1, round(window * self.samples_per_block / self.loader.batch_size / lanes))

    @property
    def is_dense(self) -> bool:
        """Whether what a rank mixes fits into its memory, so that whole blocks are fetched."""
        if self.loader.order in orders.BY_BLOCKS:
            mixed = self.period * self.loader.batch_size * self.data.sample_bytes
            return (self.loader.lanes or self.cluster.ranks == 1) and 2 * mixed <= self.loader.fetch_bytes
        return self.loader.order == "sequential"

    @property
    def nodes(self) -> int:
        return -(-self.cluster.ranks // self.cluster.ranks_per_node)

    @property
    def steps(self) -> int:
        """Batches of a rank in an epoch."""
        each = self.cluster.ranks * self.loader.batch_size
        return self.data.samples // each if self.loader.drop_last else -(-self.data.samples // each)

    @property
    def bytes(self) -> int:
        return self.data.samples * self.data.sample_bytes

    def but(self, **sections: Mapping[str, Any]) -> Plan:
        """Other values, as they would stand in a file: ``plan.but(store={"latency": "80ms"})``."""
        changed = {}
        for section, values in sections.items():
            kind = SECTIONS.get(section)
            if kind is None:
                choices = f"; the parts are {listed(SECTIONS)}"
                raise OptionError(f"a plan has no part {section!r}{near(section, SECTIONS)}{choices}")
            if not isinstance(values, Mapping):
                raise OptionError(f"{section} holds names and values, such as {_names(kind)[0]}")
            entries = {field.name: field for field in dataclasses.fields(kind)}
            for name in values:
                if name not in entries:
                    choices = f"{near(str(name), entries)}; there are {listed(entries)}"
                    raise OptionError(f"{section} has no {name!r}{choices}")
            taken = {name: entries[name].metadata["take"](name, value) for name, value in values.items()}
            changed[section] = dataclasses.replace(getattr(self, section), **taken)
        return dataclasses.replace(self, **changed)

    def set(self, values: Mapping[str, Any]) -> Plan:
        """Other values, each by ``part.name``, or by its name alone where only one part has it."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            section, _, plain = name.rpartition(".")
            sections.setdefault(section or _holder(plain), {})[plain] = value
        return self.but(**sections)

    def as_dict(self) -> dict[str, Document]:
        return dataclasses.asdict(self)


SECTIONS: dict[str, type[Any]] = {
    "data": Data, "loader": Loading, "cluster": Cluster, "node": Node, "store": Store, "look": Look
}  # fmt: skip


def _holder(name: str) -> str:
    """The part that has this name."""
    sections = [section for section, kind in SECTIONS.items() if name in _names(kind)]
    if not sections:
        names = sorted({section for kind in SECTIONS.values() for section in _names(kind)})
        raise OptionError(f"a plan has no {name!r}{near(name, names)}; `--example` shows one")
    if len(sections) > 1:
        raise OptionError(f"which {name}: {' or '.join(f'{section}.{name}' for section in sections)}?")
    return sections[0]


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def example() -> str:
    """A plan with all names, each explained."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# A plan of `batchplant simulate`: leave out what is as here."
    for section, kind in SECTIONS.items():
        yield ""
        yield f"# {kind.__doc__}"
        yield f"{section}:"
        for field in dataclasses.fields(kind):
            default: Any = field.default
            value = field.metadata["shown"] or (
                str(default).lower() if isinstance(default, bool) else default
            )
            text = f"{value:g}" if isinstance(value, float) else str(value)
            yield f"  {f'{field.name}: {text}':<25} # {field.metadata['about']}"


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a file, by its suffix: .yaml, .yml, .toml, .json."""
    entry = config.read(path, "there is no such plan; `batchplant simulate --example` shows one")
    parts = {name: {} if part is None else part for name, part in entry.value.items()}
    try:
        return Plan().but(**parts)
    except BatchplantError as error:
        error.path = error.path or entry.path
        wrong = [name for name, part in parts.items() if not isinstance(part, dict)]
        if wrong:
            error.message = entry.line_prefix(wrong[0]) + error.message
        raise
