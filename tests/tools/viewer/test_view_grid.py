"""The viewer's samples: which of them, in short, in full, as images; and the page that shows them."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from PIL import Image

import batchplant as bp
from batchplant.codecs import image
from batchplant.data.filters import watching
from batchplant.data.reader import Reader, ReaderTuning
from batchplant.errors import OptionError
from browser import viewed

pytest.importorskip("starlette", reason="pip install 'batchplant[view]'")
pytest.importorskip("uvicorn", reason="pip install 'batchplant[view]'")

from starlette.testclient import TestClient

from batchplant.tools.viewer import rows
from batchplant.tools.viewer.cells import Dataset
from batchplant.tools.viewer.serve import application, serving
from batchplant.tools.viewer.session import MAX_RESULT_BYTES, Abandoned, Jobs, Session
from processes import PATIENCE

COUNT = 60
COLOURS = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
NAMES = ("red", "Green", "blau")
# What would run as script if any of it were taken for HTML.
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`&"


def jpeg(number: int, height: int = 40, width: int = 60) -> bytes:
    return image.encode(np.full((height, width, 3), COLOURS[number % 3], np.uint8), "jpeg")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three colours; sample 7 is damaged, 11 is no image."""
    result = tmp_path_factory.mktemp("view") / "images.beton"
    schema = {
        "image": bp.Image(), "label": bp.Int(names=NAMES), "caption": bp.Text(), "score": bp.Float("float32"),
        "note": bp.Text(optional=True),
    }  # fmt: skip
    with bp.create(result, schema=schema) as writer:
        for n in range(COUNT):
            writer.append(
                {
                    "image": jpeg(n), "label": n % 3, "caption": f"Image {n} – größer",
                    "score": (n * 7) % 60, "note": None if n % 2 else f"n{n:02d}",
                }
            )  # fmt: skip
    data = bytearray(result.read_bytes())
    with bp.open(result) as reader:
        spans = reader.spans("image", [7, 11])
        assert spans is not None
        (start, other), (size, _) = spans.start.tolist(), spans.size.tolist()
    data[start + size // 2 : start + size] = bytes(size - size // 2)
    data[other : other + 4] = b"what"
    result.write_bytes(data)
    return result


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    with bp.open(path) as result:
        yield result


@contextlib.contextmanager
def asking(reader: Reader) -> Iterator[Callable[..., Any]]:
    """A function that asks for a path below api/ and gives what JSON says, or the response."""
    session = Session(reader)
    try:
        client = TestClient(application(session))

        def ask(path: str, *, status: int = 200, **params: Any) -> Any:
            for _ in range(500):
                result = client.get(f"/api/{path}", params=params)
                body = result.json() if result.headers.get("content-type") == "application/json" else result
                if not (isinstance(body, dict) and body.get("state") == "working"):
                    break
                time.sleep(0.01)
            assert result.status_code == status, result.text
            return body["value"] if isinstance(body, dict) and body.get("state") == "ready" else body

        yield ask
    finally:
        session.close()


@pytest.fixture
def ask(reader: Reader) -> Iterator[Callable[..., Any]]:
    with asking(reader) as result:
        yield result


# -- what there is -----------------------------------------------------------------------------------------


def test_the_page_is_told_what_is_open(ask: Callable[..., Any], path: Path) -> None:
    result = ask("dataset")
    assert (result["title"], result["path"], result["samples"]) == ("images.beton", str(path), COUNT)
    assert (result["layout"], result["image"], result["label"]) == ("grid", "image", "label")
    shows = {row["name"]: row["shows"] for row in result["fields"]}
    assert shows == {
        "image": "image",
        "label": "class",
        "caption": "text",
        "score": "number",
        "note": "text",
    }
    assert result["fields"][1]["names"] == list(NAMES)


def test_a_password_in_a_url_is_not_shown() -> None:
    reader = bp.open({"x": [1]})
    reader.path = "https://me:secret@host/data.csv?signature=1"
    with asking(reader) as ask:
        assert ask("dataset")["path"] == "https://host/data.csv"
        assert "secret" not in json.dumps(ask("sample/0"))


@pytest.mark.parametrize(
    ("data", "layout"),
    [({"x": [1, 2], "text": ["a", "b"]}, "table"), ({"volume": np.zeros((2, 3, 4, 5))}, "table")],
)
def test_what_has_no_images_is_a_table(data: dict[str, Any], layout: str) -> None:
    with asking(bp.open(data)) as ask:
        assert ask("dataset")["layout"] == layout


# -- which samples -----------------------------------------------------------------------------------------


def numbers(ask: Callable[..., Any], **query: Any) -> list[int]:
    count = ask("rows", **query)["count"]
    result = ask("samples", **query, count=500)
    assert result["count"] == count
    assert [row["row"] for row in result["samples"]] == list(range(count))
    return [row["sample"] for row in result["samples"]]


def test_all_samples_in_their_order_need_no_job(ask: Callable[..., Any]) -> None:
    assert ask("rows") == {"count": COUNT, "of": COUNT, "note": ""}
    assert numbers(ask) == list(range(COUNT))
    assert [row["sample"] for row in ask("samples", start=58, count=10)["samples"]] == [58, 59]
    assert ask("samples", start=COUNT + 5)["samples"] == []


def test_a_condition_a_search_and_a_sort_go_together(ask: Callable[..., Any]) -> None:
    greens = [n for n in range(COUNT) if n % 3 == 1]
    assert numbers(ask, where='label == "Green"') == greens
    assert numbers(ask, where='label == "Green"', search="image 1") == [1, 10, 13, 16, 19]
    by_score = sorted([1, 10, 13, 16, 19], key=lambda n: (n * 7) % 60)
    query = {"where": 'label == "Green"', "search": "image 1", "sort": "score"}
    assert numbers(ask, **query) == by_score
    assert numbers(ask, **query, down="1") == by_score[::-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IMAGE 59", [59]),
        ("GRÖSSER", list(range(COUNT))),
        ("gree", [n for n in range(COUNT) if n % 3 == 1]),
        ("n08", [8]),
        # The end of one caption and the beginning of the next.
        ("größerimage", []),
        ("rimage 1", []),
        (".*", []),
    ],
)
def test_search_finds_texts_and_classes(ask: Callable[..., Any], text: str, expected: list[int]) -> None:
    assert numbers(ask, search=text) == expected


