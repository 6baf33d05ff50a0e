"""Short examples of the reference, by page and name: code, and what it prints. test_docs.py runs them."""

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
    "loading/Pipe": (
        """\
import batchplant as bp

views = {"double": bp.Pipe("x", [lambda x: 2 * x])}
print(next(iter(bp.Loader({"x": [1, 2]}, 2, pipelines=views)))["double"])""",
        "[2 4]",
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
}
