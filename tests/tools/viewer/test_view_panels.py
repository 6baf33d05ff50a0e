"""The viewer: statistics, the order of an epoch, and health."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import schema
from batchplant.codecs import image
from batchplant.tools.viewer import epochs, overview
from batchplant.tools.viewer.epochs import Epoch, EpochOptions
from browser import viewed
from processes import PATIENCE
from viewing import asked, working

CLASSES = ("cat", "dog", "<img src=x onerror=alert(1)>")
FIELDS = {
    "image": schema.Image(), "label": schema.Int(names=CLASSES), "size": schema.Int("int32"),
    "score": schema.Float(), "caption": schema.Text(optional=True), "day": schema.Time("s"),
    "ok": schema.Bool(),
}  # fmt: skip
COUNT = 120


def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(7)
    result = []
    for number in range(COUNT):
        width = int(rng.integers(8, 60))
        pixels = np.full((16, width, 3), (number * 2, 40, 200 - number), np.uint8)
        result.append(
            {
                "image": image.encode(pixels, "png"), "label": number * 3 // COUNT, "size": width,
                "score": float(rng.normal()), "caption": None if number % 8 == 0 else f"text {number % 5}",
                "day": datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=number), "ok": number % 3 > 0,
            }
        )  # fmt: skip
    result[77] = dict(result[76])
    return result


def written(path: Path, rows: list[dict[str, Any]]) -> Any:
    with bp.create(path, schema.Schema(FIELDS)) as out:
        for row in rows:
            out.append(row)
    return bp.open(path)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return written(tmp_path_factory.mktemp("panels") / "a.beton", samples())


def told(done: int, of: int) -> None:
    """Nobody listens."""


# -- overview ------------------------------------------------------------------------------------------------


def test_every_bar_leaves_as_many_samples_as_it_counts(images: Any) -> None:
    bars = 0
    with asked(images) as ask:
        for field in ask("overview", exact=1)["fields"]:
            wanted = [({"where": field["missing_where"]}, field["missing"])] if field["missing"] else []
            for what, row in field["numbers"].items():
                ends = [*map(str, row["edges"][1:-1]), f"{row['edges'][-1]}="]
                for at, count in enumerate(row["counts"]):
                    measure = {"measure": f"{field['name']}|{what}|{row['edges'][at]}|{ends[at]}"}
                    wanted.append(({"where": row["wheres"][at]} if row["wheres"] else measure, count))
            for what, value in field["values"].items():
                for item in value["items"]:
                    measure = {"measure": f"{field['name']}|{what}|{item['label']}"}
                    wanted.append(({"where": item["where"]} if item["where"] else measure, item["count"]))
            for asks, count in wanted[::3]:
                assert ask("rows", **asks)["count"] == count, asks
            bars += len(wanted)
    assert bars > 150


def test_some_samples_unless_all_are_asked_for(images: Any) -> None:
    def ignore(done: int, of: int) -> None:
        pass

    some = overview.collect_overview(images, None, exact=False, progress=ignore, max_samples=40)
    assert (some["looked_at"], some["samples"], some["exact"]) == (40, COUNT, False)
    with asked(images) as ask:
        every = ask("overview", exact=1)
    assert (every["looked_at"], every["exact"]) == (COUNT, True)


def test_overview_is_of_what_the_filter_leaves(images: Any) -> None:
    with asked(images) as ask:
        result = ask("overview", where="label == 'dog'", sort="size")
        assert result["samples"] == 40
        # Numbers of the dataset, not of what is left.
        assert result["copies"]["groups"] == [[76, 77]]
        label = next(row for row in result["fields"] if row["name"] == "label")
        assert [row["label"] for row in label["values"]["values"]["items"]] == ["dog"]
        assert "column 7" in ask("overview", 400, where="label ~ 3")["error"]["message"]
        assert "no measure" in ask("rows", measure="nonsense")["error"]["message"]


# -- order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "where"),
    [(order, ("", "label != 'dog'")[number % 2]) for number, order in enumerate(epochs.ORDER_NAMES)],
)
def test_steps_are_those_of_the_loader(images: Any, order: str, where: str) -> None:
    """With ranks, a filter, and a last step that does not come out even."""
    chosen = np.arange(COUNT) if not where else np.flatnonzero([sample["label"] != 1 for sample in samples()])
    options: dict[str, Any] = {}
    if order == "class_balanced":
        options["labels"] = np.array([sample["label"] for sample in samples()])[chosen]
    params = {"order": order, "seed": 3, "epoch": 1, "batch_size": 7, "world_size": 3, "where": where}
    with asked(images) as ask:
        for rank in range(3):
            loader = bp.Loader(
                images, 7, order=bp.order.by_name(order, **options), seed=3, rank=rank, world_size=3,
                indices=chosen,
                pipelines={name: None for name in FIELDS if name != "label"}, ids=True, workers=1,
            )  # fmt: skip
            loader.go_to(1)
            for step, batch in enumerate(loader):
                result = ask("step", **params, step=step, rank=rank)
                assert result["samples"] == batch["ids"].tolist()
                assert result["steps"] == len(loader)
            loader.close()
        assert "no step" in ask("step", **params, step=99)["error"]["message"]
        seen = ask("when/100", **params)["seen"]
        assert 100 in ask("step", **params, step=seen[0]["step"], rank=seen[0]["rank"])["samples"]


@pytest.mark.parametrize(
    ("world_size", "batch", "drop"), [(1, 256, ""), (3, 7, ""), (7, 9, ""), (50, 2, ""), (4, 8, "1")]
)
def test_every_position_has_its_step_and_rank(images: Any, world_size: int, batch: int, drop: str) -> None:
    epoch = Epoch(
        images,
        None,
        EpochOptions("random", batch_size=batch, world_size=world_size, drop_last=bool(drop)),
        None,
        told,
    )
    steps, ranks = epoch.steps_and_ranks(np.arange(COUNT))
    expected = {
        position: (number, rank)
        for rank in range(world_size)
        for number in range(len(epoch.shard(rank)))
        for position in epoch.shard(rank).positions(number)
    }
    actual = {at: (int(steps[at]), int(ranks[at])) for at in range(COUNT) if steps[at] >= 0}
    assert actual == expected


def test_labels_along_the_epoch(images: Any) -> None:
    with asked(images) as ask:
        sorted_, mixed = (
            ask("epoch", order=text, batch_size=10)["mixing"] for text in ("sequential", "random")
        )
        first = [counts[0] for counts in sorted_["counts"]]
        assert sorted(first) == [0, 0, 15]
        assert np.array(sorted_["counts"]).sum() == COUNT
        assert sorted_["batch_entropy"] < 0.3 < mixed["batch_entropy"]
        assert mixed["again"] < 0.3 < 0.9 < sorted_["again"]
        named = ask("epoch", label="caption")["mixing"]["names"]
        assert {"(missing)", "text 1"} <= set(named)


def test_how_mixed_a_long_epoch_is(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by rows from all over it; each of them has one class only, which is not by chance."""
    monkeypatch.setattr(epochs.Epoch, "stretch_positions", 32)
    with asked(images) as ask:
        result = ask("epoch", order="sequential", batch_size=4)
    assert result["mixing"]["again"] > 0.8
    assert result["mixing"]["batch_entropy"] < 0.2
    assert result["kept_neighbours"] == 1.0


