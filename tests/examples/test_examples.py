"""The programs of examples/ run, on made data: each with --quick, in this process."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import processes
from pages import is_installed
from repository import ROOT

FOLDER = ROOT / "examples"
# The libraries that a program needs, besides those of the tests.
NEEDS = {
    "accelerate_train": "torch accelerate",
    "contrastive": "torch",
    "detection": "torch",
    "evaluate": "torch",
    "hf_trainer": "torch transformers accelerate",
    "imagenet_resnet": "torch",
    "jax_train": "jax",
    "keras_train": "keras",
    "lightning_train": "torch lightning",
    "medical_patches": "torch",
    "pretrain_gpt": "torch",
    "segmentation": "torch PIL",
    "speech_ctc": "torch",
    "tabular": "torch",
    "timm_finetune": "torch timm torchvision",
    "video_classification": "torch av",
}
# Frameworks warn of what they do themselves.
FRAMEWORKS = (
    "accelerate_train",
    "hf_trainer",
    "jax_train",
    "keras_train",
    "lightning_train",
    "timm_finetune",
)
# How a program is told to stop early, and where it writes what it goes on from.
RESUMING = {
    "accelerate_train": ("--out", 2),
    "hf_trainer": ("--out", 2),
    "imagenet_resnet": ("--checkpoint", 2),
    "jax_train": ("--checkpoint", 2),
    "keras_train": ("--out", 1),
    "lightning_train": ("--out", 2),
    "pretrain_gpt": ("--checkpoint", 5),
}
NOTEBOOK = FOLDER / "tour.ipynb"


def programs(names: list[str]) -> list[object]:
    """Parameters of a test: one for each program."""
    ignored = pytest.mark.filterwarnings("ignore")
    return [pytest.param(name, marks=ignored) if name in FRAMEWORKS else name for name in names]


@pytest.fixture(autouse=True)
def _one_process_of_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide GPUs and launchers, and show the programs each other and their data."""
    for name in list(os.environ):
        if name.endswith(("RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", ""),
        ("HF_HUB_OFFLINE", "1"),
        ("JAX_PLATFORMS", "cpu"),
        ("KERAS_BACKEND", "torch"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)  # nothing is to be written there


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: models as small as these would mostly wait for the others."""
    if not is_installed("torch"):
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(name: str) -> ModuleType:
    for module in NEEDS[name].split():
        if not is_installed(module):
            pytest.skip(f"{module} is not installed")
    try:
        return importlib.import_module(name)
    except RuntimeError as error:  # a torchvision of another torch
        pytest.skip(str(error))


def run(name: str, *arguments: str) -> float:
    """Run a program; return its last loss or score."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = load(name).main(["--quick", *arguments])
    assert shown.getvalue().strip(), "it says nothing"
    return result


def test_every_program_is_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {"_data", *NEEDS}


@pytest.mark.parametrize("name", NEEDS)
def test_programs_are_short_and_say_how_to_run_them(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    docstring = text.split('"""')[1]
    assert 40 <= len(text.splitlines()) <= 150
    assert f"Quick: python examples/{name}.py --quick\n" in docstring
    assert re.search(rf"^    .*examples/{name}\.py [a-z]", docstring, re.MULTILINE), "on real data"


@pytest.mark.parametrize("name", programs(sorted(set(NEEDS) - set(RESUMING) - {"evaluate"})))
def test_runs(name: str, tmp_path: Path) -> None:
    assert np.isfinite(run(name))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", programs(sorted(RESUMING)))
def test_a_resumed_run_ends_as_one_without_a_stop(name: str, tmp_path: Path) -> None:
    option, stop = RESUMING[name]
    state = str(tmp_path / "state")
    whole = run(name)
    assert not list(tmp_path.iterdir())
    assert run(name, option, state, "--stop-after", str(stop)) != whole
    assert run(name, option, state) == whole


def test_the_table_is_learned() -> None:
    assert run("tabular") > 0.85


def test_evaluation_counts_every_sample_once(tmp_path: Path) -> None:
    table = tmp_path / "predictions.csv"
    results = load("evaluate").main(["--quick", "--csv", str(table)])
    assert results["samples"] == 48
    lines = table.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["sample", *map(str, range(48))]
    right = sum(line.split(",")[1] == line.split(",")[2] for line in lines[1:])
    assert right / 48 == results["top1"]


@pytest.mark.parametrize("world_size", [3, 5])
def test_evaluation_counts_every_sample_once_on_uneven_ranks(world_size: int) -> None:
    module = load("evaluate")
    torch = pytest.importorskip("torch")
    import _data

    model = module.resnet(4, (1, 1, 1, 1), 8)
    parts = []
    for rank in range(world_size):
        loader = module.make_loader(_data.photos(), 7, 32, "cpu", rank=rank, world_size=world_size)
        parts.append(module.predict(model, loader)[0])
    sizes = {len(part) for part in parts}
    assert len(sizes) > 1 or 48 % world_size == 0
    assert sorted(torch.cat(parts).tolist()) == list(range(48))


@pytest.mark.parametrize("name", programs(sorted(NEEDS)))
def test_wrong_arguments_get_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = load(name).main
    for arguments, text in (
        (["--nonsense"], "unrecognized arguments"),
        ([], "--quick"),
        (["--help"], "Quick:"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == (0 if arguments == ["--help"] else 2)
        shown = capsys.readouterr()
        assert text in shown.out + shown.err


@pytest.mark.exhaustive
def test_a_missing_folder_gets_a_sentence() -> None:
    load("imagenet_resnet")
    program = str(FOLDER / "imagenet_resnet.py")
    done = processes.run([sys.executable, program, "nowhere", "nowhere"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("error: nowhere: no such file or folder\n")
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
def test_two_processes_train_and_evaluate(tmp_path: Path) -> None:
    """Two processes train with DDP, stop, go on, and end with the weights that one run has."""
    load("imagenet_resnet")
    torch = pytest.importorskip("torch")

    def launch(program: str, *arguments: str) -> str:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = processes.run(
            [*launcher, str(FOLDER / program), "--quick", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return str(done.stdout)

    whole, parts = str(tmp_path / "whole.pt"), str(tmp_path / "parts.pt")
    launch("imagenet_resnet.py", "--checkpoint", whole)
    launch("imagenet_resnet.py", "--checkpoint", parts, "--stop-after", "1")
    launch("imagenet_resnet.py", "--checkpoint", parts)
    models = [torch.load(path)["model"] for path in (whole, parts)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert "samples 48 " in launch("evaluate.py")


def test_the_notebook_runs() -> None:
    """Run the cells of the notebook as one program, and show the last value of a cell as Jupyter does."""
    pytest.importorskip("matplotlib").use("agg")
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "notebook"}
    shown = []
    for cell in cells:
        assert cell.get("outputs", []) == [], "outputs are not kept"
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
            represent = getattr(value, "_repr_html_", None)
            shown.append(represent() if represent else repr(value))
    assert sum("<" in text for text in shown) >= 2, "a reader and a loader show themselves as HTML"
    names["plt"].close("all")
    page = names["page"]
    assert page.url.startswith("http://127.0.0.1:")
    page.close()
    assert isinstance(names["loader"], bp.Loader)


def test_the_table_of_examples_is_complete() -> None:
    text = (FOLDER / "README.md").read_text("utf-8")
    for name in NEEDS:
        assert f"| [{name}.py]({name}.py) |" in text
        assert f"examples/{name}.py " in text
