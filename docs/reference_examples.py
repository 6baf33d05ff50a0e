"""Short examples of the reference, by page and name: code, and what it prints. test_docs.py runs them.

The text is empty where it differs from machine to machine.
"""

EXAMPLES: dict[str, tuple[str, str]] = {
    "loading/Loader": (
        """\
import batchplant as bp

loader = bp.Loader({"x": [1, 2, 3, 4, 5]}, 2)
print([batch["x"].tolist() for batch in loader], len(loader))""",
        "[[1, 2], [3, 4], [5]] 3",
    ),
    "loading/Pack": (
        """\
import batchplant as bp

documents = bp.open({"tokens": [[1, 2, 3], [4, 5], [6]]}, schema={"tokens": bp.Tensor("int32", (None,))})
for batch in bp.Loader(documents, 2, pack=bp.Pack(4)):
    print(sorted(batch["tokens"].tolist()))""",
        "[[1, 2, 3, 6], [4, 5, 0, 0]]",
    ),
    "loading/Mesh": (
        """\
import batchplant as bp

for rank in range(4):
    loader = bp.Loader({"x": [1, 2, 3, 4]}, 2, mesh=bp.Mesh({"dp": 2, "tp": 2}, rank))
    print(rank, [batch["x"].tolist() for batch in loader])""",
        "0 [[1, 2]]\n1 [[1, 2]]\n2 [[3, 4]]\n3 [[3, 4]]",
    ),
    "loading/Pipe": (
        """\
import batchplant as bp

views = {"double": bp.Pipe("x", [lambda x: 2 * x])}
print(next(iter(bp.Loader({"x": [1, 2]}, 2, pipelines=views)))["double"])""",
        "[2 4]",
    ),
    "loading/DecodeOptions": (
        """\
import batchplant as bp

fast = bp.DecodeOptions(fast_scale=True)
steps = {"image": [bp.ops.Resize(64)]}
print(next(iter(bp.Loader("photos", 4, pipelines=steps, decode=fast)))["image"].shape)""",
        "(4, 64, 64, 3)",
    ),
    "loading/DecodedCache": (
        """\
import batchplant as bp

loader = bp.Loader("photos", 20, pipelines={"image": [bp.ops.Resize(64)]}, cache=bp.DecodedCache("64MB"))
for epoch in range(2):
    batches = list(loader)
print(loader.stats()["cache hits"], loader.stats()["cache misses"])""",
        "60 60",
    ),
    "data/Mix": (
        """\
import batchplant as bp

mix = bp.Mix([({"x": [1, 2, 3, 4]}, 0.5), ({"x": [10, 20, 30, 40]}, 0.5)])
batch = next(iter(bp.Loader(mix, 4)))
print(sum(batch["x"] < 10))""",
        "2",
    ),
    "data/Windows": (
        """\
import batchplant as bp

data = bp.open({"x": [0, 1, 2, 3, 4]})
print([sample["x"].tolist() for sample in bp.Windows(data, 3)])""",
        "[[0, 1, 2], [1, 2, 3], [2, 3, 4]]",
    ),
    "data/DeltaWindows": (
        """\
import batchplant as bp

data = bp.open({"x": [0, 1, 2, 3, 4]})
print(bp.DeltaWindows(data, {"x": [-1, 0, 1]})[0])""",
        "{'x': array([0, 0, 1]), 'x_is_pad': array([ True, False, False])}",
    ),
    "data/concat": (
        """\
import batchplant as bp

print(len(bp.concat([bp.open({"x": [1, 2]}), bp.open({"x": [3]})])))""",
        "3",
    ),
    "data/join": (
        """\
import batchplant as bp

print(bp.join([{"x": [1, 2]}, {"y": [3, 4]}])[1])""",
        "{'x': 2, 'y': 4}",
    ),
    "data/split": (
        """\
import batchplant as bp

parts = bp.split({"x": list(range(10))}, {"train": 0.8, "val": 0.2})
print({name: len(part) for name, part in parts.items()})""",
        "{'train': 8, 'val': 2}",
    ),
    "data/Reader": (
        """\
import batchplant as bp

data = bp.open({"x": [1, 2, 3], "y": ["a", "b", "c"]})
print(data[1], len(data[1:]), data.read([0, 2], ["x"])["x"])
print(len(data.filter("x > 1")), list(data.select(["y"]).schema))""",
        "{'x': 2, 'y': 'b'} 2 [1 3]\n2 ['y']",
    ),
    "data/col": (
        """\
import batchplant as bp

print(len(bp.open({"x": [1, 2, 3]}).filter(bp.col("x") >= 2)))""",
        "2",
    ),
    "data/interleave": (
        """\
import batchplant as bp

both = bp.interleave([bp.open({"x": [1, 2]}), bp.open({"x": [3, 4]})])
print([sample["x"] for sample in both])""",
        "[1, 3, 2, 4]",
    ),
    "data/Ragged": (
        """\
import batchplant as bp

print(bp.Ragged.from_cells([b"ab", b"c"]))""",
        "<Ragged: 2 cells, 3 bytes>",
    ),
    "data/Columns": (
        """\
import numpy as np
import batchplant as bp

columns = bp.Columns(id=np.array([7, 8, 9]), name=bp.Ragged.from_cells([b"a", b"b", b"c"]))
print(columns.rows, columns.take([2, 0])["id"])""",
        "3 [9 7]",
    ),
    "data/Patches": (
        """\
import numpy as np
import batchplant as bp

image = np.arange(64).reshape(8, 8)
patches = bp.Patches({"image": image}, size=(4, 4), stride=2)
print(len(patches), patches[1]["position"], patches[1]["image"].shape)""",
        "9 [0 2] (4, 4)",
    ),
    "data/VideoClips": (
        """\
import numpy as np
import batchplant as bp

with bp.create("film.tar", {"video": bp.Video("avi")}) as out:
    out.append({"video": (np.zeros((20, 32, 32, 3), np.uint8), 10)})
clips = bp.VideoClips("film.tar", 8, step=2, stride=4)
print([clip["start"] for clip in clips], clips[0]["video"].shape)""",
        "[0, 4] (8, 32, 32, 3)",
    ),
    "data/show_versions": (
        """\
import batchplant as bp

bp.show_versions()""",
        "",
    ),
    "schema/Schema": (
        """\
import batchplant as bp

print(bp.Schema({"image": bp.Image(), "label": bp.Int(names=("cat", "dog"))}))""",
        "Schema(image=Image(), label=Int(names=('cat', 'dog')))",
    ),
    "schema/Tensor": (
        """\
import batchplant as bp

print(bp.Tensor("float32", (None, 3)))""",
        "Tensor(dtype='float32', shape=(None, 3))",
    ),
    "schema/Int": (
        """\
import batchplant as bp

label = bp.Int(names=("cat", "dog"))
print(label.number("dog"), bp.Int("uint8", optional=True))""",
        "1 Int(optional=True, dtype='uint8')",
    ),
    "schema/Image": (
        """\
import batchplant as bp

print(bp.Image("jpeg"), bp.Image(mask=True))""",
        "Image(encoding='jpeg') Image(mode='L', mask=True)",
    ),
    "schema/Float": (
        """\
import batchplant as bp

data = bp.open({"x": [1, 2]}, schema={"x": bp.Float("float32")})
print(data.read([0, 1])["x"].dtype)""",
        "float32",
    ),
    "schema/Text": (
        """\
import batchplant as bp

data = bp.open([{"caption": "a cat"}, {"caption": None}], schema={"caption": bp.Text(optional=True)})
print(data[1])""",
        "{'caption': None}",
    ),
    "schema/Boxes": (
        """\
import batchplant as bp

print(bp.Boxes("xywh", labels="classes"), bp.Boxes(normalized=True))""",
        "Boxes(format='xywh', labels=('classes',)) Boxes(normalized=True)",
    ),
    "schema/Labels": (
        """\
import batchplant as bp

data = bp.open([{"classes": [1, 0, 1]}], schema={"classes": bp.Labels(("cat", "dog"))})
print(data[0]["classes"], data.schema["classes"].names)""",
        "[1 0 1] ('cat', 'dog')",
    ),
    "schema/List": (
        """\
import batchplant as bp

data = bp.open([{"tags": ["a", "b"]}, {"tags": []}], schema={"tags": bp.List(bp.Text())})
print(data[0], data[1])""",
        "{'tags': ['a', 'b']} {'tags': []}",
    ),
    "schema/Struct": (
        """\
import batchplant as bp

data = bp.open([{"at": {"x": 1.5, "y": 2.0}}], schema={"at": bp.Struct({"x": bp.Float(), "y": bp.Float()})})
print(data[0]["at"])""",
        "{'x': 1.5, 'y': 2.0}",
    ),
    "jobs/convert": (
        """\
import batchplant as bp

print(bp.convert({"x": [1, 2, 3]}, "numbers.npz").samples)""",
        "3",
    ),
    "jobs/create": (
        """\
import batchplant as bp

with bp.create("made.msgpack", {"name": bp.Text(), "size": bp.Int()}) as out:
    out.append({"name": "a", "size": 1})
print(bp.open("made.msgpack")[0])""",
        "{'name': 'a', 'size': 1}",
    ),
    "jobs/open": (
        """\
import batchplant as bp

print(len(bp.open("photos")), len(bp.open("photos", where="label == 'amber'")))""",
        "60 8",
    ),
    "jobs/verify": (
        """\
import batchplant as bp

print(bp.verify("photos").ok)""",
        "True",
    ),
    "jobs/collect": (
        """\
from batchplant.jobs import stats

report = stats.collect("photos")
print(report.samples, report.fields["image"].values["modes"].counts)""",
        "60 {'RGB': 60}",
    ),
    "jobs/ImageOptions": (
        """\
import batchplant as bp

small = bp.ImageOptions(max_resolution=64, image_format="jpeg", quality=80)
bp.convert("photos", "small.beton", images=small)
print(max(bp.open("small.beton")[0]["image"].shape))""",
        "64",
    ),
    "orders/Random": (
        """\
import batchplant as bp

loader = bp.Loader({"x": range(6)}, 6, order=bp.order.Random(), seed=1)
print(sorted(next(iter(loader))["x"].tolist()))""",
        "[0, 1, 2, 3, 4, 5]",
    ),
    "orders/ClassBalanced": (
        """\
import batchplant as bp

order = bp.order.ClassBalanced([0, 0, 0, 1])
print(next(iter(bp.Loader({"x": [0, 0, 0, 1]}, 4, order=order)))["x"].sum())""",
        "2",
    ),
    "orders/QuasiRandom": (
        """\
import batchplant as bp

bp.convert({"x": range(100)}, "blocks.parquet", target_options={"row_group_size": 80})
order = bp.order.QuasiRandom(window=2)
batch = next(iter(bp.Loader("blocks.parquet", 20, order=order, seed=1)))
print(len({int(x) // 10 for x in batch["x"]}))""",
        "2",
    ),
    "orders/ByLength": (
        """\
import batchplant as bp

texts = bp.open({"ids": [[1], [1, 2, 3], [5], [4, 5, 6]]}, schema={"ids": bp.Tensor("int32", (None,))})
order = bp.order.ByLength("ids", order="sequential")
print([batch["ids"][1].tolist() for batch in bp.Loader(texts, 2, order=order)])""",
        "[[0, 1, 2], [0, 3, 6]]",
    ),
    "ops-api/Normalize": (
        """\
import batchplant as bp

steps = {"image": [bp.ops.CenterCrop(32), bp.ops.Normalize([127.5] * 3, [127.5] * 3)]}
batch = next(iter(bp.Loader("photos", 4, pipelines=steps)))
print(batch["image"].shape, batch["image"].dtype)""",
        "(4, 32, 32, 3) float32",
    ),
    "ops-api/Pad": (
        """\
import batchplant as bp

data = bp.open({"x": [[1, 2], [3]]}, schema={"x": bp.Tensor("int32", (None,))})
print(next(iter(bp.Loader(data, 2, pipelines={"x": [bp.ops.Pad(3)]})))["x"].tolist())""",
        "[[1, 2, 0], [3, 0, 0]]",
    ),
    "ops-api/RandomResizedCrop": (
        """\
import batchplant as bp

steps = {"image": [bp.ops.RandomResizedCrop(64), bp.ops.RandomHorizontalFlip(), bp.ops.ChannelsFirst()]}
batch = next(iter(bp.Loader("photos", 4, pipelines=steps, seed=1)))
print(batch["image"].shape, batch["image"].dtype)""",
        "(4, 3, 64, 64) uint8",
    ),
    "ops-api/Map": (
        """\
import batchplant as bp

add = bp.ops.Map(lambda a, b: a + b, inputs=["a", "b"], outputs="sum")
print(next(iter(bp.Loader({"a": [1, 2], "b": [3, 4]}, 2, pipelines=[add])))["sum"])""",
        "[4 6]",
    ),
    "tools/examine": (
        """\
from batchplant.tools import doctor

report = doctor.examine("photos", crop=64)
print(report.ok, report.looked_at)""",
        "True 60",
    ),
    "errors/BatchplantError": (
        """\
import batchplant as bp

try:
    bp.open({"x": [1, 2]})[5]
except bp.BatchplantError as error:
    print(type(error).__name__, error)""",
        "SampleIndexError <memory>: there is no sample 5; there are 2",
    ),
}
