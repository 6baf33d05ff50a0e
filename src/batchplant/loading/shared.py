"""What cells of several batches lie in, such as row groups: read once, held until the last batch is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..schema.columns import Flags, Spans
from ..storage.local import MappedSource, mapped_source
from ..storage.staged import Staged
from ..storage.together import Read


class Held(NamedTuple):
    """What was read together: of each file, which is mapped; ``users``: the batches that need it."""

    users: set[int]
    files: dict[str, tuple[MappedSource, Staged]]


class Shared:
    """Memory that readers find their bytes in. Nothing here is for several threads at once."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    def put(self, number: int, read: Read, files: Sequence[str]) -> None:
        """Hold what was read of these files, for this batch and others that will use it."""
        one = Held({number}, {})
        for file, path in enumerate(files):
            source = mapped_source(path)
            if source is not None:
                one.files[path] = source, read.of(file)
                source.staged.put((id(one.users), path), one.files[path][1])
        self._held.append(one)

    def use(self, number: int, spans: Spans) -> Flags:
        """Which cells are here. What has them stays until this batch is done."""
        found = np.zeros(len(spans), np.bool_)
        for one in self._held:
            for file, path in enumerate(spans.files):
                if path not in one.files:
                    continue
                rows = np.flatnonzero(spans.file == file)
                here = one.files[path][1].find(spans.start[rows], spans.size[rows]) >= 0
                found[rows[here]] = True
                if here.any():
                    one.users.add(number)
        return found

    def done(self, number: int) -> None:
        """A batch was made: what nobody else needs goes."""
        for one in self._held:
            one.users.discard(number)
        for one in [one for one in self._held if not one.users]:
            self._drop(one)

    def clear(self) -> None:
        for one in list(self._held):
            self._drop(one)

    def _drop(self, one: Held) -> None:
        self._held = [other for other in self._held if other is not one]
        for path, (source, _) in one.files.items():
            source.staged.drop((id(one.users), path))
