"""Sounds: reading, windows, encoding, damaged bytes, the loader's op, and that every format keeps them."""

from __future__ import annotations

import contextlib
import copy
import io
import multiprocessing
import pickle
import random
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
import repository
from batchplant import ops
from batchplant.codecs.media import audio
from batchplant.codecs.media.audio import Header, Sound
from batchplant.formats import registry

soundfile = pytest.importorskip("soundfile")
soxr = pytest.importorskip("soxr")

GOLDEN = repository.GOLDEN / "audio"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
OPEN = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}}


def tone(frames: int = 4800) -> Any:
    """What went into the golden files."""
    seconds = np.arange(4800) / 16000
    left = np.round(12000 * np.sin(2 * np.pi * 440 * seconds))
    right = np.round(9000 * np.sin(2 * np.pi * 660 * seconds) * np.linspace(0, 1, 4800))
    return np.stack([left, right], axis=1).astype(np.int16)[:frames]


def noise(frames: int, channels: int = 1, seed: int = 0, dtype: Any = np.int16) -> Any:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(limits.min, limits.max, (frames, channels), dtype, endpoint=True)


def golden(name: str) -> Sound:
    return Sound((GOLDEN / name).read_bytes())


def encoded(encoding: str, frames: int = 40_000, rate: int = 16000) -> bytes:
    """Two channels of a sound that lossy encoders like."""
    seconds = np.arange(frames) / rate
    wave = np.stack([np.sin(700 * seconds * (1 + seconds)), np.sin(1900 * seconds)], axis=1)
    rough = 0.5 * wave + 0.02 * np.random.default_rng(1).standard_normal((frames, 2))
    return audio.encode((rough * 30000).clip(-32768, 32767).astype(np.int16), rate, encoding)


@pytest.fixture(scope="module")
def sounds() -> dict[str, bytes]:
    return {text: encoded(text) for text in ("wav", "flac", "ogg", "opus", "mp3")}


# -- what others wrote ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("flac16.flac", Header("flac", 16000, 2, 4800, "PCM_16")),
        ("float.wav", Header("wav", 16000, 2, 500, "FLOAT")),
        ("pcm24.wav", Header("wav", 16000, 2, 500, "PCM_24")),
        ("ulaw.wav", Header("wav", 16000, 2, 500, "ULAW")),
        ("vorbis.ogg", Header("ogg", 16000, 2, 4800, "VORBIS")),
        ("opus.opus", Header("opus", 48000, 2, 14400, "OPUS")),
        ("lame.mp3", Header("mp3", 16000, 2, 4800, "MPEG_LAYER_III")),
        # 11 frames of 576, less the decoder's delay.
        ("vbr-untold.mp3", Header("mp3", 16000, 2, 11 * 576 - 529, "MPEG_LAYER_III")),
    ],
)
def test_golden_headers(name: str, header: Header) -> None:
    sound = golden(name)
    assert sound.header == header == audio.header(bytes(sound))
    assert sound.encoding == audio.SUFFIXES[Path(name).suffix]
    assert (sound.rate, sound.channels, sound.frames) == header[1:4]
    assert sound.seconds == header.frames / header.rate


@pytest.mark.parametrize("name", ["flac16.flac", "float.wav", "pcm24.wav"])
def test_golden_lossless(name: str) -> None:
    sound = golden(name)
    want = tone(sound.frames)
    np.testing.assert_array_equal(sound.read(dtype="int16"), want)
    np.testing.assert_array_equal(sound.read(dtype="int32"), want.astype(np.int32) << 16)
    for dtype in ("float32", "float64"):
        result = sound.read(dtype=dtype)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, want / 32768)


@pytest.mark.parametrize(
    ("name", "skip", "error"),
    [
        ("ulaw.wav", 0, 0.01),
        ("vorbis.ogg", 0, 0.02),
        ("opus.opus", 0, 0.1),
        ("lame.mp3", 0, 0.05),
        # Nothing tells how much the encoder put in front.
        ("vbr-untold.mp3", 576, 0.05),
    ],
)
def test_golden_lossy(name: str, skip: int, error: float) -> None:
    result = golden(name).read(rate=16000)[skip:]
    want = tone()[: len(result)] / 32768
    assert np.abs(result[: len(want)] - want).max() < error


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vbr-untold.mp3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_as_soundfile(name: str, dtype: str) -> None:
    want, rate = soundfile.read(io.BytesIO(golden(name)), dtype=dtype, always_2d=True)
    assert golden(name).rate == rate
    # soundfile seeks before it reads, which changes how mpg123 rounds.
    limit = 5e-7 if name.endswith("mp3") else 0
    np.testing.assert_allclose(golden(name).read(dtype=dtype), want, rtol=0, atol=limit)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("container", ["WAV", "WAVEX", "RF64"])
