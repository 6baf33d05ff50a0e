"""What is damaged: small datasets of every format and variant, and files of other libraries."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pickle
import shutil
import sqlite3
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import batchplant as bp
from batchplant.formats import energon, nifti
from batchplant.formats.base.tensors import TENSORS, from_array
from batchplant.formats.registry import all_formats, find_format

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
# Larger files would mostly be data.
MOST = 256 << 10


def sample(number: int) -> dict[str, object]:
    rng = np.random.default_rng(number)
    return {
        "image": rng.integers(0, 256, (6, 5 + number, 3), dtype=np.uint8),
        "number": number,
        "score": number / 3,
        "flag": number % 2 == 0,
        "text": "größe" * number,
        "meta": {"a": [number, None]},
        "blob": bytes(range(number)),
        "array": rng.random((2, 3)),
        "ragged": np.arange(number, dtype=np.int32),
        "table": np.ones((number, number), dtype=np.int16),
        "maybe": None if number % 2 else number,
        "when": number * 10**9,
        "day": None if number % 2 else "2024-02-29",
        "price": number,
        "id": uuid.UUID(int=number),
        "tags": [{"name": "ä", "at": number}, None][: number % 3],
        "sound": (GOLDEN / "audio" / "ulaw.wav").read_bytes(),
        "clip": (GOLDEN / "video" / "vp9.webm").read_bytes(),
    }


KINDS = {
    "image": bp.Image(), "number": bp.Int(), "score": bp.Float(), "flag": bp.Bool(), "text": bp.Text(),
    "meta": bp.Json(), "blob": bp.Bytes(), "array": bp.Tensor("float64", (2, 3)),
    "ragged": bp.Tensor("int32", (None,)), "table": bp.Tensor("int16", (None, None)),
    "when": bp.Time("us", "UTC"), "day": bp.Time("D", optional=True), "price": bp.Decimal(9, 2),
    "id": bp.Uuid(),
    "tags": bp.List(bp.Struct({"name": bp.Text(), "at": bp.Duration("ms")}, optional=True)),
    "maybe": bp.Int(optional=True), "sound": bp.Audio(), "clip": bp.Video(),
}  # fmt: skip

# Sounds and films take long to decode, and are bytes to most formats.
MEDIA, MEDIA_IN = {"sound", "clip"}, ("audiofolder", "videofolder", "webdataset")

# What we do not write.
READ_ONLY = {
    "dicom": GOLDEN / "dicom" / "slice.dcm",
    "gguf": GOLDEN / "gguf" / "quantised.gguf",
    "pmml": GOLDEN / "models" / "forest.pmml", "savedmodel": GOLDEN / "models" / "saved_model",
    "tiff": GOLDEN / "tiff" / "stack.tif", "video": GOLDEN / "video" / "h264.mp4",
}  # fmt: skip

# Other ways to write a format: the suffix, and options.
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "csv.gz": ("csv", ".csv.gz", {}),
    "csv.zst": ("csv", ".csv.zst", {}),
    "json.array": ("json", ".json", {}),
    "json.gz": ("json", ".jsonl.gz", {}),
    "json.zst": ("json", ".jsonl.zst", {}),
    "tfrecord.gz": ("tfrecord", ".tfrecord.gz", {}),
    "webdataset.gz": ("webdataset", ".tar.gz", {}),
    "zarr.zip": ("zarr", ".zarr.zip", {}),
    "zarr2": ("zarr", ".zarr", {"zarr_format": 2, "compression": "blosc"}),
    "zarr.shards": ("zarr", ".zarr", {"chunks_per_shard": 2, "chunk_samples": 2, "compression": "gzip"}),
    "n5.zip": ("n5", ".n5.zip", {}),
    "arrow.stream": ("arrow", ".arrows", {}),
    "beton.many": ("beton", ".beton", {"shard_samples": 2}),
    "mds.zstd": ("mds", ".mds", {"compression": "zstd"}),
    "litdata.zstd": ("litdata", ".litdata", {"compression": "zstd"}),
    "yolo.keypoints": ("yolo", ".yolo", {"without": ("polygons",)}),
    "tfrecord.many": ("tfrecord", ".tfrecord", {"shard_samples": 2}),
}
# Those that scan a file and remember what they found in NAME.bpindex.
INDEXED = ("csv", "json", "lmdb", "msgpack", "recordio", "tfrecord", "tokens", "webdataset")


@dataclasses.dataclass
class Case:
    """A dataset to damage: what is opened (and as what), and the folder in which it and its side-cars lie."""

    name: str
    format: str | None
    path: Path
    folder: Path

    def files(self) -> list[Path]:
        return sorted(
            path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size <= MOST
        )


def names() -> list[str]:
    """All cases."""
    written = [name for name, item in all_formats().items() if item.writer is not None]
    # A folder of nothing but packed files has none that is opened as it is.
    folders = [
        path for path in GOLDEN.iterdir() if path.is_dir() and any(f.suffix != ".xz" for f in path.iterdir())
    ]
    golden = sorted(f"golden-{path.name}" for path in folders)
    indexed = [f"{name}.index" for name in INDEXED]
    return [*sorted([*written, *READ_ONLY, *MAKERS]), *VARIANTS, *FOREIGN, *indexed, *golden]


def make(name: str, folder: Path) -> list[Case]:
    """The datasets of a case; empty where a library is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(bp.MissingLibraryError):
        if name.startswith("golden-"):
            return golden(name.removeprefix("golden-"), folder)
        if name in FOREIGN:
            format, maker = FOREIGN[name]
            return [Case(name, format, maker(folder), folder)]
        format, suffix, options = VARIANTS.get(name, (name.removesuffix(".index"), None, {}))
        path = make_seed(format, folder, suffix, **options)
        if name.endswith(".index"):
            bp.open(path, format=format, index="write").close()
        return [Case(name, None if "shard_samples" in options else format, path, folder)]
    return []


