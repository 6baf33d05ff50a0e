"""Matroska and WebM as arrays of frames: every form of blocks, and files that lie about their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media.video import VideoSpan, index_of
from batchplant.codecs.media.video.matroska import packets_of
from batchplant.storage import open_source
from batchplant.testing.cases import cuts, flips, memory_bounded, survive

av = pytest.importorskip("av")

COUNT, PER_CLUSTER = 40, 9
UNKNOWN = b"\x01" + b"\xff" * 7
VOID, CRC = b"\xec\x83\0\0\0", b"\xbf\x84\0\0\0\0"


def element(kind: int, content: bytes | int, size: bytes | None = None) -> bytes:
    if isinstance(content, int):
        content = content.to_bytes(8, "big")
    identity = kind.to_bytes((kind.bit_length() + 7) // 8, "big")
    return identity + (size or b"\x01" + len(content).to_bytes(7, "big")) + content


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file that FFmpeg wrote, its packets, what configures the decoder, and every frame."""
    path = tmp_path_factory.mktemp("film") / "a.mkv"
    base = np.random.default_rng(7).integers(0, 256, (22, 26, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "2"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.thread_count = 12, 1
        for n in range(COUNT):
            image = np.ascontiguousarray(base[n : n + 48, n : n + 64])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    with av.open(str(path)) as container:
        config = container.streams.video[0].codec_context.extradata
        packets = [(p.pts, p.is_keyframe, bytes(p)) for p in container.demux(video=0) if p.size]
    with av.open(str(path)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return path, packets, config, frames


def muxed(
    packets: Sequence[tuple[int, bool, bytes]],
    config: bytes,
    *,
    groups: bool = False,
    live: bool = False,
    filler: bool = False,
    laced: bool = False,
    track: bytes = b"",
) -> bytes:
    """Return a file of these packets.

    groups: as block groups. live: the segment and clusters have no size. filler: with void elements,
    checksums and blocks of another track. laced: with laces of one frame. track: elements of its header.
    """
    header = element(0x1A45DFA3, element(0x4282, b"matroska"))
    video = element(0xE0, element(0xB0, 64) + element(0xBA, 48))
    entry = element(0xD7, 1) + element(0x83, 1) + element(0x86, b"V_MPEG4/ISO/AVC") + video
    entry += element(0x63A2, config) + track
    segment = element(0x1549A966, element(0x2AD7B1, 1_000_000)) + element(0x1654AE6B, element(0xAE, entry))
    size = UNKNOWN if live else None
    for first in range(0, len(packets), PER_CLUSTER):
        time = packets[first][0]
        cluster = (CRC if filler else b"") + element(0xE7, time)
        for pts, is_key, data in packets[first : first + PER_CLUSTER]:
            flags = (0x80 if is_key and not groups else 0) | (2 if laced else 0)
            block = b"\x81" + (pts - time).to_bytes(2, "big", signed=True) + bytes([flags])
            block += (b"\0" if laced else b"") + data
            if groups:
                reference = b"" if is_key else element(0xFB, 40)
                cluster += element(0xA0, element(0xA1, block) + element(0x9B, 40) + reference)
            else:
                cluster += element(0xA3, block)
            if filler:
                cluster += VOID + element(0xA3, b"\x82\0\0\x80sound")
        segment += element(0x1F43B675, cluster, size)
        if filler:
            segment += VOID
    return header + element(0x18538067, segment, size)


@pytest.mark.parametrize(
    ("options", "in_place"),
    [
        ({}, True),
        ({"groups": True}, True),
        ({"live": True}, True),
        ({"live": True, "groups": True, "filler": True}, True),
        ({"filler": True}, True),
        ({"laced": True}, False),
        # A scale of the times of the track.
        ({"track": element(0x23314F, b"\x3f\x80\0\0")}, False),
    ],
)
def test_frames_of_every_form(film: Any, options: dict[str, Any], in_place: bool, tmp_path: Path) -> None:
    _, packets, config, expected = film
    path = tmp_path / "a.mkv"
    path.write_bytes(muxed(packets, config, **options))
    with bp.open(path) as reader:
        assert len(reader) == COUNT
        rows = np.random.default_rng(1).permutation(COUNT)
        assert np.array_equal(reader.read(rows, ["frame"])["frame"], expected[rows])
        np.testing.assert_allclose(reader.read(np.arange(COUNT))["time"], np.arange(COUNT) / 25)
    assert (index_of(VideoSpan(open_source(str(path)))).stored is not None) == in_place


def test_a_frame_takes_the_packets_from_its_keyframe_on(film: Any) -> None:
    path, packets, _, _ = film
    with bp.open(path) as reader:
        firsts = [n for n, (_, is_key, _) in enumerate(packets) if is_key]
        assert len(firsts) == len(set(reader.blocks().tolist())) > 3
        ranges = reader.ranges(["frame"], [firsts[1]])
        assert ranges.bytes == len(packets[firsts[1]][2])
        assert reader.ranges(["frame"], np.arange(COUNT)).bytes == sum(len(data) for *_, data in packets)


def test_clips_scaled_and_loaded(film: Any, tmp_path: Path) -> None:
    path, _, _, expected = film
    with bp.create(tmp_path / "clips.beton", {"video": bp.Video()}) as out:
        out.append({"video": path})
    clips = bp.VideoClips(tmp_path / "clips.beton", 4, 2, step=3)
    assert np.array_equal(clips[5]["video"], expected[10:22:3])
    batch = next(iter(bp.Loader(bp.open(path, size=(24, 32)), 8, order="random", seed=1)))
    assert batch["frame"].shape == (8, 24, 32, 3)


def sound(path: Path) -> bool:
    try:
        with bp.open(path, format="video") as reader:
            reader.read([0, 20, len(reader) - 1])
    except bp.BatchplantError:
        return False
    return True


@pytest.mark.parametrize("damage", [cuts, flips])
@pytest.mark.parametrize("options", [{}, {"live": True, "groups": True}])
def test_damage_is_an_error_of_ours(film: Any, damage: Any, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    path.write_bytes(muxed(*film[1:3], **options))
    with memory_bounded(64 << 20):
        for _ in survive(damage(path), lambda: sound(path)):
            pass


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        # The scale of times, and the time of a cluster.
        (b"\x2a\xd7\xb1", b"\0" * 8), (b"\x2a\xd7\xb1", b"\xff" * 8), (b"\xe7", b"\xff" * 8),
        # Width, number of the track, a size of a block, of a cluster, of the segment.
        (b"\xb0", b"\xff" * 8), (b"\xd7", b"\xff" * 8),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be(film: Any, kind: bytes, content: bytes, tmp_path: Path) -> None:
    data = muxed(*film[1:3])
    position = data.index(kind + b"\x01" + (8).to_bytes(7, "big")) + len(kind) + 8
    path = tmp_path / "a.mkv"
    path.write_bytes(data[:position] + content + data[position + 8 :])
    with memory_bounded(64 << 20):
        sound(path)


@pytest.mark.parametrize("kind", [b"\xa3", b"\x1f\x43\xb6\x75", b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b"])
@pytest.mark.parametrize("size", [b"\x01" + b"\xff" * 6 + b"\xfe", UNKNOWN, b"\x01" + bytes(7), bytes(8)])
def test_sizes_that_cannot_be(film: Any, kind: bytes, size: bytes, tmp_path: Path) -> None:
    data = muxed(*film[1:3])
    position = data.index(kind + b"\x01") + len(kind)
    path = tmp_path / "a.mkv"
    path.write_bytes(data[:position] + size + data[position + 8 :])
    with memory_bounded(64 << 20):
        sound(path)


@pytest.mark.exhaustive
def test_damaged_blocks(film: Any) -> None:
    """The parser alone, on many thousands of damaged files."""
    rng = np.random.default_rng(3)
    for options in ({}, {"live": True, "groups": True, "filler": True}):
        data = np.frombuffer(muxed(*film[1:3], **options), np.uint8)
        for _ in range(50_000):
            damaged = data[: rng.integers(1, len(data) + 1)].copy() if rng.random() < 0.2 else data.copy()
            places = rng.integers(0, len(damaged), rng.integers(1, 6))
            damaged[places] = rng.integers(0, 256, len(places))
            packets = packets_of(lambda start, size, d=damaged: d[start : start + size], len(damaged))
            if packets is not None:
                assert (packets.starts >= 0).all()
                assert (packets.starts + packets.sizes <= len(damaged)).all()