def test_wav_both_ways(subtype: str, container: str) -> None:
    """What libsndfile writes we read without it, and it reads what we write."""
    samples = noise(101, 3, dtype=np.int32) if subtype[0] == "P" else noise(101, 3).astype("f8") / 40000
    out = io.BytesIO()
    soundfile.write(out, samples, 22050, format=container, subtype=subtype)
    sound = Sound(out.getvalue())
    assert audio.parse_wav(memoryview(sound)) is not None
    assert sound.header == Header("wav", 22050, 3, 101, subtype)
    mine = audio.encode(samples, 22050, "wav", subtype)
    for dtype in audio.DTYPES:
        if subtype[0] == "P" or dtype[0] == "f":
            want = soundfile.read(io.BytesIO(sound), dtype=dtype)[0]
            np.testing.assert_array_equal(sound.read(dtype=dtype), want)
            np.testing.assert_array_equal(sound.read(7, 50, dtype=dtype), want[7:57])
            np.testing.assert_array_equal(soundfile.read(io.BytesIO(mine), dtype=dtype)[0], want)
            np.testing.assert_array_equal(Sound(mine).read(dtype=dtype), want)


def test_24_bits_are_exact() -> None:
    levels = np.array([[-(2**23)], [-1], [0], [1], [2**23 - 1], [1234567]], dtype=np.int32)
    for encoding in ("wav", "flac"):
        sound = Sound(audio.encode(levels << 8, 48000, encoding, "PCM_24"))
        np.testing.assert_array_equal(sound.read(dtype="int32") >> 8, levels)
        np.testing.assert_array_equal(sound.read() * 2.0**23, levels)


def test_floats_are_exact_and_scaled() -> None:
    samples = np.array([[0.1], [-1.5], [np.nan], [np.inf], [2.0**-140]], dtype=np.float32)
    sound = Sound(audio.encode(samples, 8000, "wav"))
    assert sound.read().tobytes() == samples.tobytes()
    # Full scale, rounded, cut off; nothing stands for what is no number.
    assert sound.read(dtype="int16")[:, 0].tolist() == [3277, -32768, 0, 32767, 0]


# -- windows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["wav", "flac", "ogg", "opus", "mp3"])
def test_windows_are_parts_of_the_whole(sounds: dict[str, bytes], encoding: str) -> None:
    sound = Sound(sounds[encoding])
    whole = sound.read()
    assert whole.shape == (sound.frames, 2)
    rng = random.Random(3)
    starts = [
        0,
        1,
        1151,
        1152,
        *range(sound.frames - 5000, sound.frames, 499),
        sound.frames - 1,
        *(rng.randrange(sound.frames) for _ in range(25)),
    ]
    for start in starts:
        result = sound.read(start, 700)
        # Their decoders round differently where they begin elsewhere: by the last bit of a float32.
        limit = 5e-7 if encoding in ("mp3", "opus") else 0
        np.testing.assert_allclose(result, whole[start : start + 700], rtol=0, atol=limit)


