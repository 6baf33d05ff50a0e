"""Whatever opens locally opens by URL, against a real S3 server: every format that the registry knows.

A bucket of the server is a folder of this machine, so the same dataset is opened twice and compared. Where
the server is, only the option ``endpoint`` says: a reader that loses the options of its URL finds nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import single_cell
from batchplant.formats import energon, nifti, registry
from batchplant.jobs.summary import summarize
from batchplant.ops import CenterCrop
from batchplant.testing import FormatSuite, ModelSuite
from batchplant.testing.cases import cells, film, jpeg, pixels, sound
from proxy import Proxy
from repository import GOLDEN
from servers import Bucket
from variants import is_alias

# A folder has one image, sound or video for each sample, and cannot do without.
BESIDE = {
    "imagefolder": {"image": (bp.Image(), jpeg())},
    "audiofolder": {"audio": (bp.Audio(), sound(4))},
    "videofolder": {"video": (bp.Video(), film(1))},
}
OPEN = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}, "scenes": {"format": "scenes"}}
# Facts that are true of local files only: a server is not mapped.
IN_MEMORY = ("mapped columns", "used in place")
ROWS = 7


def copied(source: Path) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        target = folder / source.name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        return source.name

    return make


def list_file(folder: Path) -> str:
    os.makedirs(folder / "images")
    lines = []
    for number in range(ROWS):
        (folder / f"images/{number}.jpg").write_bytes(jpeg(8, 8 + number))
        lines.append(f"{number}\t{number % 3}\timages/{number}.jpg\n")
    (folder / "data.lst").write_text("".join(lines))
    return "data.lst"


def repository(folder: Path) -> str:
    os.makedirs(folder / "set")
    bp.convert({"n": list(range(ROWS))}, folder / "set/train.csv")
    card = "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n---\n"
    (folder / "set/README.md").write_text(card)
    return "set"


def tensorflow_dataset(folder: Path) -> str:
    os.makedirs(folder / "tiny")
    shard = folder / "tiny/tiny-train.tfrecord-00000-of-00001"
    with bp.create(shard, {"n": bp.Int()}, format="tfrecord") as out:
        for number in range(ROWS):
            out.append({"n": number})
    features = {"featuresDict": {"features": {"n": {"tensor": {"dtype": "int64"}}}}}
    info = {"name": "tiny", "splits": [{"name": "train", "shardLengths": [f"{ROWS}"]}]}
    for name, content in (("features.json", features), ("dataset_info.json", info)):
        (folder / "tiny" / name).write_text(json.dumps(content))
    return "tiny"


def published(folder: Path) -> str:
    images = np.arange(ROWS * 3072, dtype=np.uint8).reshape(ROWS, 3072)
    os.makedirs(folder / "cifar")
    labels = np.zeros((ROWS, 1), np.uint8)
    (folder / "cifar/test_batch.bin").write_bytes(np.hstack([labels, images]).tobytes())
    return "cifar"


def shar(folder: Path) -> str:
    """A shard of lhotse."""
    recording = {"sources": [{"type": "shar", "channels": [0], "source": ""}], "duration": 1.0}
    cuts = [
        {"id": f"{n}", "start": 0, "duration": 1.0, "channel": 0, "recording": recording, "type": "MonoCut"}
        for n in range(ROWS)
    ]
    os.makedirs(folder / "shar")
    (folder / "shar/cuts.000000.jsonl").write_text("".join(json.dumps(cut) + "\n" for cut in cuts))
    with tarfile.open(folder / "shar/recording.000000.tar", "w") as out:
        for number in range(ROWS):
            data = sound(number + 1)
            member = tarfile.TarInfo(f"{number}.wav")
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return "shar"


def speech(folder: Path, manifest: str) -> str:
    """Sounds and their manifest, of NeMo or Kaldi."""
    os.makedirs(folder / "speech")
    for number in range(ROWS):
        (folder / f"speech/{number}.wav").write_bytes(sound(number + 1))
    nemo = manifest.endswith(".json")
    lines = [
        json.dumps({"audio_filepath": f"{n}.wav", "duration": 1.0}) if nemo else f"{n} {n}.wav"
        for n in range(ROWS)
    ]
    (folder / "speech" / manifest).write_text("\n".join([*lines, ""]))
    return f"speech/{manifest}" if nemo else "speech"


def scans(folder: Path) -> str:
    os.makedirs(folder / "scans")
    for number in range(ROWS):
        values = np.full((4, 5, 6 + number), number, dtype=np.int16)
        nifti.save(folder / f"scans/{number}.nii{'.gz' if number % 2 else ''}", values)
    return "scans"


def database(folder: Path) -> str:
    """A table whose header says that there may be a log of changes beside it."""
    with contextlib.closing(sqlite3.connect(folder / "data.db")) as out:
        out.execute("PRAGMA journal_mode = WAL")
        out.execute("CREATE TABLE t (n INT, text TEXT, photo BLOB)")
        out.executemany("INSERT INTO t VALUES (?, ?, ?)", [(n, f"größe {n}", jpeg()) for n in range(ROWS)])
        out.commit()
    return "data.db"


def prepared(folder: Path) -> str:
    fields = {"__key__": bp.Text(), "n": bp.Int(), "jpg": bp.Image("jpeg")}
    with bp.create(folder / "set/part-00000.tar", fields) as out:
        for n in range(ROWS):
            out.append({"__key__": f"k{n}", "n": n, "jpg": jpeg(8, 8 + n)})
    energon.prepare(folder / "set")
    return "set"


def blended(folder: Path) -> str:
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    (folder / "blend.yaml").write_text(f"{head}splits: {{train: {{path: {prepared(folder)}}}}}\n")
    return "blend.yaml"


def scenes(folder: Path) -> str:
    tifffile = pytest.importorskip("tifffile")
    os.makedirs(folder / "scenes")
    for number in range(ROWS):
        pixels = np.full((40 + number, 50), number, np.uint16)
        tifffile.imwrite(folder / f"scenes/{number}.tif", pixels, photometric="minisblack", tile=(16, 16))
    return "scenes"


def annotated(folder: Path) -> str:
    single_cell.make(folder / "cells.h5ad", chunks=(16,))
    return "cells.h5ad"


def blocked(folder: Path) -> str:
    blosc2 = pytest.importorskip("blosc2")
    (folder / "blocks").mkdir()
    for number in range(ROWS):
        values = np.full((4, 5 + number, 6), number, np.uint8)
        blosc2.asarray(values, urlpath=str(folder / f"blocks/{number}.b2nd"))
    return "blocks"


# How the formats that are only read come to a dataset.
MADE: dict[str, Callable[[Path], str]] = {
    "anndata": annotated,
    "b2nd": blocked,
    "dicom": copied(GOLDEN / "dicom/slice.dcm"),
    "energon": prepared,
    "metadataset": blended,
    "gguf": copied(GOLDEN / "gguf/quantised.gguf"),
    "kaldi": lambda folder: speech(folder, "wav.scp"),
    "lhotse": shar,
    "lst": list_file,
    "nemo": lambda folder: speech(folder, "train.json"),
    "nifti": scans,
    "pmml": copied(GOLDEN / "models/tree.pmml"),
    "published": published,
    "repository": repository,
    "scenes": scenes,
    "sqlite": database,
    "savedmodel": copied(GOLDEN / "models/saved_model"),
    "tfds": tensorflow_dataset,
    "tiff": copied(GOLDEN / "tiff/stack.tif"),
    "video": copied(GOLDEN / "video/h264.mp4"),
}


def every_format() -> Iterator[Any]:
    """Every format with every suffix that it writes: compressed, zipped, as a folder or a file."""
    for name, spec in registry.all_formats().items():
        first, *others = spec.suffixes if spec.writer is not None and spec.suffixes else ("",)
        for suffix in (first, *others):
            if not suffix.endswith(".index.json"):
                marks = [pytest.mark.exhaustive] if is_alias(suffix) else []
                yield pytest.param(name, suffix, id=name + suffix, marks=marks)


def write(name: str, suffix: str, folder: Path) -> str:
    """A dataset of a format; its name in the folder."""
    one = registry.get_format(name)
    if one.writer is None:
        return MADE[name](folder)
    bench = (ModelSuite if one.tensors else FormatSuite)()
    bench.format, bench.suffix, bench.beside = name, suffix, BESIDE.get(name, {})  # type: ignore[misc]
    if name == "tokens":
        bench.suffix, bench.options = ".bin", {"eos": 0}  # type: ignore[misc]
    if name == "onnx":
        bench.dtypes = ("float32", "int64")  # type: ignore[attr-defined]
    try:
        return os.path.basename(bench.written(folder, ROWS))
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))


def same(local: bp.Reader, remote: bp.Reader) -> None:
    assert remote.format == local.format
    assert remote.schema == local.schema
    assert len(remote) == len(local)
    assert cells(remote) == cells(local)
    assert remote.metadata == local.metadata
    assert dict(remote.attributes).keys() == dict(local.attributes).keys()


KNOWS_RANGES = (
    "beton", "webdataset", "tfrecord", "parquet", "ffrecord", "recordio", "lmdb", "hdf5", "zarr", "n5", "npy",
    "imagefolder", "audiofolder", "videofolder", "lst", "arrow", "delta", "iceberg", "csv", "json", "msgpack",
    "npz", "tiff", "nifti", "scenes",
)  # fmt: skip


def check_ranges(reader: bp.Reader, name: str, packed: bool) -> None:
    """What a format says that it needs holds every cell that lies in a file as it is."""
    rows = [row % len(reader) for row in (4, 1, 4)]
    result = {field: reader.ranges([field], rows) for field in reader.schema}
    for field, ranges in result.items():
        spans = reader.spans(field, rows)
        if ranges is None:
            continue
        assert all(path.startswith("s3://") for path in ranges.files)
        assert (ranges.start >= 0).all()
        assert (ranges.size >= 0).all()
        for row in range(len(rows) if spans is not None else 0):
            place = spans.files[spans.file[row]]
            inside = [
                start <= spans.start[row] and spans.start[row] + spans.size[row] <= start + size
                for number, start, size in zip(ranges.file, ranges.start, ranges.size, strict=True)
                if ranges.files[number] == place
            ]
            assert any(inside) or spans.size[row] <= 0, field
    # Of a compressed file nobody knows which of its bytes a sample is made of; it is read in order.
    if name in KNOWS_RANGES and not packed:
        assert any(ranges is not None and len(ranges) for ranges in result.values())


@pytest.mark.parametrize(("name", "suffix"), list(every_format()))
def test_every_format(name: str, suffix: str, bucket: Bucket) -> None:
    file = write(name, suffix, Path(bucket.root))
    options, place = OPEN.get(name, {}), {"endpoint": bucket.endpoint}
    with (
        bp.open(os.path.join(bucket.root, file), **options) as local,
        bp.open(f"{bucket.url}/{file}", **options, **place) as remote,
    ):
        same(local, remote)
        row = len(local) // 2
        assert repr(remote[row]) == repr(local[row])
        with pickle.loads(pickle.dumps(remote)) as again:
            check_ranges(again, name, suffix.endswith((".gz", ".tgz", ".zst")))
            assert repr(again[row]) == repr(local[row])
        facts = [summarize(item) for item in (remote, local)]
        assert facts[0].pop("path") == f"{bucket.url}/{file}"
        facts[1].pop("path")
        for fact in facts:
            fact["facts"] = {key: value for key, value in fact["facts"].items() if key not in IN_MEMORY}
        assert facts[0] == facts[1]
        if hasattr(local, "tensors") and registry.get_format(name).tensors:
            for key, array in local.tensors().items():
                assert np.asarray(remote.tensors()[key]).tobytes() == np.asarray(array).tobytes()


# -- many files as one dataset ---------------------------------------------------------------------------


SCHEMA = {"n": bp.Int(), "text": bp.Text()}


def fill(path: Path, first: int, count: int = 3, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with bp.create(path, SCHEMA, **options) as out:
        for n in range(first, first + count):
            out.append({"n": n, "text": f"sample {n}"})


def numbers(reader: bp.Reader) -> list[int]:
    with reader:
        return [int(n) for n in reader.read(range(len(reader)), ["n"])["n"]]


NAMED = (
    "train/*{}", "train", "train/", "train/*", "tr*n/part-?{}", "**/part-[0-9]*{}", "train/**",
    "train/part-{{0..2}}{}", "train/part-{{0,1,2}}{}", ["train/part-0{}", "train/part-[12]{}"],
)  # fmt: skip


def every_way() -> Iterator[Any]:
    """Every way to name shards that are files, some that are folders; and every format by the first way."""
    for suffix in (".tar", ".zarr", ".tfrecord", ".parquet", ".csv", ".npz", ".rec", ".ffr"):
        for named in NAMED:
            some = suffix == ".tar" or named == NAMED[0] or (suffix, named) == (".zarr", NAMED[7])
            yield pytest.param(
                suffix, named, id=f"{named}-{suffix}", marks=[] if some else pytest.mark.exhaustive
            )


@pytest.mark.parametrize(("suffix", "named"), list(every_way()))
def test_shards(suffix: str, named: str | list[str], bucket: Bucket) -> None:
    if suffix == ".zarr" and ("**" in named or named in ("train", "train/", "train/*")):
        pytest.skip("what lies in a dataset that is a folder has names, too")
    for shard in range(3):
        fill(Path(bucket.root, f"train/part-{shard}{suffix}"), 3 * shard)
    fill(Path(bucket.root, f"test/other{suffix}"), 100)
    given = [named] if isinstance(named, str) else named
    urls = [f"{bucket.url}/{item.format(suffix)}" for item in given]
    reader = bp.open(urls if len(urls) > 1 else urls[0], endpoint=bucket.endpoint)
    assert numbers(reader) == list(range(9))


@pytest.mark.parametrize("named", ["events", "events/"])
def test_partitioned_parquet(named: str, bucket: Bucket) -> None:
    for year in (2024, 2025):
        for place in ("oslo", "köln", "__HIVE_DEFAULT_PARTITION__"):
            fill(Path(bucket.root, f"events/year={year}/place={place}/part-0.parquet"), year)
    Path(bucket.root, "events/year=2024/_SUCCESS").write_bytes(b"")
    Path(bucket.root, "events/_tmp").mkdir()
    Path(bucket.root, "events/_tmp/part-0.parquet").write_bytes(b"no Parquet")
    with (
        bp.open(f"{bucket.url}/{named}", endpoint=bucket.endpoint) as remote,
        bp.open(os.path.join(bucket.root, "events")) as local,
    ):
        same(local, remote)
        assert remote.schema["year"] == bp.Int()
        assert remote.schema["place"] == bp.Text(optional=True)


@pytest.mark.parametrize("name", ["delta", "iceberg", "lance"])
def test_tables_of_lakes(name: str, bucket: Bucket) -> None:
    """Appended to, and an older state of them; a slash at the end."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg", "lance": "lance"}[name])
    path = Path(bucket.root, f"table.{name}")
    fill(path, 0)
    fill(path, 3, mode="append")
    assert numbers(bp.open(f"{bucket.url}/table.{name}/", endpoint=bucket.endpoint)) == list(range(6))
    with bp.open(path) as local:
        older = {"version": 1} if name != "iceberg" else {"snapshot": oldest(local)}
    assert numbers(bp.open(f"{bucket.url}/table.{name}", endpoint=bucket.endpoint, **older)) == [0, 1, 2]
    with pytest.raises(bp.OptionError, match="there is no"):
        bp.open(f"{bucket.url}/table.{name}", endpoint=bucket.endpoint, **dict.fromkeys(older, 77))


