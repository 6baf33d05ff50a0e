"""Patches: where they are, what they hold, masks, the edge; loading, resuming, converting; damage; URLs."""

import itertools
import math
import os
import pickle
import shutil
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp

SHAPE, CHUNKS = (23, 18, 15), (8, 6, 5)
RNG = np.random.default_rng(5)
VOLUME = RNG.integers(0, 60000, SHAPE).astype(np.uint16)
LABELS = RNG.integers(0, 4, SHAPE).astype(np.uint8)
COLOURS = RNG.random((*SHAPE, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    zarr = pytest.importorskip("zarr")
    path = tmp_path_factory.mktemp("scan") / "scan.zarr"
    top = zarr.create_group(store=str(path))
    top.create_array("volume", data=VOLUME, chunks=CHUNKS)
    top.create_array("labels", data=LABELS, chunks=(10, 10, 10))
    top.create_array("colours", data=COLOURS, chunks=(*CHUNKS, 2))
    mask = np.zeros(SHAPE, dtype=bool)
    mask[20:22, 3, 12] = True
    top.create_array("mask", data=mask, chunks=(7, 7, 7))
    return path


def cut(values, start, size):
    return values[tuple(slice(a, a + s) for a, s in zip(start, size, strict=True))]


def starts(data):
    return [tuple(number) for number in data.read(range(len(data)), ["position"])["position"].tolist()]


@settings(deadline=None, max_examples=40)
@given(
    size=st.tuples(*(st.integers(1, most) for most in SHAPE)),
    stride=st.one_of(st.none(), st.integers(1, 9), st.tuples(*[st.integers(3, 9)] * 3)),
)
def test_patches_with_a_stride_are_those_of_numpy(size, stride, scan):
    data = bp.Patches(scan, ["volume", "labels", "colours"], size=size, stride=stride)
    steps = size if stride is None else (stride,) * 3 if isinstance(stride, int) else stride
    wanted = itertools.product(
        *(range(0, most - item + 1, step) for most, item, step in zip(SHAPE, size, steps, strict=True))
    )
    result = starts(data)
    assert sorted(result) == list(wanted)
    assert len(data) == len(result)
    chosen = RNG.integers(0, len(data), 5)
    columns = data.read(chosen)
    for row, number in enumerate(chosen):
        for name, values in (("volume", VOLUME), ("labels", LABELS), ("colours", COLOURS)):
            assert np.array_equal(columns[name][row], cut(values, result[number], size))


def test_what_a_sample_is(scan):
    data = bp.Patches(bp.open(scan), "volume", size=(8, 6, 5), stride=4)
    assert data.schema == bp.Schema(
        {"volume": bp.Tensor("uint16", (8, 6, 5)), "position": bp.Tensor("int64", (3,))}
    )
    sample = data[-1]
    assert np.array_equal(sample["volume"], cut(VOLUME, sample["position"], (8, 6, 5)))
    assert "volume" in repr(data)
    assert data.facts()["stride"] == (4, 4, 4)
    with pytest.raises(bp.SampleIndexError):
        data[len(data)]


def test_random_patches(scan):
    data = bp.Patches(scan, "volume", size=(8, 6, 5), random=500, seed=3)
    actual = starts(data)
    assert len(data) == 500
    for start in actual:
        assert all(0 <= at <= most - number for at, most, number in zip(start, SHAPE, (8, 6, 5), strict=True))
    # Every place of an axis is drawn sooner or later.
    assert {start[1] for start in actual} == set(range(SHAPE[1] - 6 + 1))
    sample = data[77]
    assert np.array_equal(sample["volume"], cut(VOLUME, sample["position"], (8, 6, 5)))
    again = bp.Patches(scan, "volume", size=(8, 6, 5), random=500, seed=3)
    other = bp.Patches(scan, "volume", size=(8, 6, 5), random=500, seed=4)
    assert starts(again) == actual
    assert sorted(starts(other)) != sorted(actual)
    # The n-th draw does not depend on how many there are.
    fewer = bp.Patches(scan, "volume", size=(8, 6, 5), random=100, seed=3)
    assert not set(starts(fewer)) - set(actual)


def test_sizes_of_fewer_axes(scan):
    data = bp.Patches(scan, "volume", size=(4,), stride=4)
    assert len(data) == 5
    assert np.array_equal(data[1]["volume"], VOLUME[4:8])
    whole = bp.Patches(scan, "volume", size=(4, None, 5), random=20)
    assert whole.schema["volume"].shape == (4, 18, 5)
    assert {start[1] for start in starts(whole)} == {0}


def test_all_arrays_by_default(scan):
    data = bp.Patches(scan, size=(8, 8, 8))
    assert list(data.schema) == ["colours", "labels", "mask", "volume", "position"]


# --- the edge -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [0, 7, "edge", "reflect"])
def test_patches_over_the_edge(pad, scan):
    size, step = (10, 7, 20), (6, 7, 9)
    data = bp.Patches(scan, "volume", size=size, stride=step, pad=pad)
    around = [(0, 40)] * 3
    options = {"mode": pad} if isinstance(pad, str) else {"constant_values": pad}
    padded = np.pad(VOLUME, around, **options)
    result = starts(data)
    # The last patch of an axis is the first that reaches its end.
    assert sorted({start[0] for start in result}) == [0, 6, 12, 18]
    assert sorted({start[1] for start in result}) == [0, 7, 14]
    assert sorted({start[2] for start in result}) == [0]
    for sample in data:
        assert np.array_equal(sample["volume"], cut(padded, sample["position"], size))


def test_every_value_is_covered(scan):
    data = bp.Patches(scan, "volume", size=(5, 4, 7), pad=0)
    seen = np.zeros(SHAPE, dtype=int)
    for start in starts(data):
        cut(seen, start, (5, 4, 7))[...] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("pad", [9, "edge", "reflect"])
def test_random_patches_have_their_middle_in_the_array(pad, scan):
    size = (9, 40, 4)
    data = bp.Patches(scan, ["volume", "colours"], size=size, random=200, pad=pad)
    around = [(50, 50)] * 3
    options = {"mode": pad} if isinstance(pad, str) else {"constant_values": pad}
    volume, colours = np.pad(VOLUME, around, **options), np.pad(COLOURS, [*around, (0, 0)], **options)
    result = np.array(starts(data))
    middles = result + np.array(size) // 2
    assert (middles >= 0).all()
    assert (middles < np.array(SHAPE)).all()
    assert (result < 0).any()
    for sample in data[:40]:
        assert np.array_equal(sample["volume"], cut(volume, sample["position"] + 50, size))
        assert np.array_equal(sample["colours"], cut(colours, sample["position"] + 50, size))


def test_each_field_has_its_own_pad(scan):
    data = bp.Patches(scan, ["volume", "labels"], size=(30, 18, 15), pad={"volume": 0, "labels": 255})
    assert (data[0]["volume"][23:] == 0).all()
    assert (data[0]["labels"][23:] == 255).all()


# --- what is kept -------------------------------------------------------------------------------------


def holds(start, size):
    """Whether the mask of ``scan`` has something there."""
    box = np.zeros(SHAPE, dtype=bool)
    box[20:22, 3, 12] = True
    return cut(box, np.maximum(start, 0), np.array(size) + np.minimum(start, 0)).any()


@pytest.mark.parametrize("pad", [None, 0])
def test_patches_where_a_mask_holds_something(pad, scan):
    size = (6, 5, 4)
    every = bp.Patches(scan, "volume", size=size, stride=3, pad=pad)
    data = bp.Patches(scan, "volume", size=size, stride=3, pad=pad, where="mask")
    wanted = [start for start in starts(every) if holds(start, size)]
    assert wanted
    assert starts(data) == wanted
    assert np.array_equal(data[0]["volume"][:2, :2, :1], cut(VOLUME, wanted[0], (2, 2, 1)))


def test_random_patches_where_a_mask_holds_something(scan):
    data = bp.Patches(scan, "volume", size=(6, 5, 4), random=50, where="mask")
    result = starts(data)
    assert len(result) == 50
    assert all(holds(start, (6, 5, 4)) for start in result)
    assert len(set(result)) > 10


def test_patches_where_a_function_says_so(scan):
    data = bp.Patches(scan, "volume", size=(6, 5, 4), stride=1, where=lambda at: at[:, 0] >= 15)
    assert {start[0] for start in starts(data)} == {15, 16, 17}
    copy = pickle.loads(pickle.dumps(data))
    assert starts(copy) == starts(data)
    assert np.array_equal(copy[3]["volume"], data[3]["volume"])


def test_a_mask_of_another_file(scan):
    mask = np.zeros(SHAPE, dtype=np.uint8)
    mask[0, 0, 0] = 3
    reader = bp.open(scan)
    data = bp.Patches({"volume": reader.array("volume"), "mask": mask}, ["volume"], size=(6, 5, 4), stride=2)
    assert list(data.schema) == ["volume", "position"]
    kept = bp.Patches(
        {"volume": reader.array("volume"), "mask": mask}, size=(6, 5, 4), stride=2, where="mask"
    )
    assert starts(kept) == [(0, 0, 0)]
    assert np.array_equal(pickle.loads(pickle.dumps(kept))[0]["volume"], VOLUME[:6, :5, :4])


def test_an_empty_mask_is_not_searched_for_ever(scan):
    with pytest.raises(bp.OptionError, match="where leaves 0 of"):
        bp.Patches(scan, "volume", size=(6, 5, 4), random=3, where=lambda at: np.zeros(len(at), bool))
    assert len(bp.Patches(scan, "volume", size=(6, 5, 4), where=lambda at: at[:, 0] < 0)) == 0


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (24, 6, 5)}, "24 along axis 0, and the arrays have 23; pad="),
        ({"size": 6}, "size is a size for each"),
        ({"size": ()}, "size is a size for each"),
        ({"size": (1, 1, 1, 1)}, "size has 4 axes"),
        ({"size": (0, 1, 1)}, "size must be at least 1"),
        ({"size": (2, 2, 2), "stride": (1, 1)}, "stride has 2 axes"),
        ({"size": (2, 2, 2), "stride": 0}, "stride must be at least 1"),
        ({"size": (2, 2, 2), "stride": 1, "random": 5}, "a stride, or are random"),
        ({"size": (2, 2, 2), "random": -1}, "random must be from 0"),
        ({"size": (2, 2, 2), "pad": "wrap"}, "edge, reflect, not 'wrap'"),
        ({"size": (2, 2, 2), "pad": -1}, "no value of 'volume'"),
        ({"size": (2, 2, 2), "pad": {"other": 0}}, "only on one side"),
        ({"size": (2, 2, 2), "where": "colours"}, "a mask has the shape"),
        ({"size": (2, 2, 2), "where": lambda at: [1, 2]}, "True or False for each"),
        ({"size": (2, 2, 2), "seed": -1, "random": 3}, "seed"),
    ],
)
def test_what_cannot_be_cut_is_named(options, message, scan):
    with pytest.raises(bp.OptionError) as caught:
        bp.Patches(scan, "volume", **options)
    assert message in str(caught.value)
    assert str(scan) in str(caught.value)


