"""Images kept decoded: batches are those without the cache, bit for bit, and no byte more than allowed."""

import errno
import os
import pickle

import numpy as np
import pytest
from PIL import Image
from test_image_loading import ENCODINGS, photo, saved

import batchplant as bp
from batchplant import ops
from batchplant.codecs.media import image as images
from batchplant.loading import decoded
from batchplant.storage import limits
from loaders import Memory, checksum, leaves_nothing, smooth, write, write_jpeg

_leaves_nothing = pytest.fixture(autouse=True)(leaves_nothing)

NORMALIZE = ops.Normalize([120, 110, 100], [60, 50, 40])
STEPS = {
    "resized": [ops.Resize(16)],
    # An image takes less than what is made of it.
    "enlarged": [ops.Resize((70, 60)), ops.RandomHorizontalFlip()],
    "bicubic": [ops.Resize(13, filter="bicubic"), ops.RandomHorizontalFlip(), NORMALIZE],
    "bilinear": [ops.CenterCrop((9, 14), filter="bilinear"), ops.RandomHorizontalFlip()],
    "nearest": [ops.CenterCrop(11, filter="nearest")],
    "centre": [ops.CenterCrop(12), ops.RandomHorizontalFlip(), NORMALIZE, ops.ChannelsFirst()],
    "random": [ops.RandomResizedCrop(12), ops.RandomHorizontalFlip(), NORMALIZE, ops.ChannelsFirst()],
    "random, then more": [ops.RandomResizedCrop(12), ops.RandomBrightness(0.5), ops.RandomErasing(1.0)],
}


def cached(source, size=7, cache="decoded", **options):
    return bp.Loader(source, size, cache=cache, **options)


def same(one, other, epochs=3):
    """Both loaders give the same, epoch after epoch; both are closed then."""
    try:
        for _ in range(epochs):
            ours, theirs = list(one), list(other)
            assert len(ours) == len(theirs)
            for batch, wanted in zip(ours, theirs, strict=True):
                assert batch.keys() == wanted.keys()
                for name in batch:
                    assert batch[name].dtype == wanted[name].dtype
                    assert np.array_equal(batch[name], wanted[name]), name
        return one.stats()
    finally:
        one.close()
        other.close()


@pytest.fixture
def jpegs(tmp_path):
    return write_jpeg(tmp_path / "a.beton", 40)


class Gone(Memory):
    """Images that can be read once."""

    def _read(self, indices, fields):
        if "image" in fields:
            assert not self.damaged & set(indices.tolist()), "read a second time"
            self.damaged |= set(indices.tolist())
        return bp.Columns((name, self.columns[name]) for name in fields).take(indices)


# -- exact --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("steps", STEPS)
def test_batches_are_those_without_it(jpegs, tmp_path, steps, folder):
    options = {"order": "random", "pipelines": {"image": STEPS[steps]}, "seed": 3, "ids": True}
    cache = bp.DecodedCache(dir=tmp_path / "cache") if folder else "decoded"
    stats = same(cached(jpegs, cache=cache, **options), bp.Loader(jpegs, 7, **options))
    assert (stats["cache hits"], stats["cache misses"], stats["cache share"]) == (80, 40, 1)


@pytest.mark.parametrize("steps", ["resized", "random"])
@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_what_does_not_fit_is_decoded_as_usual(jpegs, steps, share):
    options = {"order": "random", "pipelines": {"image": STEPS[steps]}}
    whole = cached(jpegs, **options)
    list(whole)
    most = int(share * whole.stats()["cache bytes"])
    whole.close()
    stats = same(cached(jpegs, cache=bp.DecodedCache(most), **options), bp.Loader(jpegs, 7, **options))
    assert stats["cache bytes"] <= stats["cache limit"] == most
    assert stats["cache share"] == pytest.approx(share, abs=0.1)
    assert stats["cache hits"] == 2 * 40 * stats["cache share"]


@pytest.mark.parametrize("steps", ["resized", "random"])
def test_from_the_second_epoch_on_nothing_is_read(steps):
    samples = [{"image": saved(photo(30, 20, n), "JPEG"), "label": n} for n in range(20)]
    schema = {"image": bp.Image("jpeg", "RGB"), "label": bp.Int()}
    options = {"order": "random", "pipelines": {"image": STEPS[steps]}}
    same(cached(Gone(schema, samples), **options), bp.Loader(Memory(schema, samples), 7, **options))