def oldest(reader: Any) -> int:
    return min(reader._table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms).snapshot_id


def test_a_lake_that_leads_out_of_its_folder(bucket: Bucket) -> None:
    pytest.importorskip("pyiceberg")
    from batchplant.formats.iceberg.files import FolderIO
    from batchplant.storage import Url

    folder = Url(f"{bucket.url}/table.iceberg")
    files = FolderIO({"location": "file:///old/table.iceberg", "folder": folder})
    assert files.place("file:///old/table.iceberg/data/x") == f"{folder}/data/x"
    for other in ("s3://other/x", f"{folder}/../x", "file:///etc/passwd", "s3://old/table.iceberg/x"):
        with pytest.raises(bp.UnsafeError, match="outside its folder"):
            files.place(other)


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2},
        {"chunks_per_shard": 2},
        {"compression": "none"},
        {"compression": "none", "chunks_per_shard": 2},
    ],
    ids=str,
)
def test_zarr_of_all_kinds(options: dict[str, Any], bucket: Bucket) -> None:
    path = Path(bucket.root, "a.zarr")
    schema = {"fixed": bp.Tensor("float32", (3, 4)), "varied": bp.Bytes(), "n": bp.Int()}
    with bp.create(path, schema, chunk_samples=2, **options) as out:
        for n in range(9):
            out.append({"fixed": np.full((3, 4), n, np.float32), "varied": bytes([n]) * n, "n": n})
    with (
        bp.open(path) as local,
        bp.open(f"{bucket.url}/a.zarr", endpoint=bucket.endpoint) as remote,
    ):
        same(local, remote)
        rows = [8, 0, 3, 3]
        assert cells(remote.subset(rows)) == cells(local.subset(rows))