def test_a_window_decodes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in bytes that are taken from a minute of FLAC."""
    data = audio.encode(noise(60 * 8000), 8000, "flac")
    taken = 0
    plain = audio.Memory.readinto

    def counted(self: Any, buffer: Any) -> int:
        nonlocal taken
        taken += len(buffer)
        return plain(self, buffer)

    monkeypatch.setattr(audio.Memory, "readinto", counted)
    audio.decode(data, 30 * 8000, 8000)
    assert 16_000 < taken < len(data) / 3


def test_edges_of_windows(sounds: dict[str, bytes]) -> None:
    for data in sounds.values():
        sound = Sound(data)
        assert sound.read(sound.frames).shape == sound.read(10**12, 5).shape == (0, 2)
        assert sound.read(sound.frames - 3, 100).shape == (3, 2)
        assert sound.read(5, 0).shape == (0, 2)
        for start, frames in ((-1, None), (0, -1)):
            with pytest.raises(bp.OptionError, match="negative"):
                sound.read(start, frames)


def test_rate_and_mono() -> None:
    samples = tone().astype(np.float32) / 32768
    sound = Sound(audio.encode(samples, 16000, "wav"))
    np.testing.assert_array_equal(sound.read(mono=True), samples.mean(axis=1, keepdims=True))
    np.testing.assert_array_equal(sound.read(rate=8000), soxr.resample(samples, 16000, 8000))
    assert sound.read(rate=8000, mono=True, dtype="int16").shape == (2400, 1)
    assert sound.read(0, 0, rate=8000).shape == (0, 2)
    whole = Sound(audio.encode(tone(), 16000, "wav"))
    assert whole.read(mono=True, dtype="int16")[100, 0] == round(tone()[100].mean())
    for bad in (0, -5, 2**31):
        with pytest.raises(bp.OptionError, match="rate"):
            sound.read(rate=bad)
    with pytest.raises(bp.OptionError, match="uint8"):
        sound.read(dtype="uint8")


# -- encodings -----------------------------------------------------------------------------------------------


def test_encoding_of() -> None:
    assert [audio.encoding_of(golden(name)) for name in NAMES] == [
        audio.SUFFIXES[Path(name).suffix] for name in NAMES
    ]
    for other in (b"", b"R", b"RIFF....AVI ", b"\xff\xfb", b"ID3", b"fLa", bytes(100), b"\x89PNG\r\n"):
        assert audio.encoding_of(other) == ""
    tag = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)
    assert bytes(golden("lame.mp3")[:3]) == b"ID3"
    assert audio.encoding_of(tag + golden("lame.mp3")[45:]) == "mp3"
    assert audio.encoding_of(tag + golden("flac16.flac")) == "flac"
    assert audio.encoding_of(np.frombuffer(golden("opus.opus"), np.uint8)) == "opus"


@given(
    dtype=st.sampled_from(["int16", "int32", "float32", "float64"]),
    frames=st.integers(0, 300),
    channels=st.integers(1, 8),
    rate=st.sampled_from([1, 8000, 44100, 192000]),
    seed=st.integers(0, 2**31),
)
def test_wav_round_trip(dtype: str, frames: int, channels: int, rate: int, seed: int) -> None:
    samples = np.random.default_rng(seed).integers(
        0, 256, (frames, channels * np.dtype(dtype).itemsize), "u1"
    )
    values = samples.view(dtype)
    sound = Sound(audio.encode(values, rate, "wav"))
    assert sound.header[1:4] == (rate, channels, frames)
    assert sound.read(dtype=dtype).tobytes() == values.tobytes()


@given(
    frames=st.integers(1, 6000), channels=st.integers(1, 8), seed=st.integers(0, 2**31), wide=st.booleans()
)
def test_flac_round_trip(frames: int, channels: int, seed: int, wide: bool) -> None:
    samples = noise(frames, channels, seed)
    values = samples.astype(np.int32) << 12 if wide else samples
    sound = Sound(audio.encode(values, 44100))
    assert sound.frames == frames
    np.testing.assert_array_equal(sound.read(dtype=values.dtype), values)


def test_flac_takes_what_it_can_hold() -> None:
    floats = noise(50, dtype=np.int16).astype(np.float32) / 32768
    np.testing.assert_array_equal(Sound(audio.encode(floats, 8000)).read(), floats)
    for bad in (np.full((5, 1), 0.1, np.float32), np.full((5, 1), 3, np.int32), np.full((5, 1), np.nan)):
        with pytest.raises(bp.EncodeError, match="24 bits"):
            audio.encode(bad, 8000)
    assert Sound(audio.encode(np.full((5, 1), 0.1), 8000, subtype="PCM_16")).read(dtype="int16")[0, 0] == 3277


@pytest.mark.parametrize(
    ("samples", "rate", "encoding", "subtype"),
    [
        (np.zeros((3, 1), np.uint8), 8000, "wav", None),
        (np.zeros((3, 1, 1), np.int16), 8000, "wav", None),
        (np.zeros((3, 0), np.int16), 8000, "wav", None),
        (np.zeros((3, 1), np.int16), 0, "wav", None),
        (np.zeros((3, 1), np.int16), 44100.0, "wav", None),
        (np.zeros((3, 1), np.int16), 8000, "aac", None),
        (np.zeros((3, 1), np.int16), 8000, "wav", "VORBIS"),
        (np.zeros((3, 1), np.int16), 8000, "flac", "FLOAT"),
        (np.zeros((3, 9), np.int16), 8000, "flac", None),
        (np.zeros((3, 1), np.int16), 12345, "mp3", None),
    ],
)
def test_what_cannot_be_encoded(samples: Any, rate: Any, encoding: str, subtype: Any) -> None:
    with pytest.raises(bp.EncodeError):
        audio.encode(samples, rate, encoding, subtype)


def test_mp3_that_does_not_tell_its_length() -> None:
    """libsndfile takes the first frame's bitrate for that of all. Here half of the sound is silent."""
    loud = noise(60_000, 1)
    loud[30_000:] = 0
    out = io.BytesIO()
    with soundfile.SoundFile(out, "w", 16000, 1, format="MP3", bitrate_mode="VARIABLE") as file:
        file.write(loud)
    whole = out.getvalue()
    first = audio.frame_at(memoryview(whole), 0)
    assert first is not None
    untold = whole[first.size :]
    sound = Sound(untold)
    assert soundfile.info(io.BytesIO(untold)).frames != sound.frames
    assert sound.frames >= 60_000
    result = sound.read(dtype="int16")
    assert len(result) == sound.frames
    assert np.abs(result[20_000:29_000].astype(int)).mean() > 1000 > 10 > np.abs(result[45_000:]).mean()
    tail = b"TAG" + bytes(125)
    assert Sound(untold + tail).frames == sound.frames
    assert Sound(b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + untold).frames == sound.frames
    with pytest.raises(bp.DecodeError, match="cut off"):
        _ = Sound(untold[:-5]).frames
    with pytest.raises(bp.DecodeError, match="no frame begins"):
        _ = Sound(untold + b"something else").frames


