"""Random schemas with random values go through every format that writes, and come back the same."""

import dataclasses
import datetime
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

import batchplant as bp
from batchplant.formats.registry import all_formats
from batchplant.testing.cases import FLOATS, INTS, check_samples, film, jpeg, sound

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
    lambda inner: (
        st.lists(inner | st.none(), max_size=3) | st.dictionaries(TEXT, inner | st.none(), max_size=3)
    ),
    max_leaves=6,
)
SIDE = st.integers(1, 5)
PLAIN = ("int", "float", "bool", "bytes", "text", "json")
FOLDERS = {"imagefolder": bp.Image, "audiofolder": bp.Audio, "videofolder": bp.Video}
# (field, strategy of its values)
KINDS = st.one_of(
    st.sampled_from([(bp.Int(name), st.integers(*_range)) for name in INTS for _range in [
        (int(np.iinfo(name).min), min(int(np.iinfo(name).max), 2**63 - 1))]]),
    st.sampled_from([(bp.Float(name), st.floats(width=np.dtype(name).itemsize * 8)) for name in FLOATS]),
    st.just((bp.Bool(), st.booleans())),
    st.just((bp.Bytes(), st.binary(max_size=40))),
    st.just((bp.Text(), TEXT)),
    st.just((bp.Json(), JSON)),
    st.just((bp.Audio(), st.builds(sound, st.integers(0, 9)))),
    st.just((bp.Video(), st.builds(film, st.integers(1, 3)))),
    st.just((bp.Image(), st.builds(jpeg, st.integers(1, 9), st.integers(1, 9)))),
    st.just((bp.Image(mode=None), hn.arrays(np.uint8, st.tuples(SIDE, SIDE, st.just(4))))),
)  # fmt: skip


@st.composite
def nested(draw, depth=2):
    """Times, decimals and UUIDs, alone or in lists and structs, where any of them may be missing."""
    # Its values are NumPy's beyond Python's calendar, and the tables of a lake end there, too.
    kinds = [
        (bp.Time("us"), st.datetimes()),
        (bp.Time("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
        (bp.Time("ns"), st.integers(-(2**63) + 1, 2**63 - 1).map(lambda n: np.datetime64(n, "ns"))),
        (bp.Time("D"), st.dates()),
        (bp.Time("us", clock=True), st.times()),
        (bp.Duration("us"), st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))),
        (bp.Duration("ns"), st.integers(-(2**63) + 1, 2**63 - 1).map(lambda n: np.timedelta64(n, "ns"))),
        (bp.Decimal(20, 5), st.decimals(-(10**14), 10**14, places=5).map(abs)),
        (bp.Uuid(), st.uuids()),
    ]
    if draw(st.booleans()):
        return draw(st.sampled_from(kinds))
    inside, each = draw(nested(depth - 1) if depth else KINDS.filter(lambda kind: kind[0].kind in PLAIN))
    if draw(st.booleans()):
        inside, each = dataclasses.replace(inside, optional=True), each | st.none()
    if draw(st.booleans()):
        return bp.List(inside), st.lists(each, max_size=3)
    names = draw(st.lists(TEXT.filter(lambda name: name and "\0" not in name), max_size=2, unique=True))
    return bp.Struct(dict.fromkeys(names, inside)), st.fixed_dictionaries(dict.fromkeys(names, each))


@st.composite
def tensors(draw):
    dtype = np.dtype(draw(st.sampled_from([*INTS, *FLOATS, "bool", "complex64"])))
    shape = tuple(draw(st.lists(st.none() | st.integers(0, 3), max_size=3)))
    varied = st.tuples(*(st.integers(0, 3) if size is None else st.just(size) for size in shape))
    arrays = varied.flatmap(lambda sizes: hn.arrays(dtype, sizes))
    return bp.Tensor(dtype.name, shape), arrays


@st.composite
def datasets(draw):
    """A schema, and a few samples of it."""
    names = draw(
        st.lists(
            st.from_regex(r"[\w .-]{1,20}", fullmatch=True).filter(str.strip),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    schema, values = {}, {}
    for name in names:
        field, each = draw(KINDS | tensors() | nested())
        if draw(st.booleans()):
            field, each = dataclasses.replace(field, optional=True), each | st.none()
        schema[name], values[name] = field, each
    samples = draw(st.lists(st.fixed_dictionaries(values), max_size=5))
    return schema, samples


def held(one, schema):
    """The fields that a format can hold, and that belong together there."""
    if one.fields:
        return {}
    result = {name: field for name, field in schema.items() if one.refuses(field) is None}
    if one.name in FOLDERS:
        files = [name for name, field in result.items() if isinstance(field, FOLDERS[one.name])]
        return {name: field for name, field in result.items() if name not in files[1:]} if files else {}
    if one.name == "npy":
        # A tensor without axes is a number there.
        return {name: field for name, field in result.items() if getattr(field, "shape", None) != ()}
    return result


def usual(value):
    """Text has one NaN, whatever its bits were."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.where(np.isnan(value), value.dtype.type(np.nan), value)
    return value


@pytest.mark.parametrize("format", [name for name, item in all_formats().items() if item.writer is not None])
@settings(
    # An example is a dataset, and there are many formats.
    max_examples=settings.default.max_examples // 5,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(dataset=datasets())
@example(dataset=({"a": bp.Text()}, [{"a": "\0"}]))
@example(dataset=({"a": bp.Tensor("int8", (2, 0))}, [{"a": np.zeros((2, 0), np.int8)}]))
@example(
    dataset=({"a": bp.Tensor("int8", (2, 0), optional=True)}, [{"a": None}, {"a": np.zeros((2, 0), np.int8)}])
)
def test_what_goes_in_comes_out(format, dataset):
    schema, samples = dataset
    one = all_formats()[format]
    schema = held(one, schema)
    if not schema:
        return
    # A dot is a group there, so not every name can be had; it says so.
    if format == "hdf5" and any("" in name.split(".") or "/" in name for name in schema):
        return
    samples = [{name: sample[name] for name in schema} for sample in samples]
    # Its strings end at a NUL; packed text does not.
    nul = any(isinstance(value, str) and "\0" in value for sample in samples for value in sample.values())
    options = {"layout": "packed"} if format == "hdf5" and nul else {}
    if format in ("csv", "json"):
        samples = [{name: usual(value) for name, value in sample.items()} for sample in samples]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{(one.suffixes or ('',))[0]}"
        with bp.create(path, schema, format=format, checksums=True, **options) as out:
            for sample in samples:
                out.append(sample)
        # Written a moment ago, by us.
        trust = {"allow_pickle": True} if format in ("pickle", "joblib") else {}
        with bp.open(path, format=format, **trust) as reader:
            check_samples(reader, schema, samples)
        assert bp.verify(path, format=format, decode=True, **trust).problems == []