def test_a_text_at_the_end_of_a_cell_and_the_start_of_the_next_is_found_where_it_is() -> None:
    with asking(bp.open({"t": ["xa", "ab", "a", "bab", "aba", ""]})) as ask:
        assert numbers(ask, search="ab") == [1, 3, 4]
        assert numbers(ask, search="bab") == [3]


def test_search_needs_a_text() -> None:
    with asking(bp.open({"x": [1, 2]})) as ask:
        assert "no text to search" in ask("rows", search="a")["error"]["message"]


def test_sorting_keeps_the_order_of_equals_and_puts_missing_last() -> None:
    values = [2.0, float("nan"), 1.0, 2.0, 0.5]
    with asking(bp.open({"x": values, "text": ["b", "a", "bb", "a", "ü"]})) as ask:
        assert numbers(ask, sort="x") == [4, 2, 0, 3, 1]
        assert numbers(ask, sort="x", down="1") == [0, 3, 2, 4, 1]
        assert numbers(ask, sort="text") == [1, 3, 0, 2, 4]


def test_missing_texts_come_last(ask: Callable[..., Any]) -> None:
    odd = list(range(1, COUNT, 2))
    assert numbers(ask, sort="note", down="1") == [*range(COUNT - 2, -1, -2), *odd]


def test_images_are_sorted_by_their_bytes(ask: Callable[..., Any], reader: Reader) -> None:
    sizes = reader.spans("image").size  # type: ignore[union-attr]
    assert ask("rows", sort="image")["note"] == "sorted by the bytes of each cell"
    assert numbers(ask, sort="image") == np.argsort(sizes, kind="stable").tolist()


def test_long_texts_are_sorted_by_what_there_is_memory_for() -> None:
    dataset = Dataset(bp.open({"t": ["12345678b", "12345678a", "0"]}), "")
    matches = rows.find_rows(dataset, rows.Query(sort="t"), lambda done, of: None, max_key_bytes=24)
    assert matches.all().tolist() == [2, 0, 1]
    assert matches.note == "sorted by the first 8 bytes of each text"


@pytest.mark.parametrize(
    ("query", "message", "status"),
    [
        ({"where": 'label = "Green"'}, "column 7 of the filter", 400),
        ({"where": "nothing > 1"}, "there is no field 'nothing'", 422),
        ({"sort": "nothing"}, "there is no field 'nothing' to sort by", 400),
    ],
)
def test_what_is_wrong_with_a_query_is_said(
    ask: Callable[..., Any], query: dict[str, str], message: str, status: int
) -> None:
    result = ask("rows", **query)
    assert result["state"] == "failed"
    assert message in result["error"]["message"]
    # And by whoever asks for what it would leave.
    assert message in ask("samples", **query, status=status)["error"]["message"]


