"""The sample tables of MP4 and MOV files: where every packet of the video lies, and when it is shown.

Only headers are read: the boxes of ``moov``, and of a fragmented file those of every ``moof``. A file that is
damaged, or rarer than what stands here, has no tables; FFmpeg's demuxer then reads the whole of it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ....schema.columns import I64, AnyArray
from .container import OVERLAP, Bools, Packets, UnknownError, View, check, frame_limit

# Sample entries whose packets a decoder takes as they lie, with the box that configures it.
CODECS = {
    "avc1": ("h264", "avcC"),
    "avc3": ("h264", "avcC"),
    "hvc1": ("hevc", "hvcC"),
    "hev1": ("hevc", "hvcC"),
    "av01": ("libdav1d", "av1C"),
    "vp09": ("vp9", ""),
    "mp4v": ("mpeg4", "esds"),
}
MAX_BOXES = 1 << 20
# Packets of one size, for which no table has to be in the file.
MAX_EQUAL = 1 << 20
# Bytes before the boxes in a sample entry of video.
ENTRY_BYTES = 78
# A tag of esds: MPEG-4 part 2, and what configures its decoder.
MPEG4_OBJECT = 0x20
NOT_SYNC = 0x01010000


def packets_of(view: View, size: int) -> Packets | None:
    """Return the packets of the only video; None where the file does not tell them in a common way.

    Args:
        view: returns bytes of the file by start and size.
        size: that of the file.
    """
    try:
        return _packets(view, size)
    except (UnknownError, struct.error, ValueError, IndexError, OverflowError, ZeroDivisionError):
        return None


def _packets(view: View, size: int) -> Packets:
    moov: _Box | None = None
    fragments: list[tuple[int, int, int]] = []
    for start, head, end, kind in _top_level(view, size):
        if kind == b"moov":
            check(moov is None)
            moov = _Box(view(start + head, end - start - head).data)
            if not moov.all("mvex"):
                break
        elif kind == b"moof":
            fragments.append((start, head, end))
    if moov is None:
        raise UnknownError
    tracks = [trak for trak in moov.all("trak") if bytes(trak.only("mdia", "hdlr").data[8:12]) == b"vide"]
    check(len(tracks) == 1)
    track = _Track(moov, tracks[0], size)
    for start, head, end in fragments:
        track.add_fragment(start, _Box(view(start + head, end - start - head).data))
    packets = track.packets()
    # Writers leave out the table of keyframes if every packet is one, or none is.
    if packets.keys.all() and packets.codec in ("h264", "hevc"):
        first = view(int(packets.starts[0]), int(packets.sizes[0])).tobytes()
        check(_begins_anew(first, packets.codec == "hevc", packets.extradata))
    return packets


def _begins_anew(packet: bytes, hevc: bool, config: bytes) -> bool:
    """Return whether one of the units of a packet is a frame that needs no other."""
    width = (config[21 if hevc else 4] & 3) + 1
    position = 0
    while position + width < len(packet):
        kind = packet[position + width]
        if 16 <= kind >> 1 & 63 <= 23 if hevc else kind & 31 == 5:
            return True
        position += width + int.from_bytes(packet[position : position + width], "big")
    return False


def _top_level(view: View, size: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield start, size of the header, end and type of every box of the file."""
    start = 0
    for _ in range(MAX_BOXES):
        # QuickTime ends lists of boxes with four zeros.
        if size - start < 8:
            return
        data = view(start, min(16, size - start)).tobytes()
        length, kind = struct.unpack_from(">I4s", data)
        head = 8
        if length == 1:
            (length,), head = struct.unpack_from(">Q", data, 8), 16
        elif length == 0:
            length = size - start
        check(head <= length <= size - start)
        yield start, head, start + length, kind
        start += length
    raise UnknownError


