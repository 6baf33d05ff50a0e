"""The documentation is true: generated pages are up to date, examples run, links lead somewhere."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pages
import processes
from batchplant.formats.registry import own_formats
from pages import FENCE, PAGES
from repository import ROOT

ADD = ROOT / "docs" / "guides" / "add-a-format.md"
# Pages that show what a command or an example printed once, on other images.
SHOWN_ONCE = ("docs/quickstart.md", "docs/guides/convert-and-verify.md")
# Run elsewhere: the format by the test below, frameworks in processes of their own.
ELSEWHERE = (ADD, *(ROOT / "docs" / "guides" / f"{name}.md" for name in pages.FRAMEWORKS))
EXAMPLES = [
    page
    for page in PAGES
    if page not in ELSEWHERE and {kind for kind, *_ in pages.blocks(page)} & {"python", "console"}
]
# Pages that encode every image in many ways; theirs are smaller.
ENCODING = ("choosing-a-codec", "images", "exercise-image-formats", "exercise-imagenet-beton")
# Pages that crop or show the size of the images, which are larger there.
SIZED = ("quickstart", "stats", "from-ffrecord")
# Pages that speak to a bucket, s3://my-bucket.
REMOTE = ("data-in-a-bucket",)
# Their formats and engines have many tests of their own, and these pages take seconds each.
LONG = ("clusters", "exercise-imagenet-beton", "webdataset", "mds", "litdata", "gpu")
# They measure for seconds, however fast that is.
MEASURING = (
    "shuffling", "comparing-formats", "chunk-sizes", "choosing-a-codec", "simulate", "advise",
    "exercise-image-formats", "exercise-shuffles",
)  # fmt: skip
# How many blocks of a page cannot run here; the page says why.
SKIPPED = {
    "docs/guides/command-line.md": 2,
    "docs/guides/comparing-formats.md": 1,
    "docs/guides/data-in-a-bucket.md": 1,
    "docs/guides/delta-iceberg.md": 1,
    "docs/guides/lmdb.md": 1,
    "docs/guides/mesh.md": 7,
    "docs/guides/models.md": 2,
    "docs/guides/pickle.md": 1,
    "docs/guides/robots.md": 1,
    "docs/guides/service.md": 5,
    "docs/guides/viewing.md": 1,
}


def blocks(page: Path, kind: str) -> Iterator[str]:
    return (text for block, _, text in pages.blocks(page) if block == kind)


def quotes(page: Path) -> Iterator[tuple[str, str]]:
    """(path, code) of the blocks that quote a file of ours; its path is in their first line."""
    for text in blocks(page, "python"):
        first, _, code = text.partition("\n")
        if first.startswith("# src/"):
            yield first.removeprefix("# "), code


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Images of a size, made once for all processes of a run."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def make(size: int) -> Path:
        with open(root / "docs-photos.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Keeps what is there already.
            make_photos().make_folder(root / f"docs-photos-{size}", 60, size=size)
        return root / f"docs-photos-{size}"

    return make


@functools.cache
def make_photos() -> Any:
    return pages.load_script(ROOT / "demo" / "photos.py")


@pytest.fixture
def my_bucket(_no_settings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An S3 server with the bucket that the examples speak of; settings and credentials lead there."""
    from servers import KEY, SECRET, s3_server

    pytest.importorskip("obstore", reason="pip install 'batchplant[remote]'")
    (tmp_path / "buckets" / "my-bucket").mkdir(parents=True)
    with s3_server(str(tmp_path / "buckets"), writable=True) as endpoint:
        config = tmp_path / "config.toml"
        config.write_text(f'[storage."s3://my-bucket"]\nendpoint = "{endpoint}"\n')
        monkeypatch.setenv("BATCHPLANT_CONFIG", str(config))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield


@pytest.fixture
def workplace(
    page: Path,
    photos: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Path]:
    """A current folder with the folders that the examples speak of: photos, mixed and broken."""
    if page.stem in REMOTE:
        request.getfixturevalue("my_bucket")
    size = 150 if page.stem in ENCODING else 400 if page.stem in SIZED else 200
    code = "".join(text for _, _, text in pages.blocks(page))
    for name in ("photos", "broken"):
        if name in code:
            shutil.copytree(photos(size), tmp_path / name)
    if "broken" in code:
        images = sorted((tmp_path / "broken").rglob("*.jpg"))
        for number, content in ((23, images[23].read_bytes()[:300]), (38, b""), (46, b"hello\n")):
            images[number].write_bytes(content)
    if "mixed" in code:
        (tmp_path / "mixed").mkdir()
        with Image.open(min(photos(size).rglob("*.jpg"))) as image:
            for mode, name in (("RGB", "a.jpg"), ("L", "b.png"), ("RGBA", "c.png"), ("CMYK", "d.jpg")):
                image.convert(mode).save(tmp_path / "mixed" / name)
            deep = np.asarray(image.convert("L")).astype(np.uint16) * 257
        Image.fromarray(deep).save(tmp_path / "mixed" / "e.png")
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


