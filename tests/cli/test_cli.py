"""The commands as a user types them: output, JSON, exit codes, Ctrl-C and kill."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import batchplant
import processes
from batchplant.cli import COMMANDS, build_parser, main, module_of
from batchplant.cli.head import colour_of, render
from batchplant.cli.terminal import parse_options
from batchplant.codecs.media import audio
from batchplant.formats.base.options import Typed, accept, own_options
from batchplant.formats.registry import all_formats, get_format
from batchplant.storage import partial_folder
from batchplant.storage.work import STATE
from variants import exhaustive


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve samples of images, labels and texts in a .beton file with checksums."""
    rng = np.random.default_rng(0)
    schema = {
        "image": batchplant.Image(),
        "label": batchplant.Int(names=("cat", "dog", "emu")),
        "text": batchplant.Text(),
        "vector": batchplant.Tensor("float32", (3,)),
        "blob": batchplant.Bytes(),
        "maybe": batchplant.Bool(optional=True),
    }
    path = tmp_path_factory.mktemp("cli") / "data.beton"
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


@pytest.fixture
def dataset(written: Path, tmp_path: Path) -> Path:
    """A copy of the dataset, which a test may damage."""
    for file in written.parent.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / written.name


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, object]:
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (*([command] for command in COMMANDS), ["lake", "vacuum"], ["cache", "warm"]):
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert f"batchplant {' '.join(words)}" in text.partition("examples:")[2], words


def test_the_list_of_commands_has_their_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    for command, summary in COMMANDS.items():
        module = importlib.import_module(module_of(command))
        assert (module.__doc__ or "").partition("\n\n")[0] == f"{summary}."
    assert main([]) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert [summary for summary in COMMANDS.values() if summary not in text] == []
    with pytest.raises(SystemExit):
        main(["covert"])
    assert "did you mean convert?" in capsys.readouterr().err


def test_every_example_in_the_help_parses() -> None:
    for command in COMMANDS:
        parser = build_parser(command)
        module = sys.modules[module_of(command)]
        lines = re.findall(r"^  batchplant (.*?)(?:\s{2,}\(.*\))?$", module.__doc__ or "", re.MULTILINE)
        assert lines
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])
            if "--help" not in words:
                parser.parse_args(words)


def test_a_command_brings_only_what_it_needs() -> None:
    script = "import sys; from batchplant.cli import build_parser; build_parser('view'); print(*sys.modules)"
    loaded = processes.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    for other in (
        "rich",
        "starlette",
        "batchplant.tools.doctor",
        "batchplant.tools.measure",
        "batchplant.cli.bench",
    ):
        assert other not in loaded.split()


def test_formats_lists_all_and_tells_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, listed = run_json(capsys, "formats")
    assert code == 0
    assert isinstance(listed, list)
    assert {"beton", "npy", "npz", "imagefolder"} <= {row["name"] for row in listed}
    assert main(["formats"]) == 0
    assert "batchplant[arrow]" in capsys.readouterr().out
    assert main(["formats", "beton"]) == 0
    assert "page_size: a whole number or none (default None)" in capsys.readouterr().out
    assert main(["formats", "betonn"]) == 2
    assert "did you mean beton?" in capsys.readouterr().err


def test_info(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(dataset)]) == 0
    text = capsys.readouterr().out
    for item in ("beton", "12", "'cat', 'dog', 'emu'", "height 40–51", "12 jpeg", "9 missing"):
        assert item in text
    code, result = run_json(capsys, "info", dataset)
    assert code == 0
    assert isinstance(result, dict)
    assert result["samples"] == 12
    assert result["fields"]["image"]["height"] == {"min": 40, "median": 45.5, "mean": 45.5, "max": 51}
    assert result["fields"]["label"]["values"]["max"] == 2


