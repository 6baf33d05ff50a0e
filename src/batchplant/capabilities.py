"""What a format can do, as data: the tables of ``formats --compare`` and docs/choosing.md are made from it.

A claim is about what batchplant does with the format, not about what the format could do elsewhere.
tests/test_capabilities.py tries each one with every format, and what is not claimed too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .filters import Filterable
from .reader import Reader
from .schema import Field, List, Struct

if TYPE_CHECKING:
    from .writer import Writer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a format can do; by default nothing. Those marked * are derived by :class:`Format` itself.

    random_access: one sample is read without most of the others. spans*: cells of bytes lie in the file as
    they are. memory_map: arrays and cells are views of the mapped file, without a copy. checksums: what the
    format's own cover. compression: the kinds that a writer takes, or readers find; compressed: what is
    packed in one piece. column_pruning: a field that is not asked for is not read. row_filters*: whether
    ``filter`` leaves out bytes that cannot match (push-down), or looks at every sample (scan).
    append*: samples are added without writing the old ones again. concurrent_writers: several may append at
    once, and all of it lands. remote_ranges: read from a server by parts. keeps_schema: a schema comes back
    equal. streaming_write: memory does not grow with the dataset. splittable: one file can be read by several
    machines, each its own part. nested*: holds List and Struct. max_size: the limit of one file, in words.
    metadata: what a file says about itself and its fields is read. human_readable: it is text.
    time_travel*: an older version can be opened. ecosystem: who else reads it.
    """

    random_access: bool = False
    spans: bool = False
    memory_map: bool = False
    checksums: str = ""
    compression: tuple[str, ...] = ()
    compressed: str = ""
    column_pruning: bool = False
    row_filters: str = ""
    append: bool = False
    concurrent_writers: bool = False
    remote_ranges: bool = False
    keeps_schema: bool = False
    streaming_write: bool = False
    splittable: bool = False
    nested: bool = False
    max_size: str = ""
    metadata: bool = False
    human_readable: bool = False
    time_travel: bool = False
    ecosystem: tuple[str, ...] = ()

    def derived(
        self,
        reader: type[Reader],
        writer: type[Writer] | None,
        kinds: Iterable[type[Field]],
        *,
        versions: bool,
    ) -> Capabilities:
        """With what the classes themselves say, so that no format has to repeat it."""
        return dataclasses.replace(
            self,
            spans=reader._spans is not Reader._spans,
            row_filters="scan" if reader._prune is Filterable._prune else "push-down",
            append=writer is not None and writer.appends,
            nested={List, Struct} <= set(kinds),
            time_travel=versions,
        )

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }
