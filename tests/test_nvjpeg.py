"""How nvJPEG is called, with a stand-in for its library. The real one is tried in test_device, on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import io
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import processes
from batchplant import _native
from batchplant.codecs import image

COMPILER = shutil.which("cc") or shutil.which("g++")
SIZES = [(13, 7), (16, 16), (40, 33), (1, 1)]  # width, height
# Pillow's names for them: colours at full size, at half of the width, at half of both sides.
SUBSAMPLING = {0x11: 0, 0x21: 1, 0x22: 2}
STREAM = 0x1234


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if COMPILER is None:
        pytest.skip("there is no compiler to make the stand-in with")
    path = tmp_path_factory.mktemp("nvjpeg") / "libnvjpeg.so"
    source = Path(__file__).with_name("nvjpeg_stand_in.c")
    command = [COMPILER, "-x", "c", "-shared", "-fPIC", "-Wall", "-o", path, source, "-ljpeg"]
    processes.run(command, check=True)
    return str(path)


class Knobs:
    """The stand-in's variables."""

    def __init__(self, library: str) -> None:
        self.__dict__["_library"] = ctypes.CDLL(library)

    def __getattr__(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value

    def __setattr__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self._library, name).value = value


@pytest.fixture
def knobs(library: str) -> Any:
    found = Knobs(library)
    yield found
    for name in ("no_hardware", "no_device", "no_state", "fail_decode", "lie"):
        setattr(found, name, 0)


def jpeg(width: int, height: int, **options: Any) -> bytes:
    out = io.BytesIO()
    # Colours that change fast: what is not blended as libjpeg does it is far off.
    pixels = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", **options)
    return out.getvalue()


