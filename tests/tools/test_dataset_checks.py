"""`batchplant check`: what of a dataset changes is named, by rule, in every kind of report."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import batchplant as bp
import repository
from batchplant import cli
from batchplant.tools import baseline
from loaders import write, write_jpeg
from processes import run


def dataset(path: Path, count: int = 60, classes: tuple[str, ...] = ("cat", "dog"), high: float = 9.0) -> str:
    schema = {"x": bp.Float(), "label": bp.Int(names=classes), "y": bp.Int(optional=True)}
    samples = [
        {"x": n / count * high, "label": n % len(classes), "y": n if n % 10 else None} for n in range(count)
    ]
    path.unlink(missing_ok=True)
    return write(path, schema, samples)


def check(*arguments: Any) -> tuple[int, set[str]]:
    """The exit code, and the rules that are broken."""
    report = Path(arguments[0]).parent / "report.sarif"
    code = cli.main(["check", *map(str, arguments), "--sarif", str(report)])
    results = json.loads(report.read_text())["runs"][0]["results"]
    return code, {result["ruleId"] for result in results}


def test_every_drift_breaks_its_rule(tmp_path, capsys):
    data, base = tmp_path / "d.arrow", tmp_path / "base.json"
    pytest.importorskip("pyarrow")
    assert check(dataset(data), "--baseline", base) == (0, set())
    assert "wrote" in capsys.readouterr().out
    assert check(data, "--baseline", base) == (0, set())
    assert check(dataset(data, 40), "--baseline", base)[1] == {"count"}
    assert check(data, "--baseline", base, "--max-count", "0.5") == (0, set())
    assert check(dataset(data, high=20), "--baseline", base) == (1, {"range"})
    data.unlink()
    write(data, {"x": bp.Float(), "z": bp.Int()}, ({"x": n * 0.15, "z": n} for n in range(60)))
    assert "schema" in check(data, "--baseline", base)[1]
    assert check(data, "--baseline", base, "--update")[0] == 0
    assert check(data, "--baseline", base) == (0, set())
    base.write_text('{"baseline": 7}')
    assert cli.main(["check", str(data), "--baseline", str(base)]) == 1
    assert "version 7" in capsys.readouterr().err


def test_shares_missing_values_and_names_are_compared():
    field = {
        "kind": "Int()",
        "missing": 0.0,
        "range": {},
        "classes": {"a": 0.5, "b": 0.5},
        "names": ["a", "b"],
    }
    entry = {
        "samples": 100,
        "fields": {"f": field},
        "copies": dict.fromkeys(baseline.COPIES, 0),
        "errors": {},
    }

    def broken(**changes: Any) -> set[str]:
        document = lambda part: {  # noqa: E731
            "baseline": 1, "splits": {"dataset": part}, "leakage": dict.fromkeys(baseline.COPIES, 0),
        }  # fmt: skip
        now = {**entry, "fields": {"f": {**field, **changes}}}
        result = baseline.compare(document(now), document(entry), {"dataset": "d"}, baseline.Limits())
        assert all(text in baseline.text(result) for text in ("dataset, field 'f'",) if result)
        return {violation.rule for violation in result}

    assert broken() == set()
    assert broken(missing=0.05) == {"missing"}
    assert broken(names=["b", "a"]) == {"label-names"}
    assert broken(kind="Float()") == {"schema"}
    assert broken(classes={"a": 0.6, "b": 0.4}) == {"classes"}
    assert broken(classes={"a": 0.5, "b": 0.46, "c": 0.04}) == {"classes"}
    assert broken(classes={"a": 0.52, "b": 0.48}) == set()


def test_leakage_between_splits_and_damage_are_found(tmp_path, monkeypatch):
    summary, report = tmp_path / "summary.md", tmp_path / "report.xml"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    folders = [tmp_path / "train", tmp_path / "val"]
    for number, folder in enumerate(folders):
        reader = bp.open(write_jpeg(tmp_path / f"{number}.beton", 12 + number))
        for sample in range(number * 6, number * 6 + 6):
            path = folder / f"class{sample % 2}" / f"{sample}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cell = reader.read([sample], ["image"])["image"]
            path.write_bytes(cell.data.tobytes())
    splits = [f"train={folders[0]}", f"val={folders[1]}"]
    code = cli.main(["check", *splits, "--junit", str(report)])
    assert code == 0, summary.read_text()
    shutil.copy(folders[0] / "class0" / "2.jpg", folders[1] / "class0" / "new.jpg")
    (folders[1] / "class1" / "7.jpg").write_bytes(b"no image")
    assert cli.main(["check", *splits, "--junit", str(report)]) == 1
    suite = ElementTree.fromstring(report.read_text())
    failed = {case.get("name"): len(case) for case in suite if len(case)}
    assert failed == {"leakage": 1, "health": 1}
    assert suite.get("failures") == "2"
    assert "| leakage | train, val | 1 sample is in several splits, byte for byte |" in summary.read_text()


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[1]", b"{}", b"\xff"])
def test_another_file_is_no_baseline(content, tmp_path, capsys):
    with bp.create(tmp_path / "data.csv", {"n": bp.Int()}) as out:
        out.append({"n": 1})
    baseline = tmp_path / "other.json"
    baseline.write_bytes(content)
    assert cli.main(["check", str(tmp_path / "data.csv"), "--baseline", str(baseline)]) == 1
    assert f"{baseline}: not a baseline of batchplant check" in capsys.readouterr().err
    assert baseline.read_bytes() == content


def in_folder(folder: Path, command: list[str], **environment: str) -> int:
    """The exit code of a command in a folder, with the commands of this environment."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return run(command, cwd=folder, env={**os.environ, "PATH": path, **environment}).returncode


