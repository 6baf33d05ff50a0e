"""A video as its frames: what the tables of MP4 say, what is read, and files that are damaged."""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.codecs import video
from batchplant.codecs.media.video import VideoSpan, index_of
from batchplant.codecs.media.video.mp4 import packets_of
from batchplant.storage import open_source
from batchplant.testing.cases import cuts, film, flips, memory_bounded, survive

av = pytest.importorskip("av")

GOLDEN = repository.GOLDEN / "video"
COUNT = 40


def images(count: int = COUNT) -> Any:
    base = np.random.default_rng(7).integers(0, 256, (88, 104, 3), dtype=np.uint8)
    base = np.ascontiguousarray(base[::4, ::4].repeat(4, 0).repeat(4, 1))
    return np.stack([base[n : n + 48, n : n + 64] for n in range(count)])


def write(path: Path, codec: str = "libx264", *, turn: int = 0, flags: str = "", start: int = 0) -> Path:
    """Write a video with a keyframe every 12 frames by PyAV."""
    if codec == "libsvtav1":
        path.write_bytes(video.encode(images(), 30, "mp4", codec=codec, gop=12))
        return path
    with av.open(str(path), "w", options={"movflags": flags} if flags else {}) as container:
        stream = container.add_stream(codec, rate=30, options={"x265-params": "log-level=none"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.codec_context.gop_size = 12
        stream.codec_context.thread_count = 1
        if turn:
            stream.set_display_rotation(turn)
        for number, image in enumerate(images()):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = number + start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def decoded(path: Path) -> Any:
    """Return every frame, decoded from the start by PyAV alone."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {}),
        ("a.mov", {}),
        ("a.mkv", {}),
        ("late.mp4", {"start": 7}),
        ("fragments.mp4", {"flags": "frag_keyframe+empty_moov"}),
        ("frames.mp4", {"flags": "frag_every_frame+default_base_moof+empty_moov"}),
        ("dash.mp4", {"flags": "dash"}),
        ("shifts.mp4", {"flags": "negative_cts_offsets"}),
        ("hevc.mp4", {"codec": "libx265"}),
        ("av1.mp4", {"codec": "libsvtav1"}),
        ("vp9.mp4", {"codec": "libvpx-vp9"}),
        ("mpeg4.mp4", {"codec": "mpeg4"}),
        ("hevc.mkv", {"codec": "libx265"}),
        ("vp8.webm", {"codec": "libvpx"}),
        ("vp9.webm", {"codec": "libvpx-vp9"}),
    ],
)
def test_any_frame_is_what_decoding_from_the_start_gives(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / name, **options)
    expected = decoded(path)
    with bp.open(path) as reader:
        assert (reader.format, len(reader), reader.schema["frame"].shape) == ("video", COUNT, (48, 64, 3))
        for number in (39, 0, 13, 12, 11, 25):
            assert np.array_equal(reader[number]["frame"], expected[number])
        rows = np.random.default_rng(1).integers(0, COUNT, 30)
        assert np.array_equal(reader.read(rows, ["frame"])["frame"], expected[rows])
        assert reader[15]["time"] == pytest.approx(0.5, abs=1e-3)
        assert reader.frames_at([0, 0.5, 7 / 30]).tolist() == [0, 15, 7]
        in_place = index_of(VideoSpan(open_source(str(path)))).stored is not None
        assert in_place


def boxes(data: bytes, kind: bytes, write: Any) -> bytes:
    """Return the boxes with the content of every one of a kind written anew, and the sizes around it."""
    out, start = b"", 0
    while start < len(data):
        size, name = struct.unpack_from(">I4s", data, start)
        content = data[start + 8 : start + size]
        if name == kind:
            name, content = write(content)
        elif name in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
            content = boxes(content, kind, write)
        out += struct.pack(">I4s", 8 + len(content), name) + content
        start += size
    return out


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_compact_sizes_and_wide_offsets(bits: int, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    # The smallest of packets: images of one block.
    path.write_bytes(video.encode(images()[:, :16, :16] // 8, 30, "mp4", codec="mpeg4", gop=12, quality=1))
    expected, sizes = decoded(path), np.zeros(0, np.int64)

    def compact(content: bytes) -> tuple[bytes, bytes]:
        nonlocal sizes
        # The keyframes have 17 bytes, too many for four bits: those are only counted.
        sizes = np.frombuffer(content, ">u4", offset=12).astype(np.int64).clip(max=(1 << bits) - 1)
        values = sizes.reshape(-1, 2) @ [16, 1] if bits == 4 else sizes
        table = values.astype(">u2" if bits == 16 else "u1").tobytes()
        return b"stz2", content[:4] + struct.pack(">I", bits) + content[8:12] + table

    def wide(content: bytes) -> tuple[bytes, bytes]:
        return b"co64", content[:8] + np.frombuffer(content, ">u4", offset=8).astype(">u8").tobytes()

    path.write_bytes(boxes(boxes(path.read_bytes(), b"stsz", compact), b"stco", wide))
    with bp.open(path) as reader:
        assert reader.ranges(["frame"]).bytes == sizes.sum()
        if bits > 4:
            assert np.array_equal(reader.read(range(COUNT), ["frame"])["frame"], expected)


def test_only_the_packets_from_the_keyframe_on_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", "mpeg4")
    with bp.open(path) as reader:
        blocks = reader.blocks()
        assert blocks.max() >= 3
        ranges = reader.ranges(["frame"], [14])
        with av.open(str(path)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
        first = max(n for n, packet in enumerate(packets[:15]) if packet.is_keyframe)
        assert ranges.bytes <= sum(packet.size for packet in packets[first:17])
        assert ranges.start[0] == packets[first].pos
        assert not reader.ranges(["time"]).bytes


def test_scaled_turned_pickled_and_loaded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", turn=90)
    with bp.open(path, size=(24, 32)) as reader:
        assert reader[3]["frame"].shape == (24, 32, 3)
        assert np.array_equal(pickle.loads(pickle.dumps(reader))[3]["frame"], reader[3]["frame"])
        batch = next(iter(bp.Loader(reader, 8, order="quasi_random", seed=1)))
        assert batch["frame"].shape == (8, 24, 32, 3)
    upright = bp.open(path, upright=True)
    clip = video.Clip(path.read_bytes())
    assert np.array_equal(upright[3]["frame"], clip.read(3, 1, upright=True)[0])
    assert np.array_equal(upright[3]["frame"], np.rot90(decoded(path)[3]))


def test_rows_around_frames_stay_in_their_file(tmp_path: Path) -> None:
    paths = [write(tmp_path / name) for name in ("a.mp4", "b.mp4")]
    expected = np.concatenate([decoded(path) for path in paths])
    reader = bp.open(paths)
    windows = bp.DeltaWindows(reader, {"frame": [-0.1, 0, 1 / 30], "time": [0]}, fps=30)
    assert len(windows) == 2 * COUNT
    sample = windows[COUNT + 1]
    rows = [COUNT, COUNT + 1, COUNT + 2]
    assert np.array_equal(sample["frame"], expected[rows])
    assert sample["frame_is_pad"].tolist() == [True, False, False]
    assert windows[COUNT - 1]["frame_is_pad"].tolist() == [False, False, True]
    # In any order, and frames that several windows have.
    order = np.random.default_rng(0).permutation(2 * COUNT)
    assert np.array_equal(reader.read(order, ["frame"])["frame"], expected[order])
    batch = windows.read([COUNT + 2, 1, COUNT + 1], ["frame"])["frame"]
    assert np.array_equal(batch[0], expected[[COUNT, COUNT + 2, COUNT + 3]])
    assert np.array_equal(batch[1], expected[[0, 1, 2]])
    assert np.array_equal(batch[2], expected[rows])


@pytest.mark.linux
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_many_open_videos(count: int, tmp_path: Path) -> None:
    data = write(tmp_path / "a.mp4", "mpeg4").read_bytes()
    paths = [tmp_path / f"{number}.mp4" for number in range(count)]
    for path in paths:
        path.write_bytes(data)
    expected = decoded(tmp_path / "a.mp4")
    handles = len(os.listdir("/proc/self/fd"))
    with memory_bounded(32 << 20), bp.open(paths) as reader:
        rows = np.random.default_rng(0).permutation(len(reader))[:count]
        frames = reader.read(rows, ["frame"])["frame"]
        assert np.array_equal(frames[:20], expected[rows[:20] % COUNT])
        assert len(os.listdir("/proc/self/fd")) <= handles + 4


def test_from_a_server_only_what_is_needed_comes(bucket, proxy, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mov", "mpeg4")
    # A megabyte that nobody needs lies between the packets and the header.
    data = path.read_bytes()
    position = data.index(b"mdat") - 4
    size = struct.unpack_from(">I", data, position)[0]
    filler = struct.pack(">I4s", 8 + (4 << 20), b"free") + bytes(4 << 20)
    url = bucket.put("a.mov", data[: position + size] + filler + data[position + size :])
    proxy.reset()
    with bp.open(url, endpoint=proxy.endpoint) as reader:
        assert np.array_equal(reader[20]["frame"], decoded(path)[20])
    assert proxy.bytes_sent < 3 << 20


def sound(path: Path) -> bool:
    try:
        with bp.open(path, format="video") as reader:
            reader.read([0, 20, len(reader) - 1])
    except bp.BatchplantError:
        return False
    return True


@pytest.mark.parametrize("damage", [cuts, flips])
@pytest.mark.parametrize("flags", ["", "frag_keyframe+empty_moov"])
def test_damage_is_an_error_of_ours(damage: Any, flags: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", flags=flags)
    with memory_bounded(64 << 20):
        for description, good in survive(damage(path), lambda: sound(path)):
            assert not good or flags or damage is flips, description


@pytest.mark.exhaustive
def test_damaged_tables() -> None:
    """The parser of the tables alone, on many thousands of damaged headers."""
    rng = np.random.default_rng(3)
    for flags in ("", "frag_keyframe+empty_moov"):
        with tempfile.TemporaryDirectory() as folder:
            data = np.frombuffer(write(Path(folder) / "a.mp4", flags=flags).read_bytes(), np.uint8)
        for _ in range(50_000):
            damaged = data[: rng.integers(1, len(data) + 1)].copy() if rng.random() < 0.2 else data.copy()
            places = rng.integers(0, len(damaged), rng.integers(1, 6))
            damaged[places] = rng.integers(0, 256, len(places))
            packets = packets_of(lambda start, size, d=damaged: d[start : start + size], len(damaged))
            if packets is not None:
                assert (packets.starts >= 0).all()
                assert (packets.starts + packets.sizes <= len(damaged)).all()


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("video") / "a.mp4").read_bytes()


@pytest.mark.parametrize(
    ("kind", "offset", "value"),
    [
        # Counts of samples, chunks and runs that are not there; sizes beyond the file; a timescale of zero.
        (b"stsz", 12, 0xFFFFFFFF),
        (b"stsz", 8, 1),
        (b"stsz", 16, 0xFFFFFFFF),
        (b"stts", 12, 0xFFFFFFFF),
        (b"stts", 16, 0xFFFFFFFF),
        (b"stsc", 16, 0xFFFFFFFF),
        (b"stsc", 12, 0xFFFFFFFF),
        (b"stco", 12, 0xFFFFFFFF),
        (b"stss", 12, 0xFFFFFFFF),
        (b"mdhd", 16, 0),
        (b"elst", 8, 0xFFFFFFFF),
    ],
)
def test_tables_that_lie(kind: bytes, offset: int, value: int, sound_file: bytes, tmp_path: Path) -> None:
    path, data = tmp_path / "a.mp4", bytearray(sound_file)
    # Offsets count from behind the type of the box.
    struct.pack_into(">I", data, data.index(kind) + offset - 4 + 4, value)
    path.write_bytes(data)
    with memory_bounded(64 << 20):
        sound(path)


def test_avi_and_what_is_no_video(tmp_path: Path) -> None:
    (tmp_path / "a.avi").write_bytes(film(3))
    with bp.open(tmp_path / "a.avi") as reader:
        assert len(reader) == 3
        assert reader.blocks().tolist() == [0, 0, 0]
        with pytest.raises(bp.OptionError, match="lies outside"):
            reader.frames_at(9)
        with pytest.raises(bp.OptionError, match="seconds are numbers"):
            reader.frames_at("soon")
    (tmp_path / "b.mp4").write_bytes(b"text")
    with pytest.raises(bp.BatchplantError):
        bp.open(tmp_path / "b.mp4")
