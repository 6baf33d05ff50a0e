"""The same calls to TensorFlow or to its mirror; what comes out is kept as JSON and arrays.

usage: tfrecord_script.py tensorflow|batchplant INPUTS FOLDER

INPUTS is an .npz file of encoded images and pixels. test_tfrecord_mirror.py compares the results.
"""

import hashlib
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np

which, inputs, folder = sys.argv[1:]
if which == "tensorflow":
    import tensorflow as tf
else:
    import batchplant.tfrecord as tf

results = {}


def leaf(value):
    if isinstance(value, tf.SparseTensor):
        return {"sparse": [leaf(value.indices), leaf(value.values), leaf(value.dense_shape)]}
    value = value.numpy() if hasattr(value, "numpy") else value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    value = np.asarray(value)
    if value.dtype == object:
        return {"shape": list(value.shape), "bytes": [bytes(item).hex() for item in value.reshape(-1)]}
    content = value.tobytes().hex()
    if len(content) > 200:
        content = hashlib.sha256(value.tobytes()).hexdigest()
    return {"shape": list(value.shape), "dtype": str(value.dtype), "values": content}


def plain(value):
    if isinstance(value, dict):
        return {name: plain(value[name]) for name in sorted(value)}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return leaf(value)


def keep(name, value):
    results[name] = plain(list(value) if isinstance(value, tf.data.Dataset) else value)


def fails(name, function):
    try:
        function()
        results[name] = "fine"
    except Exception:
        results[name] = "fails"


D = tf.data.Dataset
# Datasets
keep("range", D.range(2, 20, 3))
keep("batch", D.range(10).batch(4))
keep("batch drop", D.range(10).batch(4, drop_remainder=True))
keep("dict batch", D.from_tensor_slices({"a": [1, 2, 3], "b": ["x", "yy", ""]}).batch(2))
keep(
    "tuple",
    D.from_tensor_slices(([1, 2, 3], {"f": np.arange(6.0).reshape(3, 2)})).map(
        lambda a, d: (a * 2, d["f"] + 1)
    ),
)
keep("scalars", D.from_tensors((1, 2.5, "s", True, np.float64(3))))
keep("zip", D.zip((D.range(3), D.range(10, 15))))
keep("zip dict", D.zip({"a": D.range(3), "b": D.range(10, 15)}))
keep("concatenate", D.range(3).concatenate(D.range(7, 9)))
keep("repeat", D.range(3).repeat(2).take(5))
keep("repeat forever", D.range(3).repeat().take(7))
keep("skip", D.range(9).skip(4).shard(2, 1))
keep("filter", D.range(9).filter(lambda x: x % 3 == 0))
keep("take_while", D.range(9).take_while(lambda x: x < 4))
keep("enumerate", D.from_tensor_slices(["a", "b"]).enumerate(5))
keep("flat_map", D.range(4).flat_map(lambda n: D.range(n)))
keep("unbatch", D.range(7).batch(3).unbatch())
rows = D.from_generator(
    lambda: (np.full(n, n) for n in range(1, 5)), output_signature=tf.TensorSpec([None], tf.int64)
)
texts = D.from_generator(
    lambda: ((n, ["q"] * n) for n in range(1, 5)),
    output_signature=(tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.string)),
)
keep("padded", rows.padded_batch(3))
keep("padded value", rows.padded_batch(3, padded_shapes=[6], padding_values=np.int64(-1)))
keep("padded tuple", texts.padded_batch(2, padded_shapes=([], [None])))
keep("reduce", D.range(5).reduce(np.int64(10), lambda s, x: s + x))
keep(
    "prefetch",
    D.range(50).map(lambda x: x * x, num_parallel_calls=tf.data.AUTOTUNE).batch(8).prefetch(tf.data.AUTOTUNE),
)
keep("cache", D.range(5).cache().repeat(2))
keep(
    "generator",
    D.from_generator(
        lambda: iter([(1, "a"), (2, "b")]),
        output_signature=(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)),
    ),
)
keep(
    "generator types",
    D.from_generator(lambda: iter([[1, 2], [3]]), output_types=tf.int32, output_shapes=[None]),
)
keep(
    "cardinality",
    [
        D.range(5).cardinality(),
        D.range(5).repeat().cardinality(),
        D.range(5).filter(lambda x: x > 1).cardinality(),
        D.range(5).batch(2).cardinality(),
        D.range(5).batch(2, True).cardinality(),
        D.range(5).skip(9).cardinality(),
        D.range(7).shard(3, 2).cardinality(),
        D.range(3).repeat(4).cardinality(),
    ],
)
for calls in (None, 1, 2, tf.data.AUTOTUNE):
    for cycle, block in ((2, 1), (3, 2), (2, 3), (None, 1), (None, 2)):
        lengths = D.from_tensor_slices(np.array([3, 1, 4, 0, 2, 5], np.int64))
        keep(
            f"interleave {calls} {cycle} {block}",
            lengths.interleave(
                lambda n: D.range(n).map(lambda x: x + n * 10),
                cycle_length=cycle,
                block_length=block,
                num_parallel_calls=calls,
            ),
        )