def test_blocks_and_ranks_of_an_epoch(images: Any) -> None:
    with asked(images) as ask:
        result = ask("epoch", order="shards", world_size=4, batch_size=5)
        assert (result["steps"], result["length"]) == (6, COUNT)
        assert {dot[3] for dot in result["dots"]} == {0, 1, 2, 3}
        assert sorted(dot[2] for dot in result["dots"]) == list(range(COUNT))
        assert result["blocks"]["count"] >= 1
        dropped = ask("epoch", batch_size=50, drop_last=1)
        assert (dropped["steps"], dropped["left_out"], len(dropped["dots"])) == (2, 20, 100)
        assert ask("when/3", order="sequential", batch_size=50, world_size=2)["seen"] == [
            {"position": 3, "step": 0, "rank": 0}
        ]


def test_orders_that_cannot_be_had(images: Any) -> None:
    with asked(bp.open({"x": np.arange(5, dtype=np.float32)})) as ask:
        assert "no blocks" in ask("epoch", order="shards")["error"]["message"]
        assert "needs a field of classes" in ask("epoch", order="class_balanced")["error"]["message"]
        assert "mixing" not in ask("epoch")
    with asked(images) as ask:
        assert "no order" in ask("epoch", 400, order="weighted")["error"]["message"]
        assert "no field of classes" in ask("epoch", 400, label="image")["error"]["message"]
        assert ask("when/5", where="label == 'dog'")["seen"] == []
        assert "no sample" in ask(f"when/{COUNT}", 404)["error"]["message"]


# -- health --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = samples()
    rows[90]["image"] = rows[90]["image"][:60] + b"?" * 20
    return written(tmp_path_factory.mktemp("panels") / "damaged.parquet", rows)


def test_problems_name_the_sample(damaged: Any) -> None:
    with asked(damaged) as ask:
        assert ask("verify")["ok"]
        result = ask("verify", decode=1)
        assert "decode" in result["checks"]
        assert not result["ok"]
        assert [(row["sample"], row["field"]) for row in result["problems"]] == [(90, "image")]
        # By the number in the dataset, also where a filter is set.
        left = ask("verify", decode=1, where="label == 2")
        assert ([row["sample"] for row in left["problems"]], left["of"]) == ([90], 40)
        assert ask("verify", decode=1, where="label == 'cat'")["ok"]
        assert ask("verify", sample=10)["samples"] == 10