def test_fields_that_differ_in_shape(tmp_path):
    arrays = {"a": np.zeros((8, 9)), "b": np.zeros((8, 8))}
    with pytest.raises(bp.OptionError, match=r"differ in shape: 'a' \(8, 9\), 'b' \(8, 8\)"):
        bp.Patches(arrays, size=(2, 2))
    assert len(bp.Patches(arrays, size=(2,))) == 4
    with pytest.raises(bp.SchemaError, match="position"):
        bp.Patches({"position": np.zeros((8, 9))}, size=(2, 2))
    with pytest.raises(bp.OptionError, match="no array 'c'"):
        bp.Patches(arrays, "c", size=(2, 2))
    with pytest.raises(bp.OptionError, match="no array to cut"):
        bp.Patches({}, size=(2, 2))
    with pytest.raises(bp.OptionError, match="take a larger stride"):
        bp.Patches({"a": np.broadcast_to(np.uint8(0), (1 << 15, 1 << 15))}, size=(2, 2), stride=1)


def test_a_damaged_chunk_is_named(scan, tmp_path):
    path = tmp_path / "scan.zarr"
    shutil.copytree(scan, path)
    chunk = path / "volume" / "c" / "1" / "0" / "0"
    chunk.write_bytes(b"nonsense")
    data = bp.Patches(path, ["volume", "labels"], size=(4, 4, 4), stride=4)
    bad = [number for number, start in enumerate(starts(data)) if touches(start, (8, 0, 0))]
    with pytest.raises(bp.DamagedError) as caught:
        data.read(range(len(data)))
    assert (caught.value.path, caught.value.field) == (str(chunk), "volume")
    assert caught.value.sample in bad
    assert sorted({item.sample for item in data.verify()}) == bad
    loader = bp.Loader(data, 4, on_error="skip")
    assert sum(len(batch["volume"]) for batch in loader) == len(data) - len(bad)