def make_seed(name: str, folder: Path, suffix: str | None = None, **options: Any) -> Path:
    """A small dataset with every kind that the format holds; a model has tensors of several dtypes."""
    result = all_formats()[name]
    if name in MAKERS:
        return MAKERS[name](folder)
    if name in READ_ONLY:
        whole, copied = READ_ONLY[name].is_dir(), folder / READ_ONLY[name].name
        copy = shutil.copytree if whole else shutil.copy
        return Path(copy(READ_ONLY[name], copied))
    path = folder / f"seed{suffix or (result.suffixes or ('',))[0]}"
    if result.tensors:
        with bp.create(path, TENSORS, format=name) as out:
            for dtype in ("float32", "int64", "bool", "uint8"):
                out.append(from_array(f"layer.{dtype}", np.arange(6).reshape(2, 3).astype(dtype)))
        return path
    if "image" in result.fields:
        return _detection(path, name, result, **options)
    if result.fields:
        options |= {"eos": 0} if name == "tokens" else {}
        field = result.fields["tokens"]
        with bp.create(path, {"tokens": field}, format=name, checksums=True, **options) as out:
            for number in range(3):
                out.append({"tokens": np.arange(1, 4 + number).astype(getattr(field, "dtype", "int32"))})
        return path
    fields = {key: field for key, field in KINDS.items() if result.refuses(field) is None}
    if name not in MEDIA_IN:
        fields = {key: field for key, field in fields.items() if key not in MEDIA}
    with bp.create(path, fields, format=name, checksums=True, **options) as out:
        for number in range(3):
            out.append({key: value for key, value in sample(number).items() if key in fields})
    return folder if "shard_samples" in options else path


# Values of an image with ``number`` objects.
ANNOTATIONS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "boxes": (bp.Boxes(), lambda n: np.tile(np.array([0.5, 0.5, 2, 2], np.float32), (n, 1))),
    "labels": (bp.Labels(("cat", "dog")), lambda n: np.arange(n) % 2),
    "polygons": (bp.Polygons(), lambda n: [[[0.0, 0, 2, 0, 2, 2]]] * n),
    "rle": (bp.List(bp.Text()), lambda n: ["4:0 2 3" if number % 2 else "" for number in range(n)]),
    "keypoints": (bp.Keypoints(2, ("nose", "tail")), lambda n: np.ones((n, 2, 3), np.float32)),
    "area": (bp.Tensor("float32", (None,)), lambda n: np.ones(n, np.float32)),
    "iscrowd": (bp.Tensor("bool", (None,)), lambda n: np.zeros(n, bool)),
    "captions": (bp.List(bp.Text()), lambda n: ["größe"] * n),
    "difficult": (bp.Tensor("bool", (None,)), lambda n: np.ones(n, bool)),
    "pose": (bp.List(bp.Text()), lambda n: ["Left"] * n),
    "mask": (bp.Image(mode="L", mask=True), lambda n: np.full((6, 5 + n), n, np.uint8)),
}


