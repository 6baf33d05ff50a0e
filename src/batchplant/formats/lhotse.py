"""Cuts of lhotse: JSON lines (``cuts.jsonl.gz``), each a part of a recording and what is said in it.

A sample has the sound of the cut as ``audio``: the file as it is where the cut is all of a recording, else
that part as WAV. ``text`` joins the texts of the supervisions; ``supervisions`` has all that they say.

In the Shar format a folder has ``cuts.000000.jsonl.gz`` and ``recording.000000.tar``, with the sound of each
cut under its name and a manifest behind it. Features and other arrays are not read, nor mixed cuts.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codecs.media import audio
from ..data.concat import Concat
from ..data.keys import FormatKeys
from ..data.reader import Reader, ReaderWrapper, open_reader
from ..errors import BatchplantError, DamagedError, NotFoundError, UnsafeError, exceptions_as, located
from ..schema import Audio, Field, Float, Json, Schema, Text
from ..schema.columns import I32, I64, AnyArray, Columns, Ragged
from ..storage import NOTE_ERRORS, beside, join, parse, tree
from ..storage.patterns import naturally
from ..storage.spans import Spans
from .base.folders.media import LHOTSE, annotated, is_cuts
from .base.format import Capabilities, Format, Probe
from .base.manifest import Archive, MediaReader, Members

AUDIO = "audio"
CUT: dict[str, Field] = {
    "id": Text(), "start": Float(optional=True), "duration": Float(optional=True),
    "channel": Json(optional=True), "recording": Json(optional=True),
    "supervisions": Json(optional=True), "type": Text(optional=True),
}  # fmt: skip
FIELDS: dict[str, Field] = {
    "id": Text(), AUDIO: Text(optional=True), "start": Float(optional=True), "duration": Float(optional=True),
    "text": Text(optional=True), "speaker": Text(optional=True), "language": Text(optional=True),
    "supervisions": Json(optional=True),
}  # fmt: skip
KINDS = ("MonoCut", "MultiCut")
# Members of Shar that are no sounds.
MANIFESTS = (b"json", b"nometa")
_KIND = re.compile(rb'"type":\s*"(Mono|Multi|Mixed)Cut"')


class Cuts(ReaderWrapper):
    """The table of cuts: columns of text and numbers from what their lines nest."""

    def __init__(self, base: Reader) -> None:
        super().__init__(base)
        self.schema = Schema(FIELDS)

    def parsed(self, rows: I64, field: str) -> list[Any]:
        """Return what a column of JSON has; None where it has nothing."""
        cells = self.base.read(rows, [field]).ragged(field)
        with exceptions_as(DamagedError, f"{field} is damaged", *NOTE_ERRORS, path=self.path):
            return [None if cell is None else parse(cell.tobytes()) for cell in cells]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        plain = [name for name in fields if name in CUT]
        columns = self.base._read(indices, plain) if plain else Columns()
        recordings = self.parsed(indices, "recording") if AUDIO in fields else []
        supervisions = self.parsed(indices, "supervisions") if {*fields} - {*plain, AUDIO} else []
        for name in fields:
            if name == AUDIO:
                columns[name] = _texts([_file(recording) for recording in recordings])
            elif name not in CUT:
                columns[name] = _texts([_said(listed, name) for listed in supervisions])
        return Columns((name, columns[name]) for name in fields)


def _texts(values: list[str | None]) -> Ragged:
    return Ragged.from_cells(
        [None if value is None else value.encode("utf-8", "replace") for value in values]
    )


def _file(recording: Any) -> str | None:
    """Return the file of a recording that has exactly one."""
    match recording:
        case {"sources": [{"type": "file" | "url", "source": str(source)}]}:
            return source
    return None


def _said(supervisions: Any, name: str) -> str | None:
    """Return the texts of supervisions, or the first speaker or language that one names."""
    listed = supervisions if isinstance(supervisions, list) else []
    values = [one.get(name) for one in listed if isinstance(one, dict)]
    texts = [value for value in values if isinstance(value, str)]
    return (" ".join(texts) if name == "text" else texts[0]) if texts else None


class CutSounds(MediaReader):
    """Cuts with their sounds."""

    base: Cuts

    def _parts(self, rows: I64) -> tuple[AnyArray, ...]:
        """Return where cuts begin, their seconds, and their channels; NaN for a whole recording."""
        columns = self.base.base.read(rows, ["start", "duration", "type"])
        channels, parts = self.base.parsed(rows, "channel"), []
        for row, recording in enumerate(self.base.parsed(rows, "recording")):
            with located(path=self.path, sample=int(rows[row]), field=AUDIO):
                kind = columns["type"][row]
                kind = KINDS[0] if kind is None else kind.tobytes().decode("utf-8", "replace")
                if kind not in KINDS:
                    raise DamagedError(f"it is a {kind[:40]}; only cuts of one recording are read")
                start, seconds = (float(np.asarray(columns[name])[row]) for name in ("start", "duration"))
                parts.append(_part_of(recording, start, seconds, channels[row]))
        table = np.array(parts, dtype=np.float64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]

    def _part(self, content: Any, *part: float) -> object:
        first, seconds, channel = part
        if np.isnan(first):
            return content
        return audio.cut(content, first, seconds, None if np.isnan(channel) else int(channel))

    def _whole(self, rows: I64) -> bool:
        return bool(np.isnan(self._parts(rows)[0]).all())

    def _cells(self, name: str, rows: I64) -> Ragged:
        return self._manifests[name].read(rows) if self._whole(rows) else super()._cells(name, rows)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self._manifests[AUDIO].spans(indices) if field == AUDIO and self._whole(indices) else None


def _part_of(recording: Any, start: float, seconds: float, channel: Any) -> tuple[float, float, float]:
    match recording:
        case {"sources": [{"type": "command"}, *_]}:
            raise UnsafeError("its recording is the output of a command: data are not run")
        case {
            "sources": [{"type": "file" | "url" | "shar", "channels": list(channels)}],
            "duration": duration,
        }:
            if not isinstance(duration, int | float) or not (0 <= start < np.inf and 0 <= seconds < np.inf):
                raise DamagedError(f"{seconds} seconds from {start} on are no part of a recording")
            place = np.nan
            if isinstance(channel, int) and len(channels) > 1:
                if channel not in channels:
                    raise DamagedError(f"its recording has no channel {channel}")
                place = channels.index(channel)
            whole = start == 0 and seconds >= duration and np.isnan(place)
            return (np.nan, np.nan, np.nan) if whole else (start, seconds, place)
    raise DamagedError("it has no recording of one file")


class LhotseReader(ReaderWrapper):
    """Reads cuts of lhotse: a manifest, or a folder in the Shar format.

    ``outside``: whether paths may lead out of the folder of the manifest. ``index``: of manifests and
    archives; see the guide on index files.
    """

    def __init__(self, path: str, *, outside: bool = False, index: str = "auto") -> None:
        manifests = [path]
        if tree.is_folder(path):
            manifests = [join(path, name) for name in naturally(tree.names(path)) if is_cuts(name)]
            if not manifests:
                raise NotFoundError("there are no cuts in it", path=path)
        options = {"format": "json", "layout": "lines", "schema": CUT, "index": index}
        tables = [open_reader(manifest, **options) for manifest in manifests]
        try:
            cuts = Cuts(tables[0] if len(tables) == 1 else Concat(tables))
            cuts.path = path
            archives = _archives(manifests, index)
            rows = functools.partial(_rows, cuts, [len(table) for table in tables], archives)
            members = {AUDIO: Members(path, AUDIO, archives, rows)} if archives else None
            sounds = CutSounds(
                cuts, media={AUDIO: Audio()}, outside=outside, window=("start", "duration"), members=members
            )
        except BatchplantError as error:
            for table in tables:
                table.close()
            raise error.at(path=path) from None
        missing = any((archive.runs[:, 1] == 0).any() for archive in archives)
        sounds.schema = Schema({**sounds.schema, AUDIO: Audio(optional=missing)})
        super().__init__(sounds)
        self.format = FORMAT.name

    def _keys(self) -> FormatKeys:
        return FormatKeys(Text(), lambda rows: self.base.read(rows, ["id"])["id"])


def _archives(manifests: list[str], index: str) -> list[Archive]:
    """Return the archives of recordings beside the manifests of Shar: all or none."""
    paths = [
        beside(path, re.sub(r"^cuts(.*)\.jsonl.*$", r"recording\1.tar", path.rpartition("/")[2]))
        for path in manifests
    ]
    there = [tree.is_file(path) for path in paths]
    if any(there) and not all(there):
        raise NotFoundError("no such archive", path=paths[there.index(False)])
    return [Archive(path, mode=index, left_out=MANIFESTS) for path in paths] if all(there) else []


def _rows(cuts: Cuts, lengths: list[int], archives: list[Archive]) -> tuple[I32, I64]:
    """Return the archive and the member of every cut; -1 where its archive says that it has none."""
    archive = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    ids = cuts.base.read(range(len(cuts)), ["id"])["id"]
    member = np.full(len(cuts), -2, dtype=np.int64)
    for row, (cell, number) in enumerate(zip(ids, archive.tolist(), strict=True)):
        place = archives[number].by_stem.get(cell.tobytes().decode("utf-8", "replace"), -2)
        member[row] = -1 if place >= 0 and not archives[number].runs[place, 1] else place
    return archive, member


def sniff(probe: Probe) -> bool:
    """A folder of Shar, or a first line that is a cut."""
    if probe.folder:
        return probe.ask(annotated) == LHOTSE
    head = probe.head
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 16)
        except zlib.error:
            return False
    return head[:1] == b"{" and _KIND.search(head.partition(b"\n")[0]) is not None


FORMAT = Format(
    name="lhotse",
    title="lhotse cuts and Shar",
    suffixes=(),
    spec="https://lhotse.readthedocs.io/en/latest/cuts.html",
    reader=LhotseReader,
    sniff=sniff,
    kinds=(Audio, Float, Text, Json),
    optional=True,
    folder=None,
    notes="read only; cuts of one recording, in files or tar archives; no features, no mixed cuts",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        splittable=True,
        human_readable=True,
        ecosystem=("lhotse", "NeMo", "icefall"),
    ),
)