def test_who_asks_too_early_is_told_to_wait(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    go, real = threading.Event(), rows.find_rows

    def slow(dataset: Any, query: Any, told: Any) -> Any:
        told(1, 4)
        assert go.wait(PATIENCE)
        return real(dataset, query, told)

    monkeypatch.setattr(rows, "find_rows", slow)
    session = Session(reader)
    client = TestClient(application(session))
    try:
        early = client.get("/api/samples", params={"search": "image 5"})
        assert early.status_code == 409
        assert early.json()["state"] == "working"
        assert client.get("/api/sheet", params={"search": "image 5", "field": "image"}).status_code == 409
        # A sample is shown meanwhile.
        assert client.get("/api/sample/5", params={"search": "image 5"}).json()["sample"] == 5
        go.set()
        with asking(reader) as ask:
            assert len(numbers(ask, search="image 5")) == 11
    finally:
        go.set()
        session.close()


def test_a_filter_tells_how_far_it_is_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "tuning", ReaderTuning(scan_rows=100))
    reader = bp.open({"x": np.arange(1000)})
    told: list[tuple[int, int]] = []
    with watching(lambda done, of: told.append((done, of))):
        assert len(reader.filter("x < 500")) == 500
    assert told == [(done, 1000) for done in range(100, 1001, 100)]

    def stop(done: int, of: int) -> None:
        raise Abandoned

    with watching(stop), pytest.raises(Abandoned):
        reader.filter("x < 400")
    assert len(reader.filter("x < 400")) == 400


# -- samples -----------------------------------------------------------------------------------------------


def test_samples_in_short(ask: Callable[..., Any]) -> None:
    one = ask("samples", start=4, count=1)["samples"][0]
    assert one["cells"] == {
        "image": {"field": "image", "shows": "image", "height": 40, "width": 60},
        "label": {"field": "label", "shows": "class", "value": 1, "text": "Green"},
        "caption": {"field": "caption", "shows": "text", "text": "Image 4 – größer"},
        "score": {"field": "score", "shows": "number", "value": 28.0, "text": "28.0"},
        "note": {"field": "note", "shows": "text", "text": "n04"},
    }
    assert ask("samples", start=5, count=1, field="note")["samples"][0]["cells"]["note"]["missing"] is True
    ask("samples", field="nothing", status=404)


def test_damage_is_shown_in_its_place(ask: Callable[..., Any]) -> None:
    cells = ask("samples", start=11, count=1)["samples"][0]["cells"]
    assert "no image" in cells["image"]["error"]
    assert cells["caption"]["text"].startswith("Image 11")
    full = {row["field"]: row for row in ask("sample/11")["cells"]}
    assert "no image" in full["image"]["error"]
    assert full["image"]["hex"].startswith("77686174")
    assert full["label"]["text"] == "blau"


def test_a_sample_in_full_says_where_it_lies(ask: Callable[..., Any], path: Path) -> None:
    result = ask("sample/4")
    cells = {row["field"]: row for row in result["cells"]}
    place, data = cells["image"]["place"], path.read_bytes()
    assert (place["file"], place["exact"]) == (str(path), True)
    stored = data[place["start"] : place["start"] + place["size"]]
    assert stored == jpeg(4)
    assert (cells["image"]["size"], cells["image"]["hex"]) == (len(stored), stored[:256].hex())
    assert (cells["image"]["encoding"], cells["image"]["width"]) == ("jpeg", 60)
    got = ask("bytes/4/image")
    assert got.content == stored
    assert got.headers["content-disposition"] == 'attachment; filename="4-image.bin"'


def test_neighbours_are_those_of_the_list(ask: Callable[..., Any]) -> None:
    assert ask("sample/0")["next"] == {"row": 1, "sample": 1}
    assert "previous" not in ask("sample/0")
    query = {"where": 'label == "Green"', "sort": "score", "down": "1"}
    listed = numbers(ask, **query)
    result = ask(f"sample/{listed[3]}", **query)
    assert (result["row"], result["previous"]["sample"], result["next"]["sample"]) == (
        3,
        listed[2],
        listed[4],
    )
    assert ask("sample/0", **query)["row"] is None


