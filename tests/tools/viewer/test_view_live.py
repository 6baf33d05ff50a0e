"""The viewer: samples after augmentation, loaders as they run, reports, notebooks."""

from __future__ import annotations

import contextlib
import html.parser
import http.client
import json
import pickle
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.codecs import image
from batchplant.errors import DataError, NotFoundError, OptionError
from batchplant.loading.preview import mixes, preview
from loaders import MixedWithPrevious, smooth, write, write_jpeg
from processes import PATIENCE

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from starlette.testclient import TestClient

from batchplant.tools.viewer import augment, dashboard
from batchplant.tools.viewer.dashboard import COLUMNS, Ring
from batchplant.tools.viewer.serve import application
from batchplant.tools.viewer.session import Session
from browser import viewed


def augmented(session: Session, sample: int, ops: str = "", seed: int | None = None, **options: int) -> Any:
    """A sample as the page gets it."""
    loader = session.loaders.get(session.dataset.reader, session.pipeline, ops, seed)
    return augment.augment_sample(loader, session.dataset, sample, **options)


AUGMENT = [ops.RandomResizedCrop(16), ops.RandomHorizontalFlip(), ops.RandomBrightness(0.5)]
HOSTILE = "<script>document.title='run'</script>\"'><img src=x onerror=\"document.title='run'\">"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_jpeg(tmp_path_factory.mktemp("images") / "jpeg.beton", 12)


