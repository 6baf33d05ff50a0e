"""VideoClips: every clip of every video by stride, as samples."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant import ops
from batchplant.codecs import video
from batchplant.codecs.media.video import frames as frame_reader
from batchplant.errors import DecodeError, OptionError, SchemaError

pytest.importorskip("av")

GOLDEN = repository.GOLDEN / "video"
LENGTHS = (23, 5, 16)


def frames_of(number: int, count: int, height: int = 12, width: int = 16) -> Any:
    """Frames that all differ."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def encoded(number: int, count: int, **size: int) -> bytes:
    return video.encode(frames_of(number, count, **size), 10, "mkv", lossless=True, gop=6)


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clips") / "films.tar"
    with bp.create(path, {"video": bp.Video("mkv"), "name": bp.Text(), "label": bp.Int()}) as out:
        for number, count in enumerate(LENGTHS):
            out.append({"video": encoded(number, count), "name": f"film {number}", "label": number})
    return path


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"frames": 8, "stride": 4}, [(0, 4, 8, 12), (), (0, 4, 8)]),
        ({"frames": 8}, [(0, 8), (), (0, 8)]),
        ({"frames": 4, "stride": 7, "step": 3}, [(0, 7), (), (0,)]),
        ({"frames": 8, "stride": 4, "pad": "last"}, [(0, 4, 8, 12, 16), (0,), (0, 4, 8)]),
        ({"frames": 2, "stride": 11, "pad": "last"}, [(0, 11, 22), (0,), (0, 11)]),
    ],
)
def test_clips_are_the_frames_at_every_stride(films, options, starts):
    clips = bp.VideoClips(films, **options)
    places = [(number, start) for number, each in enumerate(starts) for start in each]
    assert [(clip["video_id"], clip["start"]) for clip in clips] == places
    steps = np.arange(options["frames"]) * options.get("step", 1)
    for sample, (number, start) in zip(clips, places, strict=True):
        wanted = np.minimum(start + steps, LENGTHS[number] - 1)
        assert np.array_equal(sample["video"], frames_of(number, LENGTHS[number])[wanted])
        assert (sample["name"], sample["label"]) == (f"film {number}", number)
    assert np.bincount(clips.blocks(), minlength=3).tolist() == [len(each) for each in starts]


def test_an_epoch_of_the_loader_sees_every_clip_and_resumes(films):
    clips = pickle.loads(pickle.dumps(bp.VideoClips(films, 8, 4, pad="last")))
    pipelines = {"video": [ops.RandomCrop(8), ops.RandomHorizontalFlip()]}
    loader = bp.Loader(clips, 2, pipelines=pipelines, order="quasi_random", seed=3)
    batches: list[Any] = []
    states = []
    for batch in loader:
        assert batch["video"].shape[1:] == (8, 8, 8, 3)
        assert batch["video"].dtype == np.uint8
        batches.append(batch)
        states.append(loader.state_dict())
    seen = [place for batch in batches for place in zip(batch["video_id"], batch["start"], strict=True)]
    assert sorted(seen) == [(clip["video_id"], clip["start"]) for clip in clips]
    again = bp.Loader(clips, 2, pipelines=pipelines, order="quasi_random", seed=3)
    again.load_state_dict(states[1])
    for batch, before in zip(again, batches[2:], strict=True):
        assert np.array_equal(batch["video"], before["video"])


def test_frames_that_clips_of_a_batch_share_are_decoded_once(films, monkeypatch):
    images = []
    image = frame_reader._image
    monkeypatch.setattr(frame_reader, "_image", lambda *a: images.append(1) or image(*a))
    clips = bp.VideoClips(films, 8, 4)
    assert not images
    columns = clips.read([3, 1, 2, 2])
    assert len(images) == 16
    for start, clip in zip((12, 4, 8, 8), columns["video"], strict=True):
        assert np.array_equal(clip, frames_of(0, 23)[start : start + 8])