fails("batch of differing shapes", lambda: list(rows.batch(2)))
fails("failing map", lambda: list(D.range(3).map(lambda x: tf.reshape(x, [2]))))
keep(
    "ignore errors",
    D.from_tensor_slices(["1", "x", "3", "y"])
    .map(lambda s: tf.numpy_function(int, [s], tf.int32))
    .ignore_errors(),
)


# Examples
def example(number):
    rng = np.random.default_rng(number)
    feature = {
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number - 2])),
        "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"n%d" % number])),
        "emb": tf.train.Feature(float_list=tf.train.FloatList(value=rng.normal(size=4))),
        "ids": tf.train.Feature(
            int64_list=tf.train.Int64List(value=rng.integers(-(2**62), 2**62, number % 4))
        ),
        "tags": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"t"] * (number % 3))),
    }
    if number % 2:
        feature["odd"] = tf.train.Feature(float_list=tf.train.FloatList(value=[number]))
    return tf.train.Example(features=tf.train.Features(feature=feature))


examples = [example(number) for number in range(9)]
serialized = [item.SerializeToString(deterministic=True) for item in examples]
keep("serialized", serialized)
keep(
    "parsed back",
    [tf.train.Example.FromString(item).SerializeToString(deterministic=True) for item in serialized],
)
# The order of a map is not part of what protobuf promises.
results["text"] = [sorted(str(tf.train.Example.FromString(item)).splitlines()) for item in serialized]
empty = tf.train.Example()
keep(
    "empty example",
    [empty.SerializeToString(), tf.train.Example(features=tf.train.Features()).SerializeToString()],
)
empty.features.feature["x"].int64_list.value.extend([1, 2, -3])
empty.features.feature["y"].float_list.value.append(0.1)
keep("built", empty.SerializeToString(deterministic=True))
results["oneof"] = [
    empty.features.feature["x"].WhichOneof("kind"),
    empty.features.feature["x"].HasField("bytes_list"),
    list(empty.features.feature["y"].float_list.value),
]
sequence = tf.train.SequenceExample(
    context=tf.train.Features(feature={"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))}),
    feature_lists=tf.train.FeatureLists(
        feature_list={
            "tokens": tf.train.FeatureList(
                feature=[tf.train.Feature(int64_list=tf.train.Int64List(value=[n, n + 1])) for n in range(4)]
            ),
            "words": tf.train.FeatureList(
                feature=[tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"w"] * n)) for n in range(3)]
            ),
        }
    ),
)
keep("sequence", sequence.SerializeToString(deterministic=True))
keep(
    "sequence back",
    tf.train.SequenceExample.FromString(sequence.SerializeToString()).SerializeToString(deterministic=True),
)
keep(
    "sequence parsed",
    tf.io.parse_single_sequence_example(
        sequence.SerializeToString(),
        {"id": tf.io.FixedLenFeature([], tf.int64)},
        {"tokens": tf.io.FixedLenSequenceFeature([2], tf.int64), "words": tf.io.VarLenFeature(tf.string)},
    ),
)

