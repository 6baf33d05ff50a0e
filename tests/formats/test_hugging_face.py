"""Parquet and Arrow files that we write, as Hugging Face's datasets reads them."""

import importlib.util
import io
import json
import types

import numpy as np
import pytest
from PIL import Image

import batchplant as bp

pa = pytest.importorskip("pyarrow", reason="pip install 'batchplant[arrow]'")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = {
    "image": bp.Image(),
    "sound": bp.Audio("wav", rate=16_000, optional=True),
    "label": bp.Int(names=("cat", "dog")),
    "small": bp.Int("uint8", names=("a", "b")),
    "twice": bp.Int(names=("a", "a")),
    "text": bp.Text(optional=True),
    "key": bp.Bytes(),
    "x": bp.Float("float32"),
    "row": bp.Tensor("float32", (3,)),
    "ids": bp.Tensor("int64", (None,)),
    "tags": bp.List(bp.Text()),
    "place": bp.Struct({"x": bp.Int(), "name": bp.Text()}),
    "day": bp.Time("D"),
    "at": bp.Time("us", tz="UTC"),
}


def image(n):
    out = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), n, np.uint8)).save(out, "JPEG")
    return out.getvalue()


def sample(n):
    return {
        "image": image(n), "sound": None, "label": n % 2, "small": 1, "twice": 0,
        "text": "é" if n else None, "key": b"\0", "x": n / 2, "row": np.arange(3, dtype=np.float32),
        "ids": np.arange(n), "tags": ["a"] * n, "place": {"x": n, "name": "b"},
        "day": "2024-01-31", "at": "2024-01-31T12:00:00Z",
    }  # fmt: skip


def save(path, **options):
    with bp.create(path, SCHEMA, **options) as out:
        for n in range(4):
            out.append(sample(n))
    return path


def written(path):
    if path.suffix == ".parquet":
        return pq.read_schema(path)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).schema


FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_features_and_the_types_that_they_need(suffix, tmp_path):
    path = save(tmp_path / f"a{suffix}")
    schema = written(path)
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert features["sound"] == {"sampling_rate": 16_000, "_type": "Audio"}
    assert features["label"] == {"names": ["cat", "dog"], "_type": "ClassLabel"}
    # A ClassLabel is an int64, and has no name twice.
    assert features["small"] == {"dtype": "uint8", "_type": "Value"}
    assert features["twice"] == {"dtype": "int64", "_type": "Value"}
    assert features["text"] == {"dtype": "string", "_type": "Value"}
    assert features["x"] == {"dtype": "float32", "_type": "Value"}
    assert features["row"]["length"] == 3
    assert features["place"]["name"] == {"dtype": "string", "_type": "Value"}
    assert features["day"] == {"dtype": "date32", "_type": "Value"}
    assert features["at"] == {"dtype": "timestamp[us, tz=UTC]", "_type": "Value"}
    # datasets believes a feature only where type and nullability are those of its own.
    assert schema.field("image").equals(pa.field("image", FILE))
    assert schema.field("label").equals(pa.field("label", pa.int64()))
    # To us the fields are what they were.
    reader = bp.open(path)
    assert dict(reader.schema) == SCHEMA
    assert reader.read([2])["image"][0].tobytes() == image(2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_images_are_used_where_they_lie(suffix, tmp_path):
    path = save(tmp_path / f"a{suffix}")
    spans = bp.open(path).spans("image", [0, 3])
    assert spans is not None
    data = path.read_bytes()
    cells = [data[start : start + size] for start, size in zip(spans.start, spans.size, strict=True)]
    assert cells == [image(0), image(3)]
    batch = next(iter(bp.Loader(bp.open(path).select(["image", "label"]), 4)))
    assert batch["image"].shape == (4, 6, 8, 3)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_plain_columns_where_they_are_wanted(suffix, tmp_path):
    path = save(tmp_path / f"a{suffix}", hugging_face=False)
    schema = written(path)
    assert b"huggingface" not in (schema.metadata or {})
    assert schema.field("image").type == pa.large_binary()
    assert bp.verify(path, against=save(tmp_path / f"b{suffix}")).ok


def test_files_with_and_without_features_are_one_table(tmp_path):
    (tmp_path / "t").mkdir()
    save(tmp_path / "t" / "1.parquet", hugging_face=False)
    save(tmp_path / "t" / "2.parquet")
    reader = bp.open(tmp_path / "t", format="parquet")
    assert len(reader) == 8
    assert dict(reader.schema) == SCHEMA
    assert reader.read([1, 5])["image"][1].tobytes() == image(1)


@pytest.mark.reference
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_datasets_reads_the_features_back(suffix, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"]),
            "text": datasets.Value("string"), "x": datasets.Value("float32"),
            "ids": datasets.Sequence(datasets.Value("int64")), "key": datasets.Value("binary"),
            "tags": datasets.Sequence(datasets.Value("string")),
            "place": {"a": datasets.Value("string"), "b": datasets.Value("int64")},
        }
    )  # fmt: skip
    image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    columns = {
        "image": [image] * 3, "label": [0, 1, 0], "text": list("abc"), "x": [0.5] * 3,
        "ids": [[1], [2, 3], []], "key": [b"k"] * 3, "tags": [["a"], [], ["b", "c"]],
        "place": [{"a": "x", "b": 1}] * 3,
    }  # fmt: skip
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "theirs.parquet")
    ours = tmp_path / f"ours.{suffix}"
    bp.convert(tmp_path / "theirs.parquet", ours)
    back = datasets.load_dataset(
        suffix, data_files=str(ours), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert back.features == features
    assert back[1]["image"].size == (4, 4)


ARRAYS = {
    "two": bp.Tensor("float32", (2, 3)),
    "three": bp.Tensor("int64", (None, 2, 2)),
    "four": bp.Tensor("uint8", (2, 1, 2, 1), optional=True),
    "five": bp.Tensor("float64", (1, 2, 1, 2, 1)),
    "boxes": bp.Boxes(),
    "classes": bp.Labels(("cat", "dog")),
    "listed": bp.List(bp.Int(names=("x", "y"))),
}


def arrays(path):
    with bp.create(path, ARRAYS) as out:
        for n in range(4):
            out.append(
                {
                    "two": np.arange(6, dtype=np.float32).reshape(2, 3) + n,
                    "three": np.full((n, 2, 2), n), "five": np.full((1, 2, 1, 2, 1), n / 2),
                    "four": None if n == 1 else np.full((2, 1, 2, 1), n, np.uint8),
                    "boxes": np.ones((n, 4), np.float32), "classes": np.arange(n) % 2, "listed": [1, 0][:n],
                }
            )  # fmt: skip
    return path


def test_arrays_of_datasets(tmp_path):
    path = arrays(tmp_path / "a.parquet")
    two = pq.read_schema(path).field("two")
    assert getattr(two.type, "storage_type", two.type) == pa.list_(pa.list_(pa.float32()))
    # Where datasets was imported, it has taken them.
    if not isinstance(two.type, pa.BaseExtensionType):
        assert two.metadata[b"ARROW:extension:name"] == b"datasets.features.features.Array2DExtensionType"
        assert json.loads(two.metadata[b"ARROW:extension:metadata"]) == [[2, 3], "float32"]
    with bp.open(path) as reader:
        assert dict(reader.schema) == ARRAYS
        assert reader[2]["two"].tolist() == [[2, 3, 4], [5, 6, 7]]
        assert reader[1]["four"] is None
        assert reader[3]["three"].shape == (3, 2, 2)


def test_lists_of_classes(tmp_path):
    classes = {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "_type": "List"}
    note = {b"huggingface": json.dumps({"info": {"features": {"labels": classes}}}).encode()}
    table = pa.table({"labels": pa.array([[0], [1, 0], []], pa.list_(pa.int64()))})
    pq.write_table(table.replace_schema_metadata(note), tmp_path / "a.parquet")
    with bp.open(tmp_path / "a.parquet") as reader:
        assert reader.schema["labels"].names == ("cat", "dog")
        assert reader[1]["labels"].tolist() == [1, 0]


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return pytest.importorskip("datasets", reason="pip install datasets")


@pytest.mark.reference
def test_datasets_reads_arrays_back(datasets, tmp_path):
    path = arrays(tmp_path / "a.parquet")
    back = datasets.load_dataset(
        "parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    for dataset in (back, bp.open(path).to_hf()):
        features = dataset.features
        assert features["two"] == datasets.Array2D((2, 3), "float32")
        assert features["three"] == datasets.Array3D((None, 2, 2), "int64")
        assert features["four"] == datasets.Array4D((2, 1, 2, 1), "uint8")
        assert features["five"] == datasets.Array5D((1, 2, 1, 2, 1), "float64")
        assert features["boxes"] == datasets.Array2D((None, 4), "float32")
        for name, names in (("classes", ["cat", "dog"]), ("listed", ["x", "y"])):
            assert features[name].feature == datasets.ClassLabel(names=names)
        assert dataset[2]["two"] == [[2, 3, 4], [5, 6, 7]]
        assert dataset[1]["four"] is None


@pytest.mark.reference
def test_readers_become_datasets(datasets, tmp_path):
    back = bp.open(save(tmp_path / "a.parquet")).to_hf()
    assert isinstance(back, datasets.Dataset)
    assert isinstance(back.features["image"], datasets.Image)
    assert back.features["label"].names == ["cat", "dog"]
    assert back[2]["image"].size == (8, 6)
    assert back[3]["tags"] == ["a"] * 3
    assert list(bp.open(tmp_path / "a.parquet").to_hf(["text", "label"]).features) == ["text", "label"]
    pixels = bp.open({"image": np.zeros((2, 4, 5, 3), np.uint8)}, schema={"image": bp.Image("raw")})
    assert pixels.to_hf()[1]["image"].size == (5, 4)


@pytest.mark.reference
def test_datasets_open_as_readers(datasets, tmp_path):
    features = datasets.Features(
        {
            "image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"]),
            "grid": datasets.Array2D((2, 3), "float32"), "ids": datasets.Sequence(datasets.Value("int64")),
            "text": datasets.Value("string"),
        }
    )  # fmt: skip
    grids = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    columns = {
        "image": [{"bytes": image(n), "path": None} for n in range(3)], "label": [0, 1, 0],
        "grid": list(grids), "ids": [[1], [2, 3], []], "text": list("abc"),
    }  # fmt: skip
    dataset = datasets.Dataset.from_dict(columns, features=features)
    with bp.open(dataset) as reader:
        assert reader.schema["label"].names == ("x", "y")
        assert reader.schema["grid"] == bp.Tensor("float32", (2, 3))
        assert (reader[1]["grid"] == grids[1]).all()
        assert bytes(reader.read([2])["image"][0]) == image(2)
        assert next(iter(bp.Loader(reader, 3)))["image"].shape == (3, 6, 8, 3)
    # In the order of the dataset, which may be another than that of its table.
    assert [sample["text"] for sample in bp.open(dataset.select([2, 0]))] == ["c", "a"]
    with pytest.raises(bp.OptionError, match="open one of train, test"):
        bp.open(datasets.DatasetDict(train=dataset, test=dataset))


