"""Manifests of NeMo: JSON lines with ``audio_filepath``, ``duration``, and perhaps ``offset`` and ``text``.

A sample has the sound as ``audio``, from ``offset`` on for ``duration`` seconds where lines have an offset,
and the other keys as they are. Sounds are files below the folder of the manifest, or members of tar archives,
whose numbers are the ``shard_id`` of the lines. ``_OP_`` and ``_CL_`` in names stand for braces.
"""

from __future__ import annotations

import functools
import posixpath
import re

import numpy as np

from ..data.reader import Reader, ReaderWrapper, open_reader
from ..errors import DamagedError, NotFoundError, on_error
from ..schema import Audio, Float, Int, Text
from ..schema.columns import I32, I64
from ..storage import absolute, join, like, parent, tree
from ..storage.patterns import braces, naturally
from .base.format import Capabilities, Format, Probe
from .base.manifest import Archive, MediaReader, Members, number_of

AUDIO, FIELD, SHARD = "audio_filepath", "audio", "shard_id"
WINDOW = ("offset", "duration")
# Archives that NeMo's converter writes, beside a manifest or above a folder of manifests.
ARCHIVES = "audio_*.tar"
# Behind a name that several lines have; the archive has the sound once.
REPEATED = re.compile(r"-sub\d+$")


class NemoReader(ReaderWrapper):
    """Reads manifests of NeMo.

    ``tars``: the archives with the sounds, as a path with braces or a glob below the folder of the manifest
    (default: ``audio_*.tar`` there or one folder above, where lines have a shard). ``outside``: whether paths
    may lead out of the folder of the manifest. ``index``: of the manifest and of archives; see the guide on
    index files.
    """

    def __init__(
        self, path: str, *, tars: str | None = None, outside: bool = False, index: str = "auto"
    ) -> None:
        table = open_reader(path, format="json", layout="lines", index=index)
        with on_error(table.close, path=path):
            schema = table.schema
            if not isinstance(schema.get(AUDIO), Text):
                raise DamagedError(f"its lines have no {AUDIO}")
            windowed = all(isinstance(schema.get(name), Int | Float) for name in WINDOW)
            archives = self._archives(table, tars, index)
            members = {
                AUDIO: Members(
                    path, AUDIO, list(archives.values()), functools.partial(_rows, table, archives)
                )
            }
            media = MediaReader(
                table,
                media={AUDIO: Audio()},
                outside=outside,
                window=WINDOW if windowed else None,
                members=members if archives else None,
            )
            super().__init__(media.rename({AUDIO: FIELD}) if FIELD not in schema else media)
        self.path, self.format = path, FORMAT.name

    def _archives(self, table: Reader, tars: str | None, index: str) -> dict[int, Archive]:
        """Return the archives of these lines by their numbers; none where sounds are files."""
        sharded = isinstance(table.schema.get(SHARD), Int)
        if tars is None and not sharded:
            return {}
        folder = parent(absolute(table.path))
        patterns = [tars] if tars is not None else [ARCHIVES, f"../{ARCHIVES}"]
        paths = next((paths for pattern in patterns if (paths := _paths(folder, pattern))), [])
        if not paths and tars is not None:
            raise NotFoundError("no archive matches", path=join(folder, tars))
        numbered = {
            number if (number := number_of(path)) is not None and sharded else row: path
            for row, path in enumerate(paths)
        }
        if sharded and paths:
            shards = np.unique(np.asarray(table.read(range(len(table)), [SHARD])[SHARD])).tolist()
            missing = [shard for shard in shards if shard not in numbered]
            if missing:
                raise NotFoundError(f"there is no archive of shard {missing[0]}", path=folder)
            numbered = {shard: numbered[shard] for shard in shards}
        return {number: Archive(path, mode=index) for number, path in numbered.items()}


def _paths(folder: str, pattern: str) -> list[str]:
    paths = []
    for text in braces(pattern):
        location = text if text.startswith("/") or "://" in text else join(folder, text)
        location = like(folder, posixpath.normpath(location) if "://" not in location else location)
        paths += naturally(tree.glob(location)) if tree.has_magic(location) else [location]
    return paths


def _rows(table: Reader, archives: dict[int, Archive]) -> tuple[I32, I64]:
    """Return the archive and the member of every line."""
    sharded = isinstance(table.schema.get(SHARD), Int)
    columns = table.read(range(len(table)), [AUDIO, SHARD] if sharded else [AUDIO])
    names = columns.ragged(AUDIO)
    places = {shard: index for index, shard in enumerate(archives)}
    shards = np.asarray(columns[SHARD]).tolist() if sharded else [None] * len(table)
    archive, member = np.zeros(len(table), dtype=np.int32), np.full(len(table), -2, dtype=np.int64)
    for row, (cell, shard) in enumerate(zip(names, shards, strict=True)):
        stem = posixpath.splitext(posixpath.basename(b"" if cell is None else cell.tobytes()))[0].decode()
        for number in archives if shard is None else [shard]:
            stems = archives[number].by_stem
            index = stems.get(stem, stems.get(REPEATED.sub("", stem), -2))
            if index >= 0:
                archive[row], member[row] = places[number], index
                break
    return archive, member


def sniff(probe: Probe) -> bool:
    """A first line with the keys that every line has."""
    line = probe.head.partition(b"\n")[0]
    return line[:1] == b"{" and all(b'"%s"' % key in line for key in (b"audio_filepath", b"duration"))


FORMAT = Format(
    name="nemo",
    title="NeMo manifest",
    suffixes=(),
    spec="https://docs.nvidia.com/nemo-framework/user-guide/latest/nemotoolkit/asr/datasets.html",
    reader=NemoReader,
    sniff=sniff,
    kinds=(Audio, Float, Int, Text),
    optional=True,
    notes="read only; sounds in files or tar archives, parts of them by offset and duration",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        splittable=True,
        remote_ranges=True,
        human_readable=True,
        ecosystem=("NeMo", "lhotse"),
    ),
)