features = {
    "label": tf.io.FixedLenFeature([], tf.int64),
    "name": tf.io.FixedLenFeature((), tf.string),
    "emb": tf.io.FixedLenFeature([2, 2], tf.float32),
    "ids": tf.io.VarLenFeature(tf.int64),
    "tags": tf.io.VarLenFeature(tf.string),
    "odd": tf.io.FixedLenFeature([], tf.float32, default_value=-1.0),
    "none": tf.io.FixedLenFeature([], tf.string, default_value="d"),
    "missing": tf.io.FixedLenFeature([2], tf.int64, default_value=[5, 6]),
    "absent": tf.io.VarLenFeature(tf.float32),
}
keep("parse_example", tf.io.parse_example(serialized, features))
keep("parse_single_example", [tf.io.parse_single_example(item, features) for item in serialized])
keep(
    "to_dense",
    [
        tf.sparse.to_dense(tf.io.parse_example(serialized, features)["ids"]),
        tf.sparse.to_dense(tf.io.parse_example(serialized, features)["tags"], default_value="?"),
    ],
)
more = {
    "ids": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    "tags": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True, default_value="z"),
    "emb": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
}
keep("sequences", tf.io.parse_example(serialized, more))
keep("sequences single", [tf.io.parse_single_example(item, more) for item in serialized])
for name, feature in {
    "required": {"odd": tf.io.FixedLenFeature([], tf.float32)},
    "wrong kind": {"label": tf.io.FixedLenFeature([], tf.float32)},
    "wrong count": {"emb": tf.io.FixedLenFeature([3], tf.float32)},
    "empty list": {"ids": tf.io.FixedLenFeature([], tf.int64, 1)},
    "wrong var": {"name": tf.io.VarLenFeature(tf.int64)},
}.items():
    fails(name, lambda wanted=feature: tf.io.parse_example(serialized, wanted))
fails("garbage", lambda: tf.io.parse_single_example(b"\x0a\xff\xff", features))
fails("garbage message", lambda: tf.train.Example.FromString(b"\x0a\xff\xff"))

# Files
for compression in ("", "GZIP", "ZLIB"):
    path = os.path.join(folder, f"{which}{compression}.tfrecord")
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for one in serialized:
            writer.write(one)
    keep(f"read {compression}", tf.data.TFRecordDataset(path, compression_type=compression))
paths = []
for shard in range(3):
    paths.append(os.path.join(folder, f"{which}-shard-{shard}.tfrecord"))
    with tf.io.TFRecordWriter(paths[-1]) as writer:
        for number in range(2 + 3 * shard):
            writer.write(b"%d/%d" % (shard, number))
for reads in (None, 1, 2, 3, tf.data.AUTOTUNE):
    keep(f"reads {reads}", tf.data.TFRecordDataset(paths, num_parallel_reads=reads))
pattern = os.path.join(folder, f"{which}-shard-*.tfrecord")
results["glob"] = [os.path.basename(path)[-8:] for path in sorted(tf.io.gfile.glob(pattern))]
keep(
    "list_files",
    D.list_files(pattern, shuffle=False).interleave(
        tf.data.TFRecordDataset, cycle_length=2, block_length=2, num_parallel_calls=tf.data.AUTOTUNE
    ),
)
fails("no files", lambda: list(D.list_files(os.path.join(folder, "nothing-*"))))
fails("no file", lambda: list(tf.data.TFRecordDataset(os.path.join(folder, "nothing"))))
damaged = os.path.join(folder, f"{which}-damaged.tfrecord")
with open(paths[2], "rb") as file:
    content = bytearray(file.read())
content[40] ^= 1
with open(damaged, "wb") as file:
    file.write(content)
fails("damaged", lambda: list(tf.data.TFRecordDataset(damaged)))

