"""Videos: facts, frames from anywhere, sound, encoding, the loader's op; and files that wish us ill."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import processes
import repository
from batchplant.cli import main
from batchplant.codecs.media import video
from batchplant.codecs.media.video import Clip, keep_scheduling
from batchplant.codecs.media.video import frames as frames_module
from batchplant.formats import registry
from batchplant.ops import DecodeVideo
from batchplant.testing.cases import EXHAUSTIVE, film

av = pytest.importorskip("av")

GOLDEN = repository.GOLDEN / "video"
TICK = Fraction(1, 30)
MOST = os.sched_param(99)


def images(count: int, height: int = 48, width: int = 64) -> Any:
    """Frames that move, each unlike all others."""
    base = np.random.default_rng(7).integers(0, 256, (height + 80, width + 80, 3), dtype=np.uint8)
    base = np.ascontiguousarray(base[::4, ::4].repeat(4, 0).repeat(4, 1))
    result = np.stack([base[n % 40 : n % 40 + height, n % 37 : n % 37 + width] for n in range(count)])
    result[:, :8, :8] = (np.arange(count) * 5 % 256)[:, None, None, None]
    return result


def made(
    codec: str,
    muxer: str,
    count: int = 40,
    *,
    gop: int = 12,
    b_frames: int | None = 2,
    ticks: Any = None,
    sound: tuple[str, int, Any, float] | None = None,
    turn: int = 0,
    muxing: dict[str, str] | None = None,
    **options: str,
) -> bytes:
    """A video by PyAV. ``sound``: codec, rate, samples, second at which it starts."""
    try:
        av.Codec(codec, "w")
    except Exception:
        pytest.skip(f"this FFmpeg has no {codec}")
    out = io.BytesIO()
    # One of the encoders would make this process, and all that it starts, a real-time one.
    with keep_scheduling(), av.open(out, "w", format=muxer, options=muxing or {}) as container:
        stream = container.add_stream(
            codec, rate=30, options={k.replace("_", "-"): v for k, v in options.items()}
        )
        frames = images(count)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = gop
        stream.codec_context.time_base = TICK
        stream.codec_context.thread_count = 1
        if b_frames is not None:
            stream.codec_context.max_b_frames = b_frames
        if turn:
            stream.set_display_rotation(turn)
        if sound is not None:
            other = container.add_stream(sound[0], rate=sound[1], layout="stereo")
        for number, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number if ticks is None else ticks(number), TICK
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None:
            _, rate, samples, start = sound
            step = 960
            for at in range(0, len(samples) - step + 1, step):
                part = np.ascontiguousarray(samples[at : at + step].T)
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
                frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
                frame.pts = at + round(start * rate)
                container.mux(other.encode(frame))
            container.mux(other.encode(None))
    return out.getvalue()


def reference(data: bytes) -> Any:
    """Every frame, decoded from the start by PyAV alone."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def shifted(data: bytes, muxer: str, ticks: int, *, keys: bool = True) -> bytes:
    """The same packets at other times, or without the keyframes."""
    out = io.BytesIO()
    how = {"avoid_negative_ts": "disabled"}
    with av.open(io.BytesIO(data)) as source, av.open(out, "w", format=muxer, options=how) as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        move = int(ticks * TICK / stream.time_base)
        for packet in source.demux(stream):
            if packet.size and (keys or not packet.is_keyframe):
                packet.pts += move
                packet.dts += move
                packet.stream = copy
                target.mux(packet)
    return out.getvalue()


