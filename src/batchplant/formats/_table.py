"""Facts about each format that the registry needs before it imports its module, by module name.

Written by docs/generate.py (make docs) from the formats themselves: edit those, not this file.
"""

from .base.format import Outline

# fmt: off
# ruff: noqa: E501
OUTLINES: dict[str, Outline] = {
    "arrayrecord": Outline((".array_record", ".arrayrecord"), side_cars=("{name}.schema.json",)),
    "arrow": Outline((".arrow", ".feather", ".ipc", ".arrows"), folder=None),
    "audiofolder": Outline((), folder=True, media="audio"),
    "beton": Outline((".beton",)),
    "coco": Outline((".coco",), folder=None),
    "csv": Outline((".csv", ".csv.gz", ".csv.zst", ".tsv", ".tsv.gz", ".tsv.zst", ".tab", ".tab.gz", ".tab.zst"), side_cars=("{name}.schema.json",), describes=True),
    "datatrove": Outline((".ds",), side_cars=("{name}.index", "{name}.metadata")),
    "delta": Outline((".delta",), folder=True),
    "ffrecord": Outline((".ffr",), side_cars=("{name}.schema.json",)),
    "gguf": Outline((".gguf",)),
    "hdf5": Outline((".h5", ".hdf5", ".he5")),
    "iceberg": Outline((".iceberg",), folder=True, scheme="iceberg"),
    "imagefolder": Outline((), folder=True, media="image"),
    "joblib": Outline((".joblib",)),
    "json": Outline((".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".json", ".json.gz", ".json.zst"), side_cars=("{name}.schema.json",), describes=True),
    "kaldi": Outline((), folder=True),
    "lerobot": Outline((".lerobot",), folder=True),
    "litdata": Outline((".litdata",), folder=True),
    "lmdb": Outline((".lmdb", ".mdb"), folder=None),
    "lst": Outline((".lst",)),
    "mds": Outline((".mds",), folder=True),
    "megatron": Outline((".idx",), side_cars=("{stem}.bin",)),
    "msgpack": Outline((".msgpack", ".mpk", ".msgpack.gz", ".mpk.gz"), side_cars=("{name}.schema.json",)),
    "n5": Outline((".n5", ".n5.zip"), folder=None),
    "nemo": Outline(()),
    "npy": Outline((".npy",)),
    "npz": Outline((".npz",)),
    "onnx": Outline((".onnx",), side_cars=("{name}.data",)),
    "parquet": Outline((".parquet", ".pq"), folder=None),
    "pickle": Outline((".pkl", ".pickle")),
    "pmml": Outline((".pmml",)),
    "published": Outline((), folder=None),
    "pytorch": Outline((".pt", ".pth", ".ckpt", ".bin.index.json"), has_parts=True),
    "recordio": Outline((".rec",), side_cars=("{name}.schema.json", "{stem}.idx")),
    "repository": Outline((), folder=True),
    "safetensors": Outline((".safetensors", ".safetensors.index.json"), has_parts=True),
    "savedmodel": Outline((".index",), folder=None),
    "sqlite": Outline((".sqlite", ".sqlite3", ".db")),
    "tfds": Outline((".tfds", ".rlds"), folder=True),
    "tfrecord": Outline((".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz"), side_cars=("{name}.schema.json", "{name}.idx")),
    "tiff": Outline((".tif", ".tiff", ".btf")),
    "tokens": Outline((), side_cars=("{name}.tokens.json",)),
    "video": Outline((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")),
    "videofolder": Outline((), folder=True, media="video"),
    "voc": Outline((".voc",), folder=True),
    "webdataset": Outline((".tar", ".tar.gz", ".tgz"), side_cars=("{stem}.idx",)),
    "yolo": Outline((".yolo",), folder=None),
    "zarr": Outline((".zarr", ".zarr.zip"), folder=None),
}