def test_flac_that_does_not_tell_its_length() -> None:
    samples = noise(9000, 2)
    data = bytearray(audio.encode(samples, 8000))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    sound = Sound(bytes(data))
    assert sound.frames == 9000
    np.testing.assert_array_equal(sound.read(dtype="int16"), samples)
    np.testing.assert_array_equal(sound.read(5000, 100, dtype="int16"), samples[5000:5100])


def test_streamed_wav() -> None:
    """Who writes into a pipe cannot go back: the size is as large as can be, or none."""
    data = bytearray(audio.encode(tone(), 16000, "wav"))
    for size in (b"\xff\xff\xff\xff", b"\x00\xf0\xff\x7f", bytes(4)):
        data[4:8] = data[40:44] = size
        np.testing.assert_array_equal(Sound(bytes(data)).read(dtype="int16"), tone())


# -- Sound ---------------------------------------------------------------------------------------------------


def test_a_sound_is_its_bytes() -> None:
    data = bytes(golden("flac16.flac"))
    sound = Sound(data)
    assert sound == data
    assert hash(sound) == hash(data)
    assert isinstance(sound, bytes)
    assert len(repr(sound)) < 100
    assert str(sound) == repr(sound)
    for again in (pickle.loads(pickle.dumps(sound)), copy.deepcopy(sound)):
        assert type(again) is Sound
        assert again == data
        assert again.frames == 4800
    sound.check()