# -- datasets of several files ---------------------------------------------------------------------------


def opened_alike(bucket: Bucket, name: str, **options: Any) -> None:
    with (
        bp.open(os.path.join(bucket.root, name), **options) as local,
        bp.open(f"{bucket.url}/{name}", endpoint=bucket.endpoint, **options) as remote,
    ):
        same(local, remote)


def test_models_in_several_files(bucket: Bucket) -> None:
    root = Path(bucket.root)
    suite = ModelSuite()
    suite.dtypes = ("float32", "int8")
    kinds = {".safetensors": "model.safetensors.index.json", ".pt": "pytorch_model.bin.index.json"}
    for suffix, listed in kinds.items():
        weights = {}
        for part in range(2):
            suite.format = registry.by_suffix(f"x{suffix}").name
            schema, samples = suite.dataset(4)
            some = [{**sample, "name": f"{part}.{sample['name']}"} for sample in samples]
            suite.write(str(root / f"part-{part}{suffix}"), schema, some)
            weights |= {row["name"]: f"part-{part}{suffix}" for row in some}
        (root / listed).write_text(json.dumps({"weight_map": weights}))
        opened_alike(bucket, listed)
        os.remove(root / f"part-1{suffix}")
        with pytest.raises(bp.DamagedError, match="is missing"):
            bp.open(f"{bucket.url}/{listed}", endpoint=bucket.endpoint)