def test_where(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--where", "label == 'emu' and text != 'sample № 2'")
    code, shown = run_json(capsys, "head", dataset, "--fields", "label", *where)
    assert (code, shown) == (0, [{"sample": number, "label": 2} for number in range(3)])
    code, result = run_json(capsys, "info", dataset, *where)
    assert isinstance(result, dict)
    assert (code, result["samples"], result["facts"]["filter"]) == (0, 3, where[1])
    code, result = run_json(capsys, "verify", dataset, *where, "--decode")
    assert isinstance(result, dict)
    assert (code, result["samples"]) == (0, 3)
    assert main(["convert", str(dataset), str(tmp_path / "b.npz"), "--fields", "label", *where]) == 0
    with batchplant.open(tmp_path / "b.npz") as converted:
        assert [sample["label"] for sample in converted] == [2, 2, 2]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("label = 'cat'", "column 7 of the filter \"label = 'cat'\": write == for ="),
        ("lable == 1", "(did you mean label?)"),
        ("label == 'emo'", "the classes are: cat, dog, emu"),
    ],
)
def test_a_wrong_filter_is_one_line(
    where: str, message: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("head", "info", "verify"):
        assert main([command, str(written), "--where", where]) == 2
        text = capsys.readouterr().err
        assert message in text, command
        assert text.count("\n") == 1


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


def test_head_draws_images_in_a_terminal(dataset: Path) -> None:
    shown = processes.main_in_terminal(["head", str(dataset), "-n", "1"], 60)
    lines = [line for line in shown.splitlines() if "▀" in line]
    assert len(lines) == 10
    assert lines[0].count("▀") == 32


def test_convert_with_options(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.npz"
    options = "--fields text,label --rename text=caption,label=class --limit 5 --shuffle --seed 3 --checksums"
    code, done = run_json(capsys, "convert", dataset, target, *options.split())
    assert code == 0
    assert isinstance(done, dict)
    assert done["samples"] == 5
    reader = batchplant.open(target)
    assert list(reader.schema) == ["caption", "class"]
    order = batchplant.order.random(12, seed=3, epoch=0)[:5]
    assert [sample["caption"] for sample in reader] == [f"sample № {number}" for number in order]
    assert main(["verify", str(target), "--quiet"]) == 0
    assert "checksums" in capsys.readouterr().out


def test_convert_images_and_shards(dataset: Path, tmp_path: Path) -> None:
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
    code, result = run_json(capsys, "verify", first, "--against", second, "--differences", "0")
    assert (code, len(result["problems"]), result["remarks"]) == (1, 40, [])
    code, result = run_json(capsys, "verify", first, "--against", second, "--most", "3")
    assert (len(result["problems"]), result["remarks"][-1:]) == (
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
    code, result = run_json(capsys, "verify", dataset, "--against", tmp_path / "wrong.npz")
    assert code == 1
    assert isinstance(result, dict)
    assert [(row["sample"], row["field"]) for row in result["problems"]] == [(7, "text")]


def test_damage_is_found_and_named(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = batchplant.open(dataset).spans("image", [4])
    assert spans is not None
    data = bytearray(dataset.read_bytes())
    data[int(spans.start[0]) + 600] ^= 0xFF
    dataset.write_bytes(data)
    assert main(["verify", str(dataset)]) == 1
    assert f"sample 4, field 'image', byte {spans.start[0]}" in capsys.readouterr().out


WRONG_USE = [
    (["info"], "required"),
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


@pytest.mark.parametrize(("argv", "text"), WRONG_USE, ids=[" ".join(case[0]) for case in WRONG_USE])
def test_wrong_use_is_one_sentence_and_exit_code_2(
    argv: list[str], text: str, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = main([part.format(data=dataset) for part in argv])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    message = capsys.readouterr().err
    assert text in message
    assert "Traceback" not in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.beton", "data.beton.crc"]


def test_errors_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.beton"
    broken.write_bytes(b"nothing")
    code, result = run_json(capsys, "info", broken)
    assert code == 1
    assert isinstance(result, dict)
    assert result["error"]["kind"] == "DamagedError"
    assert result["error"]["path"] == str(broken)


SLOW = """
import sys, time
from batchplant.cli import main
from batchplant.jobs.convert_options import ConvertOptions, ConvertTuning
from batchplant.jobs.conversion import task as module
from batchplant.jobs.conversion.job import Job
tuning = ConvertTuning(checkpoint_seconds=0, max_batch_rows=2)
Job.options = property(lambda self: ConvertOptions(tuning=tuning), lambda self, value: None)
batches = module.Feed.batches
def slowly(self, start):
    for number, batch in enumerate(batches(self, start)):
        if number == 2:
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
        yield batch
module.Feed.batches = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, *exhaustive(signal.SIGTERM)])
def test_a_stopped_conversion_leaves_no_target_and_resumes(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source.npz"
    np.savez(source, x=np.arange(1000), y=np.arange(2000).reshape(1000, 2))
    target = tmp_path / "target.beton"
    command = [sys.executable, "-c", SLOW, "convert", str(source), str(target), "--quiet"]
    with processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, output = process.communicate(timeout=processes.PATIENCE)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert "--resume" in output
    assert not target.exists()
    assert main(["convert", str(source), str(target), "--resume", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == 1000
    assert 0 < report["resumed at"] < 1000
    assert main(["verify", str(target), "--against", str(source)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.npz", "target.beton"]


def test_output_that_nobody_reads_is_no_error(dataset: Path) -> None:
    script = f"{sys.executable} -m batchplant head {dataset} -n 12 --json | head -n 1"
    done = processes.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True)
    assert done.stdout == "[\n"
    assert "Traceback" not in done.stderr


IGNORED = """
import os, signal, sys, time
from batchplant import cli
from batchplant.cli import formats

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

def run(args):
    held = Held()
    del held
    print("went on", flush=True)
    time.sleep(600)
    return 0

formats.run = run
sys.exit(cli.main(["formats"]))
"""


def test_ctrl_c_is_not_lost_while_an_object_goes():
    """Python ignores exceptions in __del__, Ctrl-C too: it is raised again."""
    done = processes.run([sys.executable, "-c", IGNORED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "went on\n", "batchplant: stopped\n")


# -- options, names and errors ---------------------------------------------------------------------------


def in_shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of bash in which `bp` is the command."""
    whole = f'bp() {{ {sys.executable} -m batchplant "$@"; }}; {script}'
    return processes.run(
        ["bash", "-o", "pipefail", "-c", whole], capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(f"name,age,note\nAnna,31,{'long ' * 40}\nBo,,\nCy,7,x\n")
    return path


OPTIONS = [
    ("chunk=abc", "the option chunk of hdf5 is a whole number or none, not 'abc'"),
    ("chunk=1e30", "a whole number or none, not '1e30'"),
    ("chunk=99999999999999999999", "a whole number or none"),
    ("chunk=-1", "chunk"),
    ("level=true", "the option level of hdf5 is a whole number, not 'true'"),
    ("attributes=7", "the option attributes of hdf5 is a mapping or none, not '7'"),
    ('attributes={"x": 7}', "is a mapping or none"),
    ("chnk=4", "hdf5 has no option 'chnk' (did you mean chunk or chunks?); its options are: "),
    ("format=npz", "format is no option of a format"),
    ("schema=1", "schema is no option of a format"),
]


@pytest.mark.parametrize(("option", "text"), OPTIONS)
def test_options_of_a_writer_are_checked(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    pytest.importorskip("h5py")
    assert main(["convert", str(tmp_path / "a.npy"), str(tmp_path / "t.h5"), "--to-option", option]) == 2
    message = capsys.readouterr().err
    assert text in message
    assert message.count("\n") == 1
    assert "fault of batchplant" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


TYPED = [
    ("csv", "header=no", {"header": False}),
    ("csv", "header=True", {"header": True}),
    ("csv", 'delimiter="\\t"', {"delimiter": "\t"}),
    ("csv", "delimiter=;", {"delimiter": ";"}),
    ("csv", "delimiter=null", {"delimiter": None}),
    ("csv", "missing=5", {"missing": "5"}),
    ("csv", 'missing=["", "NA"]', {"missing": ["", "NA"]}),
    ("npz", "fields=x,y", {"fields": ["x", "y"]}),
    ("npz", 'fields=["x"]', {"fields": ["x"]}),
    ("lmdb", "db=12", {"db": "12"}),
    ("parquet", "cache=4096", {"cache": 4096}),
    ("delta", 'schema={"x": "int"}', {"schema": batchplant.Schema({"x": batchplant.Int()})}),
]


@pytest.mark.parametrize(("format", "typed", "meant"), TYPED)
def test_what_is_typed_becomes_what_the_option_is(format: str, typed: str, meant: dict[str, object]) -> None:
    assert accept(format, get_format(format).reader, parse_options([typed])) == meant


def test_no_option_of_any_format_ends_in_a_traceback() -> None:
    """Whatever is typed for an option, the answer is a conversion of its type or an OptionError."""
    taken, refused = 0, []
    for entry in all_formats().values():
        for item in filter(None, (entry.reader, entry.writer)):
            for name in own_options(item):
                for value in ("abc", "-1", "1e30", "9" * 30, "[1]", '{"a": 1}', "", "null", '["x", 1]'):
                    try:
                        assert list(accept(entry.name, item, {name: Typed(value)})) == [name]
                        taken += 1
                    except batchplant.OptionError as error:
                        refused.append((name, str(error)))
    assert taken > 100
    assert len(refused) > 100
    assert all(name in message for name, message in refused)


def test_python_values_are_checked_too(tmp_path: Path) -> None:
    schema = {"x": batchplant.Int()}
    with pytest.raises(batchplant.OptionError, match="compress of npz is true or false, not 3"):
        batchplant.create(tmp_path / "a.npz", schema, compress=3)
    with batchplant.create(tmp_path / "a.npz", schema, compress=np.True_) as out:
        out.append({"x": 1})
    with pytest.raises(batchplant.OptionError, match="fields of npz is a list of names or none"):
        batchplant.open(tmp_path / "a.npz", fields=[1])


NEAR = [
    (["head", "{data}", "--fields", "lable"], "did you mean label?"),
    (["head", "{data}", "--fields", "IMAGE"], "did you mean image?"),
    (["head", "{data}", "--mask", "imge"], "did you mean image?"),
    (["convert", "{data}", "x.npz", "--fields", "txt"], "did you mean text?"),
    (["convert", "{data}", "x.npz", "--rename", "lable=y"], "did you mean label?"),
    (["convert", "{data}", "x.npz", "--mask", "imge"], "did you mean image?"),
    (["info", "{data}", "--format", "betn"], "did you mean beton?"),
    (["formats", "parket"], "did you mean parquet?"),
    (["convert", "{data}", "x.betn"], "did you mean .beton?"),
    (["cnvert", "{data}", "x.npz"], "there is no command 'cnvert' (did you mean convert?)"),
    (["convert", "{data}", "x.npz", "--chekcsums"], "no option --chekcsums (did you mean --checksums?)"),
    (["convert", "{data}", "x.npz", "--on-error=skp"], "did you mean skip?"),
    (["bench", "loadr"], "did you mean loader?"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "text"), NEAR, ids=[" ".join(case[0]) for case in NEAR])
def test_names_like_the_wrong_one_are_told(
    argv: list[str], text: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([part.format(data=dataset) for part in argv])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    message = capsys.readouterr().err
    assert text in message
    assert message.startswith("batchplant: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["lake"]], ids=["all", "lake"])
def test_without_a_command_the_help_is_shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output, to be read or piped; with the exit code of wrong use, for nothing was done."""
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: {' '.join(['batchplant', *argv])} ")
    assert "commands:" in shown.out
    assert shown.err == ""


def test_names_of_classes_are_short_and_printable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["cat", "evil\u202egnp", "L" * 10_000, "two\nlines", "\x1b[31m"]
    with batchplant.create(tmp_path / "x.beton", schema={"label": batchplant.Int(names=names)}) as writer:
        for number in (0, 1, 2, 3, 4, *[0] * 95):
            writer.append({"label": number})
    for command in ("info", "head", "stats", "doctor"):
        main([command, str(tmp_path / "x.beton")])
        shown = capsys.readouterr().out
        assert "cat" in shown
        for hidden in ("\u202e", "\x1b", "L" * 100, "two\nlines"):
            assert hidden not in shown, command


def test_a_loader_names_near_fields(dataset: Path) -> None:
    with pytest.raises(batchplant.BatchplantError, match=r"did you mean image\?"):
        batchplant.Loader(dataset, 2, pipelines={"imge": []})


def test_an_error_that_is_not_ours_is_one_line(
    dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise KeyError("a\nb")

    monkeypatch.setattr(importlib.import_module("batchplant.cli.info"), "run", fail)
    code, result = run_json(capsys, "info", dataset)
    assert code == 2
    assert isinstance(result, dict)
    assert result["error"]["kind"] == "KeyError"
    assert main(["info", str(dataset)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "BATCHPLANT_DEBUG=1" in message
    monkeypatch.setenv("BATCHPLANT_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["info", str(dataset)])


@pytest.mark.parametrize("kind", [PermissionError(13, "Permission denied", "a"), MemoryError("of 9 GiB")])
def test_what_the_system_refuses_is_one_line(
    kind: Exception, dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise kind

    monkeypatch.setattr(importlib.import_module("batchplant.cli.info"), "run", fail)
    assert main(["info", str(dataset)]) == 2
    output = {"a: Permission denied", "out of memory: of 9 GiB"}
    assert capsys.readouterr().err.removeprefix("batchplant: ").rstrip() in output


def test_outputs_that_cannot_be_written(table: Path) -> None:
    done = in_shell(f"bp head {table} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "batchplant: No space left on device\n")


def test_letters_that_the_output_lacks(dataset: Path) -> None:
    done = in_shell(f"bp head {dataset} -n 1 --fields image,text", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "64\\xd740" in done.stdout


def test_new_users_mistakes(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    np.save(mixed / "a.npy", np.arange(3))
    np.savez(mixed / "b.npz", x=np.arange(3))
    for argv, text in (
        (["info", tmp_path / "empty"], "the file is empty"),
        (["info", mixed], "several formats (npy, npz)"),
        (["convert", table, tmp_path / "out"], "give the name a suffix"),
        (["verify", table, "--option", "decode=1"], "no option of a format"),
        (["head", table, "--start", "9"], "there is no sample 9; there are 3"),
        (["head", table, "-n", "-2", "--start", "1"], "does not go with --start"),
    ):
        assert main([*map(str, argv)]) == 2
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", str(table), str(tmp_path / "x.npz"), str(table), str(mixed)])
    assert "put quotes around a glob" in capsys.readouterr().err


# -- what head and info show -----------------------------------------------------------------------------


def test_head_shows_tables(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["head", str(table)]) == 0
    lines = capsys.readouterr().out.splitlines()
    # Whole, for this is no terminal.
    assert lines[0] == "sample  name  age  note"
    assert lines[1] == f"     0  Anna   31  {'long ' * 40}".rstrip()
    assert lines[2] == "     1  Bo      –  –"
    assert main(["head", str(table), "--no-table", "-n", "1"]) == 0
    assert capsys.readouterr().out.startswith("sample 0\n  name  'Anna'\n  age   31\n  note  'long long")


def test_a_terminal_cuts_what_is_too_wide(table: Path) -> None:
    lines = processes.main_in_terminal(["head", str(table)], 40, NO_COLOR="1").splitlines()
    assert [len(line) <= 40 for line in lines] == [True] * 4
    assert lines[1].endswith("…")
    narrow = processes.main_in_terminal(["head", str(table), "-n", "1"], 20, NO_COLOR="1")
    assert "  name  'Anna'" in narrow
    assert all(
        len(line) <= 60 for line in processes.main_in_terminal(["formats"], 40, NO_COLOR="1").splitlines()
    )


def test_what_is_piped_is_not_wrapped(
    dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["formats"]) == 0
    assert main(["head", str(dataset), "-n", "1", "--fields", "text,vector"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [arrow] = [line for line in lines if line.startswith("arrow ")]
    assert arrow.endswith('"batchplant[arrow]"')
    assert lines[-1] == "  vector  float32 (3,) [0., 0., 0.]  min 0, mean 0, max 0"


def test_head_shows_the_last(table: Path, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run_json(capsys, "head", table, "-n", "-2")
    assert code == 0
    assert isinstance(shown, list)
    assert [row["sample"] for row in shown] == [1, 2]
    code, shown = run_json(capsys, "head", table, "-n", "-9")
    assert isinstance(shown, list)
    assert len(shown) == 3


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """Masks, sounds, tensors with gaps, dates."""
    mask = np.zeros((40, 60), np.uint8)
    mask[5:20, 5:30], mask[20:35, 30:55], mask[:4] = 1, 2, 255
    path = tmp_path / "mixture.npz"
    schema = {
        "mask": batchplant.Image(mask=True),
        "sound": batchplant.Audio(),
        "tensor": batchplant.Tensor("float32", (2, 3)),
        "maybe": batchplant.Float("float32", optional=True),
        "day": batchplant.Tensor("datetime64[us]"),
        "escape\x1b[31m": batchplant.Text(),
    }
    with batchplant.create(path, schema) as out:
        for number in range(3):
            sound = audio.encode(np.zeros((8000 * (number + 1), 2), np.int16), 16000, "wav")
            values = np.array([[1, 2, np.nan], [3, 4, 5]], np.float32)
            maybe = None if number == 1 else 0.1
            day = np.datetime64("2024-05-01T12:30:00.500") + np.timedelta64(number, "D")
            out.append(dict(zip(schema, (mask, sound, values, maybe, day, "\x1b[31m"), strict=True)))
    return path


def test_head_tells_what_values_are(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["head", str(mixture), "-n", "1"]) == 0
    text = capsys.readouterr().out
    for item in (
        "60×40 L mask 4 classes: 0 59%, 1 16%, 2 16%, 255 10%",
        "32.0 kB wav, 16,000 Hz, 2 channels, 0.50 s",
        "min 1, mean 3, max 5, 1 NaN",
        "maybe           0.1\n",
        "2024-05-01 12:30:00.5\n",
    ):
        assert item in text
    assert "\x1b" not in text
    code, shown = run_json(capsys, "head", mixture, "-n", "1")
    assert code == 0
    assert isinstance(shown, list)
    sound, tensor = shown[0]["sound"], shown[0]["tensor"]
    assert (sound["rate"], sound["channels"], sound["seconds"]) == (16000, 2, 0.5)
    assert (tensor["min"], tensor["mean"], tensor["max"], tensor["nan"]) == (1, 3, 5, 1)
    assert tensor["values"][0][2] == "nan"
    assert shown[0]["day"] == "2024-05-01T12:30:00.500000"


def test_info_tells_what_values_are(mixture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(mixture)]) == 0
    text = capsys.readouterr().out
    for item in (
        "16000 Hz", "2 channels", "0.50 s to 1.50 s, mean 1.00 s", "1 to 5, mean 3, 3 NaN",
        "1 missing\n", "0.1 to 0.1, mean 0.1", "2024-05-01 12:30:00.5 to 2024-05-03 12:30:00.5",
    ):  # fmt: skip
        assert item in text
    assert "\x1b" not in text


def test_masks_are_drawn_in_colours_of_their_classes(mixture: Path) -> None:
    argv = ["head", str(mixture), "-n", "1", "--fields", "mask"]
    seen = processes.main_in_terminal(argv, 60)
    for number in (0, 1, 2, 255):
        red, green, blue = colour_of(number)
        assert f"{red};{green};{blue}m" in seen
    plain = processes.main_in_terminal(argv, 60, NO_COLOR="1")
    assert "▀" not in plain
    assert "···1111111111111················" in plain
    assert "·=0  1=1  2=2  3=255" in plain


def test_a_image_of_small_numbers_is_one_of_classes() -> None:
    out = Console(force_terminal=True, color_system="truecolor")
    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4) % 5
    assert "██ 4" in render(out, numbers, batchplant.Image(mode="L")).plain
    assert "██" not in render(out, numbers * 40, batchplant.Image(mode="L")).plain


# -- completion ------------------------------------------------------------------------------------------

COMPLETED = [
    ("batchplant co", "completion convert"),
    ("batchplant convert --to hd", "hdf5"),
    ("batchplant convert --overw", "--overwrite"),
    ("batchplant convert a b --on-error ''", "raise skip"),
    ("batchplant convert --to = hd", "hdf5"),
    ("batchplant bench lo", "loader"),
    ("batchplant bench loader --pipe", "--pipeline"),
    ("batchplant formats be", "beton"),
    ("batchplant completion ''", "bash fish zsh"),
    # A file is to be named.
    ("batchplant convert ''", ""),
    ("batchplant convert --quality ''", ""),
]


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = 'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _batchplant; echo "${COMPREPLY[*]}"; }'
    lines = [f"source {tmp_path}/script", ask, *(f"ask {words}" for words, _ in COMPLETED)]
    done = processes.run(["bash", "-eu", "-c", "\n".join(lines)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    answers = [" ".join(sorted(line.split())) for line in done.stdout.splitlines()]
    assert answers == [meant for _, meant in COMPLETED]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("convert", "stratify", "hdf5", "on-error"):
        assert word in script
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        processes.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_resume_is_named_only_where_there_is_a_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("batchplant.cli.convert"), "convert", stop)
    target = tmp_path / "t.npz"
    assert main(["convert", "a", str(target)]) == 130
    output = capsys.readouterr().err
    assert "nothing is kept" in output
    assert "--resume" not in output
    # Several processes write one file as shards, too.
    for sharded in (False, True):
        hidden = partial_folder(str(target), sharded=sharded)
        hidden.mkdir()
        (hidden / STATE).write_text("{}")
        for how in ([], ["--shard-samples", "5"]):
            assert main(["convert", "a", str(target), *how]) == 130
            assert "the same with --resume goes on" in capsys.readouterr().err
        shutil.rmtree(hidden)
