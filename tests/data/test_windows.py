"""Windows over rows: groups, strides, padding, order; and everything a Reader does."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant import Float, Image, Int, Schema, Tensor, Text, Windows

EPISODES = (7, 3, 5)


def rows() -> dict:
    count = sum(EPISODES)
    return {
        "episode": [f"ep{n}" for n, size in enumerate(EPISODES) for _ in range(size)],
        "t": np.arange(count),
        "action": np.arange(2 * count, dtype=np.float32).reshape(count, 2),
    }


@pytest.fixture
def series():
    return bp.open(rows())


@pytest.fixture(params=["parquet", "beton", "jsonl", "tar", "ffr"])
def stored(request, tmp_path: Path, series):
    bp.convert(series, tmp_path / f"a.{request.param}")
    with bp.open(tmp_path / f"a.{request.param}") as reader:
        yield reader


def starts(windows: Windows) -> list[int]:
    return [int(window["t"][0]) for window in windows]


def test_windows_stay_inside_of_their_group(stored) -> None:
    windows = Windows(stored, 4, 2, group="episode")
    # Of ep0 rows 0 to 6, of ep2 10 to 14; ep1 is too short.
    assert len(windows) == 3
    assert starts(windows) == [0, 2, 10]
    assert windows.schema == Schema(
        {"episode": Text(), "t": Tensor("int64", (4,)), "action": Tensor("float32", (4, 2))}
    )
    last = windows[2]
    assert last["episode"] == "ep2"
    assert last["t"].tolist() == [10, 11, 12, 13]
    assert last["action"].tolist() == [[2 * n, 2 * n + 1] for n in range(10, 14)]


def test_every_window_is_what_a_loop_would_cut(series) -> None:
    table = rows()
    for length in (1, 2, 3, 5, 8):
        for stride in (1, 2, 3, 7):
            wanted, first = [], 0
            for size in EPISODES:
                wanted += [
                    list(range(first + n, first + n + length)) for n in range(0, size - length + 1, stride)
                ]
                first += size
            windows = Windows(series, length, stride, group="episode")
            columns = windows.read(range(len(windows)))
            assert columns["t"].tolist() == wanted
            assert [bytes(cell).decode() for cell in columns["episode"]] == [
                table["episode"][value[0]] for value in wanted
            ]


def test_without_a_group_all_rows_are_one(series) -> None:
    assert len(Windows(series, 5, fields=["t"])) == sum(EPISODES) - 4


def test_any_order_any_number_of_times(series) -> None:
    windows = Windows(series, 3, group="episode", fields=["t"])
    assert windows.read([5, 0, 5, -1])["t"].tolist() == [[7, 8, 9], [0, 1, 2], [7, 8, 9], [12, 13, 14]]
    assert windows.read([])["t"].shape == (0, 3)
    with pytest.raises(bp.SampleIndexError):
        windows[len(windows)]


def test_a_group_of_several_fields() -> None:
    reader = bp.open({"a": [0, 0, 0, 0, 1, 1], "b": ["x", "x", "y", "y", "y", "y"], "t": np.arange(6)})
    assert starts(Windows(reader, 2, group=["a", "b"])) == [0, 2, 4]
    assert starts(Windows(reader, 2, group="b")) == [0, 2, 3, 4]


def test_groups_over_the_ends_of_pieces(series) -> None:
    class SmallReads(Windows):
        group_rows = 1

    for rows in range(1, 17):
        SmallReads.group_rows = rows
        assert starts(SmallReads(series, 3, 2, group="episode")) == [0, 2, 4, 7, 10, 12]


def test_a_value_that_comes_back_is_another_group() -> None:
    reader = bp.open({"e": [0, 0, 1, 1, 0, 0], "t": np.arange(6)})
    assert starts(Windows(reader, 2, group="e")) == [0, 2, 4]


def test_sorted_rows() -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(60)
    episode = [("a", "b", "c")[n % 3] for n in order]
    reader = bp.open({"e": episode, "ts": order.astype(np.float64), "v": order * 10})
    windows = Windows(reader, 4, 3, group="e", order_by="ts")
    result = {"a": [], "b": [], "c": []}
    for window in windows:
        assert (window["v"] == window["ts"] * 10).all()
        result[window["e"]].append(window["ts"].astype(int).tolist())
    for first, name in enumerate("abc"):
        own = list(range(first, 60, 3))
        assert result[name] == [own[n : n + 4] for n in range(0, 17, 3)]


def test_rows_are_sorted_by_numbers() -> None:
    reader = bp.open({"e": ["a", "b"], "v": np.zeros((2, 2)), "n": [None, 1]})
    for field in reader.schema:
        with pytest.raises(bp.OptionError, match="sorted by a number or a time"):
            Windows(reader, 1, order_by=field, fields=["v"])
    with pytest.raises(bp.FieldNameError, match="tt"):
        Windows(reader, 1, order_by="tt", fields=["v"])


@pytest.mark.parametrize("pad", ["zero", "repeat"])
def test_padding_covers_the_ends(series, pad: str) -> None:
    windows = Windows(series, 4, 3, group="episode", pad=pad)
    assert windows.schema["valid"] == Tensor("bool", (4,))
    result = windows.read(range(len(windows)))
    assert result["t"].tolist() == [
        [0, 1, 2, 3],
        [3, 4, 5, 6],
        [7, 8, 9, 9 if pad == "repeat" else 0],
        [10, 11, 12, 13],
        [13, 14, *([14, 14] if pad == "repeat" else [0, 0])],
    ]
    assert result["valid"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert [bytes(cell) for cell in result["episode"]] == [b"ep0", b"ep0", b"ep1", b"ep2", b"ep2"]
    if pad == "zero":
        assert not result["action"][2, 3].any()


def test_a_stride_beyond_a_group(series) -> None:
    windows = Windows(series, 2, 20, group="episode", pad="zero")
    assert starts(windows) == [0, 7, 10]


def test_what_cannot_be_stacked_is_refused(series) -> None:
    with pytest.raises(bp.SchemaError, match=r"rows of Text\(\) cannot be stacked.*fields=\[…\]"):
        Windows(series, 2)
    reader = bp.open({"n": [1, None], "x": [1.0, None], "l": [np.zeros(1), np.zeros(2)]})
    for name, why in (("n", "may be missing"), ("l", "no one shape")):
        with pytest.raises(bp.SchemaError, match=why) as failure:
            Windows(reader, 2, fields=[name])
        assert failure.value.field == name
    assert np.isnan(Windows(reader, 2, fields=["x"])[0]["x"]).tolist() == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be at least 1"), ({"length": 2.5}, "whole number"),
        ({"length": 2, "stride": 0}, "stride must be"), ({"length": 2, "pad": "no"}, "pad is zero or repeat"),
    ],
)  # fmt: skip
def test_wrong_options(series, options: dict, message: str) -> None:
    with pytest.raises(bp.OptionError, match=message):
        Windows(series, **options, fields=["t"])


def test_a_field_of_the_name_that_padding_takes() -> None:
    reader = bp.open({"valid": np.arange(4), "t": np.arange(4)})
    with pytest.raises(bp.OptionError, match="leave it out with fields"):
        Windows(reader, 2, pad="zero")
    assert Windows(reader, 2)[0]["valid"].tolist() == [0, 1]
    assert list(Windows(reader, 2, pad="zero", fields=["t"]).schema) == ["t", "valid"]


def test_no_rows_and_too_few(tmp_path: Path) -> None:
    with bp.create(tmp_path / "a.npz", Schema({"e": Int(), "t": Int()})):
        pass
    with bp.open(tmp_path / "a.npz") as reader:
        assert len(Windows(reader, 2, group="e")) == 0
        assert len(Windows(reader, 2, group="e", order_by="t", pad="zero")) == 0
    assert len(Windows(bp.open({"t": np.arange(3)}), 4)) == 0


def test_a_path_will_do(tmp_path: Path, series) -> None:
    bp.convert(series, tmp_path / "a.parquet")
    with Windows(tmp_path / "a.parquet", 4, group="episode") as windows:
        assert windows.where(3) == str(tmp_path / "a.parquet")
        assert windows.facts() == {"rows": 15, "length": 4, "stride": 1, "groups": 3}


def images(tmp_path: Path, odd: int | None = None) -> bp.Reader:
    with bp.create(tmp_path / "p.tar", Schema({"image": Image("png"), "e": Int()})) as out:
        for n in range(6):
            out.append({"image": np.full((3 if n == odd else 2, 2, 3), n, np.uint8), "e": n // 3})
    return bp.open(tmp_path / "p.tar")


def test_images_are_decoded_and_stacked(tmp_path: Path) -> None:
    windows = Windows(images(tmp_path), 2, group="e")
    assert windows.schema["image"] == Tensor("uint8", (2, 2, 2, 3))
    assert windows.read([3])["image"][0, :, 0, 0, 0].tolist() == [4, 5]


def test_a_image_of_another_size_is_named(tmp_path: Path) -> None:
    windows = Windows(images(tmp_path, odd=4), 2, group="e")
    assert windows[0]["e"] == 0
    with pytest.raises(bp.DecodeError, match=r"row 4: the image is uint8 \(3, 2, 3\)") as failure:
        windows[2]
    assert (failure.value.sample, failure.value.field) == (2, "image")


def test_a_damaged_row_is_named(tmp_path: Path, series) -> None:
    bp.convert(series, tmp_path / "a.tfrecord")
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[-6] ^= 1
    with bp.open(tmp_path / "a.tfrecord") as reader:
        windows = Windows(reader, 2, group="episode")
        (tmp_path / "a.tfrecord").write_bytes(data)
        with pytest.raises(bp.DamagedError, match="row 14: ") as failure:
            windows[-1]
        assert failure.value.sample == len(windows) - 1


def test_blocks_are_those_of_the_first_row(series, tmp_path: Path) -> None:
    bp.convert(series, tmp_path / "a.parquet", shard_samples=4)
    with bp.open(tmp_path / "a-*.parquet") as reader:
        windows = Windows(reader, 3, 2, group="episode", across=True)
        assert windows.blocks().tolist() == reader.blocks()[[0, 2, 4, 7, 10, 12]].tolist()
        assert len(np.unique(reader.blocks())) > 2


def test_every_row_is_read_once(series, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows(series, 5, group="episode")
    asked = []
    real = type(series)._read
    monkeypatch.setattr(
        type(series),
        "_read",
        lambda self, indices, fields: (asked.append(indices), real(self, indices, fields))[1],
    )
    windows.read(range(3))
    assert [item.tolist() for item in asked] == [[0, 1, 2, 3, 4, 5, 6]]


def test_a_window_travels(series, tmp_path: Path) -> None:
    bp.convert(series, tmp_path / "a.parquet")
    windows = Windows(tmp_path / "a.parquet", 4, 2, group="episode", fields=["t"])
    again = pickle.loads(pickle.dumps(windows))
    assert again.read(range(3))["t"].tolist() == windows.read(range(3))["t"].tolist()


def test_converted_and_verified(series, tmp_path: Path) -> None:
    windows = Windows(series, 4, 2, group="episode", pad="zero")
    bp.convert(windows, tmp_path / "w.npz", fields=["t", "action", "valid"])
    with bp.open(tmp_path / "w.npz") as reader:
        assert reader.schema["action"] == Tensor("float32", (4, 2))
        assert [sample["t"].tolist() for sample in reader] == [window["t"].tolist() for window in windows]
    assert bp.verify(windows).ok


def test_filtered_rows(series) -> None:
    assert starts(Windows(series.filter("t >= 8"), 3, 2, group="episode")) == [10, 12]


def test_loaded_and_resumed(series, tmp_path: Path) -> None:
    bp.convert(series, tmp_path / "a.parquet", shard_samples=4)
    windows = Windows(tmp_path / "a-*.parquet", 3, group="episode", fields=["t", "action"], across=True)

    def loader() -> bp.Loader:
        return bp.Loader(windows, 2, order="quasi_random", seed=3, device=None)

    whole = [np.asarray(batch["t"]).tolist() for batch in loader()]
    assert sorted(item for batch in whole for item in batch) == [
        windows[n]["t"].tolist() for n in range(len(windows))
    ]
    first = loader()
    taken = iter(first)
    begun = [np.asarray(next(taken)["t"]).tolist() for _ in range(2)]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert begun + [np.asarray(batch["t"]).tolist() for batch in second] == whole


def test_by_url(bucket, series, tmp_path: Path) -> None:
    bp.convert(series, tmp_path / "a.parquet")
    url = bucket.put("a.parquet", (tmp_path / "a.parquet").read_bytes())
    with bp.open(url, endpoint=bucket.endpoint) as reader:
        assert starts(Windows(reader, 4, 2, group="episode")) == [0, 2, 10]


def test_floats_and_times() -> None:
    reader = bp.open({"x": np.arange(3, dtype=np.float16), "t": np.arange(3)}, schema={"t": bp.Time("ms")})
    windows = Windows(reader, 2)
    assert windows.schema == Schema({"x": Tensor("float16", (2,)), "t": Tensor("int64", (2,))})
    assert isinstance(reader.schema["x"], Float)


def episodes(folder: Path, names: list[str], suffix: str = ".csv") -> Path:
    """Files of 17 rows each, named so."""
    folder.mkdir()
    for number, name in enumerate(names):
        rows = {"t": np.arange(17) + 100 * number, "e": np.zeros(17, dtype=np.int64)}
        bp.convert(bp.open(rows), folder / f"{name}{suffix}")
    return folder


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("options", [{}, {"group": "e"}, {"order_by": "t"}])
def test_a_window_never_crosses_independent_files(tmp_path: Path, suffix: str, options: dict) -> None:
    folder = episodes(tmp_path / "runs", ["ep_0", "ep_1", "ep_2", "ep_3"], suffix)
    windows = Windows(folder, 5, 3, **options)
    # Four files of 17 rows: windows begin at rows 0, 3, 6, 9 and 12 of each.
    assert starts(windows) == [100 * file + row for file in range(4) for row in range(0, 13, 3)]
    assert len(Windows(folder, 5, 3, across=True, **options)) == (68 - 5) // 3 + 1
    assert windows.base.boundaries().tolist() == [17, 34, 51]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_windows_go_on_across_shards(tmp_path: Path, suffix: str) -> None:
    names = ["a-00000-of-00003", "a-00001-of-00003", "a-00002-of-00003", "b-00000-of-00001"]
    folder = episodes(tmp_path / "shards", names, suffix)
    windows = Windows(folder, 5, fields=["t"])
    assert windows.base.boundaries().tolist() == [51]
    assert len(windows) == (51 - 4) + (17 - 4)
    assert len(Windows(folder, 5, fields=["t"], across=False)) == (51 - 4) + (17 - 4)


def test_files_that_may_be_shards_are_named(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "runs", ["run-00000", "run-00001"])
    with pytest.warns(UserWarning, match=r"run-00000\.csv into run-00001\.csv.*across=True"):
        assert len(Windows(folder, 5)) == 2 * 13
    assert len(Windows(folder, 5, across=False)) == 2 * 13
    assert len(Windows(folder, 5, across=True)) == 34 - 4


def test_a_group_with_an_order_gathers_rows_from_all_files(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "runs", ["monday", "tuesday"])
    assert len(Windows(folder, 5, group="e", order_by="t")) == 34 - 4
    assert len(Windows(folder, 5, group="e", order_by="t", across=False)) == 2 * 13


def test_boundaries_of_a_part_and_of_what_is_joined(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "runs", ["ep_0", "ep_1", "ep_2"])
    reader = bp.open(folder)
    assert reader.subset([3, 4, 20, 21, 2, 40]).boundaries().tolist() == [2, 4, 5]
    assert reader.filter("t >= 110").boundaries().tolist() == [7]
    assert reader.rename({"t": "time"}).select(["time"]).boundaries().tolist() == [17, 34]
    assert (
        bp.concat([reader, bp.open({"t": np.arange(2), "e": np.zeros(2, np.int64)})]).boundaries()[-1] == 51
    )
    assert bp.open({"t": np.arange(4)}).boundaries().tolist() == []