def test_golden_files(bucket: Bucket) -> None:
    for name in ("arrow/hf_saved", "arrow/hf_dict", "models/checkpoints", "models/onnx"):
        shutil.copytree(GOLDEN / name, Path(bucket.root, name))
    opened_alike(bucket, "arrow/hf_saved")
    splits = sorted(path.name for path in Path(bucket.root, "arrow/hf_dict").iterdir() if path.is_dir())
    opened_alike(bucket, "arrow/hf_dict", split=splits[0])
    result = [*Path(bucket.root).rglob("*.index"), *Path(bucket.root).rglob("*.onnx")]
    assert len(result) > 2
    for item in result:
        # Variables in slices are refused.
        if item.name != "sliced.index":
            opened_alike(bucket, str(item.relative_to(bucket.root)))


def test_files_beside(bucket: Bucket) -> None:
    """The keys of RecordIO, the schema and the checksums of TFRecord, the file of LMDB."""
    root = Path(bucket.root)
    fill(root / "a.rec", 0)
    opened_alike(bucket, "a.rec", keys=True)
    fill(root / "a.tfrecord", 0, checksums=True)
    opened_alike(bucket, "a.tfrecord")
    assert bp.verify(f"{bucket.url}/a.tfrecord", endpoint=bucket.endpoint).checks == (
        bp.verify(root / "a.tfrecord").checks
    )
    if registry.get_format("lmdb").writer is not None:
        pytest.importorskip("lmdb")
        fill(root / "a.lmdb", 0)
        opened_alike(bucket, "a.lmdb")
        if (root / "a.lmdb").is_dir():
            opened_alike(bucket, "a.lmdb/data.mdb")