# Values
keep(
    "serialize_tensor",
    [
        tf.io.serialize_tensor(value)
        for value in (
            np.arange(6, dtype=np.int16).reshape(2, 3),
            np.float32(2),
            "text",
            np.zeros((0, 3)),
            tf.constant(["a", "", "ccc"]),
            True,
        )
    ],
)
keep(
    "parse_tensor",
    [
        tf.io.parse_tensor(tf.io.serialize_tensor(value), kind)
        for value, kind in (
            (np.arange(6.0), tf.float64),
            ("text", tf.string),
            (tf.constant([["a"], [""]]), tf.string),
        )
    ],
)
keep(
    "decode_raw",
    [
        tf.io.decode_raw(bytes(range(8)), tf.int16),
        tf.io.decode_raw(tf.constant([b"ab", b"cd"]), tf.uint8),
        tf.io.decode_raw(b"\1\0\0\2", tf.int32, little_endian=False),
    ],
)
x = tf.constant([[1, 2, 3], [4, 5, 6]])
keep(
    "ops",
    [
        x,
        tf.cast(x, tf.float32) / 255.0,
        tf.reshape(x, [3, -1]),
        tf.shape(x),
        tf.one_hot([0, 2, 5], 3),
        tf.cast(tf.constant([1.7, -1.7, 300.0]), tf.int32),
        tf.constant(3),
        tf.constant(2.5),
        tf.constant("s"),
        tf.constant([1, 2], tf.int64),
        x[0],
        x[0, 1],
        x[:, 1:],
        x + 1,
        x * x,
    ],
)

# Images
given = dict(np.load(inputs))
base, small = given.pop("base"), given.pop("small")
files = {name: value.tobytes() for name, value in given.items()}
for name in ("jpeg", "jpeg444", "progressive", "gray"):
    data = files[name]
    keep(
        f"decode {name}",
        [
            tf.io.decode_jpeg(data),
            tf.image.decode_jpeg(data, channels=3),
            tf.io.decode_jpeg(data, channels=1),
            tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE"),
            tf.image.extract_jpeg_shape(data),
        ],
    )
keep(
    "png",
    [
        tf.io.decode_png(files["png"]),
        tf.io.decode_png(files["png"], channels=4),
        tf.io.decode_png(files["rgba"]),
        tf.io.decode_png(files["rgba"], channels=3),
        tf.io.decode_png(files["deep"], dtype=tf.uint16),
        tf.io.decode_png(files["deep"]),
        tf.io.decode_png(files["gray png"], channels=3),
    ],
)
keep(
    "image",
    [
        tf.io.decode_image(files["png"]),
        tf.io.decode_image(files["jpeg"], channels=3),
        tf.io.decode_image(files["bmp"]),
        tf.io.decode_image(files["gif"]),
        tf.io.decode_image(files["gif"], expand_animations=False),
        tf.io.decode_image(files["png"], dtype=tf.float32),
    ],
)
fails("no jpeg", lambda: tf.io.decode_jpeg(b"hello"))
fails("cut jpeg", lambda: tf.io.decode_jpeg(files["jpeg"][:500]))
keep("cropped", [tf.image.crop_to_bounding_box(base, 1, 2, 30, 40)])
keep(
    "types",
    [
        tf.image.convert_image_dtype(base, tf.float32),
        tf.image.convert_image_dtype(tf.image.convert_image_dtype(base, tf.float32), tf.uint8),
        tf.image.convert_image_dtype(base, tf.uint16),
        tf.image.convert_image_dtype(base, tf.int16),
    ],
)
near = {"crop": tf.io.decode_and_crop_jpeg(files["jpeg"], [10, 20, 12, 16], channels=3)}
METHODS = ("nearest", "bilinear")
for method in METHODS:
    for size in ((12, 16), (27, 19)):
        near[f"resize {method} {size}"] = tf.image.resize(small, size, method=method)
# What is hardest: neighbours that differ by all of the range, and sizes that share nothing.
board = (np.indices((47, 33)).sum(0) % 2 * 255).astype(np.float32)[:, :, None]
for method in METHODS:
    for size in ((100, 13), (9, 91)):
        near[f"board {method} {size}"] = tf.image.resize(board, size, method=method)
near["resize ratio"] = tf.image.resize(small, (10, 10), preserve_aspect_ratio=True)
near["resize batch"] = tf.image.resize(np.stack([small, small[::-1]]), (10, 11))
np.savez_compressed(
    os.path.join(folder, f"{which}.npz"), **{name: np.asarray(value) for name, value in near.items()}
)
with open(os.path.join(folder, f"{which}.json"), "w") as file:
    json.dump(results, file, indent=0, sort_keys=True)