def touches(start, corner):
    """Whether a patch of 4³ reaches into the chunk that begins there."""
    ranges = zip(start, corner, CHUNKS, strict=True)
    return all(at < first + chunk and at + 4 > first for at, first, chunk in ranges)


# --- blocks -------------------------------------------------------------------------------------------


def test_samples_are_ordered_by_block(scan):
    # Room for a layer of chunks and the one that a patch reaches into behind it.
    class SmallBlocks(bp.Patches):
        block_bytes = 18 * math.prod(CHUNKS) * 2
        window_bytes = 3 * block_bytes

    data = SmallBlocks(scan, "volume", size=(8, 6, 5), random=200)
    blocks = data.blocks()
    assert (np.diff(blocks) >= 0).all()
    assert data.window == 3
    assert blocks.tolist() == [start[0] // CHUNKS[0] for start in starts(data)]
    assert len(np.unique(blocks)) == 2
    assert data.select(["volume"]).window == 3


def test_quasi_random_shares_chunks(scan):
    size = math.prod(CHUNKS) * 2

    class SmallBlocks(bp.Patches):
        block_bytes = window_bytes = 12 * size

    counts = {}
    for order in ("quasi_random", "random"):
        reader = bp.open(scan, fields=["volume"], cache=12 * size)
        data = SmallBlocks(reader, "volume", size=(8, 6, 5), random=300)
        loader = bp.Loader(data, 2, order=order, workers=1, prefetch_batches=1)
        before = reader._cache.misses
        assert sum(len(batch["volume"]) for batch in loader) == 300
        counts[order] = reader._cache.misses - before
    # Most chunks are unpacked once for each block that touches them; 60 would be all of them.
    assert counts["quasi_random"] < 120 < counts["random"] / 3


def test_a_batch_decodes_each_chunk_once_without_a_cache(scan):
    reader = bp.open(scan, fields=["volume"], cache=0)
    data = bp.Patches(reader, "volume", size=(8, 6, 5), stride=1)
    data.read(range(200), ["volume"])
    grid = math.prod(-(-size // chunk) for size, chunk in zip(SHAPE, CHUNKS, strict=True))
    assert 0 < reader._cache.misses <= grid


# --- with the rest ------------------------------------------------------------------------------------


def test_a_loader_gives_patches(scan):
    data = bp.Patches(scan, ["volume", "labels"], size=(8, 6, 5), random=50)
    for order in ("sequential", "random", "quasi_random"):
        seen = []
        for batch in bp.Loader(data, 8, order=order, seed=1, workers=3, ids=True):
            for row, number in enumerate(batch["ids"]):
                start = batch["position"][row]
                assert np.array_equal(batch["volume"][row], cut(VOLUME, start, (8, 6, 5)))
                assert np.array_equal(batch["labels"][row], cut(LABELS, start, (8, 6, 5)))
                seen.append(int(number))
        assert sorted(seen) == list(range(50))


def test_a_loader_is_resumed(scan):
    def loader():
        data = bp.Patches(scan, "volume", size=(8, 6, 5), random=50, where="mask")
        return bp.Loader(data, 8, order="quasi_random", seed=1)

    first = loader()
    batches = iter(first)
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    rest = [batch["position"].tolist() for batch in batches]
    second = loader()
    second.load_state_dict(state)
    assert [batch["position"].tolist() for batch in second] == rest


def test_patches_are_converted(scan, tmp_path):
    data = bp.Patches(scan, ["volume", "labels"], size=(8, 6, 5), stride=5)
    bp.convert(data, tmp_path / "patches.zarr")
    assert bp.verify(tmp_path / "patches.zarr", against=data).ok
    with bp.open(tmp_path / "patches.zarr") as reader:
        assert reader.schema == data.schema


def test_many_threads_read_patches(scan):
    data = bp.Patches(bp.open(scan, fields=["volume"], cache=4000), "volume", size=(8, 6, 5), random=200)
    places, failed = starts(data), []

    def read(part):
        for number in part:
            if not np.array_equal(data[number]["volume"], cut(VOLUME, places[number], (8, 6, 5))):
                failed.append(number)

    threads = [threading.Thread(target=read, args=(range(at, 200, 6),)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_rows_of_any_format_are_cut(tmp_path):
    """Images of one size: the first axis is the samples."""
    values = RNG.integers(0, 255, (6, 20, 20)).astype(np.uint8)
    with bp.create(tmp_path / "a.msgpack", {"image": bp.Tensor("uint8", (20, 20))}) as out:
        out.append(bp.Columns(image=values))
    data = bp.Patches(tmp_path / "a.msgpack", size=(1, 8, 8), stride=(1, 6, 6))
    assert len(data) == 6 * 3 * 3
    for sample in data:
        assert np.array_equal(sample["image"], cut(values, sample["position"], (1, 8, 8)))


def test_an_array_without_values():
    data = bp.Patches({"a": np.zeros((0, 5))}, size=(2, 2), pad=0)
    assert len(data) == 0
    assert data.blocks().tolist() == []
    with pytest.raises(bp.OptionError, match="no patches"):
        bp.Patches({"a": np.zeros((0, 5))}, size=(2, 2), pad=0, random=3)


def test_patches_behind_a_url(bucket, proxy, scan):
    shutil.copytree(scan, os.path.join(bucket.root, "scan.zarr"))
    reader = bp.open(f"{bucket.url}/scan.zarr", endpoint=proxy.endpoint, fields=["volume"])
    data = bp.Patches(reader, "volume", size=(8, 6, 5), stride=(8, 6, 5))
    data[0]
    paths = [request.path for request in list(proxy.requests) if "/c/" in request.path]
    assert len(paths) == 1
    for batch in bp.Loader(data, 5, order="quasi_random", seed=2):
        for volume, start in zip(batch["volume"], batch["position"], strict=True):
            assert np.array_equal(volume, cut(VOLUME, start, (8, 6, 5)))
    reader.close()


# -- volumes of differing shapes --------------------------------------------------------------------------


def volumes(shapes=((9, 7), (4, 12), (3, 3))):
    arrays = [np.arange(np.prod(shape), dtype=np.int32).reshape(shape) + 1 for shape in shapes]
    kinds = {"scan": bp.Tensor("int32", (None, None)), "twice": bp.Tensor("int32", (None, None))}
    samples = [{"scan": array, "twice": 2 * array, "name": f"v{n}"} for n, array in enumerate(arrays)]
    return bp.open(samples, schema={**kinds, "name": bp.Text()}), arrays


def test_a_stride_covers_every_volume():
    reader, arrays = volumes()
    patches = bp.VolumePatches(reader, size=(4, 4), stride=3, pad=0)
    seen = [np.zeros(array.shape, dtype=bool) for array in arrays]
    for sample in patches:
        volume, (y, x) = sample["volume"], sample["position"]
        whole = np.pad(arrays[volume], 8)[8 + y : 12 + y, 8 + x : 12 + x]
        np.testing.assert_array_equal(sample["scan"], whole)
        np.testing.assert_array_equal(sample["twice"], 2 * whole)
        assert sample["name"] == f"v{volume}"
        seen[volume][y : y + 4, x : x + 4] = True
    assert all(item.all() for item in seen)
    assert np.bincount(patches.blocks()).tolist() == [3 * 2, 1 * 4, 1]


def test_patches_inside_of_volumes_and_random_ones():
    reader, arrays = volumes(((9, 7), (4, 12)))
    assert len(bp.VolumePatches(reader, size=(4, 4), stride=3)) == 2 * 2 + 1 * 3
    drawn = bp.VolumePatches(reader, "scan", size=(4, 4), random=50, seed=3)
    assert np.bincount([row["volume"] for row in drawn]).tolist() == [50, 50]
    for sample in drawn:
        y, x = sample["position"]
        np.testing.assert_array_equal(sample["scan"], arrays[sample["volume"]][y : y + 4, x : x + 4])
    assert len({tuple(row["position"]) for row in drawn}) > 10
    again = bp.VolumePatches(reader, "scan", size=(4, 4), random=50, seed=3)
    assert [row["position"].tolist() for row in again] == [row["position"].tolist() for row in drawn]
    (batch, *_) = bp.Loader(drawn, 8, order="quasi_random")
    assert batch["scan"].shape == (8, 4, 4)


def test_volumes_that_cannot_be_cut_are_named():
    reader, _ = volumes()
    with pytest.raises(
        bp.errors.OptionError, match=r"sample 2: a volume of shape \(3, 3\) is smaller.*pad=0"
    ):
        bp.VolumePatches(reader, size=(4, 4))
    with pytest.raises(bp.errors.OptionError, match="cannot be cut out of"):
        bp.VolumePatches(reader, "name", size=(4, 4))
    with pytest.raises(bp.errors.OptionError, match="use VolumePatches"):
        bp.Patches(reader, size=(4, 4))


# -- around values of interest -----------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [None, 0])
def test_a_share_of_patches_lies_around_values(scan, pad):
    options = {"size": (5, 4, 3), "random": 200, "seed": 2, "pad": pad, "share": 0.33}
    data = bp.Patches(scan, ["volume", "labels"], around="labels == 2", **options)
    plain = bp.Patches(scan, ["volume", "labels"], **{**options, "share": 0})
    assert len(data) == 200
    for patch in data:
        if pad is None:
            assert np.array_equal(patch["volume"], cut(VOLUME, patch["position"], (5, 4, 3)))
    rare = np.zeros(SHAPE, dtype=np.uint8)
    spots = np.array([(0, 0, 0), (12, 9, 7), (22, 17, 14)])
    rare[tuple(spots.T)] = 3
    drawn = bp.Patches({"a": VOLUME, "mask": rare}, around="mask > 2", **options)
    hits = sum(bool(patch["mask"].any()) for patch in drawn)
    chance = sum(
        bool(patch["mask"].any())
        for patch in bp.Patches({"a": VOLUME, "mask": rare}, **{**options, "share": 0})
    )
    assert hits >= 66 > chance
    assert starts(pickle.loads(pickle.dumps(drawn))) == starts(drawn)
    assert starts(data) != starts(plain)
    with pytest.raises(bp.OptionError, match="true of no value"):
        bp.Patches({"a": VOLUME, "mask": rare}, around="mask == 7", **options)


def ragged_scans(folder, count=4):
    rng = np.random.default_rng(3)
    schema = {"scan": bp.Tensor("int16", (None, None, None)), "label": bp.Tensor("uint8", (None, None, None))}
    samples = []
    with bp.create(folder / "scans.beton", schema) as out:
        for number in range(count):
            shape = tuple(rng.integers(8, 15, 3))
            label = np.zeros(shape, np.uint8)
            if number != 1:
                label[tuple(rng.integers(0, shape, (5, 3)).T)] = 1 + number % 2
            samples.append({"scan": rng.integers(0, 99, shape).astype(np.int16), "label": label})
            out.append(samples[-1])
    return folder / "scans.beton", samples


def test_a_share_of_patches_of_each_volume(tmp_path):
    path, samples = ragged_scans(tmp_path)
    options = {"size": (4, 4, 4), "random": 30, "seed": 5}
    data = bp.VolumePatches(path, around="label > 0", share=0.5, **options)
    plain = bp.VolumePatches(path, **options)
    moved = 0
    for number, (patch, other) in enumerate(zip(data, plain, strict=True)):
        assert np.array_equal(
            patch["scan"], cut(samples[patch["volume"]]["scan"], patch["position"], (4, 4, 4))
        )
        chosen = number % 2 == 1
        if chosen and patch["volume"] != 1:
            assert patch["label"].any()
        else:
            assert patch["position"].tolist() == other["position"].tolist()
        moved += patch["position"].tolist() != other["position"].tolist()
    assert 30 < moved <= 45
    # In any order, by any process, after a resume.
    again = pickle.loads(pickle.dumps(data))
    assert starts(again) == starts(data)
    assert again[77]["position"].tolist() == data[77]["position"].tolist()
    batches = [batch["position"] for batch in bp.Loader(data, 8, order="random", seed=1)]
    loader = bp.Loader(data, 8, order="random", seed=1)
    list(itertools.islice(loader, 4))
    state = loader.state_dict()
    resumed = bp.Loader(data, 8, order="random", seed=1)
    resumed.load_state_dict(state)
    assert all(np.array_equal(a["position"], b) for a, b in zip(resumed, batches[4:], strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {"around": "label > 0"}, {"around": "label > 0", "random": 3, "share": 1.5},
        {"around": "scan > 0 and label > 0", "random": 3}, {"around": "volume == 1", "random": 3},
        {"around": "label >", "random": 3}, {"around": "label > 'x'", "random": 3},
    ],
)  # fmt: skip
def test_around_that_makes_no_sense(options, tmp_path):
    with pytest.raises((bp.OptionError, bp.FieldNameError)):
        bp.VolumePatches(ragged_scans(tmp_path)[0], size=(2, 2, 2), **options)