def test_a_list_with_a_root(bucket: Bucket) -> None:
    list_file(Path(bucket.root, "images") if (Path(bucket.root, "images").mkdir() or True) else Path())
    Path(bucket.root, "lists").mkdir()
    shutil.move(Path(bucket.root, "images/data.lst"), Path(bucket.root, "lists/data.lst"))
    root = f"{bucket.url}/images"
    with bp.open(f"{bucket.url}/lists/data.lst", endpoint=bucket.endpoint, root=root) as reader:
        assert cells(reader)["image"] == [jpeg(8, 8 + n) for n in range(ROWS)]


# -- folders of images ---------------------------------------------------------------------------------


def class_folders(bucket: Bucket, classes: int = 5, each: int = 4) -> str:
    for number in range(classes):
        for item in range(each):
            deep = "deep/" * (item % 2)
            bucket.put(f"photos/class {number}/{deep}{item}.jpg", jpeg(8, 8 + number))
        bucket.put(f"photos/class {number}/.hidden/x.jpg", b"")
        bucket.put(f"photos/class {number}/notes.txt", b"")
    return "photos"


def test_class_folders(bucket: Bucket) -> None:
    name = class_folders(bucket)
    opened_alike(bucket, name)
    opened_alike(bucket, name + "/", file_names=True)
    with (
        bp.open(f"{bucket.url}/{name}", endpoint=bucket.endpoint) as remote,
        bp.open(os.path.join(bucket.root, name)) as local,
    ):
        assert remote.facts() == local.facts()
        spans, mine = remote.spans("image", [3, 0]), local.spans("image", [3, 0])
        assert [file.removeprefix(bucket.url) for file in spans.files] == [
            file.removeprefix(bucket.root) for file in mine.files
        ]
        assert spans.size.tolist() == mine.size.tolist()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_folders_with_metadata(kind: str, bucket: Bucket) -> None:
    lines = []
    for n in range(5):
        bucket.put(f"photos/a b/{n}.jpg", jpeg(8, 8 + n))
        lines.append(
            json.dumps({"file_name": f"a b/{n}.jpg", "n": n}) if kind == "jsonl" else f"a b/{n}.jpg,{n}"
        )
    lines = lines if kind == "jsonl" else ["file_name,n", *lines]
    bucket.put(f"photos/metadata.{kind}", "\n".join(lines).encode())
    opened_alike(bucket, "photos")
    os.remove(os.path.join(bucket.root, "photos/a b/3.jpg"))
    with bp.open(f"{bucket.url}/photos", endpoint=bucket.endpoint) as reader:
        assert len(reader.ranges(["image", "n"])) == 4
        with pytest.raises(bp.DamagedError, match=r"3\.jpg: No such file") as caught:
            reader.read([1, 3])
        assert (caught.value.sample, caught.value.field) == (3, "image")


