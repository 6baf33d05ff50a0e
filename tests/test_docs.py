"""The documentation is true: generated pages are up to date, examples run, links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from batchplant.cli import main

ROOT = Path(__file__).parent.parent
QUICKSTART, CONVERT, LOADING, IMAGES, GPU, ADD = (
    ROOT / "docs" / name
    for name in (
        "quickstart.md",
        "guides/convert-and-verify.md",
        "guides/loading.md",
        "guides/images.md",
        "guides/gpu.md",
        "guides/add-a-format.md",
    )
)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, *kinds: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of the fenced blocks of these kinds, in order."""
    for kind, text in FENCE.findall(page.read_text("utf-8")):
        if kind in kinds:
            yield kind, text


def quotes(page: Path) -> Iterator[tuple[str, str]]:
    """(path, code) of the blocks that quote a file of ours; its path is in their first line."""
    for _, text in blocks(page, "python"):
        first, _, code = text.partition("\n")
        if first.startswith("# src/"):
            yield first.removeprefix("# "), code


def commands(text: str) -> Iterator[tuple[str, int]]:
    """The commands of a console block and the exit codes they should have: 0 unless the block says so."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("$ batchplant "):
            after = [n for n in range(number + 1, len(lines)) if lines[n].startswith("$ ")]
            asked = bool(after) and lines[after[0]] == "$ echo $?"
            yield line.removeprefix("$ "), int(lines[after[0] + 1]) if asked else 0


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "photos"
    load(ROOT / "demo" / "photos.py").make_folder(folder, 60, size=400)
    return folder


@pytest.fixture
def workplace(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with the folders that the examples speak of: photos, mixed and broken."""
    for name in ("photos", "broken"):
        shutil.copytree(photos, tmp_path / name)
    pictures = sorted((tmp_path / "broken").rglob("*.jpg"))
    for number, content in ((23, pictures[23].read_bytes()[:300]), (38, b""), (46, b"hello\n")):
        pictures[number].write_bytes(content)
    (tmp_path / "mixed").mkdir()
    with Image.open(pictures[0]) as picture:
        for mode, name in (("RGB", "a.jpg"), ("L", "b.png"), ("RGBA", "c.png"), ("CMYK", "d.jpg")):
            picture.convert(mode).save(tmp_path / "mixed" / name)
        deep = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "mixed" / "e.png")
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", QUICKSTART, CONVERT, LOADING, IMAGES, GPU], ids=lambda page: page.name
)
def test_examples_run(page: Path, workplace: Path) -> None:
    names: dict[str, object] = {"__name__": "example"}
    ran = 0
    printed: str | None = None
    for kind, text in blocks(page, "python", "python torch", "console", "text"):
        if kind == "text":
            # Elsewhere what is printed depends on the pictures.
            assert page not in (LOADING, IMAGES, GPU) or printed in (None, text)
            printed = None
            continue
        if kind == "python torch" and importlib.util.find_spec("torch") is None:
            printed = None
            continue
        with (
            contextlib.redirect_stdout(io.StringIO()) as shown,
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            if kind != "console":
                exec(compile(text, str(page), "exec"), names)
                printed = shown.getvalue()
                ran += 1
                continue
            for line, expected in commands(text):
                assert main(shlex.split(line)[1:]) == expected, f"{line}: {said.getvalue()}"
                ran += 1
    # All that the page about the GPU runs needs torch.
    least = int(importlib.util.find_spec("torch") is not None) if page == GPU else 4
    assert ran >= least


def test_the_example_format_passes_the_suite(tmp_path: Path) -> None:
    for _, text in blocks(ADD, "python"):
        first, _, code = text.partition("\n")
        if not first.startswith("# src/"):
            (tmp_path / first.removeprefix("# ")).write_text(code, "utf-8")
    [project] = [text for _, text in blocks(ADD, "toml")]
    entry_points = tomllib.loads(project)["project"]["entry-points"]
    info = tmp_path / "batchplant_rec-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: batchplant-rec\nVersion: 0.1\n")
    lines = [f"{name} = {value}" for name, value in entry_points["batchplant.formats"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[batchplant.formats]", *lines, ""]))
    # What is left out damages records; the formats' own tests do that to the same base class.
    quick = "not (TestFrames and (damage or other_formats or another_process))"
    files = ["test_rec.py", "test_frames.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", quick, *files],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_quoted_code_is_ours() -> None:
    found = list(quotes(ADD))
    assert found
    for path, code in found:
        assert code in (ROOT / path).read_text("utf-8"), f"{path} no longer has:\n{code}"


def test_the_design_names_the_layers() -> None:
    [text] = [text for _, text in blocks(ROOT / "docs" / "design.md", "text layers")]
    assert [line.split() for line in text.splitlines()] == load(ROOT / "tools" / "check_layers.py").LAYERS


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