@pytest.mark.parametrize("steps", ["resized", "enlarged", "random"])
def test_all_encodings(tmp_path, steps):
    cells = [saved(photo(30 + n, 20 + n % 5, n), ENCODINGS[n % 6]) for n in range(18)]
    cells += [photo(25, 30), images.encode(smooth(1, 30, 40)[..., :1], "jpeg")]
    source = Memory({"image": bp.Image(None, "RGB")}, [{"image": cell} for cell in cells])
    options = {"pipelines": {"image": STEPS[steps]}}
    stats = same(cached(source, **options), bp.Loader(source, 7, **options))
    # Raw pixels need not be kept.
    assert stats["cache misses"] <= 3 * 19


@pytest.mark.parametrize("steps", [[ops.Resize(12, orient=True)], [ops.RandomResizedCrop(12, orient=True)]])
def test_turned_images(tmp_path, steps):
    cells = []
    for n in range(8):
        exif = Image.Exif()
        exif[0x0112] = n + 1
        cells.append(saved(photo(30, 20, n), "JPEG", exif=exif.tobytes()))
    source = Memory({"image": bp.Image(None, "RGB")}, [{"image": cell} for cell in cells])
    options = {"pipelines": {"image": steps}}
    assert same(cached(source, 3, **options), bp.Loader(source, 3, **options))["cache share"] == 1


def test_a_image_and_its_mask():
    rng = np.random.default_rng(0)
    samples = [
        {
            "image": saved(photo(30 + n, 20, n), "JPEG"),
            "mask": saved(rng.integers(0, 20, (20, 30 + n), dtype=np.uint8), "PNG"),
        }
        for n in range(12)
    ]
    source = Memory({"image": bp.Image(None, "RGB"), "mask": bp.Image("png", "L", mask=True)}, samples)
    crop = ops.RandomResizedCrop(12, share="crop")
    options = {"pipelines": {"image": [crop, ops.RandomHorizontalFlip(share="flip")],
                             "mask": [crop, ops.RandomHorizontalFlip(share="flip")]}}  # fmt: skip
    assert same(cached(source, 5, **options), bp.Loader(source, 5, **options))["cache share"] == 1


def test_several_views_of_a_image_are_kept_once(jpegs):
    crop = [ops.RandomResizedCrop(12)]
    two = {"image": crop, "other": bp.Pipe("image", [ops.RandomResizedCrop(8)])}
    both = same(cached(jpegs, pipelines=two), bp.Loader(jpegs, 7, pipelines=two))
    one = same(cached(jpegs, pipelines={"image": crop}), bp.Loader(jpegs, 7, pipelines={"image": crop}))
    assert both["cache bytes"] == one["cache bytes"]
    assert both["cache share"] == 1


def test_a_decoder_of_your_own_has_whole_images_kept(jpegs):
    class Corner(ops.Resize):
        def boxes(self, sizes, draws):
            return super().boxes(sizes, draws) * draws.uniform(0.5, 1)[:, None]

    options = {"pipelines": {"image": [Corner(12)]}}
    same(cached(jpegs, **options), bp.Loader(jpegs, 7, **options))


def test_fast_scale(jpegs):
    options = {"pipelines": {"image": [ops.Resize(5)]}, "decode": bp.DecodeOptions(fast_scale=True)}
    same(cached(jpegs, **options), bp.Loader(jpegs, 7, **options))
    with pytest.raises(bp.OptionError, match="fast_scale"):
        cached(jpegs, **{**options, "pipelines": {"image": [ops.RandomResizedCrop(5)]}})


# -- orders, parts, states ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    ["sequential", "random", "shards", "quasi_random", "windowed", bp.order.Weighted(np.arange(40))],
)
def test_orders(jpegs, order):
    options = {"order": order, "pipelines": {"image": STEPS["random"]}, "ids": True}
    same(cached(jpegs, **options), bp.Loader(jpegs, 7, **options))