def test_no_library_until_asked() -> None:
    """And none for WAV."""
    code = (
        "import sys, numpy as np, batchplant as bp\n"
        "from batchplant.codecs import audio\n"
        "data = audio.encode(np.zeros((5, 1), np.int16), 8000, 'wav')\n"
        "sound = audio.Sound(data)\n"
        "assert sound.read(1, 3).shape == (3, 1) and sound.frames == 5\n"
        f"other = audio.Sound(open({str(GOLDEN / 'flac16.flac')!r}, 'rb').read())\n"
        "assert other.frames == 4800\n"
        "assert not {'soundfile', 'soxr'} & set(sys.modules)\n"
        "sys.modules['soundfile'] = sys.modules['soxr'] = None\n"
        "for what in (other.read, lambda: sound.read(rate=4000)):\n"
        "    try:\n"
        "        what()\n"
        "    except bp.MissingLibraryError as error:\n"
        "        assert 'batchplant[audio]' in str(error)\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    processes.run([sys.executable, "-c", code], check=True)


# -- damaged and hostile -------------------------------------------------------------------------------------


def survives(data: bytes) -> Any:
    """The samples, or None where one of our exceptions came."""
    sound = Sound(data)
    try:
        _ = sound.header
        return sound.read()
    except bp.DataError:
        return None


@pytest.mark.parametrize(
    "name", ["flac16.flac", "lame.mp3", "opus.opus", "pcm24.wav", "vorbis.ogg", "ulaw.wav"]
)
def test_every_truncation(name: str) -> None:
    data = bytes(golden(name))
    whole = survives(data)
    assert whole is not None
    step = max(1, len(data) // 400)
    for length in [*range(0, len(data), step), len(data) - 1]:
        result = survives(data[:length])
        if result is not None:
            # Behind the last sample there may be something that nobody misses.
            np.testing.assert_array_equal(result, whole)
            assert length > 0.85 * len(data)


@pytest.mark.parametrize("name", NAMES)
def test_random_flips(name: str) -> None:
    data = bytes(golden(name))
    rng = random.Random(name)
    result = []
    for _ in range(150):
        bad = bytearray(data)
        for _ in range(rng.choice((1, 1, 4))):
            # The header more often than what follows.
            bad[rng.randrange(rng.choice((60, len(bad))))] = rng.randrange(256)
        result.append(survives(bytes(bad)))
    assert any(item is None for item in result)


def test_flips_in_flac_and_ogg_are_found() -> None:
    for name in ("flac16.flac", "vorbis.ogg"):
        bad = bytearray(golden(name))
        bad[len(bad) * 3 // 4] ^= 0x55
        assert survives(bytes(bad)) is None


@given(
    front=st.sampled_from([b"", b"RIFF\0\0\0\0WAVE", b"fLaC", b"OggS", b"ID3", b"\xff\xfb\x90\x44"]),
    rest=st.binary(max_size=300),
)
def test_anything(front: bytes, rest: bytes) -> None:
    survives(front + rest)


def wav_header(*, code: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16, size: int = 4) -> bytes:
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", code, channels, rate, 0, block & 0xFFFF, bits)
    return b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0" + form + b"data" + struct.pack("<I", size) + bytes(4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wav_header(size=1 << 30), "take 1073741824 bytes, and 4 are there"),
        (wav_header(channels=0), "0 channels"),
        (wav_header(rate=0), "at 0 Hz"),
        (wav_header(rate=2**32 - 1), "Hz"),
        (b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 5000, "ends before"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd", "without a format"),
        (b"RIFF\0\0\0\0WAVEfmt \2\0\0\0abdata\0\0\0\0", "16 are needed"),
        (b"", "not a sound"),
        (b"some text", "not a sound"),
    ],
)
def test_hostile_wav(data: bytes, message: str) -> None:
    with pytest.raises(bp.DecodeError, match=message):
        Sound(data).read()


def test_flac_that_claims_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(audio.encode(noise(1000, 2), 8000))
    data[21] |= 0x0F
    with pytest.raises(bp.DecodeError, match="cannot hold"):
        Sound(bytes(data)).read()
    # As many as might be there: it has to be tried, and the memory is not touched.
    data[21:26] = bytes([data[21] & 0xF0]) + struct.pack(">I", 5_000_000)
    with pytest.raises(bp.DecodeError):
        Sound(bytes(data)).read()


def test_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Sound(audio.encode(noise(1000, 2), 8000))
    monkeypatch.setenv(audio.VARIABLE, "1999")
    with pytest.raises(
        bp.DecodeError, match=r"2,000 samples, and the limit is 1,999.*BATCHPLANT_MAX_SAMPLES"
    ):
        sound.read()
    assert sound.read(0, 999).shape == (999, 2)
    with pytest.raises(bp.DecodeError, match="2,100 samples"):
        sound.read(0, 350, rate=24000)
    monkeypatch.setenv(audio.VARIABLE, "2000")
    assert sound.read().shape == (1000, 2)
    monkeypatch.setenv(audio.VARIABLE, "many")
    with pytest.raises(bp.OptionError, match="many"):
        sound.read()


def test_no_frames() -> None:
    nothing = np.empty((0, 2), np.int16)
    sound = Sound(audio.encode(nothing, 8000, "wav"))
    assert sound.header == Header("wav", 8000, 2, 0, "PCM_16")
    assert sound.read().shape == sound.read(rate=4000).shape == (0, 2)
    for encoding in ("flac", "ogg", "opus", "mp3"):
        with pytest.raises(bp.EncodeError, match="without frames"):
            audio.encode(nothing, 8000, encoding)
    # A FLAC file that says so, and has none.
    data = bytearray(golden("flac16.flac")[:42])
    data[4] |= 0x80
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    result = survives(bytes(data))
    assert result is None or result.shape == (0, 2)


def test_threads(sounds: dict[str, bytes]) -> None:
    want = {name: Sound(data).read() for name, data in sounds.items()}
    with ThreadPoolExecutor(8) as pool:
        jobs = [(name, pool.submit(Sound(data).read)) for name, data in list(sounds.items()) * 6]
        for name, job in jobs:
            np.testing.assert_array_equal(job.result(), want[name])


def test_fork_while_others_open(sounds: dict[str, bytes]) -> None:
    """soundfile's lock may be held by a thread that the child does not have."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            audio.header(sounds["ogg"])

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert processes.in_fork(lambda: Sound(sounds["ogg"]).read(0, 100).shape == (100, 2))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# -- fields --------------------------------------------------------------------------------------------------


KEEPERS = [
    name
    for name, spec in registry.all_formats().items()
    if spec.writer is not None and spec.refuses(bp.Audio("flac", rate=16000)) is None
]


# FormatSuite has sounds, too: these stand for the ways in which formats keep encoded cells.
FAMILIES = ("audiofolder", "beton", "json", "lmdb", "parquet", "tfrecord", "webdataset", "zarr")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAMILIES else pytest.mark.exhaustive) for n in KEEPERS]
)
def test_every_format_keeps_sounds(name: str, tmp_path: Path) -> None:
    """Byte for byte, with kind, encoding and facts, and decodes from there."""
    data = [bytes(golden("flac16.flac")), audio.encode(noise(50, 2), 16000, "flac")]
    schema = {"sound": bp.Audio("flac", rate=16000, channels=2), "n": bp.Int()}
    path = tmp_path / f"a{next(iter(registry.get_format(name).suffixes), '')}"
    try:
        with bp.create(path, schema, format=name) as out:
            for number, value in enumerate(data):
                out.append({"sound": value, "n": number})
        reader = bp.open(path, format=name, **OPEN.get(name, {}))
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    with reader:
        assert reader.schema["sound"] == schema["sound"]
        for number, item in enumerate(data):
            actual = reader[number]["sound"]
            assert type(actual) is Sound
            assert actual == item
            assert actual.rate == 16000
        assert bp.verify(reader, decode=True).problems == []


def test_values_of_audio_fields(tmp_path: Path) -> None:
    path = tmp_path / "sound.flac"
    path.write_bytes(golden("flac16.flac"))
    floats = tone().astype(np.float32) / 32768
    values = [path, str(path), golden("flac16.flac"), (tone(), 16000), (floats, 16000)]
    with bp.create(tmp_path / "a.npz", {"sound": bp.Audio()}) as out:
        for value in values:
            out.append({"sound": value})
    with bp.open(tmp_path / "a.npz") as data:
        result = [sample["sound"] for sample in data]
    assert [item.encoding for item in result] == ["flac", "flac", "flac", "wav", "wav"]
    assert [item.subtype for item in result[3:]] == ["PCM_16", "FLOAT"]
    for item in result:
        np.testing.assert_array_equal(item.read(dtype="int16"), tone())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (bp.Audio(rate=8000), (tone(), 16000), "rate 16000, and the field says 8000"),
        (bp.Audio(channels=1), (tone(), 16000), "channels 2, and the field says 1"),
        (bp.Audio(), (tone(), 16000.5), "whole number"),
        (bp.Audio("flac"), (tone() / 3, 16000), "24 bits"),
        (bp.Audio(), (tone(), 1, 2), "does not fit"),
    ],
)
def test_wrong_values(field: bp.Audio, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(bp.BatchplantError, match=message), bp.create(tmp_path / "a.npz", {"a": field}) as out:
        out.append({"a": value})


def test_fields_say_how_to_encode(tmp_path: Path) -> None:
    with bp.create(tmp_path / "a.npz", {"a": bp.Audio("flac")}) as out:
        out.append({"a": (tone(), 16000)})
    assert bp.open(tmp_path / "a.npz")[0]["a"].encoding == "flac"


def test_verify_decodes_sounds(tmp_path: Path) -> None:
    bad = bytearray(golden("flac16.flac"))
    bad[9500] ^= 0x55
    with bp.create(tmp_path / "a.npz", {"sound": bp.Audio()}) as out:
        for item in (golden("flac16.flac"), bytes(bad), b"no sound"):
            out.append({"sound": item})
    assert bp.verify(tmp_path / "a.npz").ok
    problems = bp.verify(tmp_path / "a.npz", decode=True).problems
    assert [(problem.sample, problem.field) for problem in problems] == [(1, "sound"), (2, "sound")]


def test_hugging_face_sounds(tmp_path: Path) -> None:
    """Their struct {bytes, path} with a note in the metadata."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = pa.array([{"bytes": bytes(golden("flac16.flac")), "path": "a.flac"}], kind)
    note = b'{"info": {"features": {"sound": {"_type": "Audio", "sampling_rate": 16000}}}}'
    table = pa.table({"sound": cells}).replace_schema_metadata({b"huggingface": note})
    pq.write_table(table, tmp_path / "a.parquet")
    with bp.open(tmp_path / "a.parquet") as data:
        assert isinstance(data.schema["sound"], bp.Audio)
        assert data[0]["sound"].frames == 4800


# -- the loader ----------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path: Path) -> bp.Reader:
    """Twelve sounds of 1000, 1100 … frames at 8 kHz; each frame's left channel is its number."""
    with bp.create(tmp_path / "a.npz", {"sound": bp.Audio(rate=8000, channels=2)}) as out:
        for sample in range(12):
            number = np.arange(1000 + 100 * sample)
            samples = np.stack([number, np.full_like(number, sample)], axis=1).astype(np.int16)
            encoding = ("flac", "wav")[sample % 2]
            out.append({"sound": audio.encode(samples, 8000, encoding)})
    return bp.open(tmp_path / "a.npz")


def loader_of(*arguments: Any, **options: Any) -> Any:
    return contextlib.closing(bp.Loader(*arguments, **options))


def loaded(dataset: bp.Reader, op: ops.Op, **options: Any) -> list[Any]:
    with loader_of(dataset, 4, pipelines={"sound": [op]}, **{"order": "sequential"} | options) as loader:
        return [batch["sound"] for batch in loader]


def test_whole_sounds(dataset: bp.Reader) -> None:
    batches = loaded(dataset, ops.DecodeAudio(dtype="int16"))
    for number, (values, offsets) in enumerate(batches):
        assert np.diff(offsets).tolist() == [
            1000 + 100 * sample for sample in range(4 * number, 4 * number + 4)
        ]
        for row in range(4):
            part = values[offsets[row] : offsets[row + 1]]
            assert part[:, 0].tolist() == list(range(len(part)))
            assert (part[:, 1] == 4 * number + row).all()


@pytest.mark.parametrize("window", ["random", "centre", "start"])
def test_windows(dataset: bp.Reader, window: str) -> None:
    op = ops.DecodeAudio(frames=1200, window=window, dtype="int16", lengths=True)
    starts = []
    for number, (array, lengths) in enumerate(loaded(dataset, op)):
        assert array.shape == (4, 1200, 2)
        for row in range(4):
            frames = 1000 + 100 * (4 * number + row)
            own = min(1200, frames)
            assert lengths[row] == own
            assert not array[row, own:].any()
            start = int(array[row, 0, 0])
            np.testing.assert_array_equal(array[row, :own, 0], np.arange(start, start + own))
            assert 0 <= start <= max(0, frames - 1200)
            if window != "random":
                assert start == (0 if window == "start" else max(0, frames - 1200) // 2)
            starts.append(start)
    if window == "random":
        assert len(set(starts)) > 6


def test_random_windows_belong_to_the_sample(dataset: bp.Reader) -> None:
    op = ops.DecodeAudio(0.1, dtype="int16")
    runs = [loaded(dataset, op, workers=workers, seed=5) for workers in (1, 4)]
    np.testing.assert_array_equal(np.concatenate(runs[0]), np.concatenate(runs[1]))
    assert runs[0][0].shape == (4, 800, 2)
    with loader_of(dataset, 12, pipelines={"sound": [op]}, order="random", seed=5, ids=True) as loader:
        first = next(iter(loader))
        second = next(iter(loader))
    flat = np.concatenate(runs[0])
    order = np.argsort(first["sound"][:, 0, 1])
    np.testing.assert_array_equal(first["sound"][order], flat)
    assert (second["sound"][np.argsort(second["sound"][:, 0, 1])] != flat).any()
    one = loaded(dataset, ops.DecodeAudio(0.1, dtype="int16", workers=1), seed=5)
    np.testing.assert_array_equal(np.concatenate(one), flat)


def test_padding(dataset: bp.Reader) -> None:
    repeated = loaded(dataset, ops.DecodeAudio(frames=2500, dtype="int16", pad="repeat"))[0]
    np.testing.assert_array_equal(repeated[1, :, 0], np.arange(2500) % 1100)
    with pytest.raises(bp.DecodeError, match=r"sample 0, field 'sound': it has 1000 frames, and 1050 are"):
        loaded(dataset, ops.DecodeAudio(frames=1050, pad=None))


def test_rate_mono_channels_first(dataset: bp.Reader) -> None:
    op = ops.DecodeAudio(0.2, rate=4000, mono=True, channels_first=True, window="start")
    array = np.concatenate(loaded(dataset, op))
    assert array.shape == (12, 1, 800)
    assert array.dtype == np.float32
    sound = dataset[7]["sound"]
    np.testing.assert_array_equal(array[7, 0], sound.read(0, 1600, rate=4000, mono=True)[:, 0])
    # 1000 frames become 500.
    assert array[0, 0, :490].any()
    assert not array[0, 0, 500:].any()


def test_plan(dataset: bp.Reader) -> None:
    def spec(op: ops.DecodeAudio, field: bp.Field) -> ops.Spec:
        return op.infer_field(field)

    known = bp.Audio(rate=8000, channels=2)
    assert spec(ops.DecodeAudio(0.5), known).shape == (4000, 2)
    assert spec(ops.DecodeAudio(0.5, rate=16000, mono=True), bp.Audio()).shape == (8000, 1)
    assert spec(ops.DecodeAudio(frames=10, channels_first=True), known).shape == (2, 10)
    assert spec(ops.DecodeAudio(), known).ragged
    with pytest.raises(bp.OptionError, match="give a rate"):
        spec(ops.DecodeAudio(0.5), bp.Audio())
    for field in (bp.Image(), bp.Audio(optional=True), bp.Int()):
        with pytest.raises(bp.OptionError, match="never missing"):
            spec(ops.DecodeAudio(), field)
    with loader_of(dataset, 4, pipelines={"sound": [ops.DecodeAudio(0.1), ops.Convert("float64")]}) as loader:
        assert next(iter(loader))["sound"].dtype == np.float64
    with loader_of(dataset, 4, pipelines={"sound": [ops.DecodeAudio(), ops.Pad()]}) as loader:
        assert next(iter(loader))["sound"].shape[0] == 4


@pytest.mark.parametrize(
    "options",
    [
        {"seconds": 1, "frames": 5}, {"seconds": 0}, {"seconds": float("inf")}, {"frames": 0},
        {"frames": 1.5},
        {"frames": 5, "window": "middle"}, {"frames": 5, "pad": "mirror"}, {"dtype": "uint8"},
        {"lengths": True}, {"channels_first": True}, {"rate": 0}, {"rate": 8000.0}, {"workers": 0},
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(bp.OptionError):
        ops.DecodeAudio(**options)


@pytest.fixture
def damaged(tmp_path: Path) -> bp.Reader:
    """Samples 0, 5 and 6 are no sounds, 9 has another number of channels, 10 another rate."""
    with bp.create(tmp_path / "b.npz", {"sound": bp.Audio(), "n": bp.Int()}) as out:
        for sample in range(12):
            rate = 16000 if sample == 10 else 8000
            data = audio.encode(noise(500, 1 if sample == 9 else 2, sample), rate, "flac")
            out.append({"sound": data[:300] if sample in (0, 5, 6) else data, "n": sample})
    return bp.open(tmp_path / "b.npz")


@pytest.mark.parametrize("options", [{}, {"frames": 100}, {"seconds": 0.05, "rate": 4000}])
def test_bad_sounds_are_skipped(damaged: bp.Reader, options: dict[str, Any]) -> None:
    with loader_of(
        damaged, 4, order="sequential", pipelines={"sound": [ops.DecodeAudio(**options)]}, on_error="skip"
    ) as loader:
        numbers = [batch["n"].tolist() for batch in loader]
        assert numbers == [[1, 2, 3], [4, 7], [8, 10, 11]]
        assert sorted(item.sample for item in loader.skipped) == [0, 5, 6, 9]
        assert {item.field for item in loader.skipped} == {"sound"}
    with (
        pytest.raises(bp.DecodeError, match=r"b\.npz, sample 0, field 'sound'"),
        loader_of(
            damaged, 4, order="sequential", pipelines={"sound": [ops.DecodeAudio(**options)]}
        ) as loader,
    ):
        next(iter(loader))


def test_rates_that_differ(damaged: bp.Reader) -> None:
    op = ops.DecodeAudio(0.01)
    with pytest.raises(bp.OptionError, match="give a rate"):
        bp.Loader(damaged, 4, pipelines={"sound": [op]})
    cells = damaged.read([8, 10, 11])["sound"]
    with pytest.raises(ops.CellErrors) as caught:
        op.run(cells, np.array([8, 10, 11]), ops.Draws(0, 0, np.array([8, 10, 11]), "a"))
    assert "16000 Hz" in str(caught.value.errors[1])


def test_nothing_left(damaged: bp.Reader) -> None:
    empty, ids = damaged.read([])["sound"], np.empty(0, np.int64)
    for options, shape in (({"frames": 9}, (0, 9, 1)), ({"frames": 9, "channels_first": True}, (0, 1, 9))):
        assert ops.DecodeAudio(**options).run(empty, ids, ops.Draws(0, 0, ids, "a")).shape == shape
    values, offsets = ops.DecodeAudio().run(empty, ids, ops.Draws(0, 0, ids, "a"))
    assert values.shape == (0, 1)
    assert offsets.tolist() == [0]


def in_child(dataset: bp.Reader, op: ops.DecodeAudio, queue: Any) -> None:
    queue.put(np.concatenate(loaded(dataset, op, seed=3)).tobytes())


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def test_the_op_in_another_process(dataset: bp.Reader, method: str) -> None:
    op = ops.DecodeAudio(frames=300, dtype="int16", workers=3)
    want = np.concatenate(loaded(dataset, op, seed=3)).tobytes()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=in_child, args=(dataset, op, queue))
    with processes.started(child):
        assert processes.answers(queue, child) == [want]
    again = pickle.loads(pickle.dumps(op))
    assert np.concatenate(loaded(dataset, again, seed=3)).tobytes() == want


def test_torch_tensors(dataset: bp.Reader) -> None:
    torch = pytest.importorskip("torch")
    op = ops.DecodeAudio(frames=100, lengths=True)
    with loader_of(dataset, 4, pipelines={"sound": [op]}, device="cpu") as loader:
        array, lengths = next(iter(loader))["sound"]
    assert isinstance(array, torch.Tensor)
    assert array.shape == (4, 100, 2)
    assert lengths.tolist() == [100] * 4