class Batch:
    """Pictures one behind the other, and memory for their pixels with a border that must stay."""

    def __init__(self, cells: list[bytes], sizes: list[tuple[int, int]]) -> None:
        self.data = np.frombuffer(b"".join(cells), np.uint8)
        self.size = np.array([len(cell) for cell in cells], np.int64)
        self.start = np.cumsum(self.size) - self.size
        self.shape = np.array([(height, width) for width, height in sizes], np.int64)
        # By default Pillow halves both sides of the colours.
        self.used = self.shape.prod(axis=1) + 2 * (-(-self.shape // 2)).prod(axis=1)
        room = self.used + 5
        self.place = np.cumsum(room) - room
        self.room = int(room.sum())
        self.memory = np.full(self.room + 64, 255, np.uint8)

    def decode(self, decoder: Any, **changes: Any) -> None:
        given = {
            "data": self.data, "starts": self.start, "sizes": self.size, "shapes": self.shape,
            "address": self.memory.ctypes.data, "room": self.room, "places": self.place, "stream": STREAM,
        }  # fmt: skip
        decoder.decode(**{**given, **changes})


@pytest.fixture
def batch() -> Batch:
    return Batch([jpeg(*size) for size in SIZES], SIZES)


@pytest.mark.parametrize("hardware", [True, False])
def test_all_pictures_go_to_their_places(library: str, knobs: Any, batch: Batch, hardware: bool) -> None:
    knobs.no_hardware = not hardware
    decoder = _native.NvJpeg(library)
    assert decoder.hardware is hardware
    batch.decode(decoder)
    seen = np.zeros(len(batch.memory), np.bool_)
    for number, (height, width) in enumerate(batch.shape.tolist()):
        start, end = batch.place[number], batch.place[number] + batch.used[number]
        luma = batch.memory[start : start + height * width].reshape(height, width)
        cell = batch.data[batch.start[number] :][: batch.size[number]].tobytes()
        grey = Image.open(io.BytesIO(cell))
        grey.draft("L", grey.size)
        assert (luma == np.asarray(grey)).all()
        seen[start:end] = True
    assert (batch.memory[~seen] == 255).all()
    assert ctypes.c_void_p.in_dll(ctypes.CDLL(library), "last_stream").value == STREAM


def test_a_batch_of_the_same_length_needs_no_preparation(library: str, knobs: Any, batch: Batch) -> None:
    decoder = _native.NvJpeg(library)
    before = knobs.initialized
    batch.decode(decoder)
    batch.decode(decoder)
    assert knobs.initialized == before + 1
    few = {"starts": batch.start[:2], "sizes": batch.size[:2], "shapes": batch.shape[:2]}
    batch.decode(decoder, places=batch.place[:2], **few)
    assert (knobs.initialized, knobs.batch) == (before + 2, 2)
    none = np.empty(0, np.int64)
    batch.decode(decoder, starts=none, sizes=none, shapes=np.empty((0, 2), np.int64), places=none)
    assert knobs.initialized == before + 2


def test_nothing_is_left_behind(library: str, knobs: Any) -> None:
    decoder = _native.NvJpeg(library)
    assert (knobs.handles, knobs.states, knobs.streams) == (1, 1, 1)
    del decoder
    knobs.no_state = 1
    with pytest.raises(RuntimeError, match=r"make a decoder \(status 5\)"):
        _native.NvJpeg(library)
    assert (knobs.handles, knobs.states, knobs.streams) == (0, 0, 0)


def test_where_there_is_none(library: str, knobs: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="libnvjpeg"):
        _native.NvJpeg(str(tmp_path / "libnvjpeg.so.13"))
    (tmp_path / "libnvjpeg.so").write_bytes(b"no library")
    with pytest.raises(RuntimeError, match="libnvjpeg"):
        _native.NvJpeg(str(tmp_path / "libnvjpeg.so"))
    with pytest.raises(RuntimeError, match="has no nvjpegCreateEx"):
        _native.NvJpeg("libc.so.6")
    knobs.no_device = 1
    with pytest.raises(RuntimeError, match=r"use the device \(status 6\)"):
        _native.NvJpeg(library)


@pytest.mark.parametrize(
    ("status", "error"),
    [(3, ValueError), (4, ValueError), (10, ValueError), (5, RuntimeError), (6, RuntimeError)],
)
def test_whose_fault_it_is(
    library: str, knobs: Any, batch: Batch, status: int, error: type[Exception]
) -> None:
    knobs.fail_decode = status
    with pytest.raises(error, match=rf"decode a batch \(status {status}\)"):
        batch.decode(_native.NvJpeg(library))


def test_what_it_does_not_take(library: str, knobs: Any) -> None:
    """Nothing is written, whatever is wrong with one of them."""
    good = jpeg(16, 16)
    odd = {
        "progressive": (jpeg(16, 16, progressive=True), (16, 16)),
        "another size": (good, (16, 17)),
        "wider than the device can": (jpeg(101, 4), (101, 4)),
        "cut": (good[:-1], (16, 16)),
        "nothing": (b"", (16, 16)),
        "PNG": (b"\x89PNG\r\n\x1a\n" + bytes(100), (16, 16)),
    }
    decoder = _native.NvJpeg(library)
    for why, (cell, size) in odd.items():
        batch = Batch([good, cell, good], [(16, 16), size, (16, 16)])
        with pytest.raises(ValueError, match="does not take picture 1"):
            batch.decode(decoder)
        assert (batch.memory == 255).all(), why
    # It sees another size than we do: to decode would write where others have their pixels.
    knobs.lie = 1
    batch = Batch([good], [(16, 16)])
    with pytest.raises(ValueError, match="does not take picture 0"):
        batch.decode(decoder)
    assert (batch.memory == 255).all()


def test_nothing_is_read_or_written_outside(library: str, batch: Batch) -> None:
    decoder = _native.NvJpeg(library)
    for wrong in (batch.start - 1, batch.start + 1, batch.start + (1 << 62)):
        with pytest.raises(ValueError, match="does not take picture"):
            batch.decode(decoder, starts=wrong)
    for places in (batch.place - 1, batch.place + 6, batch.place + (1 << 62)):
        with pytest.raises(IndexError, match="has no room"):
            batch.decode(decoder, places=places)
    with pytest.raises(IndexError, match="picture 3 has no room"):
        batch.decode(decoder, room=int(batch.place[-1]) + 2)
    assert (batch.memory == 255).all()
    for name in ("starts", "sizes", "shapes", "places"):
        short = {"starts": batch.start, "sizes": batch.size, "shapes": batch.shape, "places": batch.place}[
            name
        ]
        with pytest.raises(ValueError, match="values but"):
            batch.decode(decoder, **{name: short[:3]})


# --- in torch's memory --------------------------------------------------------------------------------------


class Stream:
    cuda_stream = STREAM

    def __init__(self, device: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Event:
    def __init__(self, blocking: bool) -> None:
        assert blocking, "who waits for it should sleep"

    def record(self, stream: Any) -> None:
        assert isinstance(stream, Stream)

    def synchronize(self) -> None:
        pass


@pytest.fixture
def decoder(library: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a device that is the CPU."""
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.nvjpeg import NvJpeg

    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda what: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return NvJpeg(torch.device("cpu"), library)


def pixels_of(batch: Batch, whole: Any, place: Any) -> Iterator[Any]:
    for at, (height, width) in zip(place.tolist(), batch.shape.tolist(), strict=True):
        yield whole.numpy()[at : at + height * width * 3].reshape(height, width, 3)


def expected_of(batch: Batch) -> Iterator[Any]:
    for start, size in zip(batch.start.tolist(), batch.size.tolist(), strict=True):
        yield image.decode(batch.data[start : start + size], "RGB")


@pytest.mark.parametrize("sampling", SUBSAMPLING)
def test_colours_are_those_of_libjpeg(decoder: Any, sampling: int) -> None:
    """Sides odd and even, from one pixel on, and pictures too narrow for colours to be blended."""
    sizes = [(width, height) for width in (1, 2, 3, 4, 5, 6, 7, 8, 17, 64) for height in (1, 2, 3, 4, 9, 32)]
    batch = Batch([jpeg(*size, subsampling=SUBSAMPLING[sampling], quality=95) for size in sizes], sizes)
    found = _native.device_decodable(batch.data, batch.start, batch.size, batch.shape)
    assert set(found.tolist()) == {sampling}
    whole, place = decoder.decode(batch.data, batch.start, batch.size, batch.shape)
    for one, expected, size in zip(pixels_of(batch, whole, place), expected_of(batch), sizes, strict=True):
        assert np.array_equal(one, expected), size


def test_threads_have_a_decoder_each(decoder: Any, batch: Batch, knobs: Any) -> None:
    def one(_: int) -> bool:
        whole, place = decoder.decode(batch.data, batch.start, batch.size, batch.shape)
        assert (place % 256 == 0).all()
        return all(map(np.array_equal, pixels_of(batch, whole, place), expected_of(batch)))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one, range(200)))
    assert 1 <= knobs.handles == len(decoder._idle) <= 4


def test_one_that_failed_is_not_used_again(
    decoder: Any, batch: Batch, knobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(setattr(knobs, "fail_decode", 0)))
    [before] = decoder._idle
    # Once, and then there is memory.
    knobs.fail_decode = 5
    whole, place = decoder.decode(batch.data, batch.start, batch.size, batch.shape)
    assert all(map(np.array_equal, pixels_of(batch, whole, place), expected_of(batch)))
    assert len(emptied) == 1
    assert decoder._idle[0] is not before
    # Again and again.
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(None))
    knobs.fail_decode = 5
    with pytest.raises(RuntimeError, match="status 5"):
        decoder.decode(batch.data, batch.start, batch.size, batch.shape)
    assert len(emptied) == 2
    assert decoder._idle == []
    # When it is the pictures' fault, it is neither tried again nor thrown away.
    knobs.fail_decode = 3
    with pytest.raises(ValueError, match="status 3"):
        decoder.decode(batch.data, batch.start, batch.size, batch.shape)
    assert len(emptied) == 2
    assert len(decoder._idle) == 1


# --- where it is looked for ---------------------------------------------------------------------------------


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from batchplant.interop.gpu import nvjpeg

    beside = tmp_path / "site"
    for file in (
        "site/torchvision/__init__.py", "site/torchvision.libs/libnvjpeg.36e1.so.13",
        "site/nvidia/cu13/lib/libnvjpeg.so.13", "site/nvidia/nvjpeg/lib/libnvjpeg.so.12",
        "site/nvidia/nvjpeg/lib/libother.so", "prefix/lib/libnvjpeg.so", "cuda/lib64/libnvjpeg.so.12",
    ):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.syspath_prepend(str(beside))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so.13")
    found = [one.replace(f"{tmp_path}/", "") for one in nvjpeg.libraries() if str(tmp_path) in one]
    assert [one.rpartition("/")[2] for one in found] == [
        "libnvjpeg.36e1.so.13", "libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so", "libnvjpeg.so.12",
    ]  # fmt: skip
    assert list(nvjpeg.libraries())[-1] == "libnvjpeg.so.13"


def test_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from batchplant.errors import OptionError
    from batchplant.interop.gpu import nvjpeg

    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(nvjpeg, "libraries", lambda: iter(()))
    with pytest.raises(OptionError, match=r"pip install nvidia-nvjpeg.*no library of that name"):
        nvjpeg._on_cuda(99)
    monkeypatch.setattr(nvjpeg, "libraries", lambda: iter([str(tmp_path / "libnvjpeg.so.13")]))
    with pytest.raises(OptionError, match=r"libnvjpeg\.so\.13"):
        nvjpeg._on_cuda(99)