def test_ranks_and_parts(jpegs):
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "order": "random", "indices": np.arange(3, 33)}
        options["pipelines"] = {"image": STEPS["random"]}
        same(cached(jpegs, **options), bp.Loader(jpegs, 7, **options))
    options = {"pipelines": {"image": STEPS["resized"]}}
    few = cached(jpegs, **options).filter("label", lambda label: label % 3 == 0)
    stats = same(few, bp.Loader(jpegs, 7, **options).filter("label", lambda label: label % 3 == 0))
    assert stats["cache share"] == 1
    assert stats["cache bytes"] == 14 * 16 * 16 * 3


def test_resume_at_every_batch(jpegs):
    options = {"order": "random", "pipelines": {"image": STEPS["random"]}, "seed": 9}
    plain = bp.Loader(jpegs, 7, **options)
    wanted = [checksum([batch]) for _ in range(2) for batch in plain]
    plain.close()
    for done in range(len(wanted)):
        first, second = cached(jpegs, **options), cached(jpegs, cache=bp.DecodedCache(20_000), **options)
        actual = []
        while len(actual) < done:
            for batch in first:
                actual.append(checksum([batch]))
                if len(actual) == done:
                    break
        second.load_state_dict(first.state_dict())
        first.close()
        while len(actual) < len(wanted):
            actual += [checksum([batch]) for batch in second]
        assert actual == wanted
        second.close()


def test_a_copy_has_a_cache_of_its_own(jpegs):
    options = {"pipelines": {"image": STEPS["resized"]}}
    loader = cached(jpegs, cache=bp.DecodedCache("1MB"), **options)
    list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.stats()["cache limit"] == 1_000_000
    assert copy.stats()["cache bytes"] == 0
    part = loader.part(0, 2, rank=0, world_size=1)
    assert part.stats()["cache limit"] == 500_000
    for item in (loader, copy, part):
        item.close()


# -- what cannot be decoded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["resized", "random"])
def test_what_cannot_be_decoded_is_skipped_in_every_epoch(tmp_path, steps):
    path = write_jpeg(tmp_path / "a.beton", 20, damaged=[3, 8, 9])
    options = {"pipelines": {"image": STEPS[steps]}, "on_error": "skip", "ids": True, "order": "random"}
    ours, plain = cached(path, 4, **options), bp.Loader(path, 4, **options)
    used = []
    for _ in range(4):
        assert checksum(ours) == checksum(plain)
        used.append(ours.stats()["cache bytes"])
    assert [item.sample for item in ours.skipped] == [item.sample for item in plain.skipped]
    assert [str(item) for item in ours.skipped] == [str(item) for item in plain.skipped]
    assert used[1:] == used[:-1]
    ours.close()
    plain.close()