@pytest.mark.reference
def test_datasets_with_paths_open_as_readers(datasets, tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        (tmp_path / "photos" / label / "0.jpg").write_bytes(image(1))
    loaded = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "photos"), split="train", cache_dir=str(tmp_path / "cache")
    )
    with bp.open(loaded) as reader:
        assert reader.schema["label"].names == ("cat", "dog")
        assert [bytes(cell) for cell in reader.read([0, 1])["image"]] == [image(1)] * 2


@pytest.mark.reference
def test_folders_that_we_write_load_with_features(datasets, tmp_path):
    """Shards of Parquet and folders of classes, by their path alone."""
    source = bp.open(save(tmp_path / "a.parquet")).select(["image", "label"])
    (tmp_path / "table").mkdir()
    bp.convert(source, tmp_path / "table" / "train.parquet")
    bp.convert(source, tmp_path / "classes", target_options={"format": "imagefolder"})
    for folder in ("table", "classes"):
        back = datasets.load_dataset(str(tmp_path / folder), split="train", cache_dir=str(tmp_path / "cache"))
        assert back.features["label"].names == ["cat", "dog"]
        assert [row["image"].size for row in back] == [(8, 6)] * 4


class Saved:
    """A dataset of datasets, as far as opening looks at it."""

    data = None

    def __init__(self, table):
        self.table = table
        note = {"info": {"features": {"label": {"names": ["x", "y"], "_type": "ClassLabel"}}}}
        self.features = types.SimpleNamespace(
            arrow_schema=pa.schema([], metadata={b"huggingface": json.dumps(note).encode()})
        )

    def with_format(self, name):
        assert name == "arrow"
        return self.table


def test_datasets_open_without_the_library():
    with bp.open(Saved(pa.table({"label": [0, 1, 1], "text": ["a", "b", "c"]}))) as reader:
        assert reader.schema["label"].names == ("x", "y")
        assert [sample["text"] for sample in reader] == ["a", "b", "c"]
        if importlib.util.find_spec("datasets") is None:
            with pytest.raises(bp.MissingLibraryError, match="pip install datasets"):
                reader.to_hf()
