"""Files that a column of paths names: the images, sounds and videos of a manifest.

A path is relative to the folder of the manifest, or begins with it, and never leads out of it: data must not
make this machine read other files, nor ask other hosts. ``outside=True`` allows that.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Sequence

import numpy as np

from ...codecs.infer import infer_image
from ...errors import BatchplantError, DamagedError
from ...schema import Image
from ...schema.columns import I64, Ragged, starts_of
from ...storage import absolute, is_below, is_remote, like, parent
from ...storage.spans import Spans
from .folders.files import open_files, placed

# Files that are looked at to tell what they are, and bytes of each.
PROBED_FILES, PROBED_BYTES = 48, 65536


class Manifest:
    """The files of a column. ``names``: gives the cells of the column, read when a file is first wanted."""

    def __init__(self, path: str, field: str, names: Callable[[], Ragged], *, outside: bool) -> None:
        self._path, self._field = path, field
        self._load = names
        self._names: Ragged | None = None
        self._folder = parent(absolute(path))
        self._outside = outside
        self._root: str = self._folder

    @property
    def names(self) -> Ragged:
        if self._names is None:
            names = self._load()
            if self._outside:
                self._root = self._common_root(names)
            self._files = open_files(like(self._path, self._root))
            self._files.named = len(names)
            self._names = names
        return self._names

    def _common_root(self, names: Ragged) -> str:
        """The store that the paths lie in: a URL's host or bucket, or the root of this machine's files."""
        first = next((cell.tobytes().decode() for cell in names if cell is not None), "")
        start = first if is_remote(first) else self._folder
        if not is_remote(start):
            return "/"
        scheme, _, others = start.partition("://")
        return f"{scheme}://{others.partition('/')[0]}"

    def read(self, rows: I64) -> Ragged:
        """All bytes of the files of these rows; a cell without a path is missing."""
        names, valid = self._below(rows)
        with placed(self._path, self._field, rows[valid].tolist()):
            contents = self._files.read(names)
        if valid.all():
            return contents
        sizes = np.zeros(len(rows), dtype=np.int64)
        sizes[valid] = contents.sizes
        return Ragged(contents.data, starts_of(sizes), valid=valid)

    def spans(self, rows: I64) -> Spans | None:
        """Each file as a span; None where one has no path, or a server would be asked."""
        names, valid = self._below(rows)
        if not valid.all():
            return None
        with placed(self._path, self._field, rows.tolist()):
            return self._files.spans(names)

    def ahead(self, rows: I64) -> Spans | None:
        """The same for a caller that asks for the bytes ahead."""
        names, valid = self._below(rows)
        with placed(self._path, self._field, rows[valid].tolist()):
            return self._files.ahead(names)

    def infer_image(self) -> Image | None:
        """The kind of image that the files are; None where one of them is none."""
        # What is wrong with a path is told to whoever reads it.
        with contextlib.suppress(BatchplantError):
            rows = np.arange(len(self.names))
            names, _ = self._below(rows[:: max(1, len(rows) // PROBED_FILES)][:PROBED_FILES])
            heads = [data[:PROBED_BYTES] for data in self._files.some(names, PROBED_FILES)]
            return infer_image(Ragged.from_cells(heads)) if heads else None
        return None

    def path_of(self, row: int) -> str | None:
        """The file of a row."""
        names, valid = self._below(np.array([row]))
        return self._files.path(names[0]) if valid[0] else None

    def _below(self, rows: I64) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """The paths below the root, and which rows have one."""
        names, valid = [], np.zeros(len(rows), dtype=np.bool_)
        cells: Sequence[object] = [self.names[row] for row in rows.tolist()]
        for number, cell in enumerate(cells):
            if cell is None:
                continue
            text = cell.tobytes().decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
            name = self._relative(text)
            if name is None:
                raise DamagedError(
                    f"{text[:200]!r} does not lie in {self._root}"
                    + ("" if self._outside else "; outside=True follows it if you trust the manifest"),
                    path=self._path, field=self._field, sample=int(rows[number]),
                )  # fmt: skip
            names.append(name)
            valid[number] = True
        return names, valid

    def _relative(self, name: str) -> str | None:
        """The path below the root; None where it leads out of it."""
        folder, root = str(self._folder).rstrip("/"), str(self._root).rstrip("/")
        if not is_remote(name) and self._outside:
            # ``..`` means what it means to the shell.
            start, slash, tail = (
                f"{folder}/".partition("://") if is_remote(folder) else ("", "", f"{folder}/")
            )
            name = start + slash + posixpath.normpath(posixpath.join(tail, name))
        if name.startswith(f"{root}/"):
            name = name[len(root) + 1 :]
        return name if is_below(name) and "://" not in name and "::" not in name else None

    def close(self) -> None:
        if self._names is not None:
            self._files.close()
