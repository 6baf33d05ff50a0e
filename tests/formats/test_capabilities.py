"""Every claim of every format (``Format.can``), tried; and what a format does not claim, it does not do."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import functools
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import tracemalloc
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import batchplant as bp
import single_cell
from batchplant.cli import formats as command
from batchplant.cli import main
from batchplant.codecs.media import image, video
from batchplant.data.tensors import TENSORS
from batchplant.formats import energon, megatron, nifti, onnx, recordio, registry, safetensors
from batchplant.formats._table import OUTLINES
from batchplant.formats.base.format import CLAIMS, Capabilities, Format, groups
from batchplant.formats.base.options import own_options
from batchplant.formats.base.shards import writer as shards
from batchplant.schema import Field
from batchplant.storage.remote import source as remote
from batchplant.testing.cases import film, sound
from gguf_files import tensor, write_gguf
from proxy import Proxy
from repository import GOLDEN
from servers import KEY, SECRET, s3_server
from slices import slice_of

NAMES = sorted(OUTLINES)
# Enough samples that the few which some formats look at when they are opened are not most of them.
COUNT, SIZE = 44, 16 << 10
# More samples, or larger ones, for those that fetch a fixed amount when they are opened: 64 records, 1 MB.
COUNTS, SIZES = {"recordio": 160, "lmdb": 64}, {"recordio": 6 << 10, "lmdb": 48 << 10}
WANTED = 37
OPEN: dict[str, dict[str, Any]] = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}}
# Small storage units, so that a small dataset has many; by the options' names, whichever format has them.
UNITS = {
    "row_group_size": 4 * SIZE, "row_group": 4 * SIZE, "batch_size": 4 * SIZE, "chunk_samples": 4,
    "size_limit": 5 * SIZE, "chunk_bytes": 5 * SIZE,
    # No token of ours.
    "eos": 255,
}  # fmt: skip

every_format = pytest.mark.parametrize("name", NAMES)


# -- datasets ----------------------------------------------------------------------------------------------


@functools.cache
def missing(name: str) -> str:
    """What to install before the format can be tried."""
    one = registry.get_format(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(bp.SchemaError):
        try:
            if one.writer is not None:
                bp.create(place(Path(folder), one), content(one)[0], format=name, **options_of(one)).abort()
        except bp.MissingLibraryError as error:
            return str(error)
    return ""


def spec(name: str) -> Format:
    if missing(name):
        pytest.skip(missing(name))
    return registry.get_format(name)


@functools.cache
def bulk(number: int, field: Field, size: int = SIZE) -> Any:
    """A value that does not get smaller when it is packed."""
    random = np.random.default_rng(number)
    if isinstance(field, bp.Image):
        return image.encode(random.integers(0, 255, (74, 74, 3), np.uint8), "png")
    if isinstance(field, bp.Audio):
        return sound(SIZE // 2 + number)
    if isinstance(field, bp.Video):
        return film(4, 64 + 16 * (number % 4))
    return random.integers(0, 255, size, np.uint8) if isinstance(field, bp.Tensor) else random.bytes(size)


def content(one: Format) -> tuple[dict[str, Field], Callable[[int], dict[str, Any]]]:
    """Fields of a dataset that the format holds, a large one and a small one, and what sample n is."""
    if one.tensors:
        blob, shape = bp.Bytes(), np.array([SIZE])
        return dict(TENSORS), lambda n: {
            "name": f"tensor {n}", "dtype": "uint8", "shape": shape, "data": bulk(n, blob)
        }  # fmt: skip
    if "image" in one.fields:
        photo, named = bp.Image(), bp.Text()
        return {"image": photo, "file_name": named}, lambda n: {
            "image": bulk(n, photo), "file_name": f"{n}.png"
        }  # fmt: skip
    if one.fields:
        sequence = bp.Tensor("uint8", (None,))
        small: dict[str, Field] = {"document": bp.Int()} if "document" in one.fields else {}
        return {"tokens": sequence, **small}, lambda n: {
            "tokens": bulk(n, sequence), **dict.fromkeys(small, n // 2)
        }  # fmt: skip
    field: Field = bp.Bytes() if bp.Bytes in one.kinds else bp.Tensor("uint8", (SIZE,))
    if one.media is not None:
        field = one.media()
    elif one.writer is not None and "chunk_samples" in own_options(one.writer):
        # Bytes of any length lie in chunks of so many bytes, and not of so many samples.
        field = bp.Tensor("uint8", (SIZE,))
    size = SIZES.get(one.name, SIZE)
    return {"blob": field, "number": bp.Int()}, lambda n: {"blob": bulk(n, field, size), "number": n}


def options_of(one: Format) -> dict[str, Any]:
    assert one.writer is not None
    return {name: UNITS[name] for name in own_options(one.writer) if name in UNITS}


def write(path: Path, one: Format, samples: range | None = None, **options: Any) -> Path:
    schema, sample = content(one)
    samples = range(COUNTS.get(one.name, COUNT)) if samples is None else samples
    with bp.create(path, schema, format=one.name, **{**options_of(one), **options}) as out:
        for number in samples:
            out.append(sample(number))
    return path


def read(path: Any, name: str, **options: Any) -> bp.Reader:
    return bp.open(path, format=name, **OPEN.get(name, {}), **options)


def place(folder: Path, one: Format) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"data{one.suffixes[0] if one.suffixes else ''}"


def listed(folder: Path) -> Path:
    (folder / "images").mkdir()
    for number in range(COUNT):
        (folder / f"images/{number}.png").write_bytes(bulk(number, bp.Image()))
    rows = [f"{number}\t{number}\timages/{number}.png\n" for number in range(COUNT)]
    (folder / "data.lst").write_text("".join(rows))
    return folder / "data.lst"


def tiled(folder: Path) -> Path:
    tifffile = pytest.importorskip("tifffile")
    pages = np.random.default_rng(0).integers(0, 255, (COUNT, 128, SIZE // 128)).astype(np.uint8)
    tifffile.imwrite(folder / "data.tif", pages, photometric="minisblack", metadata=None)
    return folder / "data.tif"


def scenes(folder: Path) -> Path:
    tifffile = pytest.importorskip("tifffile")
    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 255, (128, SIZE // 128)).astype(np.uint8)
        tifffile.imwrite(folder / f"{number}.tif", pixels, photometric="minisblack", metadata=None)
    return folder


def model_of_fields(folder: Path) -> Path:
    """Long enough that not all of it comes with its first bytes."""
    text = (GOLDEN / "models" / "tree.pmml").read_text("utf-8")
    mark = "<DataDictionary"
    (folder / "data.pmml").write_text(text.replace(mark, f"<!-- {'x' * COUNT * SIZE} -->{mark}", 1), "utf-8")
    return folder / "data.pmml"


def checkpoint(folder: Path) -> Path:
    shutil.copytree(GOLDEN / "models" / "saved_model", folder / "model")
    return folder / "model"


def archived(folder: Path) -> Path:
    """ILSVRC's training set: an archive of two archives."""
    outer = folder / "ILSVRC2012_img_train.tar"
    for first, last in ((0, 20), (20, COUNT)):
        inner = folder / f"n{first:08d}.tar"
        with tarfile.open(inner, "w") as out:
            for number in range(first, last):
                data = bulk(number, bp.Image())
                member = tarfile.TarInfo(f"n{first:08d}_{number:04d}.JPEG")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
        with tarfile.open(outer, "a") as out:
            out.add(inner, inner.name)
        inner.unlink()
    return outer