def test_the_action_fails_where_the_dataset_drifts(tmp_path):
    """Its steps run as a runner does it: inputs reach the shell as variables, never as text of the script."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((repository.ROOT / ".github/actions/check-dataset/action.yml").read_text())
    install, check = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert install["run"].startswith("python -m pip install")
    assert "${{" not in install["run"] + check["run"]
    train, val = tmp_path / "my data" / "d.csv", tmp_path / "val.csv"
    train.parent.mkdir()
    rows = [f"{n / 7},{n}" for n in range(120)]
    train.write_text("\n".join(["x,y", *rows[:60]]))
    val.write_text("\n".join(["x,y", *rows[60:]]))
    inputs = {name: value.get("default", "") for name, value in action["inputs"].items()}
    inputs |= {"dataset": "train=my*/d.csv val=val.csv", "arguments": "--max-count 0.5 --max-missing 1"}

    def step() -> int:
        environment = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: inputs[match[1]], text)
            for name, text in check["env"].items()
        }
        summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
        # As the shell `bash` of a workflow is called.
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check["run"]]
        return in_folder(tmp_path, bash, **environment, **summary)

    assert step() == 0
    assert (tmp_path / "dataset-baseline.json").exists()
    val.write_text("\n".join(["x,y", *rows[100:]]))
    assert step() == 1
    report = json.loads((tmp_path / "batchplant-check.sarif").read_text())
    assert "count" in {result["ruleId"] for result in report["runs"][0]["results"]}
    assert ElementTree.parse(tmp_path / "batchplant-check.xml").getroot().get("failures") != "0"
    assert "| count | val |" in (tmp_path / "summary.md").read_text()


def test_the_hook_fails_where_the_dataset_drifts(tmp_path):
    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((repository.ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["language"], hook["pass_filenames"]) == ("system", False)
    command = [*shlex.split(hook["entry"]), "d.csv", "--baseline", "base.json"]
    data = dataset(tmp_path / "d.csv")
    assert cli.main(["check", data, "--baseline", str(tmp_path / "base.json")]) == 0
    dataset(tmp_path / "d.csv", 20)
    assert in_folder(tmp_path, command) == 1