def _detection(path: Path, name: str, found: Any, without: tuple[str, ...] = ("keypoints",)) -> Path:
    """Images with boxes and all other annotations that the format has; YOLO has outlines or keypoints."""
    left_out = without if name == "yolo" else ("rle", "captions")
    chosen = {
        key: annotation
        for key, annotation in ANNOTATIONS.items()
        if key in found.fields and key not in left_out
    }
    fields = {"image": bp.Image(), **{key: kind for key, (kind, _) in chosen.items()}}
    with bp.create(path, fields, format=name, checksums=True) as out:
        for number in range(3):
            cells = {key: value(number) for key, (_, value) in chosen.items()}
            out.append({"image": sample(number)["image"], **cells})
    return path


def _published(folder: Path) -> Path:
    """CIFAR-10 as its Python version has it."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    (folder / "cifar").mkdir()
    (folder / "cifar/test_batch").write_bytes(pickle.dumps({"data": pixels, "labels": [0, 2, 1]}, 2))
    (folder / "cifar/batches.meta").write_bytes(pickle.dumps({"label_names": ["a", "b", "c"]}, 2))
    return folder / "cifar"


def _list(folder: Path) -> Path:
    with bp.create(folder / "images", {"image": bp.Image()}, format="imagefolder") as out:
        for number in range(3):
            out.append({"image": sample(number)["image"]})
    names = sorted(path.name for path in (folder / "images").glob("*.png"))
    lines = [f"{number}\t{number}.5\timages/{name}\n" for number, name in enumerate(names)]
    (folder / "seed.lst").write_text("".join(lines))
    return folder / "seed.lst"


def _repository(folder: Path) -> Path:
    (folder / "repository").mkdir()
    with bp.create(folder / "repository/train.csv", {"number": bp.Int(), "text": bp.Text()}) as out:
        for number in range(3):
            out.append({"number": number, "text": "größe"})
    card = "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n---\n"
    (folder / "repository/README.md").write_text(card)
    return folder / "repository"


def _tfds(folder: Path) -> Path:
    (folder / "tfds").mkdir()
    shard = folder / "tfds/tfds-train.tfrecord-00000-of-00001"
    with bp.create(shard, {"number": bp.Int(), "image": bp.Image("png")}, format="tfrecord") as out:
        for number in range(3):
            out.append({"number": number, "image": sample(number)["image"]})
    kinds = {"number": {"tensor": {"dtype": "int64"}}, "image": {"image": {"encodingFormat": "png"}}}
    info = {"name": "tfds", "splits": [{"name": "train", "shardLengths": ["3"]}]}
    (folder / "tfds/features.json").write_text(json.dumps({"featuresDict": {"features": kinds}}))
    (folder / "tfds/dataset_info.json").write_text(json.dumps(info))
    return folder / "tfds"


def _sounds(folder: Path) -> bytes:
    (folder / "wavs").mkdir()
    data = (GOLDEN / "audio" / "ulaw.wav").read_bytes()
    (folder / "wavs/a.wav").write_bytes(data)
    return data


def _nemo(folder: Path) -> Path:
    data = _sounds(folder)
    with tarfile.open(folder / "audio_0.tar", "w") as out:
        for name in ("wavs_a.wav", "b.wav"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    rows = [
        {"audio_filepath": name, "duration": 0.1, "offset": 0.05, "text": "größe", "shard_id": 0}
        for name in ("wavs_a.wav", "wavs_a-sub1.wav", "b.wav")
    ]
    (folder / "train.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.json"


def _lhotse(folder: Path) -> Path:
    """A shard of Shar."""
    data = (GOLDEN / "audio" / "ulaw.wav").read_bytes()
    source = {"type": "shar", "channels": [0], "source": ""}
    output = {"id": "s", "start": 0, "duration": 0.1, "text": "größe", "speaker": "x"}
    cuts = [
        {
            "id": f"a/{number}.x", "start": start, "duration": 0.1, "channel": 0, "supervisions": [output],
            "recording": {"id": "a", "sources": [source], "duration": 0.1}, "type": "MonoCut",
        }
        for number, start in enumerate([0, 0.01])
    ]  # fmt: skip
    (folder / "shar").mkdir()
    with tarfile.open(folder / "shar/recording.000000.tar", "w") as out:
        for cut in cuts:
            manifest = json.dumps(cut["recording"]).encode()
            for name, content in ((f"{cut['id']}.wav", data), (f"{cut['id']}.json", manifest)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                out.addfile(member, io.BytesIO(content))
    (folder / "shar/cuts.000000.jsonl").write_text("".join(json.dumps(cut) + "\n" for cut in cuts))
    return folder / "shar"


def _kaldi(folder: Path) -> Path:
    _sounds(folder)
    (folder / "wav.scp").write_text("a wavs/a.wav\nb wavs/a.wav\n")
    (folder / "segments").write_text("x a 0.01 0.1\ny b 0 -1\n")
    (folder / "text").write_text("x some words\ny größe\n")
    (folder / "utt2spk").write_text("x one\ny two\n")
    return folder


def _nifti(folder: Path) -> Path:
    values = np.arange(6 * 5 * 4, dtype=np.int16).reshape(6, 5, 4)
    for name in ("a.nii", "b.nii.gz"):
        nifti.save(folder / name, values)
    return folder


def _b2nd(folder: Path) -> Path:
    import blosc2

    for name in ("a", "a_seg"):
        values = np.arange(6 * 5 * 4, dtype=np.int16).reshape(1, 6, 5, 4) % 7
        blosc2.asarray(values, urlpath=str(folder / f"{name}.b2nd"), chunks=(1, 4, 5, 4), blocks=(1, 2, 5, 4))
    return folder


def _scenes(folder: Path) -> Path:
    import tifffile

    stack = tifffile.imread(GOLDEN / "tiff" / "stack.tif")
    key = (1, 1, 0, 2, 1025, 0, 1, 1, 3072, 0, 1, 32633)
    tags = [(33550, "d", 3, (1, 1, 0)), (33922, "d", 6, (0, 0, 0, 5, 5, 0)), (34735, "H", len(key), key)]
    tags = [(*tag, True) for tag in tags]
    for name, compression in (("a", None), ("b", "zlib")):
        with tifffile.TiffWriter(folder / f"{name}.tif") as out:
            options = {"photometric": "minisblack", "tile": (16, 16), "compression": compression}
            out.write(stack[0], subifds=1, extratags=tags, metadata=None, **options)
            out.write(stack[0][::2, ::2], metadata=None, **options)
    return folder


def _sqlite(folder: Path) -> Path:
    with bp.create(folder / "images", {"image": bp.Image()}, format="imagefolder") as out:
        out.append({"image": sample(0)["image"]})
    image = next((folder / "images").glob("*.png")).read_bytes()
    shutil.rmtree(folder / "images")
    with contextlib.closing(sqlite3.connect(folder / "seed.sqlite")) as out:
        out.execute("PRAGMA page_size = 512")
        out.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, image BLOB, text TEXT, x)")
        rows = [(7 * n, image, "größe" * n, n / 2) for n in range(40)]
        out.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        out.commit()
    return folder / "seed.sqlite"


def _energon(folder: Path) -> Path:
    fields = {"__key__": bp.Text(), "n": bp.Int(), "png": bp.Image("png")}
    with bp.create(folder / "part.tar", fields, format="webdataset", shard_samples=2) as out:
        for number in range(4):
            out.append({"__key__": f"k{number}", "n": number, "png": sample(0)["image"]})
    energon.prepare(folder)
    return folder


def _metadataset(folder: Path) -> Path:
    (folder / "part").mkdir()
    _energon(folder / "part")
    # A JSON document is one of YAML.
    entry = {"path": "part", "subset": {"range": ["0%", "100%"]}}
    join = {"join": {"a": entry, "b": {**entry, "nonmatch": "skip"}}, "joiner": "x"}
    splits = {"train": {"blend": [{**entry, "weight": 2}, {"concat": [entry, entry]}]}, "val": join}
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    (folder / "seed.yaml").write_text(f"{head}splits: {json.dumps(splits)}\n")
    return folder / "seed.yaml"


def _anndata(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "seed.h5ad", "w") as file:
        for name, values in (("data", np.ones(90, "f4")), ("indices", np.arange(90) % 7)):
            file.create_dataset(f"X/{name}", data=values, chunks=(32,), compression="gzip")
        file["X/indptr"] = np.arange(0, 91, 9)
        for frame, rows in (("obs", 10), ("var", 7)):
            names = [f"{frame}{row}" for row in range(rows)]
            file.create_dataset(f"{frame}/_index", data=names, dtype=h5py.string_dtype())
        file["obs/type/codes"] = np.arange(10, dtype="i1") % 3 - 1
        file.create_dataset("obs/type/categories", data=["B", "T"], dtype=h5py.string_dtype())
    return folder / "seed.h5ad"


# Formats that are only read, and of which there is no golden file.
MAKERS: dict[str, Callable[[Path], Path]] = {
    "anndata": _anndata,
    "b2nd": _b2nd,
    "energon": _energon,
    "metadataset": _metadataset,
    "kaldi": _kaldi,
    "lhotse": _lhotse,
    "lst": _list,
    "nemo": _nemo,
    "nifti": _nifti,
    "published": _published,
    "repository": _repository,
    "scenes": _scenes,
    "sqlite": _sqlite,
    "tfds": _tfds,
}


def _ome(folder: Path) -> Path:
    import zarr

    group = zarr.open_group(folder / "seed.zarr", mode="w", zarr_format=2)
    values = np.arange(2 * 12 * 10, dtype=np.uint16).reshape(2, 12, 10)
    axes = [{"name": name} for name in "cyx"]
    for path in ("", "labels/cells/"):
        for level, step in enumerate((1, 2)):
            group.create_array(f"{path}{level}", data=values[:, ::step, ::step], chunks=(1, 8, 8))
        levels = {"axes": axes, "datasets": [{"path": "0"}, {"path": "1"}], "version": "0.4"}
        group.require_group(path or "/").attrs["multiscales"] = [levels]
    return folder / "seed.zarr"


def _kerchunk(folder: Path) -> Path:
    (folder / "data.bin").write_bytes(b"header" + np.arange(24, dtype="<i4").tobytes())
    document = {
        "zarr_format": 2, "shape": [6, 4], "chunks": [3, 4], "dtype": "<i4", "compressor": None,
        "fill_value": -1, "order": "C", "filters": None,
    }  # fmt: skip
    references = {
        ".zgroup": '{"zarr_format": 2}',
        "x/.zarray": json.dumps(document),
        "x/1.0": "base64:" + 16 * "AAAA",
    }
    references["x/0.0"] = ["{{u}}.bin", 6, 48]
    text = json.dumps({"version": 1, "templates": {"u": "data"}, "refs": references})
    (folder / "seed.json").write_text(text)
    return folder / "seed.json"


def _stac(folder: Path) -> Path:
    _scenes(folder)
    items = [{"id": name, "assets": {"data": {"href": f"./{name}.tif"}}, "properties": {}} for name in "ab"]
    (folder / "seed.json").write_text(json.dumps({"type": "FeatureCollection", "features": items}))
    return folder / "seed.json"


# Variants of formats that we do not write: the format, and what makes one.
FOREIGN: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "zarr.ome": ("zarr", _ome), "zarr.kerchunk": ("zarr", _kerchunk), "scenes.stac": ("scenes", _stac),
}  # fmt: skip


def golden(name: str, folder: Path) -> list[Case]:
    """Every file and folder there that we open, in a folder of its own with what lies beside it."""
    result = []
    for number, path in enumerate(sorted((GOLDEN / name).iterdir())):
        with contextlib.suppress(bp.BatchplantError):
            known = find_format(os.fspath(path))
            if known is None or (path.is_file() and path.stat().st_size > MOST):
                continue
            bp.open(path, format=known.name).close()
            here = folder / str(number)
            shutil.copytree(
                GOLDEN / name, here, ignore=lambda _, names: [n for n in names if n == "README.md"]
            )
            # What belongs to it may be called like it; the rest only costs time.
            for other in sorted(here.iterdir()):
                if other.is_file() and other.name.split(".")[0] != path.name.split(".")[0]:
                    other.unlink()
                elif other.is_dir() and other.name != path.name:
                    shutil.rmtree(other)
            with contextlib.suppress(bp.BatchplantError):
                bp.open(here / path.name, format=known.name).close()
                result.append(Case(f"golden-{name}/{path.name}", known.name, here / path.name, here))
    if not result:
        # Sounds and videos: the folder is the dataset.
        shutil.copytree(GOLDEN / name, folder / name)
        known = find_format(os.fspath(folder / name))
        assert known is not None
        result.append(Case(f"golden-{name}", known.name, folder / name, folder / name))
    return result