def test_images_and_masks(bucket: Bucket) -> None:
    for n in range(3):
        bucket.put(f"pairs/images/{n}.jpg", jpeg(8, 8 + n))
        bucket.put(f"pairs/masks/{n}.jpg", jpeg(8, 8 + n, 1))
    opened_alike(bucket, "pairs", pairs=None)


def test_a_image_that_is_gone(bucket: Bucket) -> None:
    name = class_folders(bucket)
    with bp.open(f"{bucket.url}/{name}", endpoint=bucket.endpoint) as reader:
        os.remove(os.path.join(bucket.root, name, "class 1/2.jpg"))
        with pytest.raises(bp.AccessError, match=r"2\.jpg.* it is not there any more") as caught:
            reader.read([0, 5, 7])
        assert (caught.value.sample, caught.value.field) == (5, "image")
        assert len(reader.read([0, 7])["image"]) == 2


# -- what is not there -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing", "nothing/", "nothing.tar", "folder/nothing.beton", "void/"])
def test_what_is_not_there(name: str, bucket: Bucket) -> None:
    os.mkdir(os.path.join(bucket.root, "void"))
    bucket.put("folder/a.txt", b"text")
    with pytest.raises(bp.NotFoundError, match="no such file or folder"):
        bp.open(f"{bucket.url}/{name}", endpoint=bucket.endpoint)