def repository(folder: Path) -> Path:
    """A dataset repository of one TAR file."""
    with bp.create(folder / "train.tar", {"blob": bp.Image(), "number": bp.Int()}) as out:
        for number in range(COUNT):
            out.append({"blob": bulk(number, bp.Image()), "number": number})
    card = "---\nconfigs:\n- config_name: default\n  data_files: train.tar\n---\n"
    (folder / "README.md").write_text(card)
    return folder


def filmed(folder: Path) -> Path:
    """A video of noise, with a keyframe every 12 frames."""
    pytest.importorskip("av")
    frames = np.random.default_rng(0).integers(0, 256, (COUNT, 96, 128, 3), dtype=np.uint8)
    (folder / "data.mp4").write_bytes(video.encode(frames, 30, gop=12))
    return folder / "data.mp4"


def tensorflow_dataset(folder: Path) -> Path:
    """A folder of TensorFlow Datasets with one shard, whose Examples our own writer made."""
    shard = folder / "tiny-train.tfrecord-00000-of-00001"
    with bp.create(shard, {"blob": bp.Image(), "number": bp.Int()}, format="tfrecord") as out:
        for number in range(COUNT):
            out.append({"blob": bulk(number, bp.Image()), "number": number})
    shard.with_name(f"{shard.name}.schema.json").unlink()
    number, blob = {"tensor": {"dtype": "int64"}}, {"image": {"encodingFormat": "png"}}
    features = {"featuresDict": {"features": {"blob": blob, "number": number}}}
    (folder / "features.json").write_text(json.dumps(features))
    info = {"name": "tiny", "splits": [{"name": "train", "shardLengths": [f"{COUNT}"]}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def database(folder: Path) -> Path:
    with contextlib.closing(sqlite3.connect(folder / "data.sqlite")) as out:
        out.execute("CREATE TABLE t (blob BLOB, number INT)")
        rows = [(bulk(number, bp.Image()), number) for number in range(COUNT)]
        out.executemany("INSERT INTO t VALUES (?, ?)", rows)
        out.commit()
    return folder / "data.sqlite"


def scanned(folder: Path) -> Path:
    for number in range(COUNT):
        values = np.frombuffer(bulk(number, bp.Bytes()), np.uint8).reshape(-1, 16, 16)
        nifti.save(folder / f"{number}.nii", values)
    return folder


def sliced(folder: Path) -> Path:
    """Series of one slice each."""
    for number in range(COUNT):
        values = np.frombuffer(bulk(number, bp.Bytes()), np.uint16).reshape(-1, 128)
        (folder / f"{number}.dcm").write_bytes(slice_of(values, f"1.{100 + number}"))
    return folder


def quantised(folder: Path) -> Path:
    """A model of llama.cpp, of int8."""
    infos = [tensor(f"tensor {number}", [SIZE], 24, number * SIZE) for number in range(COUNT)]
    return write_gguf(folder / "data.gguf", infos, b"".join(bulk(n, bp.Bytes()) for n in range(COUNT)))


def speech(folder: Path, manifest: str) -> Path:
    """Files that pass for sounds, and a manifest of NeMo or Kaldi."""
    for number in range(COUNT):
        (folder / f"{number}.wav").write_bytes(bulk(number, bp.Image()))
    if manifest == "wav.scp":
        for name, end in ((manifest, ".wav"), ("text", " words")):
            (folder / name).write_text("".join(f"{number} {number}{end}\n" for number in range(COUNT)))
        return folder
    rows: list[dict[str, Any]] = [
        {"audio_filepath": f"{number}.wav", "duration": 1.0, "number": number} for number in range(COUNT)
    ]
    if manifest == "cuts.jsonl":
        source = {"type": "file", "channels": [0]}
        rows = [
            {
                "id": f"{number}", "start": 0, "duration": 1, "channel": 0, "type": "MonoCut",
                "recording": {"sources": [{**source, "source": f"{number}.wav"}], "duration": 1},
            }
            for number in range(COUNT)
        ]  # fmt: skip
    (folder / manifest).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / manifest


def prepared(folder: Path) -> Path:
    """A folder of one TAR file, for Megatron-Energon."""
    with bp.create(folder / "part.tar", {"blob": bp.Image(), "number": bp.Int()}) as out:
        for number in range(COUNT):
            out.append({"blob": bulk(number, bp.Image()), "number": number})
    energon.prepare(folder)
    return folder


def blended(folder: Path) -> Path:
    (folder / "part").mkdir()
    prepared(folder / "part")
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    (folder / "data.yaml").write_text(f"{head}splits: {{train: {{path: part}}}}\n")
    return folder / "data.yaml"


def annotated(folder: Path) -> Path:
    # Every column has a name, which opening reads.
    values = [np.frombuffer(bulk(number, bp.Bytes()), np.uint8)[:2048] for number in range(COUNT)]
    return Path(single_cell.make(folder / "data.h5ad", np.stack(values).astype(np.float32), "array"))


def blocked(folder: Path) -> Path:
    blosc2 = pytest.importorskip("blosc2")
    for number in range(COUNT):
        values = np.frombuffer(bulk(number, bp.Bytes()), np.uint8)
        blosc2.asarray(values, urlpath=str(folder / f"{number}.b2nd"))
    return folder


# Formats that are only read.
OTHERS = {
    "anndata": annotated,
    "b2nd": blocked,
    "dicom": sliced,
    "energon": prepared,
    "metadataset": blended,
    "gguf": quantised,
    "kaldi": functools.partial(speech, manifest="wav.scp"),
    "lhotse": functools.partial(speech, manifest="cuts.jsonl"),
    "nemo": functools.partial(speech, manifest="data.json"),
    "nifti": scanned,
    "scenes": scenes,
    "sqlite": database,
    "tfds": tensorflow_dataset,
    "video": filmed,
    "repository": repository,
    "published": archived,
    "lst": listed,
    "tiff": tiled,
    "pmml": model_of_fields,
    "savedmodel": checkpoint,
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One dataset of each format, ROOT/capabilities/FORMAT; nobody changes them."""
    folder = tmp_path_factory.mktemp("root") / "capabilities"

    @functools.cache
    def made(name: str) -> Path:
        one = spec(name)
        path = place(folder / name, one)
        return OTHERS[name](folder / name) if one.writer is None else write(path, one)

    return made


# -- what is fetched ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Traffic:
    """Bytes: of the dataset; fetched to open it for the first time, and later; for one sample, a small field
    of all samples, and the second half of the samples behind the first opening."""

    whole: int
    scanned: int = 0
    opened: int = 0
    sample: int = 0
    field: int = 0
    half: int = 0


@pytest.fixture(scope="module")
def traffic(
    datasets: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Traffic]]:
    pytest.importorskip("obstore", reason="pip install 'batchplant[remote]'")
    root = datasets("npy").parents[2]
    with (
        pytest.MonkeyPatch.context() as patch,
        s3_server(str(root)) as endpoint,
        Proxy(endpoint, root=str(root)) as proxy,
    ):
        proxy.mend = True
        for name in list(os.environ):
            if name.startswith(("AWS_", "BATCHPLANT_", "XDG_")) or "_proxy" in name.lower():
                patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("REGION", "us-east-1")):
            patch.setenv(f"AWS_{name}", value)
        # As if the samples were large: little is asked for at a time, and nothing for good measure.
        patch.setattr(remote, "LEAST", 1 << 10)
        patch.setattr(remote, "RANGE_GAP", 1 << 10)
        patch.setattr(remote, "plan_ranges", functools.partial(remote.plan_ranges, gap=1 << 10))

        @functools.cache
        def measured(name: str) -> Traffic:
            path = datasets(name)
            # It keeps the interpreter's lock while it waits for a server, and the proxy is in this process.
            aside = {"storage": {"aws_endpoint": endpoint}} if name == "delta" else {}
            url = f"s3://{path.relative_to(root)}{'/' if path.is_dir() else ''}"

            def fetched(fields: Callable[[bp.Reader], Any], rows: Callable[[bp.Reader], Any]) -> list[int]:
                before = sent()
                with read(url, name, endpoint=proxy.endpoint, **aside) as reader:
                    opened = sent()
                    reader.read(rows(reader), fields(reader))
                    return [opened - before, sent() - opened]

            def sent() -> int:
                proxy.wait_for(lambda: all(request.done for request in proxy.requests))
                return proxy.bytes_sent

            def names(reader: bp.Reader) -> Any:
                return list(reader.schema)

            def every(reader: bp.Reader) -> Any:
                return range(len(reader))

            result = Traffic(size_of(path))
            # What has to be scanned once is remembered.
            result.scanned, result.half = fetched(names, lambda reader: range(len(reader) // 2, len(reader)))
            result.opened, result.sample = fetched(names, lambda reader: [min(WANTED, len(reader) - 1)])
            small = "name" if spec(name).tensors else -1
            result.field = fetched(lambda item: [list(item.schema)[small] if small == -1 else small], every)[
                1
            ]
            return result

        yield measured


def size_of(path: Path) -> int:
    folder = path if path.is_dir() else path.parent
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@every_format
def test_what_is_fetched(
    name: str, traffic: Callable[[str], Traffic], datasets: Callable[[str], Path]
) -> None:
    """Random access, remote ranges, splittable and single columns."""
    result, can = traffic(name), spec(name).can
    few = result.opened + result.sample < result.whole / 2
    with read(datasets(name), name) as reader:
        # A model may have to be read as a whole from a server, and each tensor lies where it lies.
        large = "data" if "data" in reader.schema else next(iter(reader.schema))
        # SQLite itself reads files of this machine alone.
        known = reader.spans(large, [0]) is not None or name == "sqlite"
    assert (few or known) == can.random_access, result
    assert few == can.remote_ranges, result
    assert (result.scanned + result.half < 0.8 * result.whole) == can.splittable, result
    pruned = len(content(spec(name))[0]) > 1 and result.opened + result.field < result.whole / 2
    assert pruned == can.column_pruning, result


# -- where cells lie ---------------------------------------------------------------------------------------


def mapped(file: str) -> bool:
    """Whether this process has a file in its memory map."""
    real = os.path.realpath(file)
    return any(line.endswith(f" {real}") for line in Path("/proc/self/maps").read_text().splitlines())


@every_format
def test_spans_and_memory_map_and_text(name: str, datasets: Callable[[str], Path], tmp_path: Path) -> None:
    one = spec(name)
    path = datasets(name)
    with read(path, name) as reader:
        result = [spans for field in reader.schema if (spans := reader.spans(field, [0])) is not None]
        # Chunks that hold what is packed already are not packed again, and are used in place.
        if not result and one.writer is not None and bp.Image in one.kinds:
            images = tmp_path / f"images{one.suffixes[0]}"
            with bp.create(images, {"image": bp.Image()}, format=name) as out:
                out.append({"image": bulk(0, bp.Image())})
            with read(images, name) as other:
                result = [spans for spans in [other.spans("image", [0])] if spans is not None]
        assert bool(result) == one.can.spans
        files = []
        for spans in result:
            files.append(spans.files[spans.file[0]])
            assert 0 <= spans.start[0] <= spans.start[0] + spans.size[0] <= os.path.getsize(files[-1])
        reader.read([0])
        # Spans keep the sources that they lie in.
        spans = None
        result.clear()
        assert any(map(mapped, files)) == one.can.memory_map
    is_text = False
    if path.is_file():
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_text("utf-8")
            is_text = all(item.isprintable() or item in "\r\n\t" for item in text[:10_000])
    assert is_text == one.can.human_readable


# -- damage ------------------------------------------------------------------------------------------------


def flip_in(path: Path, value: bytes) -> bool:
    """Change one bit in the middle of a value, wherever its bytes lie, as they are or as text."""
    folder = path if path.is_dir() else path.parent
    middle = value[len(value) // 2 :][:48]
    # Text of base64 begins anew every three bytes.
    texts = [base64.b64encode(value[len(value) // 2 // 3 * 3 :][:48])]
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        for part in (middle, *texts):
            at = data.find(part)
            if at >= 0:
                changed = bytearray(data)
                # One character of base64 becomes another.
                changed[at + 20] = (
                    data[at + 20] ^ 1 if part is middle else ord("AB"[data[at + 20] == ord("A")])
                )
                file.write_bytes(changed)
                return True
    return False


@every_format
def test_checksums(name: str, datasets: Callable[[str], Path], tmp_path: Path) -> None:
    one = spec(name)
    path = datasets(name)
    copy = tmp_path / path.parent.name / path.name
    shutil.copytree(path.parent, copy.parent)
    checked: dict[str, Any] = {"format": name, **OPEN.get(name, {})}
    assert bp.verify(copy, **checked).ok
    if name == "video":
        pytest.skip("a decoder may notice any bit")
    if name == "pmml":
        assert flip_in(copy, b"x" * 1000)
    elif name in ("savedmodel", "gguf"):
        with read(copy, name) as reader:
            value = max((sample["data"] for sample in reader), key=len)
        assert flip_in(copy, value)
    elif name in ("tiff", "nifti", "scenes", "dicom", "anndata", "b2nd"):
        with read(copy, name) as reader:
            large = next(iter(reader[WANTED].values()))
            assert flip_in(copy, large.tobytes("F" if name in ("nifti", "dicom") else "C"))
    elif name == "lerobot":
        # Bytes are numbers of 32 bits in its tables.
        shutil.rmtree(copy)
        sample = content(one)[1](WANTED)
        assert flip_in(write(copy, one, compression="none"), sample["blob"].astype("<i4").tobytes())
    else:
        sample = content(one)[1](WANTED) if one.writer else {"blob": bulk(WANTED, bp.Image())}
        large = next(sample[name] for name in ("data", "blob", "tokens", "image") if name in sample)
        # It has no narrower ones.
        large = np.asarray(large).astype("<u2") if one.name == "datatrove" else large
        assert flip_in(copy, large.tobytes() if isinstance(large, np.ndarray) else large)
    assert (not bp.verify(copy, **checked).ok) == bool(one.can.checksums)


# -- compression -------------------------------------------------------------------------------------------


PACKED = [
    (name, kind)
    for name in NAMES
    for kind in (registry.get_format(name).can.compression or ())
    if registry.get_format(name).writer is not None
]
SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}


def packed_how(one: Format, kind: str) -> tuple[str, dict[str, Any]]:
    """The suffix and the options that make a file packed so."""
    assert one.writer is not None
    options = own_options(one.writer)
    if "compression" in options:
        return one.suffixes[0], {"compression": kind}
    if "compress" in options:
        whether = typing.get_type_hints(one.writer.__init__)["compress"] is bool
        return one.suffixes[0], {"compress": True if whether else kind}
    return one.suffixes[0] + SUFFIXES[kind], {}


@pytest.mark.parametrize(("name", "kind"), PACKED)
def test_compression(name: str, kind: str, tmp_path: Path) -> None:
    one = spec(name)
    suffix, options = packed_how(one, kind)
    rows, width = 100, 512
    try:
        with bp.create(
            tmp_path / f"packed{suffix}", {"values": bp.Tensor("int32", (width,))}, format=name, **options
        ) as out:
            for number in range(rows):
                out.append({"values": np.arange(width, dtype=np.int32) * number % 11})
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    # Without a compression, the values alone take more.
    assert size_of(tmp_path) < 0.75 * rows * width * 4
    with read(tmp_path / f"packed{suffix}", name) as reader:
        assert np.array_equal(reader[rows - 1]["values"], np.arange(width) * (rows - 1) % 11)


def test_what_is_packed_says_where() -> None:
    for one in map(registry.get_format, NAMES):
        assert bool(one.can.compression) == bool(one.can.compressed), one.name
        if one.writer is not None and not one.can.compression:
            assert not {"compression", "compress", "level"} & set(own_options(one.writer)), one.name
            assert not any(suffix.endswith((".gz", ".zst")) for suffix in one.suffixes), one.name


@pytest.mark.parametrize("kind", registry.get_format("tiff").can.compression)
def test_compression_of_tiff(kind: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    pages = np.zeros((3, 40, 50), np.uint8)
    options = {
        "photometric": "minisblack",
        "metadata": None,
        "compression": {"deflate": "zlib"}.get(kind, kind),
    }
    tifffile.imwrite(tmp_path / "a.tif", pages, **options)
    assert (tmp_path / "a.tif").stat().st_size < pages.nbytes / 2
    with read(tmp_path / "a.tif", "tiff") as reader:
        assert np.array_equal(reader[2]["data"], pages[2])


# -- reading -----------------------------------------------------------------------------------------------


@every_format
def test_row_filters(name: str, datasets: Callable[[str], Path]) -> None:
    with read(datasets(name), name) as reader:
        wanted = {
            "lst": "id == 37", "pmml": "name == 'x'", "tiff": "", "megatron": "document == 3", "tokens": "",
            "published": "label == 1", "video": "time > 1", "datatrove": "",
            "nifti": "name == '37'", "b2nd": "name == '37'", "dicom": "name == '1.137'",
            "kaldi": "id == '37'", "lhotse": "id == '37'",
            "scenes": "",
        }.get(name, "number == 37")  # fmt: skip
        wanted = "name == 'tensor 37'" if spec(name).tensors else wanted
        wanted = "file_name == '37.png'" if "file_name" in reader.schema else wanted
        facts = reader.filter(wanted).facts() if wanted else {}
    assert (facts.get("bytes skipped", 0) > 0) == (spec(name).can.row_filters == "push-down")


# -- writing -----------------------------------------------------------------------------------------------

WRITTEN = [name for name in NAMES if registry.get_format(name).writer is not None]
every_writer = pytest.mark.parametrize("name", WRITTEN)


def number_of(sample: dict[str, Any]) -> int:
    """Which sample it is."""
    if "number" in sample:
        return int(sample["number"])
    field = bp.Tensor("uint8", (None,))
    return next(n for n in range(COUNT) if np.array_equal(bulk(n, field), sample["tokens"]))


def growing(one: Format) -> dict[str, Any]:
    """What has to be said of a dataset that is to grow."""
    return {"resizable": True} if "resizable" in own_options(one.writer) else {}


@every_writer
def test_append_and_concurrent_writers(name: str, tmp_path: Path) -> None:
    one = spec(name)
    path = write(place(tmp_path, one), one, range(3), **growing(one))
    if not one.can.append:
        assert not one.can.concurrent_writers
        with pytest.raises(bp.OptionError, match="cannot be appended to"):
            write(path, one, range(3, 5), mode="append")
        return
    write(path, one, range(3, 5), mode="append")
    with read(path, name) as reader:
        assert [number_of(sample) for sample in reader] == list(range(5))
    schema, sample = content(one)
    first = bp.create(path, schema, format=name, mode="append", **options_of(one))
    try:
        first.append(sample(5))
        try:
            with bp.create(path, schema, format=name, mode="append", **options_of(one)) as second:
                second.append(sample(6))
            first.close()
        except bp.BatchplantError:
            first.abort()
            assert not one.can.concurrent_writers
    finally:
        first.abort()
    with read(path, name) as reader:
        landed = sorted(map(number_of, reader))
    assert (landed == list(range(7))) == one.can.concurrent_writers


@every_writer
def test_keeps_schema_and_metadata(name: str, tmp_path: Path) -> None:
    one = spec(name)
    assert one.writer is not None
    fields: dict[str, Field] = {
        "label": bp.Int("int16", names=("cat", "dog")), "real": bp.Float("float32"),
        "maybe": bp.Text(optional=True), "when": bp.Time("ms", "UTC"), "box": bp.Tensor("int16", (2, None)),
    }  # fmt: skip
    values = {
        "label": 1,
        "real": 0.5,
        "maybe": None,
        "when": np.datetime64(7, "ms"),
        "box": np.ones((2, 3), "i2"),
    }
    schema = {key: field for key, field in fields.items() if one.tensors or one.refuses(field) is None}
    sample = {key: values[key] for key in schema}
    if one.media is not None:
        schema, sample = {"blob": one.media(), **schema}, {"blob": bulk(0, one.media()), **sample}
    if one.tensors:
        schema, sample = dict(TENSORS), content(one)[1](0)
    if "image" in one.fields:
        schema, sample = content(one)[0], content(one)[1](0)
    elif one.fields:
        schema, sample = {"tokens": bp.Tensor("int16", (7,))}, {"tokens": np.arange(7, dtype=np.int16)}
    path = place(tmp_path, one)
    notes = {"metadata": {"about": "a note"}, "attributes": {"": {"about": "a note"}}}
    given = {key: notes[key] for key in own_options(one.writer) if key in notes}
    with bp.create(path, schema, format=name, **options_of(one), **given) as out:
        out.append(sample)
    with read(path, name) as reader:
        same = dict(reader.schema) == schema and list(reader.schema) == list(schema)
        kept = reader.metadata.get("about") or dict(reader.attributes).get("", {}).get("about")
    assert same == one.can.keeps_schema
    assert (kept == "a note") == one.can.metadata


@every_writer
def test_nested(name: str, tmp_path: Path) -> None:
    one = spec(name)
    nested = {"tags": bp.List(bp.Text()), "record": bp.Struct({"n": bp.Int()})}
    schema = {**({"blob": one.media()} if one.media else {}), **nested}
    path = place(tmp_path, one)
    if not one.can.nested:
        with pytest.raises(bp.SchemaError):
            bp.create(path, schema, format=name)
        return
    sample = {"tags": ["a", ""], "record": {"n": 3}}
    with bp.create(path, schema, format=name) as out:
        out.append({**sample, **({"blob": bulk(0, one.media())} if one.media else {})})
    with read(path, name) as reader:
        assert {key: reader[0][key] for key in sample} == sample


@every_writer
def test_streaming_write(name: str, tmp_path: Path) -> None:
    """More samples take no more memory of ours (that of native libraries is not seen here)."""
    one = spec(name)
    schema, sample = content(one)
    large = "data" if one.tensors else next(iter(one.fields), "blob")
    value = bulk(0, schema[large])

    def peak(count: int) -> int:
        path = place(tmp_path / str(count), one)
        with bp.create(path, schema, format=name, workers=1, **options_of(one)) as out:
            tracemalloc.start()
            for number in range(count):
                own = {"name": f"{number}", "document": number, "file_name": f"{number}.png"}
                own = {key: value for key, value in own.items() if key in schema}
                out.append({**sample(number % 16), large: value, **own})
                if number % 8 == 7:
                    # Nothing waits for its turn, however busy the machine is.
                    out.checkpoint()
            out.close()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    for number in range(16):
        sample(number)
    # A library's own needs vary by half a megabyte.
    least, most = peak(8), peak(48)
    assert (most - least < 30 * SIZE) == one.can.streaming_write


def beyond_beton(folder: Path, patch: pytest.MonkeyPatch) -> None:
    with bp.create(folder / "a.beton", {"image": bp.Image()}) as out:
        out.append({"image": image.encode(np.zeros((1, 65_536, 3), np.uint8), "png")})


def shrink_shards(patch: pytest.MonkeyPatch) -> None:
    assert shards.MAX_SHARD_BYTES == (1 << 32) - 1
    patch.setattr(shards, "MAX_SHARD_BYTES", shards.RESERVED_BYTES + SIZE)


def beyond_mds(folder: Path, patch: pytest.MonkeyPatch) -> None:
    shrink_shards(patch)
    with bp.create(folder / "a.mds", {"blob": bp.Bytes()}, size_limit=SIZE) as out:
        out.append({"blob": bytes(SIZE + 1)})


def beyond_litdata(folder: Path, patch: pytest.MonkeyPatch) -> None:
    shrink_shards(patch)
    with bp.create(folder / "a.litdata", {"blob": bp.Bytes()}, chunk_bytes=SIZE) as out:
        out.append({"blob": bytes(SIZE + 1)})


def beyond_recordio(folder: Path, patch: pytest.MonkeyPatch) -> None:
    assert recordio.RecordIOWriter.max_record_bytes == (512 << 20) - 1
    patch.setattr(recordio.RecordIOWriter, "max_record_bytes", SIZE)
    with bp.create(folder / "a.rec", {"blob": bp.Bytes()}) as out:
        out.append({"blob": bytes(SIZE + 1)})


def beyond_safetensors(folder: Path, patch: pytest.MonkeyPatch) -> None:
    assert safetensors.SafetensorsWriter.max_header_bytes == 100_000_000
    patch.setattr(safetensors.SafetensorsWriter, "max_header_bytes", 30)
    write(folder / "a.safetensors", spec("safetensors"), range(1))


def beyond_onnx(folder: Path, patch: pytest.MonkeyPatch) -> None:
    assert onnx.OnnxWriter.max_inline_bytes == 2_000_000_000
    patch.setattr(onnx.OnnxWriter, "max_inline_bytes", SIZE)
    write(folder / "a.onnx", spec("onnx"), range(1))
    assert (folder / "a.onnx.data").stat().st_size >= SIZE
    raise bp.SchemaError("it lies beside it")


def beyond_pmml(folder: Path, patch: pytest.MonkeyPatch) -> None:
    assert own_options(spec("pmml").reader)["most_bytes"].default == 2 << 30
    read(model_of_fields(folder), "pmml", most_bytes=SIZE).close()


def beyond_megatron(folder: Path, patch: pytest.MonkeyPatch) -> None:
    assert megatron.MegatronWriter.max_tokens == 2**31 - 1
    patch.setattr(megatron.MegatronWriter, "max_tokens", 10)
    with bp.create(folder / "a.idx", {"tokens": bp.Tensor("uint8", (None,))}) as out:
        out.append({"tokens": np.zeros(11, np.uint8)})


BEYOND = {
    "beton": beyond_beton, "mds": beyond_mds, "litdata": beyond_litdata, "recordio": beyond_recordio,
    "safetensors": beyond_safetensors, "onnx": beyond_onnx, "pmml": beyond_pmml, "megatron": beyond_megatron,
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_limits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec(name).can.max_size
    with pytest.raises(bp.BatchplantError):
        BEYOND[name](tmp_path, monkeypatch)


@pytest.mark.parametrize("name", [name for name in NAMES if registry.get_format(name).can.time_travel])
def test_time_travel(name: str, tmp_path: Path) -> None:
    one = spec(name)
    path = write(place(tmp_path, one), one, range(2))
    between = datetime.datetime.now(datetime.UTC)
    write(path, one, range(2, 3), mode="append")
    with read(path, name) as now, read(path, name, at=between) as then:
        assert (len(now), len(then)) == (3, 2)


# -- all of it ---------------------------------------------------------------------------------------------


def test_every_format_says_who_reads_it_and_how_much_it_holds() -> None:
    for one in map(registry.get_format, NAMES):
        assert one.can.ecosystem, one.name
        assert "batchplant" not in one.can.ecosystem, one.name
        assert one.can.row_filters, one.name
        assert bool(one.can.max_size) == (one.name in BEYOND), one.name
        assert ("at" in own_options(one.reader)) == one.can.time_travel, one.name
        assert one.describe()["can"] == json.loads(json.dumps(one.can.describe())), one.name


def test_a_plug_in_that_says_nothing_can_what_its_classes_say() -> None:
    known = registry.get_format("csv")
    plain = Format("plain", "Plain", (".plain",), "", known.reader, known.writer, kinds=known.kinds)
    try:
        assert plain.can == Capabilities(append=True, nested=True, row_filters="scan")
    finally:
        # Its classes are told which format they are of.
        known.reader.format = known.writer.format = "csv"


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines that `formats --compare` prints in a terminal of so many columns."""

    def lines(columns: int, *names: str) -> list[str]:
        monkeypatch.setattr(command, "console", lambda: Console(width=columns, highlight=False))
        assert main(["formats", "--compare", *names]) == 0
        return capsys.readouterr().out.splitlines()

    return lines


def test_compare_puts_a_few_side_by_side(compared: Callable[..., list[str]]) -> None:
    lines = compared(80, "beton", "parquet,csv", "beton")
    assert lines[0].split() == ["beton", "parquet", "csv"]
    rows = {CLAIMS[name]["title"] for name in CLAIMS}
    assert rows <= {line[:16].strip() for line in lines}
    assert next(line for line in lines if line.startswith("row filters")).split()[2:] == [
        "scan", "push-down", "scan"
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("columns", [76, 80, 200])
def test_compare_shows_all_below_each_other(columns: int, compared: Callable[..., list[str]]) -> None:
    lines = compared(columns)
    assert all(len(line) <= columns for line in lines)
    # Once in each group, and once more for those who read it; no word is broken.
    for name in NAMES:
        assert sum(line.split()[:1] == [name] for line in lines) == len(groups()) + 1
    words = {word for line in lines for word in line.replace(",", " ").split()}
    assert {"splittable", "push-down", "streaming", "bitshuffle", "TensorStore"} <= words


def test_compare_in_a_narrow_terminal_is_a_list(compared: Callable[..., list[str]]) -> None:
    lines = compared(40, "beton", "zarr", "csv")
    assert lines[:2] == ["beton", "  random access"]
    assert "  checksums: chunk" in lines


def test_compare_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--compare", "zarr", "--json"]) == 0
    [actual] = json.loads(capsys.readouterr().out)
    assert actual == {"name": "zarr", **registry.get_format("zarr").can.describe()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["beton", "csv"], "--compare beton csv"), (["--compare", "parket"], "did you mean parquet?")],
)
def test_names_that_are_no_use(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["formats", *arguments]) == 2
    assert message in capsys.readouterr().err