def test_generated_pages_are_up_to_date() -> None:
    done = processes.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_measured_tables_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run of the script is followed by _how_report.py, and nobody edits its tables by hand."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    report = pages.load_script(ROOT / "benchmarks" / "_how_report.py")
    answer = json.loads((ROOT / "benchmarks" / "results" / "how-loading-works.json").read_text())
    text = report.PAGE.read_text("utf-8")
    assert report.page(answer, text) == text
    for name in report.DRAWN:
        assert f"figures/{name}.svg" in text


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.exhaustive) if page.stem in MEASURING + LONG else page
        for page in EXAMPLES
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_run(page: Path, workplace: Path) -> None:
    pages.run(page, compare=str(page.relative_to(ROOT)) not in SHOWN_ONCE)


def test_what_is_not_run_is_known() -> None:
    """A block that cannot run here is listed: else the pages that are run could dwindle unseen."""
    actual: dict[str, int] = {}
    for page in PAGES:
        for kind, rest, _ in pages.blocks(page):
            if kind in ("python", "console") and rest.startswith("skip:"):
                assert rest.removeprefix("skip:").strip(), f"{page}: say why"
                actual[str(page.relative_to(ROOT))] = actual.get(str(page.relative_to(ROOT)), 0) + 1
    assert actual == SKIPPED


def test_every_page_with_code_is_run() -> None:
    """Code has the word python or console behind its backticks, and not sh or nothing."""
    for page in PAGES:
        for kind, _, text in pages.blocks(page):
            assert kind in ("python", "console", "text", "output", "json", "toml", "yaml"), (
                f"{page}: a block of {kind!r}: {text[:60]}"
            )
    assert len(EXAMPLES) > 25


def run_suites(folder: Path, chosen: str, *files: str) -> None:
    """Run suites of the formats of the guide, which are installed in a folder."""
    for text in blocks(ADD, "python"):
        first, _, code = text.partition("\n")
        if not first.startswith("# src/"):
            (folder / first.removeprefix("# ")).write_text(code, "utf-8")
    [project] = blocks(ADD, "toml")
    entry_points = tomllib.loads(project)["project"]["entry-points"]
    info = folder / "batchplant_rec-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: batchplant-rec\nVersion: 0.1\n")
    lines = [f"{name} = {value}" for name, value in entry_points["batchplant.formats"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[batchplant.formats]", *lines, ""]))
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.exhaustive
def test_the_example_format_passes_the_suite(tmp_path: Path) -> None:
    # What is left out damages records; the formats' own tests do that to the same base class.
    quick = "not (TestFrames and (damage or other_formats or another_process))"
    run_suites(tmp_path, quick, "test_rec.py", "test_frames.py", "test_idx.py")


def test_a_format_of_one_array_passes_the_suite(tmp_path: Path) -> None:
    # What is left out writes files of all formats, and starts processes.
    run_suites(tmp_path, "not (other_formats or another_process)", "test_idx.py")


def test_the_reader_of_the_exercise_has_60_lines() -> None:
    [code] = [
        text
        for text in blocks(ROOT / "docs" / "guides" / "exercise-mmap-reader.md", "python")
        if "class " in text
    ]
    assert len(code.splitlines()) <= 60


def test_quoted_code_is_ours() -> None:
    result = list(quotes(ADD))
    assert result
    for path, code in result:
        assert code in (ROOT / path).read_text("utf-8"), f"{path} no longer has:\n{code}"


def test_the_design_names_the_layers() -> None:
    [text] = [text for kind, rest, text in pages.blocks(ROOT / "docs" / "design.md") if rest == "layers"]
    assert [line.split() for line in text.splitlines()] == pages.load_script(
        ROOT / "tools" / "check_layers.py"
    ).LAYERS


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_number_of_formats_is_up_to_date(page: str) -> None:
    assert f" {len(own_formats())} formats" in (ROOT / page).read_text("utf-8").replace("\n", " ")


def test_the_page_of_installation_lists_all_extras() -> None:
    text = (ROOT / "docs" / "install.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    table = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert set(re.findall("`([^`]+)`", table)) == {
        extra for extra in project["optional-dependencies"] if extra not in ("test", "docs", "dev")
    }


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have on GitHub."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


NEEDS_TORCH = re.compile(
    r"^\s*(import torch|from torch|from batchplant\.(ffcv|ffrecord\.torch|interop\.torch))\b", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_needs_torch_says_so(page: Path) -> None:
    """So that the examples are left out where it is not installed."""
    for kind, rest, text in pages.blocks(page):
        if kind == "python" and NEEDS_TORCH.search(text):
            assert "torch" in rest.split() or rest.startswith("skip:"), text