def test_damage_below_the_box_is_as_harmless_as_without(tmp_path):
    """A crop at the top needs nothing of the end of the file, which the whole image does."""

    class Top(ops.ImageDecoder):
        size = (8, 8)

        def boxes(self, sizes, draws):
            return np.tile([0.0, 0.0, 8.0, 8.0], (len(sizes), 1))

    data = images.encode(smooth(0, 200, 40), "jpeg")
    source = Memory({"image": bp.Image()}, [{"image": data}, {"image": data[: len(data) * 9 // 10]}])
    with pytest.raises(bp.DecodeError):
        list(bp.Loader(source, 2, pipelines={"image": [ops.Resize(8)]}))
    options = {"pipelines": {"image": [Top()]}}
    assert same(cached(source, 2, **options), bp.Loader(source, 2, **options))["cache share"] == 0.5


def test_an_error_has_its_place(tmp_path):
    path = write_jpeg(tmp_path / "a.beton", 20, damaged=[13])
    with pytest.raises(bp.DecodeError) as result:
        list(cached(path, 4, pipelines={"image": STEPS["resized"]}))
    assert (result.value.path, result.value.sample, result.value.field) == (path, 13, "image")


def test_a_image_that_claims_too_much_is_refused_as_usual(jpegs, monkeypatch):
    monkeypatch.setattr(limits, "max_pixels", lambda: 24 * 32)
    options = {"pipelines": {"image": STEPS["random"]}, "on_error": "skip"}
    ours, plain = cached(jpegs, **options), bp.Loader(jpegs, 7, **options)
    assert checksum(ours) == checksum(plain)
    assert 0 < len(ours.skipped) == len(plain.skipped)
    ours.close()
    plain.close()


# -- the file -----------------------------------------------------------------------------------------------


def test_the_file_has_no_name_and_is_gone_when_the_loader_is(jpegs, tmp_path):
    folder = tmp_path / "cache"
    loader = cached(jpegs, pipelines={"image": STEPS["resized"]}, cache=bp.DecodedCache(dir=folder))
    list(loader)
    assert os.listdir(folder) == []
    store = loader._decoded.memory
    kept = os.fstat(store._file)
    assert kept.st_nlink == 0
    assert kept.st_blocks > 0
    loader.close()
    assert store._file is None
    assert not len(store.data)


@pytest.fixture
def promised(monkeypatch):
    """A disk that is full after the first allocation, whose size is in the list."""
    sizes = []

    def allocate(file, start, size):
        if sizes:
            raise OSError(errno.ENOSPC, "No space left on device")
        sizes.append(size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    return sizes


def test_a_full_disk_is_the_limit_of_the_cache(tmp_path, promised):
    memory = decoded.CacheMemory(10_000, str(tmp_path), allocation_bytes=1000)
    assert memory.take(300, 2) == (0, 2)
    assert memory.take(300, 2) == (600, 1)
    assert memory.take(300, 2) == (900, 0)
    assert (memory.used, memory.max_bytes, promised) == (900, 1000, [1000])
    memory.close()


def test_a_full_disk_ends_the_cache_and_not_the_epoch(jpegs, tmp_path, promised):
    promised.append(0)
    options = {"pipelines": {"image": STEPS["random"]}}
    ours = cached(jpegs, cache=bp.DecodedCache(dir=tmp_path), **options)
    stats = same(ours, bp.Loader(jpegs, 7, **options))
    assert stats["cache bytes"] == stats["cache limit"] == stats["cache share"] == 0


def test_a_folder_that_cannot_be_used(jpegs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(bp.AccessError, match="cannot be kept there") as result:
        cached(jpegs, cache=bp.DecodedCache(dir=tmp_path / "file"))
    assert result.value.path == str(tmp_path / "file")


# -- a server -----------------------------------------------------------------------------------------------


def test_nothing_is_fetched_for_images_that_are_kept(bucket, tmp_path):
    pytest.importorskip("obstore")
    samples = [{"image": images.encode(smooth(n, 40, 50), "jpeg"), "label": n} for n in range(24)]
    write(os.path.join(bucket.root, "a.ffr"), {"image": bp.Image(), "label": bp.Int()}, samples)
    options = {"order": "shards", "pipelines": {"image": STEPS["random"], "label": None}}
    with (
        bp.open(f"{bucket.url}/a.ffr", endpoint=bucket.endpoint, fetch_bytes=0) as remote,
        bp.open(os.path.join(bucket.root, "a.ffr")) as local,
    ):
        ours, plain = cached(remote, **options), bp.Loader(local, 7, **options)
        assert checksum(ours) == checksum(plain)
        before = ours.stats()["requests"]
        assert checksum(ours) == checksum(plain)
        assert ours.stats()["requests"] == before
        ours.close()
        plain.close()


# -- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "/data"}, r'cache is "decoded", a DecodedCache, "pages".*bp.open\(…, cache='),
        ({"cache": "decoded", "decode": "hybrid", "device": "cuda"}, "decode='hybrid'.*leave one of them"),
    ],
)
def test_options_that_make_no_sense(jpegs, options, message):
    with pytest.raises(bp.OptionError, match=message):
        bp.Loader(jpegs, 7, **options)


@pytest.mark.parametrize("size", [-1, "much"])
def test_bytes_that_are_none(size):
    with pytest.raises(bp.OptionError, match="bytes is a number of bytes"):
        bp.DecodedCache(size)


def test_ranks_share_the_memory_of_the_machine(jpegs, monkeypatch):
    alone = cached(jpegs)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    one = cached(jpegs)
    assert one.stats()["cache limit"] == pytest.approx(alone.stats()["cache limit"] / 4, abs=1)
    one.close()
    alone.close()
