"""The commands as a user types them: output, JSON, exit codes, Ctrl-C and kill."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import batchplant
from batchplant.cli import build_parser, main

COMMANDS = ("formats", "info", "head", "convert", "verify", "index")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Twelve samples of pictures, labels and texts in a .beton file with checksums."""
    rng = np.random.default_rng(0)
    schema = {
        "image": batchplant.Image(),
        "label": batchplant.Int(names=("cat", "dog", "emu")),
        "text": batchplant.Text(),
        "vector": batchplant.Tensor("float32", (3,)),
        "blob": batchplant.Bytes(),
        "maybe": batchplant.Bool(optional=True),
    }
    path = tmp_path / "data.beton"
    with batchplant.create(path, schema, write_mode="jpg", checksums=True) as out:
        for number in range(12):
            out.append(
                {
                    "image": rng.integers(0, 256, (40 + number, 64, 3), dtype=np.uint8),
                    "label": number % 3,
                    "text": f"sample № {number}",
                    "vector": np.full(3, number, dtype=np.float32),
                    "blob": bytes(number),
                    "maybe": None if number % 4 else True,
                }
            )
    return path


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, object]:
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"batchplant {command}" in text.partition("examples:")[2]


def test_every_example_in_the_help_parses() -> None:
    for command in COMMANDS:
        module = sys.modules[f"batchplant.cli.{command}"]
        lines = re.findall(r"^  batchplant (.*?)(?:\s{2,}\(.*\))?$", module.__doc__ or "", re.MULTILINE)
        assert lines
        for line in lines:
            build_parser().parse_args(line.replace("'", "").split())


def test_formats_lists_all_and_tells_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, listed = run_json(capsys, "formats")
    assert code == 0
    assert isinstance(listed, list)
    assert {"beton", "npy", "npz", "imagefolder"} <= {one["name"] for one in listed}
    assert main(["formats"]) == 0
    assert "batchplant[images]" in capsys.readouterr().out
    assert main(["formats", "beton"]) == 0
    assert "page_size" in capsys.readouterr().out
    assert main(["formats", "betonn"]) == 2
    assert "audiofolder, beton" in capsys.readouterr().err


def test_info(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(dataset)]) == 0
    text = capsys.readouterr().out
    for said in ("beton", "12", "'cat', 'dog', 'emu'", "height 40–51", "12 jpeg", "9 missing"):
        assert said in text
    code, found = run_json(capsys, "info", dataset)
    assert code == 0
    assert isinstance(found, dict)
    assert found["samples"] == 12
    assert found["fields"]["image"]["height"] == {"min": 40, "median": 45.5, "mean": 45.5, "max": 51}
    assert found["fields"]["label"]["values"]["max"] == 2


def test_head(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["head", str(dataset), "-n", "2", "--start", "3"]) == 0
    text = capsys.readouterr().out
    assert "sample 3" in text
    assert "sample 4" in text
    assert "sample 5" not in text
    assert "64×43 RGB" in text
    assert "0 (cat)" in text
    code, shown = run_json(capsys, "head", dataset, "-n", "1", "--start", "-1", "--fields", "label,vector")
    assert code == 0
    assert shown == [
        {
            "sample": 11,
            "label": 2,
            "vector": {
                "dtype": "float32", "shape": [3], "values": [11, 11, 11], "min": 11, "mean": 11, "max": 11,
            },
        }
    ]  # fmt: skip