@pytest.mark.parametrize("name", ["folder/*.tar", "no*/x", "**/*.beton"])
def test_patterns_that_match_nothing(name: str, bucket: Bucket) -> None:
    bucket.put("folder/a.txt", b"text")
    with pytest.raises(bp.NotFoundError, match="no file matches"):
        bp.open(f"{bucket.url}/{name}", endpoint=bucket.endpoint)


def test_folders_that_are_no_dataset(bucket: Bucket) -> None:
    bucket.put("text/a.txt", b"text")
    bucket.put("several/a.csv", b"a\n1\n")
    bucket.put("several/a.jsonl", b'{"a": 1}\n')
    for name, reason in (("text", "nothing that batchplant reads"), ("several", "several formats")):
        for slash in ("", "/"):
            with pytest.raises(bp.UnknownFormatError, match=f"the folder holds .*{reason}"):
                bp.open(f"{bucket.url}/{name}{slash}", endpoint=bucket.endpoint)


# -- requests --------------------------------------------------------------------------------------------

# Formats that know where samples are once they are open; larger than what comes with opening.
IN_PLACE = (".tar", ".tfrecord", ".beton", ".rec", ".ffr", ".arrow", ".npy", ".msgpack", ".jsonl")


def asked(proxy: Proxy, kind: str = "GET") -> int:
    return sum(request.kind == kind for request in proxy.requests)


@pytest.mark.parametrize("suffix", IN_PLACE)
def test_a_sample_is_one_request(suffix: str, bucket: Bucket, proxy: Proxy) -> None:
    name = f"a{suffix}"
    field = bp.Tensor("uint8", (200_000,)) if suffix == ".npy" else bp.Bytes()
    if suffix == ".jsonl":
        field = bp.Text()
    with bp.create(os.path.join(bucket.root, name), {"data": field}) as out:
        for n in range(10):
            data = np.random.default_rng(n).integers(97, 122, 200_000, np.uint8)
            value = data if suffix == ".npy" else data.tobytes()
            out.append({"data": value.decode() if suffix == ".jsonl" else value})
    proxy.mend = True
    with bp.open(f"{bucket.url}/{name}", endpoint=proxy.endpoint) as reader:
        # What tells where cells are may be fetched with the first.
        reader[0]
        for row in (7, 2):
            # A file as small as this one is in memory after it was scanned.
            source = reader.ranges(None, [row]).sources[0]
            pool, object = source.blocks
            # What was asked for ahead may still be on its way.
            futures.wait([block.future for block in object.blocks.values()])
            pool.forget(object)
            proxy.requests.clear()
            reader[row]
            assert [request.kind for request in proxy.requests] == ["GET"], [
                request.range for request in proxy.requests
            ]
            # One request may bring a little of what lies around.
            assert proxy.requests[0].sent < 400_000


