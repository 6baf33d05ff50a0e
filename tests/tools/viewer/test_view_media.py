"""The viewer: sounds, videos, arrays, masks, trees, tokens, models, and what is drawn over images."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import schema
from batchplant.codecs import audio, image, rle, video
from batchplant.data.tensors import TENSORS, from_array
from batchplant.errors import NotFoundError, OptionError
from browser import viewed

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from batchplant.tools.viewer import arrays, overlays, pixels, render
from batchplant.tools.viewer.cells import Tokenizer
from batchplant.tools.viewer.serve import application
from batchplant.tools.viewer.session import Session

RATE = 8000


@contextlib.contextmanager
def asked(reader: Any, **options: Any) -> Iterator[Any]:
    """Asks the routes, without the guard in front of them; waits for jobs."""
    session = Session(reader, **options)
    with contextlib.closing(session), TestClient(application(session)) as client:

        def ask(path: str, expect: int = 200, /, **params: Any) -> Any:
            headers = params.pop("headers", None)
            result = client.get(f"/api/{path}", params=params, headers=headers)
            assert result.status_code == expect, result.text
            if not result.headers.get("content-type", "").startswith("application/json"):
                return result
            value = result.json()
            if isinstance(value, dict) and value.get("state") == "working":
                return ask(path, expect, **params)
            return value["value"] if isinstance(value, dict) and value.get("state") == "ready" else value

        yield ask


def written(path: Path, fields: dict[str, Any], samples: list[dict[str, Any]]) -> Any:
    with bp.create(path, schema.Schema(fields)) as out:
        for sample in samples:
            out.append(sample)
    return bp.open(path)


def cells(ask: Any, sample: int = 0) -> dict[str, Any]:
    return {cell["field"]: cell for cell in ask(f"sample/{sample}")["cells"]}


def decoded(answer: Any) -> Any:
    return image.decode(answer.content)


# -- sound ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    beat = np.sin(np.arange(2 * RATE) * 2 * np.pi * 1000 / RATE).astype(np.float32) * 0.5
    quiet = np.zeros((100, 2), np.float32)
    long = np.tile(np.arange(-100, 100, dtype=np.int16), 70 * RATE // 200)
    cells = [audio.encode(item, RATE, "wav") for item in (beat, quiet, long)]
    samples = [{"sound": cell} for cell in [*cells, b"no sound"]]
    return written(tmp_path_factory.mktemp("sounds") / "a.beton", {"sound": schema.Audio()}, samples)


def test_sound_is_told_drawn_and_played(sounds: Any) -> None:
    with asked(sounds) as ask:
        cell = cells(ask)["sound"]
        assert (cell["shows"], cell["rate"], cell["channels"], cell["seconds"]) == ("sound", RATE, 1, 2.0)
        wave = decoded(ask("wave/0/sound", width=200, height=40))
        assert wave.shape == (40, 200, 4)
        # Half of full scale: the middle rows are inked, the outer ones are not.
        assert wave[20, :, 3].all()
        assert not wave[:8, :, 3].any()
        drawn = decoded(ask("spectrogram/0/sound", width=100, height=64)).astype(int).sum(axis=2)
        # 1000 of 4000 Hz, counted from the bottom.
        assert abs(int(drawn.mean(axis=1).argmax()) - 48) <= 1
        result = audio.decode(ask("sound/0/sound").content)
        np.testing.assert_allclose(result[:, 0], audio.decode(sounds[0]["sound"])[:, 0], atol=1e-4)


def test_silence_and_damage(sounds: Any) -> None:
    with asked(sounds) as ask:
        wave = decoded(ask("wave/1/sound", width=50, height=40))
        # A line for each channel.
        assert (wave[:, :, 3].any(axis=1)).sum() == 4
        assert decoded(ask("spectrogram/1/sound")).shape[2] == 3
        assert "error" in cells(ask, 3)["sound"]
        ask("wave/3/sound", 422)
        ask("sound/9/sound", 404)


def test_long_sounds_are_heard_in_windows(sounds: Any) -> None:
    with asked(sounds) as ask:
        cell = cells(ask, 2)["sound"]
        assert (cell["seconds"], cell["window"]) == (70, 60)
        assert len(audio.decode(ask("sound/2/sound").content)) == 60 * RATE
        assert len(audio.decode(ask("sound/2/sound", start=65).content)) == 5 * RATE


def test_ranges(sounds: Any) -> None:
    with asked(sounds) as ask:
        whole = ask("sound/0/sound").content
        size = len(whole)
        for asked_for, first, stop in (("0-9", 0, 10), ("100-", 100, size), ("-7", size - 7, size)):
            result = ask("sound/0/sound", 206, headers={"Range": f"bytes={asked_for}"})
            assert result.content == whole[first:stop]
            assert result.headers["content-range"] == f"bytes {first}-{stop - 1}/{size}"
        assert ask("sound/0/sound", 416, headers={"Range": f"bytes={len(whole)}-"}).content == b""
        # What is no range is as if it were not there.
        for odd in ("bytes=-", "lines=1-2", "bytes=1-2,4-5"):
            assert ask("sound/0/sound", headers={"Range": odd}).content == whole


# -- video ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("av")
    frames = np.zeros((20, 48, 64, 3), np.uint8)
    frames += (np.arange(20) * 12).astype(np.uint8)[:, None, None, None]
    samples = [{"clip": video.encode(frames, 10, kind)} for kind in ("mp4", "avi")] + [{"clip": b"no video"}]
    return written(tmp_path_factory.mktemp("clips") / "a.beton", {"clip": schema.Video()}, samples)


def test_video(clips: Any) -> None:
    with asked(clips) as ask:
        cell = cells(ask)["clip"]
        assert (cell["frames"], cell["fps"], cell["width"], cell["height"]) == (20, 10, 64, 48)
        for number in (0, 10, 19):
            shown = decoded(ask("frame/0/clip", at=number))
            assert shown.shape == (48, 64, 3)
            assert abs(int(shown.mean()) - 12 * number) < 6
        assert decoded(ask("frame/0/clip", at=3, max=32)).shape == (24, 32, 3)
        strip = decoded(ask("strip/0/clip", count=5, height=24))
        assert strip.shape == (24, 160, 3)
        assert (np.diff(strip.mean(axis=(0, 2)).reshape(5, 32).mean(axis=1)) > 20).all()
        part = ask("video/0/clip", 206, headers={"Range": "bytes=4-7"})
        assert (part.content, part.headers["content-type"]) == (b"ftyp", "video/mp4")
        # No browser plays it; its frames are there all the same.
        assert cells(ask, 1)["clip"]["plays"] is False
        ask("video/1/clip", 400)
        assert decoded(ask("strip/1/clip")).shape[0] == 72
        assert "error" in cells(ask, 2)["clip"]
        ask("frame/2/clip", 422)


# -- arrays --------------------------------------------------------------------------------------------------


def slice_of(answer: Any) -> tuple[dict[str, Any], Any]:
    facts = json.loads(answer.headers["x-slice"])
    return facts, np.frombuffer(answer.content, f"<{facts['type']}")


def test_slices_of_a_volume(tmp_path: Path) -> None:
    volume = np.arange(3 * 6 * 7 * 8, dtype=np.float32).reshape(3, 6, 7, 8)
    reader = written(
        tmp_path / "a.zarr", {"ct": schema.Tensor("float32", (6, 7, 8))}, [{"ct": item} for item in volume]
    )
    with asked(reader) as ask:
        cell = cells(ask, 1)["ct"]
        assert (cell["shape"], cell["axes"], cell["every"]) == ([6, 7, 8], [1, 2], True)
        for axes, want in (("1,2", volume[1, 2]), ("2,1", volume[1, 2].T), ("0,2", volume[1, :, 3])):
            facts, values = slice_of(ask("slice/1/ct", axes=axes, at="2,3,0"))
            np.testing.assert_array_equal(values.reshape(facts["shape"]), want)
            assert (facts["low"], facts["high"]) == (want.min(), want.max())
        # Across all samples.
        facts, values = slice_of(ask("slice/1/ct", axes="0,3", at="0,2,4,0", every=1))
        np.testing.assert_array_equal(values.reshape(facts["shape"]), volume[:, 2, 4])
        assert facts["whole"] == [3, 6, 7, 8]
        for bad in ({"axes": "1,1"}, {"axes": "9"}, {"axes": "0,1", "at": "0,0,8"}, {"at": "x"}):
            ask("slice/1/ct", 400, **bad)


def test_large_slices_are_thinned(tmp_path: Path) -> None:
    wide = np.arange(3000, dtype=np.int64)[None].repeat(40, 0)
    line = np.zeros(5000, np.float64)
    line[1234] = 7
    line[77] = np.nan
    fields = {"wide": schema.Tensor("int64", (40, 3000)), "line": schema.Tensor("float64", (None,))}
    reader = written(tmp_path / "a.npz", fields, [{"wide": wide, "line": line}])
    with asked(reader) as ask:
        facts, values = slice_of(ask("slice/0/wide"))
        assert (facts["steps"], facts["shape"], facts["type"]) == ([1, 6], [40, 500], "f8")
        np.testing.assert_array_equal(values[:500], np.arange(0, 3000, 6))
        facts, values = slice_of(ask("slice/0/line"))
        # No peak is lost.
        assert facts["peaks"]
        assert facts["odd"] == 1
        assert np.nanmax(values) == 7
        assert len(values) == 2 * facts["shape"][0]


@pytest.mark.parametrize("dtype", ["bool", "complex64", "datetime64[s]", "float16", "uint8"])
def test_every_dtype_can_be_drawn(dtype: str) -> None:
    values = np.arange(12).reshape(1, 3, 4).astype("int64").astype(dtype)
    with asked(bp.open({"x": values})) as ask:
        result = slice_of(ask("slice/0/x"))[1]
        want = np.arange(12) > 0 if dtype == "bool" else np.arange(12)
        np.testing.assert_array_equal(result, want)
        assert len(cells(ask)["x"]["values"]) == 12


@pytest.mark.parametrize("most", [1, 5, 7, 12, 60, 1000])
def test_statistics_read_a_part_at_a_time(most: int) -> None:
    values = np.random.default_rng(1).normal(1e6, 3, (3, 4, 5))
    values[0, 0, :2] = np.nan, np.inf
    values[2] = 0
    taken: list[int] = []

    def take(key: Any) -> Any:
        taken.append(np.size(values[key]))
        return values[key]

    result = arrays.statistics(arrays.LazyArray(values.shape, values.dtype, take), chunk_values=most)
    assert max(taken) <= most
    assert sum(taken) == 2 * values.size
    finite = values[np.isfinite(values)]
    assert (result["values"], result["zeros"], result["not_finite"]) == (60, 20, 2)
    assert result["low"] == finite.min()
    assert result["mean"] == pytest.approx(finite.mean())
    assert result["spread"] == pytest.approx(finite.std())
    assert sum(result["histogram"]["counts"]) == 58


def test_statistics_of_the_widest_values() -> None:
    values = np.array([-1.7e308, 1.7e308])
    result = arrays.statistics(arrays.LazyArray(values.shape, values.dtype, values.__getitem__))
    assert (result["low"], result["high"]) == (-1.7e308, 1.7e308)
    assert "histogram" not in result


def test_empty_and_flat_arrays() -> None:
    with asked(bp.open({"none": np.zeros((1, 0, 5)), "flat": np.full((1, 4, 5), 3.0)})) as ask:
        assert slice_of(ask("slice/0/none"))[0]["values"] == 0
        assert ask("statistics/0/none")["values"] == 0
        result = ask("statistics/0/flat")
        assert (result["low"], result["high"], result["mean"], result["spread"]) == (3, 3, 3, 0)
        assert sum(result["histogram"]["counts"]) == 20


WEIGHTS = {
    "a.weight": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30),
    "b.Bias": np.ones(7, np.int8),
}


def model(path: Path) -> Any:
    with bp.create(path, TENSORS) as out:
        for name, array in WEIGHTS.items():
            out.append(from_array(name, array))
    return bp.open(path)


def test_a_model_is_a_list_of_tensors(tmp_path: Path) -> None:
    with asked(model(tmp_path / "m.safetensors")) as ask:
        assert ask("dataset")["layout"] == "model"
        result = ask("tensors", sort="parameters", down=1)
        assert [row["name"] for row in result["tensors"]] == ["a.weight", "b.Bias"]
        assert (result["parameters"], result["bytes"], result["dtypes"]) == (
            607,
            2407,
            {"float32": 1, "int8": 1},
        )
        assert ask("tensors", search="BIas")["count"] == 1
        sample = result["tensors"][0]["sample"]
        facts = ask(f"statistics/{sample}/data")
        assert (facts["low"], facts["high"], facts["values"]) == (-1, 1, 600)
        assert abs(facts["mean"]) < 1e-6
        assert sum(facts["histogram"]["counts"]) == 600
        facts, values = slice_of(ask(f"slice/{sample}/data"))
        np.testing.assert_array_equal(values.reshape(20, 30), WEIGHTS["a.weight"])
        shown = cells(ask, sample)
        assert (shown["data"]["shape"], shown["shape"]["values"]) == ([20, 30], [20, 30])


# -- trees and tokens ----------------------------------------------------------------------------------------


def test_trees_are_bounded_and_grow() -> None:
    value = {"big": list(range(5000)), "deep": {"a": {"b": [None, True, 2**60, 1.5, "x" * 5000]}}}
    with asked(bp.open({"meta": [value, value]})) as ask:
        result = cells(ask)["meta"]["tree"]
        big, deep = result["entries"][0][1], result["entries"][1][1]
        assert (big["of"], len(big["entries"])) == (5000, render.MAX_ENTRIES)
        rest = ask("tree/0/meta", path=json.dumps(["big"]), start=4990)
        assert [node["text"] for _, node in rest["entries"]] == [str(number) for number in range(4990, 5000)]
        last = deep["entries"][0][1]["entries"][0][1]["entries"]
        assert [node["is"] for _, node in last] == ["null", "bool", "number", "number", "text"]
        # Digits that JavaScript would lose; texts have an end.
        assert last[2][1]["text"] == str(2**60)
        assert len(last[4][1]["text"]) == render.MAX_NODE_LETTERS
        assert last[4][1]["letters"] == 5000
        for nothing in ('["nobody"]', '["big", 5000]', '["big", "0"]', '["deep", 0]'):
            ask("tree/0/meta", 404, path=nothing)
        for bad in ("{}", "[", "[[]]"):
            ask("tree/0/meta", 400, path=bad)


def test_a_tree_has_an_end_however_it_is_nested() -> None:
    value: Any = []
    for _ in range(200):
        value = [value, value]
    assert len(json.dumps(render.tree_node(value))) < 200_000


def test_tokens_and_their_pieces(tmp_path: Path) -> None:
    numbers = [np.array([2, 0, 3, 9], np.int32)]
    reader = written(
        tmp_path / "a.beton", {"input_ids": schema.Tensor("int32", (None,))}, [{"input_ids": numbers[0]}]
    )
    with asked(reader) as ask:
        cell = cells(ask)["input_ids"]
        assert (cell["shows"], cell["tokens"], cell["of"]) == ("tokens", [2, 0, 3, 9], 4)
    tokenizers = pytest.importorskip("tokenizers")
    words = {"hello": 0, "[UNK]": 1, "[CLS]": 2, "world": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with asked(reader, tokenizer=Tokenizer(tmp_path / "tokenizer.json")) as ask:
        cell = cells(ask)["input_ids"]
        assert cell["pieces"] == ["[CLS]", "hello", "world", None]
        assert cell["decoded"] == "[CLS] hello world"
        assert ask("samples", count=1)["samples"][0]["cells"]["input_ids"]["text"] == "[CLS] hello world"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(OptionError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(NotFoundError):
        Tokenizer(tmp_path / "nothing.json")


# -- masks ---------------------------------------------------------------------------------------------------


def test_masks_have_colours_and_a_legend(tmp_path: Path) -> None:
    values = np.zeros((10, 20), np.uint8)
    values[:, 15:] = 3
    fields = {"mask": schema.Image("png", mask=True)}
    reader = written(tmp_path / "a.beton", fields, [{"mask": values}])
    with asked(reader) as ask:
        cell = cells(ask)["mask"]
        assert [(row["class"], row["share"]) for row in cell["legend"]] == [(0, 0.75), (3, 0.25)]
        over = decoded(ask("mask/0/mask", over=1))
        assert over.shape == (10, 20, 4)
        assert (over[..., 3] > 0).sum() == 50
        colour = "#" + bytes(over[0, 19, :3].tolist()).hex()
        assert colour == cell["legend"][1]["colour"]
        # So do the image and the tiles of a grid.
        assert bytes(decoded(ask("image/0/mask"))[0, 19].tolist()).hex() == colour[1:]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (np.array([[1, 0]]), [[1, 0]]),
        (np.array([[[True, False]], [[True, True]]]), [[1, 2]]),
        (np.full((5, 1, 3), 255, np.uint8), [[0xFFFFFF]] * 5),
        (np.array([[[4], [5]]]), [[4, 5]]),
    ],
)
def test_what_masks_are(value: Any, want: Any) -> None:
    assert pixels.classes(value).tolist() == want


# -- overlays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("format", overlays.FORMATS)
def test_how_boxes_are_meant_is_guessed(format: str, relative: bool) -> None:
    rng = np.random.default_rng(3)
    corners = np.sort(rng.random((200, 2, 2)), axis=1).reshape(200, 4)
    size = corners[:, 2:] - corners[:, :2]
    result = {
        "xyxy": corners,
        "xywh": np.concatenate([corners[:, :2], size], axis=1),
        "cxcywh": np.concatenate([corners[:, :2] + size / 2, size], axis=1),
    }[format]
    boxes = result if relative else result * [640, 480, 640, 480]
    assert overlays.guess_box_format([(boxes, 640.0, 480.0)], "things") == (format, relative)
    assert overlays.guess_box_format([(boxes, 640.0, 480.0)], "boxes_xywh") == ("xywh", relative)


def test_boxes_that_could_be_meant_twice() -> None:
    small = np.array([[0.5, 0.5, 0.1, 0.1]])
    assert overlays.guess_box_format([(small, 640.0, 480.0)], "things") == ("cxcywh", True)
    assert overlays.guess_box_format([(small * [640, 480, 640, 480], 640.0, 480.0)], "things") == (
        "xywh",
        False,
    )
    assert overlays.guess_box_format([], "bbox") == ("xywh", False)


def detection(path: Path) -> Any:
    """Two images: arrays of boxes and points beside the first field, annotations as COCO has them."""
    coco = [
        {"bbox": [10, 5, 30, 20], "category_id": 7, "segmentation": [[10, 5, 40, 5, 40, 25]], "score": 0.5},
        {"bbox": [0, 0, 64, 48], "category": "<b>all</b>", "keypoints": [5, 5, 2, 9, 9, 0]},
    ]
    mask = np.zeros((48, 64), np.uint8)
    mask[:10] = 2
    samples = [
        {
            "image": np.full((48, 64, 3), 90 + 50 * at, np.uint8), "mask": mask, "annotations": coco,
            "boxes": np.array([[4, 4, 20, 20], [8, 6, 60, 40]], np.float32), "labels": np.array([1, 0]),
            "keypoints": np.array([[[3, 3, 1], [30, 20, 0]]], np.float32),
        }
        for at in range(2)
    ]  # fmt: skip
    fields = {
        "image": schema.Image("png"), "mask": schema.Image("png", mask=True), "annotations": schema.Json(),
        "boxes": schema.Tensor("float32", (None, 4)), "labels": schema.Tensor("int64", (None,)),
        "keypoints": schema.Tensor("float32", (None, 2, 3)),
    }  # fmt: skip
    return written(path, fields, samples)


def test_overlays_of_a_detection_dataset(tmp_path: Path) -> None:
    with asked(detection(tmp_path / "a.beton")) as ask:
        result = ask("overlays")
        assert [(row["field"], row["draws"], row["format"], row["labels"]) for row in result] == [
            ("mask", "mask", "xyxy", None),
            ("annotations", "annotations", "xywh", None),
            ("boxes", "boxes", "xyxy", "labels"),
            ("keypoints", "points", "xyxy", None),
        ]
        assert not any(row["relative"] for row in result)
        drawn = ask("drawn", samples="0,1")
        assert list(drawn) == ["0", "1"]
        mask, coco, boxes, points = drawn["1"]
        assert mask == {}
        assert coco["boxes"] == [[10, 5, 30, 20], [0, 0, 64, 48]]
        assert coco["labels"] == [7, "<b>all</b>"]
        assert coco["scores"] == [0.5, None]
        assert coco["polygons"] == [[[10, 5, 40, 5, 40, 25]], None]
        assert coco["points"] == [None, [[5, 5, 1], [9, 9, 0]]]
        assert boxes == {"boxes": [[4, 4, 20, 20], [8, 6, 60, 40]], "labels": [1, 0]}
        assert points == {"points": [[[3, 3, 1], [30, 20, 0]]]}
        ask("drawn", 404, samples="7")


def test_run_length_masks_are_drawn(tmp_path: Path) -> None:
    mask = np.zeros((6, 8), np.uint8)
    mask[1:3, 2:5] = 1
    text = rle.encode(mask)
    fields = {"image": schema.Image("png"), "rle": schema.List(schema.Text()), "objects": schema.Json()}
    result = {"image": np.zeros((6, 8, 3), np.uint8), "rle": ["", text, "no such text"]}
    result["objects"] = [{"bbox": [2, 1, 3, 2], "segmentation": {"size": [6, 8], "counts": text}}]
    with asked(written(tmp_path / "a.beton", fields, [result])) as ask:
        masks, objects = ask("drawn", samples="0")["0"]
    [[ring]] = objects["polygons"]
    assert masks["polygons"] == [None, [ring], None]
    assert {(x, y) for x, y in zip(ring[::2], ring[1::2], strict=True)} == {(2, 1), (5, 1), (5, 3), (2, 3)}


def test_kinds_say_how_they_are_drawn(tmp_path: Path) -> None:
    fields = {
        "image": schema.Image("png"), "things": schema.Boxes("cxcywh", normalized=True),
        "where": schema.Keypoints(1), "outline": schema.Polygons(),
    }  # fmt: skip
    one = {
        "image": np.zeros((48, 64, 3), np.uint8), "things": np.array([[0.5, 0.5, 0.2, 0.2]], np.float32),
        "where": np.array([[[3, 4, 2]]], np.float32), "outline": [[[0, 0, 9, 0, 9, 9]]],
    }  # fmt: skip
    with asked(written(tmp_path / "a.beton", fields, [one])) as ask:
        assert [(row["field"], row["draws"], row["format"], row["relative"]) for row in ask("overlays")] == [
            ("things", "boxes", "cxcywh", True),
            ("where", "points", "xyxy", False),
            ("outline", "annotations", "xyxy", False),
        ]
        boxes, points, outline = ask("drawn", samples="0")["0"]
        assert boxes["boxes"] == [pytest.approx([0.5, 0.5, 0.2, 0.2])]
        assert points["points"] == [[[3, 4, 1]]]
        assert outline == {"polygons": [[[0, 0, 9, 0, 9, 9]]]}


def test_a_table_has_no_overlays() -> None:
    with asked(bp.open({"boxes": np.zeros((3, 2, 4)), "meta": ["a", "b", "c"]})) as ask:
        assert ask("overlays") == []
        assert ask("drawn", samples="0") == {"0": []}


@pytest.mark.parametrize(
    "odd",
    [None, 5, "x", [], [1, 2], {"bbox": "no"}, {"bbox": [1, 2, 3]}, [{"bbox": [1, 2, 3, None]}],
     [{"bbox": [1e400] * 4}], {"annotations": [[]]}, [{"keypoints": [1, 2]}], [{"segmentation": [[1]]}],
     {"bbox": [[]]}, {"objects": 3}],
)  # fmt: skip
def test_json_that_is_no_annotation(odd: Any) -> None:
    assert overlays.of_json(odd) == {}


def test_lists_in_an_object_are_annotations_too() -> None:
    actual = overlays.of_json({"bbox": [[1, 2, 3, 4], [5, 6, 7, 8]], "category": ["a", "b"], "area": 3})
    assert actual == {"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]], "labels": ["a", "b"]}


# -- in a browser --------------------------------------------------------------------------------------------


def until(page: Any, true: str) -> None:
    """Waits for this to be true in the page. A bare expression would be evaluated there, which it forbids."""
    page.wait_for_function(f"() => {true}")


@pytest.mark.exhaustive
def test_sounds_are_heard_and_seen(chromium: Any, sounds: Any) -> None:
    with viewed(chromium, sounds) as tab:
        tab.go("sample=2")
        page = tab.page
        until(page, "document.querySelector('audio')?.duration === 60")
        page.get_by_label("Second from which sound is shown").fill("65")
        page.get_by_label("Second from which sound is shown").dispatch_event("change")
        until(page, "document.querySelector('audio').duration === 5")
        page.evaluate("() => { const one = document.querySelector('audio'); one.muted = true; one.play(); }")
        until(page, "parseFloat(document.querySelector('.head-line').style.left) > 0")
        page.evaluate("() => document.querySelector('audio').pause()")
        until(page, "[...document.querySelectorAll('.band img')].every((one) => one.naturalWidth === 1000)")
        assert tab.axe() == []


LIGHT = """(frame) => {
  const image = document.querySelector(".scrubber .frame"), one = new OffscreenCanvas(1, 1).getContext("2d");
  one.drawImage(image, 0, 0, 1, 1);
  return image.complete && image.dataset.frame === frame && one.getImageData(0, 0, 1, 1).data[0] > 190;
}"""


def test_videos_play_and_are_scrubbed(chromium: Any, clips: Any) -> None:
    with viewed(chromium, clips, width=390, height=844, scheme="dark") as tab:
        tab.go("sample=0")
        page = tab.page
        until(page, "document.querySelector('.scrubber .frame')?.naturalWidth === 64")
        # A Chromium without the codec says so in its place.
        player = "document.querySelector('video')"
        until(page, f"!{player} || {player}.duration === 2")
        page.get_by_label("Frame of clip").fill("19")
        page.get_by_label("Previous frame").click()
        page.get_by_text("frame 18 of 20").wait_for()
        page.wait_for_function(LIGHT, arg="18")
        assert tab.axe() == []


@pytest.mark.exhaustive
def test_slices_follow_the_slider(chromium: Any, tmp_path: Path) -> None:
    volume = np.zeros((2, 5, 6, 7), np.float32)
    volume[1, 4] = 3
    meta = {"deep": {"list": list(range(150))}, "script": "<script>alert(1)</script>"}
    fields = {"ct": schema.Tensor("float32", (5, 6, 7)), "meta": schema.Json(), "text": schema.Text()}
    samples = [{"ct": item, "meta": meta, "text": "one\ttwo  \u202eend"} for item in volume]
    with viewed(chromium, written(tmp_path / "a.beton", fields, samples)) as tab:
        tab.go("sample=1")
        page = tab.page
        page.get_by_text("0 to 0, mean 0").wait_for()
        page.get_by_label("axis 0 of ct").fill("4")
        page.get_by_text("3 to 3, mean 3").wait_for()
        page.get_by_label("through all samples").check()
        page.get_by_label("sample of ct").wait_for()
        page.get_by_label("Rows of ct").select_option("0")
        page.get_by_label("Columns of ct").select_option("1")
        canvas = "document.querySelector('.heat canvas')"
        until(page, f"{canvas}?.width === 5 && {canvas}?.height === 2")
        page.get_by_text("Statistics").click()
        page.get_by_role("img", name="Histogram of ct").wait_for()
        # A tree is opened, and asks for what it has not got.
        page.get_by_text("list", exact=True).click()
        page.get_by_role("button", name="50 more").click()
        page.get_by_text("149", exact=True).first.wait_for()
        assert page.get_by_text("<script>alert(1)</script>").count() == 1
        # What turns the direction around is seen; white space if one wants to.
        hidden = page.locator("pre .hidden-letter")
        assert hidden.all_inner_texts() == ["U+202E"]
        page.get_by_label("Show white space").check()
        assert hidden.all_inner_texts() == ["⇥", "·", "·", "U+202E"]
        assert tab.axe() == []


SIZE = "['width', 'height'].map((one) => +document.querySelectorAll('.overlay .edge')[2].getAttribute(one))"


def test_boxes_lie_over_images(chromium: Any, tmp_path: Path) -> None:
    with viewed(chromium, detection(tmp_path / "a.beton")) as tab:
        tab.go()
        page = tab.page
        shapes = "document.querySelectorAll('.overlay rect.edge').length"
        # Two of the annotations and two of the array for each of two samples.
        until(page, f"{shapes} === 8 && document.querySelectorAll('.overlay .dot').length === 4")
        assert page.locator(".overlay polygon").count() == 2
        assert "<b>all</b>" in page.locator(".box-label").all_inner_texts()
        assert page.evaluate(f"() => {SIZE}") == [16, 16]
        meant = page.get_by_label("How the numbers of boxes are meant")
        meant.select_option("xywh")
        until(page, f"{SIZE}[0] === 20")
        page.get_by_label("annotations", exact=True).uncheck()
        until(page, f"{shapes} === 4")
        assert tab.axe() == []
        # The link leads to the same.
        page.reload()
        until(page, f"{shapes} === 4")
        assert meant.input_value() == "xywh"
        tab.go("sample=1")
        until(page, "document.querySelector('.stage .over')?.naturalWidth === 64")
        # Classes and numbers have one colour, whoever draws them.
        numbers = [0, 1, 5, 12, 13, 14, 200, 1 << 20]
        ours = [[list(pixels.colour_of_class(number)) for number in numbers], pixels.colour_map().tolist()]
        both = "(n) => import('./page/colours.js').then((one) => [n.map(one.ofClass), one.ramp('sea')])"
        assert page.evaluate(both, numbers) == ours


@pytest.mark.exhaustive
def test_a_model_in_the_page(chromium: Any, tmp_path: Path) -> None:
    with viewed(chromium, model(tmp_path / "m.safetensors"), scheme="dark") as tab:
        tab.go()
        page = tab.page
        page.get_by_text("2 tensors · 607 parameters").wait_for()
        page.get_by_label("Find tensors by name").fill("weight")
        page.get_by_text("1 of 2 tensors").wait_for()
        page.get_by_role("button", name="a.weight").click()
        page.get_by_role("img", name="Histogram of data").wait_for()
        until(page, "document.querySelector('.heat canvas')?.width === 30")
        assert tab.axe() == []