def test_head_draws_pictures_in_a_terminal(dataset: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "batchplant", "head", str(dataset), "-n", "1"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "60"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while part := _read(ours):
            seen += part
        assert process.wait() == 0
    os.close(ours)
    lines = [line for line in seen.decode().splitlines() if "▀" in line]
    assert len(lines) == 10
    assert lines[0].count("▀") == 32


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_convert_with_options(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.npz"
    options = "--fields text,label --rename text=caption,label=class --limit 5 --shuffle --seed 3 --checksums"
    code, done = run_json(capsys, "convert", dataset, target, *options.split())
    assert code == 0
    assert isinstance(done, dict)
    assert done["samples"] == 5
    found = batchplant.open(target)
    assert list(found.schema) == ["caption", "class"]
    order = np.random.default_rng(3).permutation(12)[:5]
    assert [sample["caption"] for sample in found] == [f"sample № {number}" for number in order]
    assert main(["verify", str(target), "--quiet"]) == 0
    assert "checksums" in capsys.readouterr().out


def test_convert_pictures_and_shards(dataset: Path, tmp_path: Path) -> None:
    target = tmp_path / "shards" / "small.beton"
    argv = ["convert", str(dataset), str(target), "--fields", "image,label", "--max-resolution", "32"]
    assert (
        main([*argv, "--quality", "60", "--write-mode", "raw", "--shard-size", "12kB", "--workers", "2"]) == 0
    )
    shards = sorted(path.name for path in target.parent.iterdir())
    assert len(shards) > 2
    assert shards[0] == "small-00000.beton"
    joined = batchplant.open(target.parent)
    assert len(joined) == 12
    assert joined[0]["image"].shape == (20, 32, 3)


def test_verify_says_what_it_did_and_what_it_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        with batchplant.create(tmp_path / f"{name}.tfrecord", {"n": batchplant.Int()}) as out:
            for n in range(40):
                out.append({"n": n if name == "a" else -n - 1})
    first, second = (str(tmp_path / f"{name}.tfrecord") for name in ("a", "b"))
    assert main(["verify", first]) == 0
    assert "checked structure, bounds, CRC of every record)" in capsys.readouterr().out
    assert main(["verify", first, "--against", second]) == 1
    printed = capsys.readouterr().out
    assert printed.count("it differs from") == 21
    assert f"note: it differs from {second} in 20 cells of the first 20 samples" in printed
    code, found = run_json(capsys, "verify", first, "--against", second, "--differences", "0")
    assert (code, len(found["problems"]), found["remarks"]) == (1, 40, [])
    code, found = run_json(capsys, "verify", first, "--against", second, "--most", "3")
    assert (len(found["problems"]), found["remarks"][-1:]) == (
        3,
        ["it stopped after 3 problems, at sample 2 of 40"],
    )


def test_verify_against(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.npz"
    assert main(["convert", str(dataset), str(other)]) == 0
    assert main(["verify", str(dataset), "--decode", "--against", str(other)]) == 0
    with batchplant.create(tmp_path / "wrong.npz", batchplant.open(other).schema) as out:
        for number, sample in enumerate(batchplant.open(other)):
            out.append({**sample, "text": "changed"} if number == 7 else sample)
    capsys.readouterr()
    code, found = run_json(capsys, "verify", dataset, "--against", tmp_path / "wrong.npz")
    assert code == 1
    assert isinstance(found, dict)
    assert [(one["sample"], one["field"]) for one in found["problems"]] == [(7, "text")]


def test_damage_is_found_and_named(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = batchplant.open(dataset).spans("image", [4])
    assert spans is not None
    data = bytearray(dataset.read_bytes())
    data[int(spans.start[0]) + 600] ^= 0xFF
    dataset.write_bytes(data)
    assert main(["verify", str(dataset)]) == 1
    assert f"sample 4, field 'image', byte {spans.start[0]}" in capsys.readouterr().out


WRONG_USE = [
    ([], "required"),
    (["info", "missing.beton"], "no such file"),
    (["info", "{data}", "--format", "nope"], "there is no format 'nope'"),
    (["info", "{data}", "--option", "nope=1"], "has no option 'nope'"),
    (["info", "{data}", "--option", "nope"], "is not NAME=VALUE"),
    (["head", "{data}", "--fields", "nope"], "the fields are: image, label"),
    (["convert", "{data}", "x.unknown"], "no format that we write has the suffix .unknown"),
    (["convert", "{data}", "x.npy"], "cannot hold image"),
    (["convert", "{data}", "x.npz", "--rename", "image"], "OLD=NEW"),
    (["convert", "{data}", "x.npz", "--quality", "101"], "from 1 to 100"),
    (["convert", "{data}", "x.npz", "--shard-size", "huge"], "is no size"),
    (["convert", "{data}", "{data}"], "--overwrite"),
    (["verify", "{data}", "--against", "missing"], "no such file"),
]


@pytest.mark.parametrize(("argv", "said"), WRONG_USE, ids=[" ".join(case[0]) for case in WRONG_USE])
def test_wrong_use_is_one_sentence_and_exit_code_2(
    argv: list[str], said: str, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = main([part.format(data=dataset) for part in argv])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.beton", "data.beton.crc"]


def test_errors_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.beton"
    broken.write_bytes(b"nothing")
    code, found = run_json(capsys, "info", broken)
    assert code == 1
    assert isinstance(found, dict)
    assert found["error"]["kind"] == "DamagedError"
    assert found["error"]["path"] == str(broken)


SLOW = """
import sys, time
from batchplant.cli import main
module = sys.modules["batchplant.convert"]
module.CHECKPOINT_SECONDS = 0
batches = module._Source.batches
def slowly(self, start):
    for number, batch in enumerate(batches(self, start)):
        if number == 2:
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
        yield batch
module.BATCH_ROWS = 2
module._Source.batches = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_conversion_leaves_no_target_and_resumes(number: int, tmp_path: Path) -> None:
    source = tmp_path / "source.npz"
    np.savez(source, x=np.arange(1000), y=np.arange(2000).reshape(1000, 2))
    target = tmp_path / "target.beton"
    command = [sys.executable, "-c", SLOW, "convert", str(source), str(target), "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert "--resume" in said
    assert not target.exists()
    done = subprocess.run(
        [sys.executable, "-m", "batchplant", "convert", str(source), str(target), "--resume", "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["samples"] == 1000
    assert 0 < report["resumed at"] < 1000
    assert main(["verify", str(target), "--against", str(source)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.npz", "target.beton"]


def test_output_that_nobody_reads_is_no_error(dataset: Path) -> None:
    script = f"{sys.executable} -m batchplant head {dataset} -n 12 --json | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True)
    assert done.stdout == "[\n"
    assert "Traceback" not in done.stderr


IGNORED = """
import os, signal, sys, time
from batchplant import cli

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

def run(args):
    held = Held()
    del held
    print("went on", flush=True)
    time.sleep(60)
    return 0

cli.formats.run = run
sys.exit(cli.main(["formats"]))
"""


def test_ctrl_c_is_not_lost_while_an_object_goes():
    """Python ignores exceptions in __del__, Ctrl-C too: it is raised again."""
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (130, "went on\n", "batchplant: stopped\n")