def test_a_folder_of_videos_at_one_size(tmp_path):
    for name, label in (("h264.mp4", "run"), ("vp9.webm", "jump"), ("hevc.mkv", "run")):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / name).write_bytes((GOLDEN / name).read_bytes())
    reader = bp.open(tmp_path)
    clips = bp.VideoClips(tmp_path, 4, 2, size=(10, 14))
    counts = [(sample["video"].frames - 4) // 2 + 1 for sample in reader]
    assert len(clips) == sum(counts)
    with closing(bp.Loader(clips, 4, drop_last=False)) as loader:
        for batch in loader:
            assert batch["video"].shape[1:] == (4, 10, 14, 3)
            for row, number in enumerate(batch["video_id"].tolist()):
                start = int(batch["start"][row])
                wanted = reader[number]["video"].read(start, 4, size=(10, 14))
                assert np.array_equal(batch["video"][row], wanted)
                assert batch["label"][row] == reader[number]["label"]


def test_videos_that_cannot_be_read_are_named_or_left_out(tmp_path):
    path = tmp_path / "a.tar"
    with bp.create(path, {"video": bp.Video("mkv")}) as out:
        for data in (encoded(0, 20), b"no video", encoded(2, 20)):
            out.append({"video": data})
    # The second time, what is known of the containers is remembered.
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"a\.tar, sample 1, field 'video'"):
            bp.VideoClips(path, 8)
        clips = bp.VideoClips(path, 8, on_error="skip")
        assert [clip["video_id"] for clip in clips] == [0, 0, 2, 2]
        assert [(item.sample, item.field) for item in clips.skipped] == [(1, "video")]


def test_damage_between_the_frames_is_up_to_the_loader(tmp_path):
    whole = (GOLDEN / "h264.mp4").read_bytes()
    start = whole.index(b"mdat") + 4
    size = int.from_bytes(whole[start - 8 : start - 4], "big") - 8
    broken = whole[: start + size // 2] + b"\xff" * (size - size // 2) + whole[start + size :]
    with bp.create(tmp_path / "b.tar", {"video": bp.Video("mp4")}) as out:
        out.append({"video": broken})
    clips = bp.VideoClips(tmp_path / "b.tar", 2, 2)
    with pytest.raises(DecodeError, match=r"b\.tar, sample \d+, field 'video'"):
        list(bp.Loader(clips, 4))
    loader = bp.Loader(clips, 4, on_error="skip", drop_last=False)
    good = sum(len(batch["start"]) for batch in loader)
    assert 0 < good < len(clips)
    assert len(loader.skipped) == len(clips) - good


def test_missing_videos_have_no_clips():
    samples = [{"film": None, "n": 0}, {"film": encoded(0, 6), "n": 1}]
    schema = {"film": bp.Video("mkv", optional=True), "n": bp.Int()}
    clips = bp.VideoClips(bp.open(samples, schema=schema), 3)
    assert [(clip["n"], clip["start"]) for clip in clips] == [(1, 0), (1, 3)]


def test_wrong_options(films, tmp_path):
    for wrong in (
        {"frames": 0}, {"stride": 0}, {"step": 0}, {"pad": "zero"}, {"on_error": "no"}, {"field": "label"},
        {"size": (1, 2, 3)}, {"size": 0}, {"frames": 1 << 62},
    ):  # fmt: skip
        with pytest.raises(OptionError, match=r"films\.tar"):
            bp.VideoClips(films, **wrong)
    with pytest.raises(SchemaError, match="rename"):
        bp.VideoClips(bp.open(films).rename({"label": "start"}))
    with pytest.raises(OptionError, match="there are none"):
        bp.VideoClips(bp.open(films).select(["label"]))
    samples = [{"video": encoded(0, 4)}, {"video": encoded(1, 4, height=20)}]
    uneven = bp.open(samples, schema={"video": bp.Video("mkv")})
    with pytest.raises(OptionError, match=r"sample 1, field 'video': the video is 16×20.*size="):
        bp.VideoClips(uneven, 2)
    assert bp.VideoClips(uneven, 2, size=8)[3]["video"].shape == (2, 8, 8, 3)