@functools.cache
def source(name: str) -> bytes:
    """Videos with all that makes seeking hard."""
    x265 = "log-level=none:pools=none:frame-threads=1"
    return {
        "h264.mp4": lambda: made("libx264", "mp4"),
        "h264.mkv": lambda: made("libx264", "matroska"),
        "h264.mov": lambda: made("libx264", "mov"),
        "many b-frames": lambda: made("libx264", "mp4", gop=20, x264_params="bframes=8:b-adapt=0"),
        "keyframes close": lambda: made("libx264", "mp4", x264_params="keyint=3:min-keyint=1:bframes=2"),
        "open gop.mp4": lambda: made("libx264", "mp4", x264_params="open-gop=1:bframes=3:b-adapt=0"),
        "open gop.mkv": lambda: made("libx264", "matroska", x264_params="open-gop=1:bframes=3:b-adapt=0"),
        "no true keyframes": lambda: made("libx264", "matroska", b_frames=0, x264_params="intra-refresh=1"),
        "one keyframe": lambda: made("libx264", "mp4", gop=1000, x264_params="scenecut=0"),
        "fragments": lambda: made("libx264", "mp4", muxing={"movflags": "frag_keyframe+empty_moov"}),
        "hevc.mp4": lambda: made(
            "libx265", "mp4", x265_params=f"{x265}:open-gop=1:keyint=12:min-keyint=12:bframes=4:b-adapt=0"
        ),
        "hevc.mkv": lambda: made("libx265", "matroska", x265_params=f"{x265}:keyint=10"),
        "vp8.webm": lambda: made("libvpx", "webm", b_frames=None, auto_alt_ref="1", lag_in_frames="16"),
        "vp9.webm": lambda: made(
            "libvpx-vp9", "webm", b_frames=None, auto_alt_ref="1", lag_in_frames="16", cpu_used="8"
        ),
        "av1.mp4": lambda: made("libsvtav1", "mp4", b_frames=None, preset="10"),
        "av1.mkv": lambda: made("libsvtav1", "matroska", b_frames=None, preset="10"),
        "mpeg4.mp4": lambda: made("mpeg4", "mp4"),
        "mpeg4.avi": lambda: made("mpeg4", "avi"),
        "h264.avi": lambda: made("libx264", "avi"),
        "mjpeg.avi": lambda: made("mjpeg", "avi", b_frames=None),
        "uneven times": lambda: made("libx264", "matroska", ticks=lambda n: n * n // 3 + n),
        "late start.mkv": lambda: made("libx264", "matroska", ticks=lambda n: n + 100),
        "late start.mp4": lambda: shifted(source("h264.mp4"), "mp4", 100),
        "edit list": lambda: shifted(source("h264.mp4"), "mp4", -5),
    }[name]()  # fmt: skip


SOURCES = (
    "h264.mp4", "h264.mkv", "h264.mov", "many b-frames", "keyframes close", "open gop.mp4", "open gop.mkv",
    "no true keyframes", "one keyframe", "fragments", "hevc.mp4", "hevc.mkv", "vp8.webm", "vp9.webm",
    "av1.mp4", "av1.mkv", "mpeg4.mp4", "mpeg4.avi", "h264.avi", "mjpeg.avi", "uneven times",
    "late start.mkv", "late start.mp4", "edit list",
)  # fmt: skip
SMALL = ("h264.mp4", "vp9.webm", "mpeg4.avi")


# -- facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "h264.mov", "vp9.webm", "mpeg4.avi"])
def test_what_a_clip_says_about_itself(name: str) -> None:
    clip = Clip(source(name))
    assert clip.encoding == name.split(".")[1]
    assert (clip.frames, clip.width, clip.height) == (40, 64, 48)
    assert clip.fps == pytest.approx(30)
    assert clip.duration == pytest.approx(40 / 30, abs=0.002)
    assert clip.times == pytest.approx(np.arange(40) / 30, abs=0.001)
    assert clip.rotation == 0
    assert clip.audio_rate is None
    assert clip.audio_channels is None
    assert clip.codec.startswith(name.split(".")[0] if "av" not in name else "mpeg4")


def test_a_clip_is_its_bytes() -> None:
    data = source("h264.mp4")
    clip = Clip(data)
    assert clip == data
    assert hash(clip) == hash(data)
    assert len(clip) == len(data)
    again = pickle.loads(pickle.dumps(clip))
    assert type(again) is Clip
    assert again == data
    assert repr(clip) == str(clip) == f"<Clip: mp4, {len(data)} bytes>"
    assert repr(Clip(b"nothing")) == "<Clip: unknown, 7 bytes>"


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        (b"\0\0\0\x20ftypisom", "mp4"),
        (b"\0\0\0\x20ftypqt  ", "mov"),
        (b"\0\0\0\x08wide\0\0\0\x08mdat", "mov"),
        (b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm", "webm"),
        (b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\x82\x88matroska", "mkv"),
        (b"RIFF\0\0\0\0AVI LIST", "avi"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"\0\0\0\x20ftypM4A ", None),
        (b"\0\0\0\x20ftypavif", None),
        (b"#EXTM3U\n", None),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", None),
        (b"", None),
    ],
)
def test_the_first_bytes_tell_the_encoding(head: bytes, encoding: str | None) -> None:
    assert video.encoding_of(head) == encoding
    if encoding is None:
        with pytest.raises(bp.DecodeError, match="not a video that batchplant knows"):
            _ = Clip(head).frames


def test_nothing_is_imported_before_a_fact_is_asked_for() -> None:
    code = (
        "import sys, batchplant as bp\n"
        "from batchplant.codecs.media.video import Clip\n"
        "Clip(b'\\0\\0\\0\\x20ftypisom').encoding\n"
        "assert 'av' not in sys.modules\n"
        "sys.modules['av'] = None\n"
        "try: Clip(b'\\0\\0\\0\\x20ftypisom').frames\n"
        "except bp.MissingLibraryError as error: print(error)\n"
    )
    run = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == 'video needs PyAV: pip install "batchplant[video]"\n'


def test_uneven_times_and_an_average_rate() -> None:
    clip = Clip(source("uneven times"))
    wanted = np.array([n * n // 3 + n for n in range(40)]) / 30
    assert clip.times == pytest.approx(wanted, abs=0.001)
    assert clip.fps == pytest.approx(39 / wanted[-1], rel=0.01)


# -- frames --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_frames_from_anywhere_are_those_of_decoding_from_the_start(name: str) -> None:
    data = source(name)
    wanted = reference(data)
    clip = Clip(data)
    assert clip.frames == len(wanted)
    for start in range(0, len(wanted), 1 if EXHAUSTIVE else 3):
        count = min(2, len(wanted) - start)
        assert np.array_equal(clip.read(start, count), wanted[start : start + count]), start
    assert np.array_equal(clip.read(), wanted)
    assert np.array_equal(clip.read(3, stride=11), wanted[3::11])
    assert np.array_equal(clip.read(-4), wanted[-4:])


def test_the_sources_are_what_they_are_called() -> None:
    """Leading images, frames out of order, discarded packets: else the test above would prove little."""

    def packets(name: str) -> list[Any]:
        with av.open(io.BytesIO(source(name))) as container:
            return [packet for packet in container.demux(video=0) if packet.size]

    for name in ("open gop.mp4", "open gop.mkv", "hevc.mp4"):
        result = packets(name)
        keys = [n for n, packet in enumerate(result) if packet.is_keyframe and n]
        assert any(later.pts < result[n].pts for n in keys for later in result[n + 1 : n + 4]), name
    assert sum(packet.is_discard for packet in packets("edit list")) == 5
    assert Clip(source("edit list")).frames == 35
    assert packets("late start.mkv")[0].pts > 3000
    assert len(Clip(source("one keyframe"))._index.keys) == 1
    for name, seekable in (("no true keyframes", False), ("h264.mp4", True), ("mpeg4.avi", False)):
        clip = Clip(bytes(source(name)))
        clip.read(20, 2)
        assert clip._index.seekable is seekable


class Counter:
    """How many frames were decoded: packets that went into a decoder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        flow = video.frames._Track._packets

        def counted(track: Any, key: int) -> Any:
            for packet in flow(track, key):
                self.count += 1
                yield packet

        monkeypatch.setattr(video.frames._Track, "_packets", counted)


def test_only_what_is_needed_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = Clip(made("libx264", "mp4", 300, gop=10, x264_params="scenecut=0"))
    counter = Counter(monkeypatch)
    clip.read(207, 2)
    # From frame 200 on, and a few that the decoder holds back.
    assert counter.count < 20
    counter.count = 0
    clip.read(5, stride=100)
    assert counter.count < 3 * 16
    counter.count = 0
    clip.read(0, 100)
    assert counter.count < 110


def test_the_index_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    make = frames_module.make_index
    monkeypatch.setattr(frames_module, "make_index", lambda data: calls.append(1) or make(data))
    data = made("libx264", "mp4", 11)
    for _ in range(3):
        clip = Clip(data)
        assert clip.frames == 11
        clip.read(2, 2)
    assert len(calls) == 1


@pytest.mark.parametrize("size", [32, (24, 32), (96, 128), (31, 17)])
def test_frames_at_a_size(size: Any) -> None:
    clip = Clip(source("h264.mp4"))
    height, width = (size, size) if isinstance(size, int) else size
    small = clip.read(3, 4, size=size)
    assert small.shape == (4, height, width, 3)
    whole = clip.read(3, 4)
    # Roughly the same image: the mean colour stays.
    assert np.abs(small.mean(axis=(1, 2)) - whole.mean(axis=(1, 2))).max() < 3
    with av.open(io.BytesIO(clip)) as container:
        frames = list(container.decode(video=0))[3:7]
    wanted = [f.reformat(width, height, "rgb24", interpolation="AREA").to_ndarray() for f in frames]
    assert np.array_equal(small, np.stack(wanted))


def test_upright() -> None:
    data = made("libx264", "mp4", 5, turn=90)
    clip = Clip(data)
    assert abs(clip.rotation) == 90
    stored = clip.read()
    assert np.array_equal(stored, reference(data))
    turned = clip.read(upright=True)
    assert turned.shape == (5, 64, 48, 3)
    assert np.array_equal(turned, np.rot90(stored, clip.rotation // 90, axes=(1, 2)))
    assert clip.read(upright=True, size=(32, 24)).shape == (5, 32, 24, 3)
    # FFmpeg itself, by the image that has to come out on top: the corner that was drawn first.
    half = Clip(made("libx264", "mp4", 2, turn=180)).read(upright=True)
    assert np.array_equal(half, Clip(made("libx264", "mp4", 2, turn=180)).read()[:, ::-1, ::-1])
    films = bp.open([{"video": data}], schema={"video": bp.Video("mp4")})
    for options in ({}, {"size": (32, 24)}):
        clips = bp.VideoClips(films, 2, upright=True, **options)
        assert np.array_equal(clips[1]["video"], clip.read(2, 2, upright=True, **options))


@pytest.mark.parametrize(
    "asked", [(0, 41), (40, 1), (-41, 1), (41, None), (0, -1), (0, 3, 20), (0, None, 0), (30, 5, 3)]
)
def test_frames_that_are_not_there(asked: tuple[Any, ...]) -> None:
    start, frames, *stride = asked
    with pytest.raises(bp.OptionError):
        Clip(source("h264.mp4")).read(start, frames, **({"stride": stride[0]} if stride else {}))
    for size in (0, (3, 4, 5), (-1, 4), "big", 1 << 20):
        with pytest.raises(bp.OptionError, match="size is"):
            Clip(source("h264.mp4")).read(0, 1, size=size)  # type: ignore[arg-type]


def test_no_frames_at_all_can_be_asked_for() -> None:
    assert Clip(source("h264.mp4")).read(7, 0).shape == (0, 48, 64, 3)


def test_many_threads_read_one_clip() -> None:
    clip = Clip(source("h264.mkv"))
    wanted = reference(clip)
    with ThreadPoolExecutor(4) as pool:
        starts = [n % 38 for n in range(80)]
        for start, item in zip(starts, pool.map(lambda n: clip.read(n, 2), starts), strict=True):
            assert np.array_equal(item, wanted[start : start + 2])


def test_a_clip_is_read_after_a_fork() -> None:
    clip = Clip(source("h264.mp4"))
    clip.read(9, 2)
    assert processes.in_fork(
        lambda: bool(Clip(bytes(clip)).read(9, 2).sum() > 0 and clip.read(20, 1).shape[0] == 1)
    )


def test_goldens() -> None:
    expected = json.loads((GOLDEN / "expected.json").read_text())
    for name, value in expected.items():
        clip = Clip((GOLDEN / name).read_bytes())
        assert [clip.encoding, clip.codec, clip.frames, clip.width, clip.height] == value["facts"]
        assert clip.fps == pytest.approx(value["fps"])
        result = clip.read(value["start"], 1)
        wanted = np.load(GOLDEN / "frames.npz")[name]
        # The way to RGB differs by a step between processors.
        assert np.abs(result.astype(int) - wanted).max() <= 3
        clip.check()


# -- sound ---------------------------------------------------------------------------------------------------


def tone(seconds: float, rate: int = 48_000) -> Any:
    time = np.arange(round(seconds * rate)) / rate
    left = 0.4 * np.sin(2 * np.pi * 440 * time * (1 + time / 10))
    return np.stack([left, 0.5 * left], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("codec", "muxer"), [("aac", "mp4"), ("libopus", "webm"), ("flac", "matroska"), ("pcm_s16le", "mov")]
)
def test_sound(codec: str, muxer: str) -> None:
    samples = tone(1.4)
    film = "libvpx-vp9" if muxer == "webm" else "libx264"
    more = {"b_frames": None, "cpu_used": "8"} if muxer == "webm" else {}
    clip = Clip(made(film, muxer, 40, sound=(codec, 48_000, samples, 0.0), **more))
    assert (clip.audio_rate, clip.audio_channels) == (48_000, 2)
    assert clip.frames == 40
    whole = clip.audio()
    assert whole.dtype == np.float32
    assert whole.shape[1] == 2
    near = min(len(whole), len(samples))
    assert abs(len(whole) - len(samples)) < 3000
    exact = codec in ("flac", "pcm_s16le")
    assert np.abs(whole[2000 : near - 2000] - samples[2000 : near - 2000]).mean() < (1e-4 if exact else 0.01)
    # A part is a part of the whole, although decoding started elsewhere.
    for start in (0.1, 0.5, 0.77):
        part = clip.audio(start, 0.25)
        assert part.shape == (12_000, 2)
        # WebM has times of whole milliseconds.
        near = 24 if muxer == "webm" else 0
        places = round(start * 48_000) + np.arange(-near, near + 1)
        away = min(float(np.abs(part - whole[at : at + 12_000]).max()) for at in places)
        assert away < (1e-6 if exact else 2e-3)
    assert np.allclose(clip.audio(0.5, 0.1, mono=True)[:, 0], clip.audio(0.5, 0.1).mean(axis=1), atol=1e-6)
    slow = clip.audio(0, 0.5, rate=16_000)
    assert slow.shape == (8000, 2)
    expect = tone(0.5, 16_000)
    # What AAC loses depends on the machine that encodes; to be a sample late would make 0.035.
    assert np.abs(slow[500:-200] - expect[500:-200]).mean() < (1e-3 if exact else 0.02)
    assert clip.audio(5).shape == (0, 2)
    assert clip.audio(1.3, 1.0).shape[0] < 12_000


def test_sound_that_starts_later_is_silence_before() -> None:
    clip = Clip(made("libx264", "matroska", 40, sound=("flac", 48_000, tone(0.8), 0.4)))
    result = clip.audio()
    assert np.abs(result[: round(0.39 * 48_000)]).max() == 0
    assert np.abs(result[round(0.4 * 48_000) + 100 :][:10_000] - tone(0.8)[100:10_100]).max() < 1e-3


def test_no_sound() -> None:
    with pytest.raises(bp.DecodeError, match="no sound"):
        Clip(source("h264.mp4")).audio()
    with pytest.raises(bp.OptionError, match="from 0 on"):
        Clip(source("h264.mp4")).audio(-1)


# -- encoding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["mp4", "mov", "mkv", "webm", "avi"])
@pytest.mark.parametrize("lossless", [False, True])
def test_encode_and_decode(encoding: str, lossless: bool) -> None:
    frames = images(9)
    clip = Clip(video.encode(frames, 25, encoding, lossless=lossless))
    assert clip.encoding == encoding
    assert (clip.frames, clip.height, clip.width) == (9, 48, 64)
    assert clip.fps == pytest.approx(25)
    result = clip.read()
    if lossless:
        assert np.array_equal(result, frames)
    else:
        assert np.abs(result.astype(int) - frames).mean() < 20


def test_quality_and_keyframes() -> None:
    frames = images(30)
    sizes = [len(video.encode(frames, 30, quality=quality)) for quality in (20, 50, 80)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 2
    assert len(Clip(video.encode(frames, 30, gop=5))._index.keys) >= 6
    assert Clip(video.encode(frames, 29.97)).fps == pytest.approx(30000 / 1001, rel=1e-4)
    odd = video.encode(images(3, 33, 41), 10)
    assert Clip(odd).read().shape == (3, 33, 41, 3)


REAL_TIME = """
import importlib, os, sys
import numpy as np
encode = importlib.import_module("batchplant.codecs.media.video")
from batchplant.errors import EncodeError

def classes():
    found = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            found.add((os.sched_getscheduler(int(thread)), os.sched_getparam(int(thread)).sched_priority))
        except ProcessLookupError:
            pass
    return found

class Watched:
    # What PyAV is, but for the moment when a frame is made: by then the encoder is at work.
    def __init__(self, inside, fails):
        self.inside, self.fails, self.seen = inside, fails, set()
        self.VideoFrame = self

    def __getattr__(self, name):
        return getattr(self.inside, name)

    def from_ndarray(self, *args, **options):
        self.seen |= classes()
        if self.fails:
            raise ValueError("as it is told")
        return self.inside.VideoFrame.from_ndarray(*args, **options)

real = encode.pyav()
for fails in (False, True):
    watched = Watched(real, fails)
    encode.pyav = lambda: watched
    try:
        encode.encode(np.zeros((3, 64, 64, 3), np.uint8), 25, "mp4", codec=sys.argv[1])
    except EncodeError as error:
        assert fails, error
    print(watched.seen, classes())
"""


@pytest.mark.linux
@pytest.mark.parametrize("codec", ["libsvtav1", pytest.param("libx264", marks=pytest.mark.exhaustive)])
def test_no_encoder_makes_threads_real_time(codec: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg has no {codec}")
    try:
        processes.run(["true"], check=True, preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_FIFO, MOST))
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this user may not make a thread real-time, so no encoder can")
    command = [sys.executable, "-c", REAL_TIME, codec]
    done = processes.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["{(0, 0)} {(0, 0)}"] * 2, done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((np.zeros((2, 4, 4), np.uint8), 30), "uint8 of shape"),
        ((np.zeros((2, 4, 4, 3), np.float32), 30), "uint8 of shape"),
        ((np.zeros((0, 4, 4, 3), np.uint8), 30), "uint8 of shape"),
        ((np.zeros((2, 4, 4, 3), np.uint8), 0), "fps"),
        ((np.zeros((2, 4, 4, 3), np.uint8), 30, "gif"), "encoding is one of"),
        ((np.zeros((2, 16, 16, 3), np.uint8), 30, "mp4", "no-such-codec"), "no-such-codec in mp4"),
    ],
)
def test_what_cannot_be_encoded(arguments: tuple[Any, ...], error: str) -> None:
    more = {"codec": arguments[3]} if len(arguments) == 4 else {}
    with pytest.raises((bp.EncodeError, bp.OptionError), match=error):
        video.encode(*arguments[:3], **more)
    for quality in (0, 101):
        with pytest.raises(bp.OptionError, match="quality"):
            video.encode(images(2), 30, quality=quality)


# -- fields, formats, loader ---------------------------------------------------------------------------------

HOLDING = [
    name
    for name, spec in registry.all_formats().items()
    if spec.writer is not None and bp.Video in spec.kinds and spec.refuses(bp.Video("mp4")) is None
]
OPEN = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}}


# FormatSuite has videos, too: these stand for the ways in which formats keep encoded cells.
FAMILIES = ("beton", "json", "lmdb", "parquet", "tfrecord", "videofolder", "webdataset", "zarr")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAMILIES else pytest.mark.exhaustive) for n in HOLDING]
)
def test_every_format_keeps_bytes_and_kind(name: str, tmp_path: Path) -> None:
    suffix = next(iter(registry.get_format(name).suffixes), "")
    path = tmp_path / f"films{suffix}"
    clips = [source("h264.mp4"), source("h264.mp4"), made("libx264", "mp4", 3)]
    field = bp.Video("mp4", width=64, height=48)
    try:
        with bp.create(path, {"video": field}, format=name) as out:
            for clip in clips:
                out.append({"video": clip})
        with bp.open(path, format=name, **OPEN.get(name, {})) as reader:
            kept = reader.schema["video"]
            assert isinstance(kept, bp.Video)
            assert kept.encoding == "mp4"
            for clip, sample in zip(clips, reader, strict=True):
                assert type(sample["video"]) is Clip
                assert sample["video"] == clip
            assert reader[2]["video"].frames == 3
            assert bp.verify(reader, decode=True).problems == []
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))


def test_arrays_and_paths_are_written_as_videos(tmp_path: Path) -> None:
    frames = images(6)
    (tmp_path / "a.webm").write_bytes(source("vp9.webm"))
    path = tmp_path / "a.tar"
    with bp.create(path, {"video": bp.Video()}) as out:
        out.append({"video": (frames, 12.5)})
        out.append({"video": tmp_path / "a.webm"})
        out.append({"video": Clip(source("h264.mkv"))})
    clips = [sample["video"] for sample in bp.open(path)]
    assert [clip.encoding for clip in clips] == ["mp4", "webm", "mkv"]
    assert clips[0].fps == 12.5
    assert clips[0].frames == 6
    with (
        pytest.raises(bp.SchemaError, match="width 64, and the field says 32"),
        bp.create(tmp_path / "b.tar", {"video": bp.Video(width=32)}) as out,
    ):
        out.append({"video": (frames, 12.5)})


def test_members_of_an_archive_are_videos_by_their_names(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, name in enumerate(("h264.mp4", "h264.mp4")):
            data = source(name)
            member = tarfile.TarInfo(f"{number}.mp4")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    reader = bp.open(tmp_path / "a.tar")
    assert isinstance(reader.schema["mp4"], bp.Video)
    assert reader[1]["mp4"].frames == 40


def test_columns_of_hugging_face_are_videos(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": source("h264.mp4"), "path": "a.mp4"}] * 2, kind)
    features = {"info": {"features": {"video": {"_type": "Video"}}}}
    table = pa.table({"video": column}).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, tmp_path / "a.parquet")
    reader = bp.open(tmp_path / "a.parquet")
    assert isinstance(reader.schema["video"], bp.Video)
    assert reader[1]["video"].frames == 40


def test_head_shows_what_a_clip_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bp.create(tmp_path / "a.tar", {"video": bp.Video("mp4")}) as out:
        out.append({"video": source("h264.mp4")})
        out.append({"video": b"nothing"})
    assert main(["head", str(tmp_path / "a.tar")]) == 0
    shown = capsys.readouterr().out
    assert "mp4 (h264), 64×48, 40 frames, 30 frames a second" in shown
    assert "unknown: these bytes are not a video" in shown


def test_verify_finds_videos_that_do_not_decode(tmp_path: Path) -> None:
    good, bad = source("h264.mp4"), bytearray(source("h264.mp4"))
    bad[1000:1400] = bytes(400)
    with bp.create(tmp_path / "a.tar", {"video": bp.Video("mp4")}) as out:
        for data in (good, bytes(bad), good[:2000]):
            out.append({"video": data})
    result = bp.verify(tmp_path / "a.tar", decode=True).problems
    assert [(problem.sample, problem.field) for problem in result] == [(1, "video"), (2, "video")]
    assert "frame " in result[0].message
    assert "cut" in result[1].message
    assert bp.verify(tmp_path / "a.tar").problems == []


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("films") / "films.beton"
    with bp.create(path, {"video": bp.Video(), "label": bp.Int()}) as out:
        for number, name in enumerate(("h264.mp4", "vp9.webm", "h264.mkv", "open gop.mp4", "mpeg4.mp4")):
            out.append({"video": source(name), "label": number})
    return str(path)


def batches(path: str, op: DecodeVideo, **options: Any) -> dict[int, Any]:
    """Sample → clip, over one epoch."""
    result = {}
    for batch in bp.Loader(path, 2, pipelines={"video": [op]}, **options):
        assert batch["video"].dtype == np.uint8
        for label, clip in zip(batch["label"], batch["video"], strict=True):
            result[int(label)] = clip
    return result


@pytest.mark.parametrize(("at", "starts"), [("start", (0, 0)), ("centre", (16, 16)), ("random", (0, 33))])
def test_the_loader_reads_clips(films: str, at: str, starts: tuple[int, int]) -> None:
    result = batches(films, DecodeVideo(4, stride=2, at=at))
    reader = bp.open(films)
    for label, clip in result.items():
        whole = reader[label]["video"].read()
        assert clip.shape == (4, 48, 64, 3)
        fits = [n for n in range(34) if np.array_equal(clip, whole[n : n + 7 : 2])]
        assert len(fits) == 1
        assert starts[0] <= fits[0] <= starts[1]


def test_random_clips_belong_to_seed_epoch_and_sample(films: str) -> None:
    op = DecodeVideo(3, size=16)
    one, two = batches(films, op, seed=3), batches(films, op, seed=3, order="random", workers=1)
    assert all(np.array_equal(one[label], two[label]) for label in one)
    other = batches(films, op, seed=4)
    assert any(not np.array_equal(one[label], other[label]) for label in one)
    loader = bp.Loader(films, 5, pipelines={"video": [op]}, seed=3)
    first, second = (next(iter(loader))["video"] for _ in range(2))
    assert not np.array_equal(first, second)


def test_sizes_and_layout(films: str) -> None:
    loader = bp.Loader(films, 5, pipelines={"video": [DecodeVideo(2, size=(24, 32), channels_first=True)]})
    assert "uint8 (2, 3, 24, 32)" in str(loader.plan)
    batch = next(iter(loader))
    assert batch["video"].shape == (5, 2, 3, 24, 32)
    plain = next(iter(bp.Loader(films, 5, pipelines={"video": [DecodeVideo(2, size=(24, 32))]})))
    assert np.array_equal(np.moveaxis(batch["video"], 2, -1), plain["video"])


@pytest.mark.parametrize(
    ("short", "numbers"), [("loop", [0, 2, 1, 0]), ("last", [0, 2, 2, 2]), ("error", None)]
)
def test_videos_that_are_too_short(short: str, numbers: list[int] | None, tmp_path: Path) -> None:
    data = made("libx264", "mp4", 3)
    with bp.create(tmp_path / "a.tar", {"video": bp.Video()}) as out:
        out.append({"video": data})
    loader = bp.Loader(tmp_path / "a.tar", 1, pipelines={"video": [DecodeVideo(4, stride=2, short=short)]})
    if numbers is None:
        with pytest.raises(bp.DecodeError, match="has 3 frames, and 7 are needed") as caught:
            list(loader)
        assert caught.value.sample == 0
        assert caught.value.field == "video"
    else:
        assert np.array_equal(next(iter(loader))["video"][0], reference(data)[numbers])


def test_damaged_videos_are_skipped_or_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with bp.create(path, {"video": bp.Video()}) as out:
        for data in (source("h264.mp4"), b"no video", source("h264.mkv"), source("h264.mp4")[:3000], film(3)):
            out.append({"video": data})
    pipelines = {"video": [DecodeVideo(2, size=16)]}
    with pytest.raises(bp.DecodeError, match=r"a\.tar, sample 1, field 'video'"):
        list(bp.Loader(path, 5, pipelines=pipelines))
    loader = bp.Loader(path, 5, pipelines=pipelines, on_error="skip", ids=True)
    (batch,) = list(loader)
    assert batch["ids"].tolist() == [0, 2, 4]
    assert batch["video"].shape == (3, 2, 16, 16, 3)
    with pytest.raises(bp.DecodeError, match="DecodeVideo needs a size"):
        list(bp.Loader(path, 5, pipelines={"video": [DecodeVideo(2)]}, indices=[0, 4]))


def test_options_of_the_op(films: str, tmp_path: Path) -> None:
    for wrong in ({"frames": 0}, {"stride": 0}, {"at": "end"}, {"short": "no"}, {"size": (1, 2, 3)}):
        with pytest.raises(bp.OptionError):
            DecodeVideo(**wrong)  # type: ignore[arg-type]
    op = DecodeVideo(5, size=8)
    assert repr(pickle.loads(pickle.dumps(op))) == repr(op)
    with pytest.raises(bp.OptionError, match="needs videos"):
        bp.Loader(films, 2, pipelines={"label": [op]})
    with bp.create(tmp_path / "a.tar", {"video": bp.Video(optional=True)}) as out:
        out.append({"video": None})
    with pytest.raises(bp.OptionError, match="never missing"):
        bp.Loader(tmp_path / "a.tar", 2, pipelines={"video": [op]})


# -- files that wish us ill ----------------------------------------------------------------------------------


def survives(data: bytes) -> bool:
    """Whether it decodes; all that may be raised is one of our errors about data."""
    try:
        clip = Clip(data)
        result = clip.read(clip.frames // 2, 1)
        assert result.ndim == 4
        clip.check()
    except bp.DataError:
        return False
    return True


@pytest.mark.parametrize("name", SMALL)
def test_every_cut_is_noticed(name: str) -> None:
    data = source(name)
    assert survives(data)
    # Bytes of the headers and the end, and many between.
    step = 1 if EXHAUSTIVE else 3
    cuts = {*range(0, 300, step), *range(len(data) - 300, len(data), step), *range(0, len(data), 41 * step)}
    assert [cut for cut in sorted(cuts) if survives(data[:cut])] == []


@pytest.mark.parametrize("name", ["h264.mp4", "hevc.mkv", "vp9.webm", "vp8.webm", "mpeg4.avi", "fragments"])
def test_flipped_bits(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(5)
    # Few bits of a WebM matter.
    kept, count = 0, 60 if EXHAUSTIVE or "webm" in name else 25
    for _ in range(count):
        data = bytearray(source(name))
        for _ in range(rng.choice((1, 1, 8))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        kept += survives(bytes(data))
    assert kept < count
    # FFmpeg has much to say about such files, and says it to nobody.
    assert capfd.readouterr() == ("", "")


def patched(data: bytes, box: bytes, offset: int, value: bytes) -> bytes:
    """With bytes changed behind the name of a box."""
    at = data.index(box) + len(box) + offset
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("box", "offset", "value"),
    [
        (b"stsz", 4, struct.pack(">II", 1, 2**32 - 1)),
        (b"stsz", 4, struct.pack(">II", 2**31, 2**31)),
        (b"stsz", 8, struct.pack(">I", 2**31)),
        (b"stts", 8, struct.pack(">I", 2**32 - 1)),
        (b"ctts", 8, struct.pack(">I", 2**32 - 1)),
    ],
)
def test_tables_that_claim_too_much(box: bytes, offset: int, value: bytes) -> None:
    with pytest.raises(bp.DecodeError, match="claims"):
        _ = Clip(patched(source("h264.mp4"), box, offset, value)).frames


def test_fragments_that_claim_too_much() -> None:
    with pytest.raises(bp.DecodeError, match="claims"):
        _ = Clip(patched(source("fragments"), b"trun", 4, struct.pack(">I", 2**31))).frames


def test_edits_that_claim_too_much() -> None:
    data = source("h264.mp4")
    # 30,000 edits, each of them all 40 frames; the sizes of what is around grow with it.
    edit = data[data.index(b"elst") + 12 :][:12]
    more = edit * 30_000
    at = data.index(b"elst") + 24
    result = bytearray(data[:at] + more + data[at:])
    for box in (b"moov", b"trak", b"edts", b"elst"):
        start = data.index(box) - 4
        struct.pack_into(">I", result, start, struct.unpack_from(">I", data, start)[0] + len(more))
    struct.pack_into(">I", result, data.index(b"elst") + 8, 30_001)
    with pytest.raises(bp.DecodeError, match="claims"):
        _ = Clip(bytes(result)).frames


def test_a_compressed_header_is_not_unpacked() -> None:
    box = struct.pack(">I4s", 16, b"cmov") + bytes(8)
    data = source("h264.mp4")[:32] + struct.pack(">I4s", 8 + len(box), b"moov") + box
    with pytest.raises(bp.DecodeError, match="compressed"):
        _ = Clip(data).frames


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = source("h264.mp4")
    monkeypatch.setenv("BATCHPLANT_MAX_CLIP_PIXELS", str(10 * 48 * 64))
    assert len(Clip(data).read(0, 10)) == 10
    with pytest.raises(bp.DecodeError, match="BATCHPLANT_MAX_CLIP_PIXELS"):
        Clip(data).read(0, 11)
    assert len(Clip(data).read(0, 40, size=24)) == 40
    monkeypatch.setenv("BATCHPLANT_MAX_FRAME_PIXELS", "3000")
    with pytest.raises(bp.DecodeError, match="BATCHPLANT_MAX_FRAME_PIXELS"):
        Clip(data).read(0, 1)
    monkeypatch.setenv("BATCHPLANT_MAX_FRAME_PIXELS", "many")
    with pytest.raises(bp.OptionError, match="a number of pixels, not 'many'"):
        Clip(data).read(0, 1)
    monkeypatch.delenv("BATCHPLANT_MAX_FRAME_PIXELS")
    # A size that the header of the file does not tell, only the stream.
    huge = patched(data, b"avc1", 24, struct.pack(">HH", 65535, 65535))
    assert not survives(huge) or Clip(huge).read(0, 1, size=8).shape == (1, 8, 8, 3)


def test_files_without_video() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=48_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
        frame.sample_rate = 48_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(bp.DecodeError, match="no video in the file"):
        _ = Clip(out.getvalue()).frames


def test_the_image_of_a_cover_is_no_video() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 48, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(av.VideoFrame.from_ndarray(images(1)[0], format="rgb24")))
        container.mux(cover.encode(None))
    with av.open(io.BytesIO(out.getvalue())) as container:
        assert len(container.streams.video) == 1
    with pytest.raises(bp.DecodeError, match="no video in the file"):
        _ = Clip(out.getvalue()).frames


def test_no_frames_and_no_keyframe() -> None:
    empty = film(0)
    with pytest.raises(bp.DecodeError, match=r"no frames|cannot be opened|does not give its size"):
        _ = Clip(empty).frames
    rest = shifted(source("h264.mp4"), "mp4", 0, keys=False)
    with pytest.raises(bp.DecodeError, match="no keyframe"):
        _ = Clip(rest).frames


def test_codecs_that_are_not_common_stay_closed() -> None:
    refused = pytest.raises(bp.DecodeError, match=r"no decoder for this video \(h264\)")
    with video.container.opened(memoryview(source("h264.mp4"))) as container, refused:
        video.container.video_of(container, frozenset(("vp9",)))


def test_nothing_else_is_opened() -> None:
    with video.container.opened(memoryview(source("h264.mp4"))) as container:
        assert container.io_open is video.container._nothing
        with pytest.raises(bp.DecodeError, match="another file"):
            container.io_open("file:/etc/hostname", 1, {})