@pytest.fixture(scope="module")
def ramps(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images that say where a pixel was: red is its column, green its row."""
    y, x = np.mgrid[0:100, 0:140]
    one = np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)
    path = tmp_path_factory.mktemp("ramps") / "ramps.beton"
    return write(path, {"image": bp.Image()}, [{"image": one}] * 6)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often."""
    monkeypatch.setattr(dashboard.Dashboard, "interval_seconds", 0.01)


def answer(url: str, path: str) -> Any:
    """What a served page is told by its server."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", f"{parts.path.rstrip('/')}/api/{path}")
        return json.loads(connection.getresponse().read())


def until(done: Any) -> None:
    limit = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.01)


# -- after augmentation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])
def test_previews_are_what_the_loader_yields(images: str, mixed: bool) -> None:
    own = [*AUGMENT, *([MixedWithPrevious()] if mixed else []), ops.ChannelsFirst()]
    more = {"two": bp.Pipe("image", [ops.RandomResizedCrop(8)])}
    with contextlib.closing(
        bp.Loader(images, 5, order="random", seed=7, pipelines={"image": own, **more}, ids=True)
    ) as loader:
        assert mixes(loader) == mixed
        for epoch in range(2):
            for batch in loader:
                for row, sample in enumerate(batch["ids"].tolist()):
                    result = preview(loader, sample, epoch)
                    for name in ("image", "two", "label"):
                        np.testing.assert_array_equal(result.values[name], batch[name][row])
                    assert len(result.batch) == (len(batch["ids"]) if mixed else 1)


def test_the_box_is_the_one_that_was_cut(ramps: str) -> None:
    pipeline = [ops.RandomResizedCrop(32, scale=(0.2, 0.6)), ops.RandomHorizontalFlip()]
    with contextlib.closing(bp.Loader(ramps, 2, pipelines={"image": pipeline})) as loader:
        flipped = set()
        for sample in range(6):
            result = preview(loader, sample, 3)
            pixels, cut = result.values["image"].astype(float), result.cuts["image"]
            left, top, right, bottom = cut.box
            assert cut.size == (100, 140)
            rows, columns = pixels[..., 1].mean(1), pixels[..., 0].mean(0)
            columns = columns[::-1] if cut.flip else columns
            # The outermost pixels stand for half a pixel of the result, or less, from the edges.
            np.testing.assert_allclose(
                [columns[0], columns[-1]], [left, right], atol=0.5 + (right - left) / 32
            )
            np.testing.assert_allclose([rows[0], rows[-1]], [top, bottom], atol=0.5 + (bottom - top) / 32)
            flipped.add(cut.flip)
        assert flipped == {True, False}


def test_what_cannot_be_shown_says_so(tmp_path: Path) -> None:
    path = write_jpeg(tmp_path / "bad.beton", 4, damaged=[1])
    with contextlib.closing(Session(bp.open(path), pipeline={"image": [ops.Resize(8)]})) as session:
        result = augmented(session, 1, count=2)
        assert [row["epoch"] for row in result["views"]] == [0, 1]
        assert all("sample 1" in row["error"] for row in result["views"])
        # Where the damage is not within the box, the loader has no error, but the original has.
        crop = '[["RandomResizedCrop",{"size":8,"scale":[0.05,0.1]}]]'
        result = augmented(session, 1, ops=crop, count=16)
        assert any("outputs" in item for item in result["views"])
        assert "sample 1" in result["originals"][0]["error"]
    skipping = bp.Loader(path, 4, pipelines={"image": [ops.Resize(8)]}, on_error="skip")
    with contextlib.closing(skipping), pytest.raises(DataError):
        preview(skipping, 1, 0)
    dropping = bp.Loader(path, 3, pipelines={"image": [ops.Resize(8), MixedWithPrevious()]}, drop_last=True)
    with contextlib.closing(dropping), pytest.raises(OptionError, match="dropped with the last batch"):
        preview(dropping, 3, 0)


def test_images_come_turned_as_the_pipeline_turns_them(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    exif = pillow.Exif()
    exif[0x0112] = 6
    pillow.fromarray(smooth(1, 20, 40)).save(tmp_path / "a.jpg", exif=exif)
    for orient, size in ((False, (40, 20)), (True, (20, 40))):
        given = {"image": [ops.Resize(8, orient=orient)]}
        with contextlib.closing(Session(bp.open(tmp_path), pipeline=given)) as session:
            [one] = augmented(session, 0)["originals"]
            assert (one["width"], one["height"]) == size
            header = image.header(np.frombuffer(_bytes(one["src"]), np.uint8))
            assert (header.width, header.height) == size


def _bytes(uri: str) -> bytes:
    import base64

    return base64.b64decode(uri.partition(",")[2])


def test_values_of_every_kind_are_shown(tmp_path: Path) -> None:
    fields = {"image": bp.Image(), "wave": bp.Tensor("float32", (2, 400)), "name": bp.Text(), "n": bp.Int()}
    sample = {"image": smooth(0, 40, 30), "wave": np.zeros((2, 400), np.float32), "name": "x" * 5000, "n": 7}
    reader = bp.open(write(tmp_path / "a.beton", fields, [sample]))
    normal = [ops.Resize(32), ops.Normalize([100] * 3, [50] * 3), ops.ChannelsFirst()]
    gray = bp.Pipe("image", [ops.Resize(32), ops.Convert("float32")])
    with contextlib.closing(Session(reader, pipeline={"image": normal, "gray": gray})) as session:
        [view] = augmented(session, 0)["views"]
        result = {row["name"]: row for row in view["outputs"]}
        plain = augmented(session, 0, ops='[["Resize",{"size":32}]]')["views"][0]
    assert result["image"]["note"] == "normalisation undone to show it"
    assert result["image"]["src"] == plain["outputs"][0]["src"]
    assert "shown as 0 to 255" in result["gray"]["note"]
    assert len(result["wave"]["peaks"]) == 400
    assert len(result["name"]["text"]) == 500
    assert result["n"]["text"] == "7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("{}", "a list"),
        ("[1]", "an op is"),
        ('[["os.system", {}]]', "no op"),
        ('[["Function", {}]]', "no op"),
        ('[["Resize", {"filter": "area"}]]', "no argument"),
        ('[["Resize", {"size": 1e9}]]', "whole number"),
        ('[["Resize", {"size": "8"}]]', "number"),
        ('[["RandomResizedCrop", {"scale": [1]}]]', "2 numbers"),
        (json.dumps([["Resize", {}]] * 30), "at most"),
        ("[" * 5000, "no JSON"),
    ],
)
def test_only_offered_ops_can_be_picked(images: str, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        augment.parse_ops(text, bp.open(images))


def test_every_offered_op_works(images: str) -> None:
    with contextlib.closing(Session(bp.open(images))) as session:
        for name in augment.OFFERED_OPS:
            given = [[name, {}]] if hasattr(getattr(ops, name), "boxes") else [["Resize", {}], [name, {}]]
            [view] = augmented(session, 0, ops=json.dumps(given), seed=1)["views"]
            assert "src" in view["outputs"][0], view
        assert len(session.loaders._loaders) == 4


def test_pipelines_of_a_file(images: str, tmp_path: Path) -> None:
    reader = bp.open(images)
    (tmp_path / "beside.py").write_text("SIZE = 12\n")
    file = tmp_path / "train.py"
    file.write_text(
        "import batchplant as bp\nfrom batchplant.ops import Resize\nfrom beside import SIZE\n"
        "pipelines = {'image': [Resize(SIZE)]}\naugment = [Resize(8)]\n"
        "arguments = {'pipelines': pipelines, 'seed': 5, 'batch_size': 3, 'device': 'cuda'}\n"
        f"loader = bp.Loader({images!r}, 6, pipelines=pipelines, seed=9)\n"
        "def by_reader(reader):\n    return {name: None for name in reader.schema if name != 'image'}\n"
        "def alone():\n    return augment\nnumber = 3\n"
    )
    want = {"": 12, ":pipelines": 12, ":augment": 8, ":arguments": 12, ":loader": 12, ":alone": 8}
    for name, size in want.items():
        given = augment.loader_arguments(augment.load(f"{file}{name}"), reader)
        with contextlib.closing(Session(reader, pipeline=given)) as session:
            result = augmented(session, 0)
            assert result["views"][0]["outputs"][0]["shape"] == [size, size, 3]
            assert result["seed"] == {":arguments": 5, ":loader": 9}.get(name, 0)
    assert augment.loader_arguments(augment.load(f"{file}:by_reader"), reader) == {
        "pipelines": {"label": None}
    }
    with pytest.raises(OptionError, match="a pipeline is"):
        augment.loader_arguments(augment.load(f"{file}:number"), reader)
    with pytest.raises(OptionError, match=r"no name 'argument' \(did you mean arguments"):
        augment.load(f"{file}:argument")
    with pytest.raises(NotFoundError):
        augment.load(f"{tmp_path}/none.py:x")
    file.write_text("1 / 0")
    with pytest.raises(OptionError, match=r"train.py: it raised ZeroDivisionError"):
        augment.load(f"{file}:x")
    file.write_text("x = 1")
    with pytest.raises(OptionError, match="name what to show"):
        augment.load(str(file))


def test_a_function_that_fails_is_told_in_place(images: str) -> None:
    def broken(batch: Any) -> Any:
        raise ZeroDivisionError("my fault")

    given = {"image": [ops.Resize(8), ops.Function(broken, each=True)]}
    with contextlib.closing(Session(bp.open(images), pipeline=given)) as session:
        [view] = augmented(session, 0)["views"]
        assert view["error"] == "ZeroDivisionError: my fault"


def test_augmentation_by_its_route(images: str) -> None:
    session = Session(bp.open(images))
    with contextlib.closing(session), TestClient(application(session)) as client:

        def ask(path: str, **params: Any) -> Any:
            while (answer := client.get(f"/api/{path}", params=params)).json().get("state") == "working":
                pass
            return answer

        assert {row["name"] for row in ask("augment").json()["ops"]} == set(augment.OFFERED_OPS)
        picked = json.dumps([["RandomResizedCrop", {"size": 8}]])
        result = ask("augment/2", ops=picked, seed=3, epoch=4, count=99).json()["value"]
        assert [row["epoch"] for row in result["views"]] == list(range(4, 20))
        boxes = {tuple(row["outputs"][0]["box"]) for row in result["views"]}
        assert len(boxes) == 16
        assert ask("augment/2", ops="[]]").json()["error"]["type"] == "OptionError"
        assert ask("augment/99").status_code == 404


@pytest.mark.exhaustive
def test_augment_in_the_page(chromium: Any, images: str) -> None:
    reader = bp.open(images)
    with viewed(chromium, reader, pipeline={"image": AUGMENT}) as tab:
        tab.go("tab=augment&sample=3")
        tab.page.locator(".aug-view img").nth(3).wait_for()
        assert tab.page.locator(".aug-overlay .aug-box").count() == 4
        assert tab.page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
        assert tab.axe() == []
        tab.page.get_by_role("button", name="Re-roll").click()
        tab.page.get_by_role("heading", name="Epoch 7").wait_for()
        tab.page.get_by_label("Pipeline").select_option("ops")
        tab.page.get_by_label("RandomResizedCrop: size").wait_for()
        tab.page.get_by_label("Add an op").select_option("RandomGrayscale")
        tab.page.get_by_label("RandomGrayscale: p").fill("1")
        tab.page.get_by_label("RandomGrayscale: p").press("Enter")
        tab.page.wait_for_url("**RandomGrayscale**")
        tab.page.get_by_role("button", name="Remove RandomHorizontalFlip").click()
        tab.page.get_by_text("RandomGrayscale(p=1.0)").wait_for(state="attached")
        assert tab.axe() == []


# -- loaders as they run -----------------------------------------------------------------------------------


def test_rows_are_kept_in_a_ring() -> None:
    ring = Ring(3)
    assert ring.since(0) == (0, [])
    for number in range(5):
        ring.add(dict.fromkeys(COLUMNS, float(number)))
    following, rows = ring.since(0)
    assert following == 5
    assert [row[0] for row in rows] == [2, 3, 4]
    assert [row[0] for row in ring.since(4)[1]] == [4]
    assert ring.since(9) == (5, [])


def test_statistics_count_samples_and_queues(images: str) -> None:
    with contextlib.closing(bp.Loader(images, 5, pipelines={"image": AUGMENT}, prefetch_batches=2)) as loader:
        assert loader.stats()["queue"] == {"ready": 0, "making": 0, "prefetch_batches": 2}
        epoch = iter(loader)
        next(epoch)
        until(lambda: loader.stats()["queue"] == {"ready": 2, "making": 0, "prefetch_batches": 2})
        assert loader.stats()["samples"] == 5
        list(epoch)
        assert loader.stats()["samples"] == 12
        assert loader.stats()["queue"] == {"ready": 0, "making": 0, "prefetch_batches": 2}


def test_a_dashboard_from_begin_to_end(images: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    mesh = {"dp": 1, "tp": 2}
    loader = bp.Loader(images, 5, pipelines={"image": AUGMENT}, mesh=mesh, rank=1)
    url = loader.dashboard().url
    assert url in capfd.readouterr().err
    list(loader)
    until(lambda: _now(url)["samples"] == 12)
    want = {"batches": 3, "epoch": 0, "given": 3, "of": 3, "skipped": 0, "ready": 0, "making": 0}
    assert {name: value for name, value in _now(url).items() if name in want} == want
    told = answer(url, "live")
    assert told["about"]["batch_size"] == 5
    assert told["about"]["mesh"] == "dp 0 of 1, tp 1 of 2"
    assert told["about"]["plan"] == str(loader.plan)
    assert told["bottleneck"]
    following = answer(url, f"live?since={told['next']}")
    assert len(following["rows"]) == following["next"] - told["next"]
    # The rest of the page is there, too, with the loader's own pipelines.
    assert answer(url, "dataset")["pipeline"]
    # A second loader is on the same page, which stays until both are closed.
    second = bp.Loader(images, 4, pipelines={"image": AUGMENT})
    assert second.dashboard().url.startswith(url)
    loader.close()
    assert [row["ended"] for row in answer(url, "live?loader=1")["loaders"]] == [True, False]
    assert pickle.loads(pickle.dumps(second))._watch is None
    second.close()
    assert not [
        item for item in set(threading.enumerate()) - before if "view" in item.name or "dash" in item.name
    ]
    with pytest.raises(ConnectionError):
        answer(url, "live")


def _now(url: str) -> dict[str, float]:
    told = answer(url, "live")
    return dict(zip(told["columns"], told["rows"][-1], strict=True))


def _port(url: str) -> str:
    return str(urllib.parse.urlsplit(url).port)


def test_a_loader_that_is_let_go_takes_its_page_along(images: str) -> None:
    before = set(threading.enumerate())
    mesh = {"dp": 1, "tp": 2}
    loader = bp.Loader(images, 5, pipelines={"image": AUGMENT}, mesh=mesh, rank=1)
    url = loader.dashboard().url
    next(iter(loader))
    del loader
    until(lambda: not [item for item in set(threading.enumerate()) - before if item.is_alive()])
    with pytest.raises(ConnectionError):
        answer(url, "live")


def test_a_port_that_is_taken(images: str) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        loader = bp.Loader(images, 5, pipelines={"image": AUGMENT})
        with pytest.raises(OptionError, match="port must be from 1 to 65535"):
            loader.dashboard(1 << 20)
        with pytest.warns(UserWarning, match=f"takes another port: cannot listen on 127.0.0.1:{port}"):
            loader.dashboard(port)
    assert _port(loader.dashboard().url) != str(port)
    loader.close()


def test_a_dashboard_by_the_environment(
    images: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHPLANT_DASHBOARD", "1")
    with contextlib.closing(bp.Loader(images, 5, pipelines={"image": AUGMENT})) as loader:
        assert "dashboard" not in capfd.readouterr().err
        list(loader)
        list(loader)
        assert capfd.readouterr().err.count("dashboard") == 1
        loader.part(0, 2, **loader.ranks()).close()
        assert "dashboard" not in capfd.readouterr().err
    monkeypatch.setenv("BATCHPLANT_DASHBOARD", "yes")
    with contextlib.closing(bp.Loader(images, 5, pipelines={"image": AUGMENT})) as loader:
        with pytest.warns(UserWarning, match="it is 1 or a port, not 'yes'"):
            epoch = iter(loader)
        assert sum(len(batch["label"]) for batch in epoch) == 12


def test_a_running_loader_in_the_page(chromium: Any, images: str) -> None:
    with contextlib.closing(bp.Loader(images, 4, pipelines={"image": AUGMENT})) as loader:
        page = loader.dashboard()
        list(loader)
        with viewed(chromium, loader.reader, live=page.board) as tab:
            tab.go("tab=live")
            # Speeds and axes may show the same number.
            so_far = tab.page.locator(".live-figure", has_text="samples so far")
            so_far.get_by_text("12", exact=True).wait_for()
            tab.page.locator(".live-charts svg").nth(4).wait_for()
            tab.page.get_by_role("img", name="Samples a second").wait_for()
            assert tab.axe() == []
            list(loader)
            so_far.get_by_text("24", exact=True).wait_for()
            tab.page.get_by_role("button", name="Pause").click()
            tab.page.get_by_label("Time shown").select_option("600")
            loader.close()
            tab.page.get_by_text("This loader has ended.").wait_for()


# -- reports -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = {
        "image": bp.Image(), HOSTILE: bp.Text(), "class": bp.Int(names=["a", HOSTILE]), "odd": bp.Text(),
        "tree": bp.Json(), "missing": bp.Float(optional=True),
    }  # fmt: skip
    samples = [
        {"image": smooth(n, 30, 50), HOSTILE: HOSTILE, "class": n % 2, "odd": "\x00\x1b\u202e</style>",
         "tree": {HOSTILE: [HOSTILE]}, "missing": None if n else 2.5}
        for n in range(4)
    ]  # fmt: skip
    return write(tmp_path_factory.mktemp("hostile") / "hostile.beton", fields, samples)


class Seen(html.parser.HTMLParser):
    """Which elements and attributes there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes


def assert_harmless(text: str) -> Seen:
    seen = Seen(text)
    assert "script" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    links = [value or "" for name, value in seen.attributes if name in ("src", "href")]
    assert links
    assert all(link.startswith("data:image/") for link in links)
    return seen


# -- notebooks ---------------------------------------------------------------------------------------------


def test_a_reader_in_a_notebook(hostile: str, tmp_path: Path) -> None:
    seen = assert_harmless(bp.open(hostile)._repr_html_())
    assert seen.tags.count("img") == 4
    damaged = bp.open(write_jpeg(tmp_path / "bad.beton", 3, damaged=[1]))._repr_html_()
    assert Seen(damaged).tags.count("img") == 2
    assert "⚠" in damaged
    many = bp.open({f"field {n}": np.zeros((2, 100_000)) for n in range(300)})._repr_html_()
    assert len(many) < 20_000
    assert bp.open({"x": np.zeros((0, 3))})._repr_html_()


def test_what_fails_in_a_notebook_is_no_stack_trace(images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = bp.open(images)
    monkeypatch.setattr(type(reader), "_read", None)
    monkeypatch.setattr(type(reader), "_spans", None)
    assert "image: Image" in reader._repr_html_()


def test_a_loader_in_a_notebook(images: str) -> None:
    calls = []

    def counted(batch: Any) -> Any:
        calls.append(1)
        return batch

    with contextlib.closing(bp.Loader(images, 5, order="random", pipelines={"image": AUGMENT})) as loader:
        first = next(iter(loader))
        text = loader._repr_html_()
        assert assert_harmless(text).tags.count("img") == 5
        assert "Epoch 1 begins with" in text
        assert len(first["label"]) == 5
    assert "closed" in loader._repr_html_()
    own = {"image": [ops.Resize(8), counted]}
    with contextlib.closing(bp.Loader(images, 5, pipelines=own)) as loader:
        assert "The next epoch begins with the samples 0, 1, 2, 3, 4" in loader._repr_html_()
        assert not calls


@contextlib.contextmanager
def in_notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Shell:
        kernel = object()

    class IPython:
        get_ipython = Shell

    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "IPython", IPython)
        yield


def test_view_embeds_the_page(images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("batchplant.tools.viewer.serve.open_browser", opened.append)
    before = set(threading.enumerate())
    with bp.view(images, pipeline={"image": AUGMENT}) as seen:
        assert opened == [seen.url]
        assert _policy(seen.url).endswith("frame-ancestors 'none'")
        assert answer(seen.url, "dataset")["pipeline"]
    assert repr(seen) == "<view, closed>"
    with in_notebook(monkeypatch):
        loader = bp.Loader(images, 5, pipelines={"image": AUGMENT})
        with bp.view(loader) as seen:
            assert len(opened) == 1
            assert f'src="{seen.url}"' in seen._repr_html_()
            assert "frame-ancestors http: https:" in _policy(seen.url)
            assert answer(seen.url, "dataset")["pipeline"]
        loader.close()
    # Those of the server end by themselves.
    until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(NotFoundError):
        bp.view("/nowhere/at/all")
    with pytest.raises(OptionError):
        bp.view(images, pipeline=3)


def _policy(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", parts.path)
        return connection.getresponse().headers["Content-Security-Policy"]