class _Box:
    """The content of a box: bytes, or further boxes."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._children: dict[str, list[_Box]] | None = None

    def all(self, kind: str) -> list[_Box]:
        """Return the boxes of a type directly inside."""
        if self._children is None:
            self._children = {}
            view: View = lambda start, size: np.frombuffer(self.data, np.uint8, size, start)  # noqa: E731
            for start, head, end, name in _top_level(view, len(self.data)):
                boxes = self._children.setdefault(name.decode("latin-1"), [])
                boxes.append(_Box(self.data[start + head : end]))
        return self._children.get(kind, [])

    def only(self, *kinds: str) -> _Box:
        """Return the only box of a type, inside the only box of another, and so on."""
        box = self
        for kind in kinds:
            boxes = box.all(kind)
            check(len(boxes) == 1)
            box = boxes[0]
        return box

    @property
    def version(self) -> int:
        return self.data[0]

    def table(self, dtype: str, offset: int = 8) -> AnyArray:
        """Return the rows of a table behind its count; never more than there are bytes."""
        (count,) = struct.unpack_from(">I", self.data, offset - 4)
        check(count * np.dtype(dtype).itemsize <= len(self.data) - offset)
        return np.frombuffer(self.data, dtype, count, offset)


class _Track:
    """Collects the packets of a track from its tables and fragments."""

    def __init__(self, moov: _Box, trak: _Box, size: int) -> None:
        self._size = size
        media = trak.only("mdia")
        header = media.only("mdhd")
        self.timescale = struct.unpack_from(">I", header.data, 20 if header.version == 1 else 12)[0]
        movie = moov.only("mvhd")
        self._movie_timescale = struct.unpack_from(">I", movie.data, 20 if movie.version == 1 else 12)[0]
        check(self.timescale > 0 and self._movie_timescale > 0)
        wide = trak.only("tkhd").data[0] == 1
        head = trak.only("tkhd").data
        self._id = struct.unpack_from(">I", head, 20 if wide else 12)[0]
        self.rotation = _rotation(struct.unpack_from(">5i", head, 52 if wide else 40))
        self._edits = trak.only("edts").all("elst") if trak.all("edts") else []
        tables = media.only("minf", "stbl")
        self._set_codec(tables.only("stsd"))
        self._parts: list[tuple[I64, I64, I64, I64, Bools]] = []
        self._count = self._end = 0
        self.last = 0
        self._add_tables(tables)
        self._defaults = (0, 0, 0)
        for mvex in moov.all("mvex"):
            for trex in mvex.all("trex"):
                if struct.unpack_from(">I", trex.data, 4)[0] == self._id:
                    self._defaults = struct.unpack_from(">3I", trex.data, 12)

    def _set_codec(self, descriptions: _Box) -> None:
        count, length, kind = struct.unpack_from(">II4s", descriptions.data, 4)
        self.codec, config = CODECS.get(kind.decode("latin-1"), ("", ""))
        check(count == 1 and bool(self.codec) and length <= len(descriptions.data) - 8)
        entry = descriptions.data[16 : 8 + length]
        self.width, self.height = struct.unpack_from(">HH", entry, 24)
        check(0 < self.width * self.height <= frame_limit())
        boxes = _Box(entry[ENTRY_BYTES:])
        self.extradata = b""
        if config == "esds":
            self.extradata = _mpeg4_config(boxes.only(config).data)
        elif config:
            self.extradata = bytes(boxes.only(config).data)
        self.colour = None
        for box in boxes.all("colr"):
            kind = bytes(box.data[:4])
            if kind in (b"nclx", b"nclc"):
                numbers = struct.unpack_from(">3H", box.data, 4)
                self.colour = (*numbers, box.data[10] >> 7 if kind == b"nclx" else 0)

    def _add_tables(self, tables: _Box) -> None:
        sizes = self._sizes(tables)
        count = len(sizes)
        if not count:
            return
        chunks = tables.all("co64")
        offsets = (chunks[0].table(">u8") if chunks else tables.only("stco").table(">u4")).astype(np.int64)
        runs = tables.only("stsc").table(">u4,>u4,>u4")
        firsts, per_chunk = runs["f0"].astype(np.int64) - 1, runs["f1"].astype(np.int64)
        check(len(runs) and firsts[0] == 0 and (np.diff(firsts) > 0).all() and firsts[-1] < len(offsets))
        check((runs["f2"] == 1).all())
        in_chunk = np.repeat(per_chunk, np.diff(firsts, append=len(offsets)))
        check(in_chunk.sum() == count)
        # A packet begins where the one before it in its chunk ends.
        before = np.cumsum(sizes) - sizes
        chunk_firsts = np.cumsum(in_chunk) - in_chunk
        used = in_chunk > 0
        starts = before + np.repeat(offsets[used] - before[chunk_firsts[used]], in_chunk[used])
        deltas = _expanded(tables.only("stts"), ">u4", count)
        check((deltas < 1 << 31).all())
        dts = np.cumsum(deltas) - deltas
        shifts = _expanded(tables.only("ctts"), ">i4", count) if tables.all("ctts") else np.int64(0)
        keys = np.ones(count, dtype=np.bool_)
        if tables.all("stss"):
            numbers = tables.only("stss").table(">u4").astype(np.int64) - 1
            check(len(numbers) and numbers.min() >= 0 and numbers.max() < count)
            keys[:] = False
            keys[numbers] = True
        self._add(starts, sizes, dts, dts + shifts, keys, int(deltas[-1]))

    def _sizes(self, tables: _Box) -> I64:
        """Return the size of each packet, from ``stsz`` or the compact ``stz2``."""
        compact = bool(tables.all("stz2"))
        box = tables.only("stz2" if compact else "stsz")
        same, count = struct.unpack_from(">II", box.data, 4)
        if not compact:
            self._claim(count, same)
            return np.full(count, same) if same else box.table(">u4", 12).astype(np.int64)
        self._claim(count, 0)
        if same == 4:
            pairs = np.frombuffer(box.data, np.uint8, (count + 1) // 2, 12)
            return np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:count].astype(np.int64)
        check(same in (8, 16))
        return box.table(f">u{same // 8}", 12).astype(np.int64)

    def _claim(self, count: int, size: int) -> None:
        """Check that so many packets of one size, 0 if each has its own, can be in the file."""
        self._count += count
        check(self._count <= self._size and (not size or count <= MAX_EQUAL))

    def _add(self, starts: I64, sizes: I64, dts: I64, pts: I64, keys: Bools, last: int) -> None:
        self.last = last
        self._end = int(dts[-1]) + last
        self._parts.append((starts, sizes, dts, pts, keys))

    def add_fragment(self, position: int, moof: _Box) -> None:
        """Add the packets of a ``moof`` that begins at ``position``."""
        for number, traf in enumerate(moof.all("traf")):
            header = traf.only("tfhd").data
            flags, track = struct.unpack_from(">II", header)
            if track != self._id:
                continue
            offset = 8
            base = position
            if flags & 1:
                (base,), offset = struct.unpack_from(">Q", header, offset), offset + 8
            else:
                check(not number or flags & 0x20000)
            offset += 4 * bool(flags & 2)
            defaults = list(self._defaults)
            for column, flag in enumerate((8, 0x10, 0x20)):
                if flags & flag:
                    (defaults[column],), offset = struct.unpack_from(">I", header, offset), offset + 4
            time = self._end
            for tfdt in traf.all("tfdt"):
                (time,) = struct.unpack_from(">Q" if tfdt.version == 1 else ">I", tfdt.data, 4)
            check(time < 1 << 62)
            end = base
            for trun in traf.all("trun"):
                end = self._add_run(trun, base, end, time, defaults)
                time = self._end

    def _add_run(self, trun: _Box, base: int, start: int, time: int, defaults: list[int]) -> int:
        """Add the packets of a ``trun``; return where the last one ends."""
        flags, count = struct.unpack_from(">II", trun.data)
        flags &= 0xFFFFFF
        offset, first_flags = 8, None
        if flags & 1:
            start, offset = base + struct.unpack_from(">i", trun.data, offset)[0], offset + 4
        if flags & 4:
            (first_flags,), offset = struct.unpack_from(">I", trun.data, offset), offset + 4
        columns = [number for number in range(4) if flags & 0x100 << number]
        rows = np.frombuffer(trun.data, ">u4", count * len(columns), offset).reshape(count, -1)
        self._claim(count, 0 if flags & 0x200 else defaults[1])
        if not count:
            return start

        def column(number: int) -> I64:
            if number in columns:
                return rows[:, columns.index(number)].astype(np.int64)
            return np.full(count, defaults[number] if number < 3 else 0)

        deltas, sizes, sample_flags = column(0), column(1), column(2)
        check((deltas < 1 << 31).all())
        if first_flags is not None:
            sample_flags[0] = first_flags
        dts = time + np.cumsum(deltas) - deltas
        # Shifts may be negative.
        pts = dts + column(3).astype(np.uint32).astype(np.int32)
        starts = start + np.cumsum(sizes) - sizes
        self._add(starts, sizes, dts, pts, sample_flags & NOT_SYNC == 0, int(deltas[-1]))
        return int(starts[-1] + sizes[-1])

    def packets(self) -> Packets:
        """Return all packets that were added, at the times that the edit list gives them."""
        check(len(self._parts))
        starts, sizes, dts, pts, keys = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        check(starts.min() >= 0 and (sizes >= 0).all() and (starts <= self._size - sizes).all())
        check(sizes.sum() <= OVERLAP * self._size)
        shown, shift = self._edited(pts)
        full = sizes > 0
        return Packets(
            codec=self.codec,
            extradata=self.extradata,
            width=self.width,
            height=self.height,
            rotation=self.rotation,
            colour=self.colour,
            base=Fraction(1, self.timescale),
            last=self.last,
            starts=starts[full],
            sizes=sizes[full],
            dts=dts[full] + shift,
            pts=pts[full] + shift,
            keys=keys[full],
            shown=shown[full],
        )

    def _edited(self, pts: I64) -> tuple[Bools, int]:
        """Return flags of the packets that are shown, and what is added to their times."""
        shown = np.ones(len(pts), dtype=np.bool_)
        edits = []
        for box in self._edits:
            edits += box.table(">u8,>i8,>i4" if box.version == 1 else ">u4,>i4,>i4").tolist()
        empty, media = 0, None
        for duration, time, rate in edits:
            if time == -1 and media is None:
                empty += duration
                continue
            # Of one edit it is known what players do.
            check(media is None and time >= 0 and rate == 1 << 16 and len(edits) <= 2)
            media = time
            shown &= pts >= time
            if duration:
                shown &= pts < time + self._scaled(duration)
        return shown, self._scaled(empty) - (media or 0)

    def _scaled(self, duration: int) -> int:
        return round(Fraction(duration * self.timescale, self._movie_timescale))


def _expanded(box: _Box, dtype: str, count: int) -> I64:
    """Return the values of a table of (count, value), one for each packet."""
    rows = box.table(f">u4,{dtype}")
    counts = rows["f0"].astype(np.int64)
    check(counts.sum() == count)
    return np.repeat(rows["f1"].astype(np.int64), counts)


def _rotation(matrix: tuple[int, ...]) -> int:
    """Return the degrees, against the clock, of the matrix of a track."""
    a, b, _, c, d = matrix
    scales = math.hypot(a, c), math.hypot(b, d)
    if not all(scales):
        return 0
    return round(-math.degrees(math.atan2(b / scales[1], a / scales[0])))


def _mpeg4_config(data: memoryview) -> bytes:
    """Return what configures the decoder, from the descriptors of ``esds``."""
    position, config = 4, None
    while position < len(data):
        tag, length = data[position], 0
        position += 1
        for _ in range(4):
            byte = data[position]
            position += 1
            length = length << 7 | byte & 0x7F
            if not byte & 0x80:
                break
        if tag == 3:
            flags = data[position + 2]
            check(not flags & 0xE0)
            position += 3
        elif tag == 4:
            check(data[position] == MPEG4_OBJECT)
            position += 13
        elif tag == 5:
            config = bytes(data[position : position + length])
            position += length
        else:
            position += length
    check(config is not None)
    return config or b""