def test_a_tree_of_folders_is_listed_once(bucket: Bucket, proxy: Proxy) -> None:
    name = class_folders(bucket, classes=20, each=2)
    proxy.mend = True
    with bp.open(f"{bucket.url}/{name}/", endpoint=proxy.endpoint) as reader:
        assert asked(proxy, "LIST") <= 2
        # All of them are looked at.
        assert asked(proxy) + asked(proxy, "HEAD") <= 40
        proxy.requests.clear()
        reader.read(range(10))
        assert asked(proxy) == len(proxy.requests) == 10


def test_small_files_come_side_by_side(bucket: Bucket, proxy: Proxy) -> None:
    name = class_folders(bucket, classes=4, each=4)
    with bp.open(f"{bucket.url}/{name}/", endpoint=proxy.endpoint) as reader:
        proxy.delay, proxy.most_in_flight = 0.05, 0
        reader.read(range(16))
        assert proxy.most_in_flight >= 4


def test_shards_are_listed_once(bucket: Bucket, proxy: Proxy) -> None:
    for shard in range(12):
        fill(Path(bucket.root, f"part-{shard}.parquet"), 3 * shard)
    with bp.open(f"{bucket.url}/*.parquet", endpoint=proxy.endpoint) as reader:
        assert len(reader) == 36
    assert asked(proxy, "LIST") <= 2
    assert asked(proxy, "HEAD") == 0
    # The head and the footer of each, at most.
    assert asked(proxy) <= 24


# -- loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "suffix", ["", ".tar", ".beton", ".parquet", ".arrow", ".zarr", ".h5", ".rec", ".lmdb", ".jsonl", ".npz"]
)
def test_a_loader_gives_the_same(suffix: str, bucket: Bucket) -> None:
    """In any order; the loader asks for the bytes of batches to come."""
    path = os.path.join(bucket.root, "data" + suffix)
    name = "imagefolder" if not suffix else registry.by_suffix(path).name
    fields = {"image": bp.Image()} | ({} if not suffix else {"n": bp.Int()})
    try:
        with bp.create(path, fields, format=name) as out:
            for n in range(40):
                out.append({"image": pixels(6, 6 + n % 3, 3)} | ({"n": n} if suffix else {}))
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    with (
        bp.open(path) as local,
        bp.open(f"{bucket.url}/data{suffix}", endpoint=bucket.endpoint) as remote,
    ):
        blocks = () if local.blocks() is None else ("quasi_random",)
        for order in ("sequential", "random", *blocks):
            result = [loaded(item, order) for item in (local, remote)]
            assert result[0] == result[1]
            assert len(result[0]) == 40


def loaded(reader: bp.Reader, order: str) -> list[bytes]:
    """The samples of an epoch, in its order."""
    loader = bp.Loader(reader, 8, order=order, seed=3, pipelines={"image": [CenterCrop(4, 1.0)]})
    return [
        b"".join(np.asarray(column)[row].tobytes() for column in batch.values())
        for batch in loader
        for row in range(len(batch["image"]))
    ]


def test_an_epoch_fetches_every_image_once(bucket: Bucket, proxy: Proxy) -> None:
    name = class_folders(bucket, classes=10, each=6)
    proxy.mend = True
    with bp.open(f"{bucket.url}/{name}", endpoint=proxy.endpoint) as reader:
        proxy.requests.clear()
        assert len(loaded(reader, "random")) == 60
        assert asked(proxy) == len(proxy.requests) == 60


def test_a_cached_folder_is_not_fetched_again(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    name = class_folders(bucket, classes=10, each=6)
    options = {"endpoint": proxy.endpoint, "cache": str(tmp_path / "cache")}
    with bp.open(f"{bucket.url}/{name}", **options) as reader:
        first = loaded(reader, "random")
    proxy.requests.clear()
    with bp.open(f"{bucket.url}/{name}/", **options) as reader:
        assert loaded(reader, "random") == first
    assert {request.kind for request in proxy.requests} == {"LIST"}