def test_samples_are_found_by_number_and_by_key(ask: Callable[..., Any], tmp_path: Path) -> None:
    assert ask("find", sample="7", where='label == "Green"') == {"sample": 7, "row": 2}
    assert ask("find", sample="8", where='label == "Green"') == {"sample": 8, "row": None}
    assert ask("find", sample="1000")["error"]["message"].startswith("there is no sample 1000")
    assert "is no number" in ask("find", sample="x")["error"]["message"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jpg").write_bytes(jpeg(0))
    with bp.open(tmp_path) as folder, asking(folder) as keyed:
        assert [row["key"] for row in keyed("samples")["samples"]] == ["a/a.jpg", "b/b.jpg"]
        assert keyed("find", sample="b/b.jpg") == {"sample": 1, "row": 1}
        assert numbers(keyed, search="B.JPG") == [1]


def test_a_sample_is_checked_by_the_checksums_there_are(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    with bp.create(path, schema={"x": bp.Bytes()}) as writer:
        for n in range(3):
            writer.append({"x": bytes([n]) * 50})
    data = bytearray(path.read_bytes())
    data[data.index(b"\2" * 50) + 7] = 9
    path.write_bytes(data)
    with bp.open(path) as reader, asking(reader) as ask:
        good, bad = ask("check/1"), ask("check/2")
    assert good["ok"]
    assert "CRC of every record" in good["checks"]
    assert not bad["ok"]
    assert bad["problems"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("sample/60", 404), ("sample/x", 404), ("sample/-1", 404), ("image/0/nothing", 404),
        ("samples?start=x", 400), ("sheet?field=caption", 422), ("nothing", 404),
        ("bytes/0/..%2F..%2Fetc%2Fpasswd", 404), ("sample/99999999999999999999999999", 404),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said(reader: Reader, asked: str, status: int) -> None:
    session = Session(reader)
    try:
        assert TestClient(application(session)).get(f"/api/{asked}").status_code == status
    finally:
        session.close()


def test_requests_have_limits(ask: Callable[..., Any]) -> None:
    big = bp.open({"x": np.arange(5000)})
    with asking(big) as asked:
        assert len(asked("samples", count=10**9)["samples"]) == 500
    sheet = ask("sheet", field="image", size=10**6, count=10**6)
    with Image.open(io.BytesIO(sheet.content)) as file:
        assert file.size == (5120, 3072)


# -- images ----------------------------------------------------------------------------------------------


def test_a_sheet_has_every_image_as_a_square(ask: Callable[..., Any]) -> None:
    sheet = ask("sheet", field="image", start=1, count=23, size=32)
    assert json.loads(sheet.headers["x-broken"]) == [6, 10]
    with Image.open(io.BytesIO(sheet.content)) as file:
        pixels = np.asarray(file)
    assert pixels.shape == (96, 320, 3)
    for at in range(23):
        tile = pixels[32 * (at // 10) :, 32 * (at % 10) :][:32, :32]
        want = (128, 128, 128) if at in (6, 10) else COLOURS[(at + 1) % 3]
        assert np.abs(tile[4:28, 4:28].astype(int) - want).max() < 12, at
    assert ask("sheet", field="image", start=COUNT, status=204).content == b""


def test_every_kind_of_image_is_shown(tmp_path: Path) -> None:
    """What the engine cannot decode, and what browsers cannot show, too."""
    grey = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))
    result = {
        "a.png": Image.fromarray(grey), "b.png": Image.fromarray(grey.astype(np.uint16) * 200),
        "c.png": Image.merge("RGBA", [Image.fromarray(grey)] * 4), "d.gif": Image.fromarray(grey),
        "e.bmp": Image.fromarray(grey), "f.tiff": Image.fromarray(grey.astype(np.float32)),
        "g.jpg": Image.fromarray(grey).convert("CMYK"), "h.webp": Image.fromarray(grey).convert("RGB"),
        "i.png": Image.fromarray(grey).convert("P"),
    }  # fmt: skip
    for name, value in result.items():
        value.save(tmp_path / name)
    turned = Image.fromarray(grey)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "z.jpg", exif=exif)
    with bp.open(tmp_path) as reader, asking(reader) as ask:
        sheet = ask("sheet", field="image", size=32)
        assert json.loads(sheet.headers["x-broken"]) == []
        with Image.open(io.BytesIO(sheet.content)) as file:
            tiles = np.asarray(file.convert("L")).astype(int).reshape(32, 10, 32).swapaxes(0, 1)
        # From left to right, and the last, which is turned, from top to bottom.
        assert [int(np.ptp(tile[16])) > 100 for tile in tiles] == [True] * 9 + [False]
        assert [int(np.ptp(tile[:, 16])) > 100 for tile in tiles] == [False] * 9 + [True]
        for number in range(len(result) + 1):
            for longest in (32, 2048):
                got = ask(f"image/{number}/image", max=longest)
                assert got.headers["content-type"].startswith("image/")
                with Image.open(io.BytesIO(got.content)) as file:
                    assert max(file.size) == min(64, longest)
                    assert np.ptp(np.asarray(file.convert("L"))) > 100
        last = ask("samples", start=len(result), count=1)["samples"][0]["cells"]["image"]
        assert (last["width"], last["height"]) == (48, 64)


def test_a_image_that_a_browser_shows_is_given_as_it_is(ask: Callable[..., Any]) -> None:
    got = ask("image/4/image")
    assert got.content == jpeg(4)
    assert (got.headers["content-type"], got.headers["cache-control"]) == (
        "image/jpeg", "private, max-age=600",
    )  # fmt: skip
    ask("image/11/image", status=422)


# -- jobs --------------------------------------------------------------------------------------------------


def test_results_are_kept_within_memory() -> None:
    result = Jobs()
    big = MAX_RESULT_BYTES // 3
    for n in range(8):
        result.get(n, lambda told: np.empty(big, np.uint8), wait=60)
    assert [n for n in range(8) if n in result._jobs] == [5, 6, 7]
    result.close()


def test_what_went_wrong_is_tried_again_later() -> None:
    result, tries = Jobs(), []

    def work(told: Any) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OptionError("not now")
        return "done"

    assert str(result.get("x", work, wait=60).error) == "not now"
    assert result.get("x", work, wait=60).error is not None
    result.close()
    result, tries = Jobs(retry_seconds=-1.0), []
    assert str(result.get("x", work, wait=60).error) == "not now"
    assert result.get("x", work, wait=60).value == "done"
    result.close()


# -- many ask at once --------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_fifty_tabs_leave_nothing_behind(reader: Reader) -> None:
    """Half of them go away in the middle of an answer."""
    before = set(threading.enumerate())
    with serving(Session(reader)) as server:
        parts = urlsplit(server.url)
        seen = []

        def tab(number: int) -> int:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
            try:
                for path in (
                    "api/dataset",
                    "api/samples?count=50",
                    f"api/sheet?field=image&size=64&start={number}",
                ):
                    connection.request("GET", parts.path + path)
                    if number % 2 and path.startswith("api/sheet"):
                        return 200
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status != 200:
                        return answer.status
                seen.append(threading.active_count())
                return 200
            finally:
                connection.close()

        with ThreadPoolExecutor(50) as pool:
            assert set(pool.map(tab, range(50))) == {200}
        # 8 answer, 1 listens, 50 ask.
        assert max(seen) - len(before) <= 8 + 1 + 50 + 4
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(threading.enumerate()) - before == set()


# -- the page ----------------------------------------------------------------------------------------------


def painted(tab: Any, row: int) -> None:
    """Waits until a row has its image."""
    tab.page.wait_for_selector(f"#row-{row} .image")


def test_the_grid_shows_images_and_samples_by_keyboard(chromium: Any, reader: Reader) -> None:
    with viewed(chromium, reader) as tab:
        page = tab.go().page
        painted(tab, 0)
        assert page.inner_text("#title") == "images.beton"
        assert "cannot be decoded" in page.inner_text("#row-7")
        assert "broken" in page.inner_text("#row-11")
        assert tab.axe() == []
        page.keyboard.press("j")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_selector("article[aria-label=caption]")
        assert "sample=2" in page.url
        assert "Image 2" in page.inner_text("article[aria-label=caption]")
        page.click("article[aria-label=image] summary")
        page.click("article[aria-label=image] button:has-text('Check')")
        page.wait_for_selector("article[aria-label=image] .good")
        assert tab.axe() == []
        page.keyboard.press("j")
        page.wait_for_function("() => document.querySelector('.sample h2').textContent === 'Sample 3'")
        page.keyboard.press("Escape")
        page.wait_for_selector("#row-3[aria-selected=true]")
        assert "sample" not in page.url.partition("#")[2]
        page.keyboard.press("g")
        page.keyboard.type("59")
        page.keyboard.press("Enter")
        painted(tab, 59)
        page.wait_for_selector("#row-59[aria-selected=true]")
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")


@pytest.mark.exhaustive
def test_a_link_leads_to_a_sample(chromium: Any, reader: Reader) -> None:
    with viewed(chromium, reader, width=390, height=844, scheme="dark") as tab:
        page = tab.go("sample=4").page
        page.wait_for_selector("article[aria-label=caption]")
        assert "Image 4" in page.inner_text("article[aria-label=caption]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.axe() == []


@pytest.mark.exhaustive
def test_filter_search_and_sort_in_the_page(chromium: Any, reader: Reader) -> None:
    with viewed(chromium, reader) as tab:
        page = tab.go().page
        painted(tab, 0)
        page.fill("#where", 'label = "Green"')
        page.press("#where", "Enter")
        page.wait_for_selector(".wrong mark")
        assert page.inner_text(".wrong mark") == "="
        page.fill("#where", 'label == "Green"')
        page.press("#where", "Enter")
        page.wait_for_function("() => document.querySelector('.count').textContent === '20 of 60 samples'")
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("image 1")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('.count').textContent === '5 of 60 samples'")
        page.click("text=Table")
        page.click("role=columnheader >> text=score")
        page.wait_for_selector("[aria-sort=ascending]")
        page.wait_for_function("() => document.querySelectorAll('.line').length === 5")
        want = sorted([1, 10, 13, 16, 19], key=lambda n: (n * 7) % 60)
        page.wait_for_function(
            "(want) => [...document.querySelectorAll('.line')]"
            ".map((one) => one.id + one.firstChild.textContent).sort().join() === want",
            arg=",".join(f"row-{row}{sample}" for row, sample in enumerate(want)),
        )
        assert tab.axe() == []
        page.click("text=Clear")
        page.wait_for_function("() => document.querySelector('.count').textContent === '60 samples'")


@pytest.mark.exhaustive
def test_the_end_of_ten_million_samples_is_one_key_away(chromium: Any, reader: Reader) -> None:
    many = reader.subset(np.arange(10_000_000) % 5)
    with viewed(chromium, many) as tab:
        page = tab.go().page
        painted(tab, 0)
        page.focus(".samples")
        page.keyboard.press("End")
        painted(tab, 9_999_999)
        assert page.locator(".tile").count() < 100
        page.keyboard.press("Home")
        painted(tab, 0)
        # A wheel moves by as many pixels as it says, however long the list is.
        before = page.evaluate("document.getElementById('row-0').getBoundingClientRect().top")
        page.mouse.move(600, 500)
        page.mouse.wheel(0, 60)
        page.wait_for_function(
            "(top) => Math.abs(document.getElementById('row-0').getBoundingClientRect().top - top) < 2",
            arg=before - 60,
        )
        # Half of the bar is half of the list.
        page.evaluate(
            "() => { const one = document.querySelector('.samples'); one.scrollTop = one.scrollHeight / 2; }"
        )
        page.wait_for_function(
            "() => { const one = document.querySelector('.tile');"
            " return one && Math.abs(Number(one.id.slice(4)) - 5e6) < 1e4; }"
        )


def test_strings_of_a_dataset_never_run(chromium: Any, tmp_path: Path) -> None:
    folder = tmp_path / f"{HOSTILE.replace('/', '_')}"
    for name in (HOSTILE.replace("/", "_"), "javascript:alert(3)"):
        (folder / name).mkdir(parents=True)
        (folder / name / "<svg onload=alert(4)>.jpg").write_bytes(jpeg(0))
    with bp.open(folder) as reader, viewed(chromium, reader) as tab:
        page = tab.go().page
        painted(tab, 0)
        assert HOSTILE.replace("/", "_") in page.inner_text("#row-0")
        page.keyboard.press("Enter")
        page.wait_for_selector("article[aria-label=image]")
    schema = {HOSTILE: bp.Text(), "j": bp.Json(), "b": bp.Bytes()}
    value = {HOSTILE: HOSTILE, "j": {HOSTILE: [HOSTILE]}, "b": HOSTILE.encode()}
    with bp.create(tmp_path / "x.tar", schema=schema) as writer:
        writer.append(value)
    with bp.open(tmp_path / "x.tar") as reader, viewed(chromium, reader) as tab:
        page = tab.go(f"search={quote(HOSTILE)}&sort={quote(HOSTILE)}").page
        page.wait_for_selector("#row-0 .text")
        assert page.inner_text("#row-0 .text") == HOSTILE
        page.keyboard.press("Enter")
        page.wait_for_selector("pre.text")
        assert page.evaluate("document.querySelectorAll('main img, main script:not([src])').length") == 0