def test_findings_name_the_samples(damaged: Any) -> None:
    with asked(damaged) as ask:
        result = {row["check"]: row for row in ask("doctor", where="label != 'cat'")["findings"]}
    assert [row["sample"] for row in result["corrupt-samples"]["examples"]] == [90]
    twice = [(row["sample"], row["said"]) for row in result["duplicates"]["examples"]]
    assert twice == [(77, "as sample 76")]
    assert all(value["why"] and value["mend"] for value in result.values())


def test_work_that_nobody_wants_ends(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is closed while all samples are counted."""
    begun, ended = threading.Event(), threading.Event()
    from batchplant.tools.viewer.session import Session

    session = Session(images)
    real = overview.stats.collect

    def collect(*args: Any, progress: Any, **options: Any) -> Any:
        begun.set()
        try:
            while True:
                progress(0, 1)
                real(*args, progress=progress, **options)
        finally:
            ended.set()

    monkeypatch.setattr(overview.stats, "collect", collect)
    session.jobs.get(
        "x", lambda progress: overview.collect_overview(images, None, exact=True, progress=progress)
    )
    assert begun.wait(PATIENCE)
    session.close()
    assert ended.wait(PATIENCE)


def test_work_is_stopped_and_begun_again(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    real = overview.stats.collect

    def endless(*args: Any, progress: Any, **options: Any) -> Any:
        if not stopped.is_set():
            try:
                while True:
                    progress(1, 2)
            finally:
                stopped.set()
        return real(*args, progress=progress, **options)

    monkeypatch.setattr(overview.stats, "collect", endless)
    with working(images) as client:
        assert client.get("/api/overview").json()["state"] == "working"
        client.get("/api/overview?stop=1")
        assert stopped.wait(PATIENCE)
        while (result := client.get("/api/overview").json())["state"] == "working":
            pass
    assert result["value"]["samples"] == COUNT


# -- in a browser --------------------------------------------------------------------------------------------


def test_overview_in_a_browser(chromium: Any, images: Any) -> None:
    with viewed(chromium, images) as tab:
        tab.go("tab=overview")
        page = tab.page
        page.get_by_role("button", name=CLASSES[2]).wait_for()
        page.get_by_label("Histogram of width in pixels of image").wait_for()
        assert tab.axe() == []
        page.get_by_role("button", name="dog").click()
        page.wait_for_function("() => location.hash.includes('dog') && location.hash.includes('tab=grid')")
        page.get_by_text("40 of 120 samples").wait_for()
        tab.go("tab=overview&where=label+%3D%3D+'dog'")
        page.get_by_text("All 40 samples").wait_for()
        # A bin of a histogram by keyboard, beside the filter that is set.
        page.locator("svg[aria-label='Histogram of width in pixels of image'] g[role=button]").first.press(
            "Enter"
        )
        page.wait_for_function("() => location.hash.includes('measure=') && location.hash.includes('where=')")
        page.get_by_role("button", name="width of image").click()
        page.get_by_text("40 of 120 samples").wait_for()


@pytest.mark.exhaustive
def test_order_in_a_browser(chromium: Any, images: Any) -> None:
    with viewed(chromium, images, width=390, height=844, scheme="dark") as tab:
        tab.go("tab=order&order_batch=8&order_world_size=2&order_by=sequential")
        page = tab.page
        page.get_by_text("Step 0 of rank 0: 8 samples").wait_for()
        page.get_by_label("Shares of classes along the epoch").wait_for()
        assert tab.axe() == []
        page.get_by_role("button", name="Next step").click()
        page.get_by_text("Step 1 of rank 0: 8 samples from position 16").wait_for()
        page.get_by_role("spinbutton", name="Sample").fill("77")
        page.get_by_role("button", name="Find").click()
        page.get_by_role("button", name="step 4 of rank 1").click()
        page.get_by_text("Step 4 of rank 1: 8 samples").wait_for()
        page.get_by_role("link", name="77", exact=True).click()
        page.wait_for_function("() => location.hash.includes('sample=77')")


@pytest.mark.exhaustive
def test_health_in_a_browser(chromium: Any, damaged: Any) -> None:
    with viewed(chromium, damaged, allowed=("Failed to load resource",)) as tab:
        tab.go("tab=health")
        page = tab.page
        page.get_by_text("findings by").wait_for()
        page.get_by_text("1 problem", exact=False).first.wait_for()
        assert tab.axe() == []
        page.get_by_role("link", name="sample 90").first.click()
        page.wait_for_function("() => location.hash.includes('sample=90')")
