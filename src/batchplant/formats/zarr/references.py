"""Virtual Zarr: a JSON document of kerchunk says which bytes of other files are the chunks of a store."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import DamagedError, SchemaError
from ...schema.columns import U8
from ...storage import Source, is_remote, open_source, parent, parse_object, read_whole
from ...storage.spans import SourceRun
from ..base.arrays import ChunkLocation, Store
from ..base.manifest import Outside, resolved

SUFFIX = ".json"
MAX_TARGET = 4096


class ReferenceStore(Store):
    """The keys of a document: text, or parts of files below its folder, or below what ``outside`` allows."""

    def __init__(self, path: str, outside: Outside) -> None:
        super().__init__(path)
        try:
            document = parse_object(read_whole(path), finite=False)
            references = document["refs"] if "version" in document else document
            templates = document.get("templates") or {}
            if document.get("gen") or any("{{" in str(text) for text in templates.values()):
                raise SchemaError("references that are computed (gen) are not read; write them out")
            self._references: dict[str, Any] = dict(references)
            self._templates = {f"{{{{{name}}}}}": str(text) for name, text in templates.items()}
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DamagedError(f"no document of references: {error!r}", path=path) from None
        self._folder, self._outside = parent(path), outside
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()
        self._children: dict[str, set[str]] = {}
        for name in self._references:
            steps = name.split("/")
            for depth in range(len(steps) - 1):
                self._children.setdefault("/".join(steps[:depth]), set()).add(steps[depth])
        lists = (reference for reference in self._references.values() if isinstance(reference, list))
        self.slow = is_remote(path) or any(
            "://" in self._filled(str(target)) for target in next(lists, [])[:1]
        )

    def _filled(self, target: str) -> str:
        """Return a target with the texts of templates in it."""
        for mark, text in self._templates.items():
            if len(target) <= MAX_TARGET:
                target = target.replace(mark, text[:MAX_TARGET])
        if len(target) > MAX_TARGET:
            raise DamagedError(f"a reference names {target[:80]}…", path=self.path)
        return target

    def _source(self, target: str) -> Source:
        target = self._filled(target)
        with self._lock:
            if target not in self._sources:
                self._sources[target] = open_source(resolved(target, self._folder, self._outside, self.path))
            return self._sources[target]

    def _run(self, name: str) -> tuple[Source, int, int] | None:
        """Return the file of a key and the part of it; None if the key is text, or missing."""
        reference = self._references.get(name)
        if not isinstance(reference, list):
            return None
        match reference:
            case [str() as target]:
                source = self._source(target)
                return source, 0, source.size
            case [str() as target, int() as start, int() as size]:
                source = self._source(target)
                source.check_bounds(start, size)
                return source, start, size
        raise DamagedError(f"the reference of {name} is {str(reference)[:80]}", path=self.path)

    def read(self, name: str, start: int = 0, size: int | None = None) -> U8 | None:
        run, reference = self._run(name), self._references.get(name)
        if run is None:
            if reference is None:
                return None
            data = np.frombuffer(self._text(name, reference), dtype=np.uint8)
            start = max(0, len(data) + start) if start < 0 else start
            return data[start : None if size is None else start + size]
        source, first, length = run
        start = max(0, length + start) if start < 0 else min(start, length)
        return source.view(first + start, length - start if size is None else min(size, length - start))

    def _text(self, name: str, reference: Any) -> bytes:
        if isinstance(reference, str) and reference.startswith("base64:"):
            try:
                return base64.b64decode(reference[7:], validate=True)
            except binascii.Error as error:
                raise DamagedError(f"the text of {name} is no base64: {error}", path=self.path) from None
        if isinstance(reference, str):
            return reference.encode()
        raise DamagedError(f"the reference of {name} is {str(reference)[:80]}", path=self.path)

    def runs(self, places: Sequence[ChunkLocation]) -> list[SourceRun]:
        runs = (self._run(place.name) for place in places)
        return [run for run in runs if run is not None]

    def ahead(self, places: Sequence[ChunkLocation]) -> None:
        runs: dict[Source, list[tuple[int, int]]] = {}
        for source, start, size in self.runs(places):
            runs.setdefault(source, []).append((start, size))
        for source, parts in runs.items():
            starts, sizes = np.array(parts, dtype=np.int64).T.copy()
            source.request(starts, sizes)

    def children(self, name: str) -> list[str]:
        return sorted(self._children.get(name, ()))

    def close(self) -> None:
        with self._lock:
            for source in self._sources.values():
                source.close()
            self._sources.clear()
