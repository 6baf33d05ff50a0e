"""`batchplant advise`: facts, every rule by itself, the choice, and commands that run as they are printed.

What is tried is given, so that no pick depends on how busy the machine is; one test tries for real.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.errors import OptionError
from batchplant.formats.base.format import Format
from batchplant.formats.registry import all_formats, get_format
from batchplant.schema import Field, Float, Image, Int, Schema, Tensor, Text
from batchplant.tools import advise
from batchplant.tools.advise import (
    GOALS,
    QUESTIONS,
    RULES,
    Answers,
    Case,
    Facts,
    FieldFacts,
    Machine,
    advice,
)
from batchplant.tools.advise import case as circumstances
from batchplant.tools.advise import rules as data_rules
from batchplant.tools.advise.advice import Choice, choose, eligible
from batchplant.tools.advise.case import Requirement
from batchplant.tools.advise.trial import (
    GOAL_METRICS,
    OUT_OF_TIME,
    SUITED,
    Contest,
    Prediction,
    StorageOption,
    Trial,
    TrialResult,
    predict,
    preference,
    run_trials,
    storage_option,
    trial_result,
    with_raw_images,
)
from batchplant.tools.measure import Measurement, choice
from batchplant.tools.measure.timing import busy
from repository import ROOT
from variants import exhaustive

if TYPE_CHECKING:
    from servers import Bucket

HERE = Machine(cores=8, memory=32 << 30)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


DATA = load(ROOT / "benchmarks" / "_advise_data.py")


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial takes longer because other programs run now."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The ten datasets, small, each made when it is asked for."""

    @functools.cache
    def make(name: str) -> str:
        needed = {
            "long audio": "soundfile",
            "hdf5 with bad chunks": "h5py",
            "video": "av",
            "remote parquet": "pyarrow",
        }
        if name in needed:
            pytest.importorskip(needed[name])
        return str(DATA.DATASETS[name].make(tmp_path_factory.mktemp("data"), 0.1))

    return make


# -- rules, one by one ---------------------------------------------------------------------------------


def field(name: str = "x", kind: Field | None = None, **facts: Any) -> FieldFacts:
    kind = kind or Int()
    return FieldFacts(name=name, kind=kind.kind, field=kind, **facts)


def case(
    *fields: FieldFacts, on: Machine = HERE, answers: dict[str, Any] | None = None, **facts: Any
) -> Case:
    schema = Schema({item.name: item.field for item in fields} or {"x": Int()})
    given: dict[str, Any] = {"path": "data", "format": "beton", "samples": 10_000, "looked_at": 2000}
    result = Facts(**{**given, "schema": schema, "fields": {item.name: item for item in fields}, **facts})
    return Case(result, on, Answers(**(answers or {})))


def yes(*names: str, **more: Any) -> dict[str, Any]:
    return {"yes": frozenset(names), **more}


PHOTO = field("image", Image(), width=4000, height=3000, encodings={"jpeg": 9})
PNG = field("image", Image(), width=400, height=300, encodings={"png": 9}, pixel_bytes=2.2)
WIDE = field(kind=Tensor("float64", (8,)), wide=True)
LABEL = field("label", Int(), labels="number", classes=10, sorted=True)

# For every rule: a case in which it applies, one in which it does not, and the settings that it gives.
CASES: dict[str, tuple[Case, Case, dict[str, Any]]] = {
    "tiny-files": (
        case(files=10_000, sample_bytes=3000),
        case(files=10_000, sample_bytes=3e6),
        {},
    ),
    "large-images": (case(PHOTO), case(PNG), {"max_resolution": 384}),
    "png-photos": (case(PNG), case(PHOTO), {"image_format": "jpeg", "quality": 90}),
    "sorted-labels": (case(LABEL), case(dataclasses.replace(LABEL, sorted=False)), {}),
    "padding": (case(field(padding=0.6)), case(field(padding=0.1)), {}),
    "large-row-groups": (
        case(format="parquet", block_bytes=256e6, block_rows=1000),
        case(format="parquet", block_bytes=4e6, block_rows=10),
        {"unit_bytes": 4 << 20, "rewrite": True},
    ),
    "compressed-shards": (case(packed=True), case(), {"rewrite": True}),
    "bad-chunks": (case(amplification=64.0, sample_bytes=1e6), case(), {"chunk_samples": 1, "rewrite": True}),
    "text-labels": (case(field(kind=Text(), labels="text", classes=4)), case(LABEL), {}),
    "missing-values": (case(field(missing=100)), case(), {}),
    "duplicates": (case(duplicates=3), case(), {}),
    "wide-numbers": (case(WIDE), case(field(kind=Float(), wide=True)), {}),
    "unreadable": (case(unreadable=2), case(), {"skip_errors": True}),
    "shards": (
        case(bytes=10**11, answers={"gpus": 8}),
        case(bytes=10**11),
        {"shard_size": 512 << 20},
    ),
    "row-groups": (case(), case(answers={"goal": "archive"}), {"unit_bytes": 4 << 20}),
    "order": (case(), case(answers={"goal": "archive"}), {"order": "random"}),
    "workers": (case(answers={"gpus": 4}), case(answers={"goal": "share"}), {"workers": 2}),
    "prefetch-batches": (case(), case(answers={"goal": "share"}), {"prefetch_batches": 3}),
    "cache": (case(remote=True, answers={"storage": "s3"}), case(), {"cache": True}),
    "train": (case(), case(answers={"goal": "share"}), {}),
    "archive": (case(answers={"goal": "archive"}), case(), {"compress": "small"}),
    "share": (case(answers={"goal": "share"}), case(), {"compress": "known"}),
    "analyse": (case(answers={"goal": "analyse"}), case(), {}),
    "stream": (case(answers={"goal": "stream"}), case(), {}),
    "cloud": (case(answers={"storage": "s3"}), case(), {}),
    "small": (case(answers=yes("small")), case(), {"compress": "small"}),
    "interop": (case(answers={"interop": "spark"}), case(), {}),
    **{
        name: (case(answers=yes(name)), case(), {})
        for name in (
            "analytics", "mutable", "many-writers", "versions", "random-access", "streaming", "schema",
            "safety", "readable",
        )
    },
}  # fmt: skip


def test_rules() -> None:
    for name, rule in RULES.items():
        assert rule.sentence.endswith("."), name
        if name == "no-code":
            assert rule.look(case()).requirements
            continue
        applies, not_here, settings = CASES[name]
        seen = rule.look(applies)
        assert (seen.applies, bool(seen.message)) == (True, True), name
        assert dict(seen.settings) == settings, name
        assert seen.settings or seen.requirements or seen.is_warning, name
        other = rule.look(not_here)
        assert (other.applies, bool(other.message)) == (False, True), name
        assert not other.settings, name
        assert not other.requirements, name


# What each asks for, and a format that has it and one that has not.
MUSTS = {
    "train": ("beton", "pickle"),
    "archive": ("parquet", "npy"),
    "share": ("parquet", "beton"),
    "analyse": ("parquet", "csv"),
    "stream": ("webdataset", "beton"),
    "analytics": ("parquet", "arrow"),
    "mutable": ("lmdb", "beton"),
    "many-writers": ("delta", "lmdb"),
    "versions": ("iceberg", "parquet"),
    "random-access": ("beton", "pickle"),
    "cloud": ("zarr", "joblib"),
    "streaming": ("parquet", "csv"),
    "small": ("parquet", "beton"),
    "schema": ("beton", "npy"),
    "safety": ("tfrecord", "beton"),
    "readable": ("csv", "parquet"),
    "interop": ("parquet", "beton"),
    "tiny-files": ("beton", "imagefolder"),
    "no-code": ("npy", "pickle"),
}


def test_what_a_rule_asks_of_a_format() -> None:
    for name, formats in MUSTS.items():
        where = case() if name == "no-code" else CASES[name][0]
        requirements = RULES[name].look(where).requirements
        good, bad = map(get_format, formats)
        assert all(requirement.is_met(good) for requirement in requirements), name
        assert not all(requirement.is_met(bad) for requirement in requirements), name


def test_every_question_has_a_rule_and_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["advise", "--help"])
    shown = capsys.readouterr().out
    for question in QUESTIONS:
        assert f"--{question.name} " in shown
        # Lossless is looked at by the rules of images.
        assert question.name in RULES or question.name == "lossless"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_section_that_is_named_is_there() -> None:
    for doc in sorted({item.doc for item in (*RULES.values(), *QUESTIONS)}):
        path, _, section = doc.partition("#")
        assert section in anchors(ROOT / path), doc


def test_rules_keep_what_must_stay_exact() -> None:
    for item in (PHOTO, PNG):
        for answers in (yes("lossless"), {"goal": "archive"}):
            where = case(item, answers=answers)
            assert not RULES["large-images"].look(where).applies
            assert not RULES["png-photos"].look(where).applies
    mask = dataclasses.replace(PNG, field=Image(mask=True))
    assert not RULES["png-photos"].look(case(mask)).applies


def test_tiny_photos_stay_as_they_are() -> None:
    tiny = dataclasses.replace(PNG, width=32.0, height=32.0)
    assert not RULES["png-photos"].look(case(tiny)).applies


def test_a_sorted_stream_is_shuffled_once() -> None:
    assert RULES["sorted-labels"].look(case(LABEL, answers={"goal": "stream"})).settings == {"shuffle": True}


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (case(bytes=10**9), "random"),
        (case(bytes=10**12), "quasi_random"),
        (case(bytes=10**12, answers={"storage": "s3"}), "quasi_random"),
        (case(bytes=10**9, answers={"storage": "s3"}), "random"),
        (case(answers={"goal": "stream"}), "sequential"),
    ],
)
def test_order(where: Case, wanted: str) -> None:
    assert RULES["order"].look(where).settings["order"] == wanted


# -- facts ---------------------------------------------------------------------------------------------


def test_facts_of_a_folder_of_small_files(made: Callable[[str], str]) -> None:
    result = advise.look(bp.open(made("tiny png files")))
    assert (result.samples, result.looked_at, result.files, result.format) == (600, 600, 600, "imagefolder")
    assert result.file_per_sample
    image, label = result.fields["image"], result.fields["label"]
    assert (image.width, image.height, image.encodings) == (32, 32, {"png": 600})
    assert image.pixel_bytes > data_rules.PHOTO_PIXEL_BYTES
    assert (label.labels, label.classes, label.sorted) == ("number", 10, True)
    assert result.duplicates == 0


def test_facts_say_how_many_samples_were_looked_at(made: Callable[[str], str]) -> None:
    reader = bp.open(made("csv of 10^6 rows"))
    result = advise.look(reader, samples=100)
    assert (result.samples, result.looked_at, result.files) == (100_000, 100, 1)
    assert result.fields["shop"].labels == "text"
    assert not result.fields["shop"].sorted
    assert not result.fields["id"].labels


def test_facts_of_chunks_padding_duplicates_and_damage(made: Callable[[str], str], tmp_path: Path) -> None:
    assert advise.look(bp.open(made("hdf5 with bad chunks"))).amplification >= 9
    tokens = np.zeros((64, 32), dtype=np.int64)
    tokens[:, :8] = np.arange(512).reshape(64, 8) + 1
    tokens[5] = tokens[6]
    result = advise.look(bp.open({"tokens": tokens}))
    assert result.fields["tokens"].padding == pytest.approx(0.75)
    assert result.duplicates == 1
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        (folder / f"{number}.jpg").write_bytes(DATA.jpeg(rng, 32, 32))
    reader = bp.open(str(folder))
    (folder / "3.jpg").unlink()
    assert advise.look(reader).unreadable == 1
    assert advise.look(reader).looked_at == 19


def test_compressed_shards_and_large_blocks_are_seen(tmp_path: Path) -> None:
    source = bp.open({"x": np.arange(100)})
    bp.convert(source, tmp_path / "a.tar.gz")
    assert advise.look(bp.open(str(tmp_path / "a.tar.gz"))).packed
    pytest.importorskip("pyarrow")
    bp.convert(source, tmp_path / "a.parquet")
    result = advise.look(bp.open(str(tmp_path / "a.parquet")))
    assert not result.packed
    # A slow conversion saves its state now and then, which ends a row group.
    assert 0 < result.block_rows <= 100
    assert result.block_bytes == 8 * result.block_rows


# -- the machine ---------------------------------------------------------------------------------------


def test_machine(tmp_path: Path) -> None:
    result = advise.machine()
    assert result.cores >= 1
    assert result.memory > 1 << 28
    assert not result.measured
    (tmp_path / "data.npy").parent.mkdir(exist_ok=True)
    np.save(tmp_path / "data.npy", np.zeros((1000, 100)))
    result = advise.machine(bp.open(str(tmp_path / "data.npy")))
    assert result.measured
    assert result.read_mb_s > 0
    # Where it will lie is not here: nothing can be measured.
    other = advise.machine(bp.open(str(tmp_path / "data.npy")), "s3")
    assert not other.measured
    assert (other.read_mb_s, other.latency_ms) == circumstances.ASSUMED["s3"]


def test_a_machine_is_busy_where_more_wants_to_run_than_it_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr("os.getloadavg", lambda: (float(cores), 99.0, 99.0))
    assert busy() is None
    monkeypatch.setattr("os.getloadavg", lambda: (cores + 0.5, 0.0, 0.0))
    assert f"a load of {cores}.5 on {cores} core" in str(busy())


@pytest.mark.linux
def test_where_a_path_lies_and_which_gpus_there_are(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} nfs4 rw 0 0\nc {tmp_path}/local xfs rw 0 0\n")
    assert circumstances.storage_of(str(tmp_path / "x"), str(mounts)) == "nfs"
    assert circumstances.storage_of(str(tmp_path / "local" / "x"), str(mounts)) == "nvme"
    assert circumstances.storage_of("s3://bucket/x") == "s3"
    info = tmp_path / "gpus" / "0000:01" / "information"
    info.parent.mkdir(parents=True)
    info.write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert list(circumstances.gpus(str(tmp_path / "gpus"))) == ["NVIDIA H200"]
    assert list(circumstances.gpus(str(tmp_path / "none"))) == []


# -- predictions and the choice ------------------------------------------------------------------------


def trial(name: str = "beton", *, unchanged: bool = False, **figures: Any) -> Trial:
    given = {
        "samples": 100,
        "bytes_per_sample": 1e5,
        "epoch_rate": 1000.0,
        "parts": {"decode": 2.0, "storage": 1.0},
    }
    return Trial(
        option=StorageOption(
            name, get_format(name).suffixes[0] if not unchanged else "", unchanged=unchanged
        ),
        **{**given, **figures},
    )


@pytest.mark.parametrize(
    ("figures", "on", "answers", "rate", "bottleneck"),
    [
        ({}, HERE, {}, 1000.0, "decoding on the CPU"),
        # 1 GB in memory of 32: from the second epoch on, the disk does not matter.
        ({}, dataclasses.replace(HERE, read_mb_s=10.0), {}, 1000.0, "decoding on the CPU"),
        ({}, dataclasses.replace(HERE, memory=1 << 28, read_mb_s=10.0), {}, 100.0, "the disk"),
        ({}, dataclasses.replace(HERE, storage="s3", read_mb_s=20.0), {}, 200.0, "the network"),
        ({}, HERE, {"step_ms": 1000.0, "batch_size": 256}, 1000.0, "the GPU's own step"),
        ({"epoch_rate": 50.0}, HERE, {"goal": "stream"}, 50.0, "decoding on the CPU"),
        ({"column_rate": 2e7}, HERE, {"goal": "analyse"}, 2e7, "decoding on the CPU"),
    ],
)  # fmt: skip
def test_prediction(
    figures: dict[str, Any], on: Machine, answers: dict[str, Any], rate: float, bottleneck: str
) -> None:
    where = case(on=on, answers=answers)
    result = predict(trial(**figures), where.facts, on, where.answers)
    assert result.rate == pytest.approx(rate)
    assert result.bottleneck == bottleneck
    assert result.bytes == 1e9


def test_prediction_of_a_conversion() -> None:
    where = case()
    one = trial(seconds_per_sample=0.001, seconds_fixed=2.0)
    assert predict(one, where.facts, HERE, where.answers).seconds == pytest.approx(12.0)
    assert predict(one, where.facts, HERE, where.answers, encode_seconds=0.002).seconds == pytest.approx(32.0)
    # The source is read while the last samples are written.
    assert predict(one, where.facts, HERE, where.answers, read_seconds=0.01).seconds == pytest.approx(102.0)
    assert predict(trial(unchanged=True), where.facts, HERE, where.answers).seconds == 0


def choice_of(
    where: Case,
    *trials: Trial,
    settings: dict[str, Any] | None = None,
    requirements: Sequence[Requirement] = (),
) -> Choice:
    return choose(where, [trial_result(item, where) for item in trials], settings or {}, requirements)


def picked(where: Case, *trials: Trial, settings: dict[str, Any] | None = None) -> str:
    choice = choice_of(where, *trials, settings=settings)
    assert all(alternative.price for alternative in choice.alternatives)
    return choice.best.option.label


def test_the_fastest_is_taken_and_of_equals_the_simplest_whatever_the_order() -> None:
    where = case(PNG)
    fast, slow = trial("recordio", epoch_rate=2000.0), trial("webdataset", epoch_rate=1000.0)
    assert picked(where, fast, slow) == "recordio"
    near = dataclasses.replace(slow, epoch_rate=1950.0)
    assert preference("webdataset", "images", "train") < preference("recordio", "images", "train")
    assert picked(where, fast, near) == picked(where, near, fast) == "webdataset"
    # Noise makes equals of what is a little further apart, and nothing makes equals of what is far apart.
    further = dataclasses.replace(slow, epoch_rate=1850.0)
    assert picked(where, fast, further) == "recordio"
    assert picked(where, dataclasses.replace(fast, noise=0.2), further) == "webdataset"
    assert picked(where, dataclasses.replace(fast, noise=0.9), slow) == "recordio"
    broken = dataclasses.replace(near, error="it failed")
    assert picked(where, fast, broken) == "recordio"
    with pytest.raises(OptionError, match="it failed"):
        picked(where, broken)


def test_the_smallest_is_taken_for_an_archive() -> None:
    small, large = trial("hdf5", bytes_per_sample=10.0), trial("parquet", bytes_per_sample=20.0)
    assert picked(case(answers={"goal": "archive"}), large, small) == "hdf5"


def test_data_stays_where_a_conversion_brings_little() -> None:
    now, better = trial("beton", unchanged=True, epoch_rate=1000.0), trial("beton", epoch_rate=1050.0)
    assert picked(case(), now, better) == "beton as it is"
    assert picked(case(), now, dataclasses.replace(better, epoch_rate=1500.0)) == "beton"
    # What should be changed is written anew where that is no loss.
    assert picked(case(), now, better, settings={"rewrite": True}) == "beton"
    assert picked(case(), now, better, settings={"max_resolution": 256}) == "beton"
    worse = dataclasses.replace(better, epoch_rate=900.0)
    assert picked(case(), now, worse, settings={"rewrite": True}) == "beton as it is"
    # A sorted stream has to be shuffled, whatever that costs.
    assert picked(case(), now, worse, settings={"shuffle": True}) == "beton"


def test_a_loss_is_never_advised() -> None:
    """Also for a text format that would not be tried itself, as the CSV of 200 columns."""
    now = trial("csv", unchanged=True, epoch_rate=1000.0)
    where = case(format="csv")
    for rate, text in (
        (400.0, "nothing that was tried is faster; the fastest was beton"),
        (1040.0, "beton, is 4% faster: within the noise"),
        (1090.0, "beton, is 9% faster: a conversion has to bring 10%"),
    ):
        choice = choice_of(where, now, trial("tfrecord", epoch_rate=300.0), trial("beton", epoch_rate=rate))
        assert choice.best.option.label == "csv as it is"
        assert text in choice.reason
        assert choice.alternatives[0].option.format == "beton"
    noisy = trial("beton", epoch_rate=1200.0, noise=0.25)
    assert picked(where, now, noisy) == "csv as it is"
    assert choice_of(where, now, trial("beton", epoch_rate=2500.0)).reason == (
        "2.5 times as fast as it is now"
    )
    # Where it cannot do what is asked, it cannot stay; nor where nothing else could be tried, if it can.
    column = RULES["analyse"].look(case(answers={"goal": "analyse"})).requirements
    choice = choice_of(where, now, trial("hdf5", epoch_rate=100.0), requirements=column)
    assert (choice.best.option.format, choice.reason) == ("hdf5", "it cannot read single columns as it is")
    assert picked(where, now, trial("beton", error="it failed")) == "csv as it is"


def test_a_small_gain_of_the_preferred_one_does_not_hide_a_large_gain() -> None:
    where = case(PNG, format="csv")
    now = trial("csv", unchanged=True, epoch_rate=1000.0)
    near, fast = trial("beton", epoch_rate=1080.0), trial("recordio", epoch_rate=1130.0)
    assert preference("beton", "images", "train") < preference("recordio", "images", "train")
    assert picked(where, now, near, fast) == "recordio"


def test_an_order_by_blocks_needs_blocks() -> None:
    small = dataclasses.replace(HERE, memory=1000)
    source = bp.open({"x": np.arange(500)})
    for blocks, order in ((True, "quasi_random"), (False, "random")):

        def one(reader: Any, where: Case, *_: Any, blocks: bool = blocks, **more: Any) -> list[TrialResult]:
            return [trial_result(trial("arrow", blocks=blocks), where)]

        assert advise.advise(source, on=small, trial_runner=one).settings["order"] == order


def test_what_no_format_can_do_is_said() -> None:
    where = case(answers=yes("versions", "readable"))
    requirements = [
        requirement
        for name in ("versions", "readable")
        for requirement in RULES[name].look(where).requirements
    ]
    formats, unmet, _ = eligible(where, requirements)
    assert formats
    assert set(unmet) & {"give older versions back", "be read by people"}
    # A format beyond those that are usual for training is found when it is asked for.
    formats, unmet, left = eligible(where, RULES["readable"].look(where).requirements)
    assert set(formats) == {"csv", "json"}
    assert not unmet
    assert left["beton"] == "cannot be read by people"


def test_formats_that_are_not_tried_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "_installed", lambda package: package != "pyarrow")

    def some(reader: Any, where: Case, formats: Sequence[Format], *_: Any, **more: Any) -> list[TrialResult]:
        answer = {name.name: trial(name.name) for name in formats}
        answer["lmdb"] = Trial(option=StorageOption("lmdb"), error=OUT_OF_TIME)
        answer["hdf5"] = Trial(option=StorageOption("hdf5"), error="it failed")
        return [trial_result(value, where) for value in answer.values()]

    source = bp.open({"x": np.zeros((50, 2, 2), "uint8"), "y": [f"text {n}" for n in range(50)]})
    result = advise.advise(source, on=HERE, trial_runner=some)
    assert result.not_tried["no time left"] == ["lmdb"]
    assert result.not_tried["failed"] == ["hdf5"]
    assert "parquet" in result.not_tried["not installed"]
    assert "npy" in result.not_tried["cannot hold these fields"]
    assert "json" in result.not_tried["not made for what is asked"]
    told = {name for names in result.not_tried.values() for name in names}
    assert not told.intersection(item.option.format for item in result.tried if item.trial.error is None)
    # Every one of them has a reason in words.
    assert told <= {*result.left_out, "lmdb", "hdf5"}
    # Of those that are named, none is missing.
    assert set(advise.advise(source, on=HERE, trial_runner=some, formats=("lmdb", "beton")).not_tried) == {
        "no time left"
    }
    np.save(tmp_path / "x.npy", np.zeros((50, 2)))
    assert main(["advise", str(tmp_path / "x.npy"), "--formats", "npy,imagefolder", "--seconds", "0.05"]) == 0
    assert "not tried   failed: imagefolder\n" in capsys.readouterr().out


def test_ways() -> None:
    schema = Schema({"image": Image()})
    settings = {"unit_bytes": 1 << 20, "max_resolution": 256, "quality": 80, "image_format": "jpeg"}
    result = storage_option(get_format("parquet"), settings, schema)
    assert result.writer_options == {"row_group_size": 1 << 20}
    assert result.images == {"max_resolution": 256, "quality": 80, "image_format": "jpeg"}
    assert result.label == "parquet (row group size 1 MiB, max resolution 256, image format jpeg, quality 80)"
    assert with_raw_images(result).images == {"max_resolution": 256, "image_format": "raw"}
    # What a writer does by itself is not said, nor what it does not know; numbers have no resolution.
    assert storage_option(get_format("parquet"), {"unit_bytes": 4 << 20}, schema) == StorageOption(
        "parquet", ".parquet"
    )
    assert storage_option(get_format("beton"), settings, Schema({"x": Int()})) == StorageOption(
        "beton", ".beton"
    )
    assert storage_option(get_format("csv"), {"compress": "small"}, schema).suffix == ".csv.zst"
    assert (
        storage_option(get_format("hdf5"), {"compress": "known"}, schema).writer_options["compression"]
        == "gzip"
    )
    assert storage_option(get_format("hdf5"), {"chunk_samples": 3}, schema).writer_options == {"chunk": 3}


# -- the contest, with measurements that are given -----------------------------------------------------


class GivenBench:
    """In place of :class:`batchplant.tools.advise.trial.TrialBench`: writes nothing, and speeds are given.

    rates: samples/s by format, "now" for the dataset as it lies; sizes: bytes of a sample. noise: rounds are
    slower by up to this fraction. A conversion and a round take ``costs`` seconds of ``clock``.
    """

    samples = 1000
    sample_bytes = 100

    def __init__(
        self, rates: dict[str, float], *, sizes: dict[str, float] | None = None, noise: float = 0.0,
        seed: int = 0, costs: float = 0.0,
    ) -> None:  # fmt: skip
        self.rates, self.sizes, self.noise, self.costs = rates, sizes or {}, noise, costs
        self.rng, self.time = np.random.default_rng(seed), 0.0
        self.calls: list[tuple[str, str]] = []
        self.fastest: dict[str, float] = {}

    def made(self, held: Any, facts: Facts, folder: str, settings: Any, **how: Any) -> GivenBench:
        """What ``tries`` asks for."""
        self.columns, self.column = held, how["column"]
        return self

    def clock(self) -> float:
        return self.time

    def _called(self, what: str, option: StorageOption) -> str:
        name = "now" if option.unchanged else option.format
        self.calls.append((what, name))
        self.time += self.costs
        return name

    def keep(self, option: StorageOption, reader: bp.Reader) -> Trial:
        return Trial(option=option, samples=self.samples, bytes_per_sample=100.0)

    def probe(self, option: StorageOption) -> Trial:
        name = self._called("probe", option)
        return Trial(option=option, samples=8, bytes_per_sample=self.sizes.get(name, 100.0))

    def write(self, option: StorageOption, samples: int) -> Trial:
        name = self._called("write", option)
        return Trial(
            option=option,
            samples=samples,
            bytes_per_sample=self.sizes.get(name, 100.0),
            seconds_per_sample=1e-6,
        )

    def measure(self, trial: Trial, seconds: float) -> Trial:
        name = self._called("measure", trial.option)
        rate = self.rates.get(name, 1.0) * (1 - self.noise * self.rng.random())
        self.fastest[name] = max(rate, self.fastest.get(name, 0.0))
        figure = "epoch_rate" if getattr(self, "column", None) is None else "column_rate"
        return dataclasses.replace(trial, **{figure: rate})

    def close(self) -> None:
        pass

    def count(self, what: str, name: str) -> int:
        return self.calls.count((what, name))

    def order(self) -> list[str]:
        return [name for what, name in self.calls if what == "probe"]


TABLE = {"id": np.arange(300), "price": np.arange(300.0), "shop": [f"shop {n % 3}" for n in range(300)]}
GIVEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "table": (TABLE, ["parquet", "arrow", "beton"]),
    "arrays": ({"x": np.zeros((300, 16), "float32")}, ["npy", "zarr", "hdf5", "beton"]),
    "tokens": (
        {"tokens": bp.open([{"tokens": np.arange(n % 7 + 1)} for n in range(300)])},
        ["megatron", "tokens"],
    ),
}


def advised(source: Any, bench: GivenBench, seconds: float = 5.0, **answers: Any) -> advise.Advice:
    runner = functools.partial(run_trials, make_bench=bench.made, clock=bench.clock)
    return advise.advise(source, trial_runner=runner, on=HERE, seconds=seconds, **answers)


@pytest.mark.parametrize("kind", GIVEN)
def test_formats_that_suit_the_data_are_tried_first(kind: str) -> None:
    source, first = GIVEN[kind]
    bench = GivenBench({})
    reader = source["tokens"] if kind == "tokens" else bp.open(source)
    advised(reader, bench)
    assert bench.order()[: len(first)] == first


def test_formats_for_images_are_tried_first(images: Path) -> None:
    bench = GivenBench({})
    advised(str(images), bench)
    assert bench.order()[:2] == ["beton", "webdataset"]


def test_columnar_formats_are_tried_first_and_shown_to_analyse() -> None:
    """However little time there is, and however they do."""
    others = ("hdf5", "zarr", "n5", "litdata", "webdataset")
    bench = GivenBench(dict.fromkeys(others, 5e6) | {"parquet": 3e6, "arrow": 3.5e6}, costs=0.01)
    result = advised(bp.open(TABLE), bench, goal="analyse")
    assert bench.order()[:2] == ["parquet", "arrow"]
    assert {"parquet", "arrow"} <= {alternative.option.format for alternative in result.alternatives}
    hurried = GivenBench({"parquet": 3e6, "arrow": 1e6}, costs=100.0)
    result = advised(bp.open(TABLE), hurried, goal="analyse")
    assert result.format == "parquet"
    assert {"parquet", "arrow"} <= set(hurried.order())
    assert result.not_tried["no time left"]


def test_what_is_clearly_worse_is_stopped_early() -> None:
    rates = {"beton": 1000.0, "arrow": 950.0, "parquet": 300.0, "webdataset": 9000.0}
    bench = GivenBench(rates, sizes={"webdataset": 10_000.0}, noise=0.2)
    result = advised(bp.open(TABLE), bench)
    assert result.format == "arrow"
    # A file for every cell is found out with a handful of samples.
    assert bench.count("write", "webdataset") == bench.count("measure", "webdataset") == 0
    assert result.not_tried["stopped, 100 times the size (10.0 kB a sample)"] == ["webdataset"]
    # What is slow gets no more than a first, short trial.
    assert bench.count("measure", "parquet") == 2
    assert bench.count("measure", "beton") > 4
    slow = next(item for item in result.tried if item.option.format == "parquet")
    assert "slower than" in str(slow.trial.stopped)
    # Unless it is all that is asked about.
    named = GivenBench(rates, sizes={"webdataset": 10_000.0})
    assert advised(bp.open(TABLE), named, formats=("webdataset",)).format == "webdataset"


def test_measurements_are_repeated_until_the_best_rounds_agree() -> None:
    where = case(format="csv")
    now, options = (
        Trial(option=StorageOption("csv", unchanged=True)),
        [StorageOption("beton"), StorageOption("arrow")],
    )

    def rounds(noise: float) -> int:
        bench = GivenBench({"now": 900.0, "beton": 1000.0, "arrow": 990.0}, noise=noise)
        trials = {
            item.option.format: item
            for item in Contest(bench, where, seconds=5, clock=bench.clock).run(now, options)
        }
        assert trials["beton"].epoch_rate == bench.fastest["beton"]
        assert 0 <= trials["beton"].noise <= noise
        return bench.count("measure", "beton")

    assert rounds(0.0) < rounds(0.5)


def test_picks_do_not_change_from_run_to_run() -> None:
    where = case(field(), format="csv", sample_bytes=100.0)
    now = Trial(option=StorageOption("csv", unchanged=True), bytes_per_sample=100.0)
    rates = {"now": 500.0, "beton": 1000.0, "parquet": 985.0, "arrow": 990.0, "lmdb": 960.0, "mds": 700.0}
    options = [StorageOption(name) for name in rates if name != "now"]

    def picks(**more: float) -> set[str]:
        result = set()
        for seed in range(25):
            bench = GivenBench(rates | more, noise=0.1, seed=seed)
            trials = Contest(bench, where, seconds=5, clock=bench.clock).run(now, options)
            result.add(choice_of(where, *trials).best.option.label)
        return result

    assert picks() == {"parquet"}
    assert picks(now=960.0) == {"csv as it is"}
    assert picks(now=3000.0) == {"csv as it is"}
    assert picks(beton=2000.0) == {"beton"}


def test_of_many_equals_the_preferred_ones_are_tried_to_the_end() -> None:
    """A short trial tells them apart by noise only."""
    options = [
        StorageOption(name)
        for name in ("beton", "webdataset", "tfrecord", "mds", "lmdb", "recordio", "arrow", "zarr", "n5")
    ]
    where, now = (
        case(PNG, format="csv"),
        Trial(option=StorageOption("csv", unchanged=True), bytes_per_sample=100.0),
    )
    rates = {option.format: 1000.0 for option in options} | {"now": 300.0}
    for seed in range(25):
        bench = GivenBench(rates, noise=0.05, seed=seed)
        trials = Contest(bench, where, seconds=5, clock=bench.clock).run(now, options)
        assert choice_of(where, *trials).best.option.label == "beton"


def test_no_prediction_is_above_what_was_measured() -> None:
    rates = {"beton": 1000.0, "arrow": 950.0, "parquet": 300.0}
    for goal in ("train", "stream", "analyse"):
        bench = GivenBench(rates, noise=0.3)
        result = advised(bp.open(TABLE), bench, goal=goal)
        for item in result.tried:
            if item.prediction.rate is not None:
                most = bench.fastest["now" if item.option.unchanged else item.option.format]
                assert item.prediction.rate <= most * (1 + 1e-9)
        assert "through the Loader" in GOAL_METRICS[goal][2] or goal == "analyse"


def test_a_query_opens_the_file() -> None:
    """A column of few rows comes at once; a file of many columns does not open at once."""
    where = case(format="csv", samples=20_000, answers={"goal": "analyse"})
    slow, quick = trial("hdf5", column_rate=2e7, open_seconds=0.2), trial("parquet", column_rate=1e7)
    assert trial_result(slow, where).prediction.rate == pytest.approx(20_000 / 0.201)
    assert picked(where, slow, quick) == "parquet"


def test_a_column_is_told_by_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Millions of samples a second are nothing that anybody loads."""
    pytest.importorskip("pyarrow")
    bp.convert(bp.open(TABLE), tmp_path / "table.csv")
    argv = ["advise", str(tmp_path / "table.csv"), "--goal", "analyse", "--formats", "parquet,arrow"]
    assert main([*argv, "--seconds", "0.05"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^predicted   a column of 300 rows in [\d.]+ m?s, ", shown, re.MULTILINE)
    assert "samples/s" not in shown
    assert "parquet" in shown
    assert "arrow" in shown


def test_the_format_that_it_has_is_not_advised(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((300, 16), "float32"))
    bench = GivenBench({"now": 1000.0, "npy": 5000.0, "hdf5": 1010.0})
    result = advised(str(tmp_path / "x.npy"), bench)
    assert result.best.option.label == "npy as it is"
    assert "npy" not in bench.order()
    assert not [line for line in result.commands if "convert" in line]
    # Unless something of it changes, which is named.
    pytest.importorskip("pyarrow")
    where = case(format="parquet", block_bytes=256e6, block_rows=1000)
    settings = dict(RULES["large-row-groups"].look(where).settings)
    option = storage_option(get_format("parquet"), settings, Schema({"x": Int()}), source="parquet")
    assert option.label == "parquet (row group size 4 MiB)"
    lines, _ = advice.commands(["x.parquet"], option, settings, Answers())
    assert "--to-option row_group_size=4194304" in lines[0]
    packed = storage_option(
        get_format("webdataset"), {"rewrite": True}, Schema({"x": Int()}), source="webdataset"
    )
    assert packed.label == "webdataset (written anew)"


def test_a_crop_is_no_larger_than_the_images(images: Path) -> None:
    """The images are of 64×48 pixels."""
    result = advised(str(images), GivenBench({}))
    assert "RandomResizedCrop(48)" in result.loop
    assert result.commands[-1].endswith("--size 48")
    assert "RandomResizedCrop(96)" in advised(str(images), GivenBench({}), size=96).loop
    large = case(field("image", Image(), width=500.0, height=400.0))
    assert (large.size, case().size) == (224, 224)


def test_sizes_are_readable() -> None:
    for size, text in ((40.0, "40 B"), (3200.0, "3.2 kB"), (250e3, "250 kB")):
        seen = RULES["tiny-files"].look(case(files=10_000, sample_bytes=size))
        assert seen.message == f"10,000 files of {text} each"
    assert "of 40 B" in RULES["tiny-files"].look(case(files=100, samples=100, sample_bytes=40.0)).message


# -- the ten datasets ----------------------------------------------------------------------------------


def pretend(
    reader: bp.Reader, where: Case, formats: Sequence[Format], settings: Any, folder: str, **_: Any
) -> list[TrialResult]:
    """In place of trials: what can be used in place is twice as fast, what compresses half as large."""
    facts = where.facts
    options = [
        StorageOption(facts.format, unchanged=True),
        *(storage_option(name, settings, facts.schema) for name in formats),
    ]
    result = []
    for option in options:
        can = get_format(option.format).can
        rate = 1000.0 * (1 + can.spans) * (0.5 if option.unchanged and facts.format in ("csv", "json") else 1)
        small = bool(option.writer_options) and "compression" in can.describe()
        trial = Trial(
            option=option, samples=10, bytes_per_sample=facts.sample_bytes * (0.5 if small else 1),
            seconds_per_sample=1e-4,
            epoch_rate=rate, column_rate=rate,
        )  # fmt: skip
        result.append(trial_result(trial, where))
    return result


# Which settings are advised, what applies, whether it stays as it is, and what the format can do.
PICKS: dict[str, tuple[dict[str, Any], set[str], bool, Callable[[Format], bool]]] = {
    "tiny png files": ({"order": "random"}, {"tiny-files", "sorted-labels"}, False,
                       lambda item: item.media is None),
    "4k photos": ({"max_resolution": 448}, {"large-images"}, False, lambda item: item.can.random_access),
    "sorted tar": ({"shuffle": True, "order": "sequential"}, {"sorted-labels", "stream"}, False,
                   lambda item: item.can.streaming_write),
    "long audio": ({"order": "random"}, set(), True, lambda item: item.media is bp.Audio),
    "csv of 10^6 rows": ({"unit_bytes": 64 << 20}, {"analyse"}, False, lambda item: item.can.column_pruning),
    "token files": ({"order": "random"}, {"padding"}, False, lambda item: item.can.spans),
    "hdf5 with bad chunks": ({"rewrite": True}, {"bad-chunks"}, False, lambda item: item.can.spans),
    "coco": ({"compress": "known"}, {"share"}, False, lambda item: len(item.can.ecosystem) > 2),
    "video": ({"compress": "small"}, {"archive"}, False, lambda item: item.can.keeps_schema),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKS)
def test_pick(name: str, made: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, applies, unchanged, holds = PICKS[name]
    result = advise.advise(made(name), goal=DATA.DATASETS[name].goal, on=HERE, trial_runner=pretend)
    assert settings.items() <= result.settings.items()
    assert applies <= {rule.name for rule, seen in result.rules if seen.applies}
    assert result.best.option.unchanged == unchanged
    assert holds(get_format(result.format))
    assert not result.unmet
    assert result.best.trial.blocks or result.settings.get("order") != "quasi_random"
    assert json.loads(json.dumps(result.to_json(), default=str))["format"] == result.format


@pytest.mark.exhaustive
def test_pick_remote_parquet(bucket: Bucket, made: Callable[[str], str]) -> None:
    url = bucket.put("images.parquet", Path(made("remote parquet")).read_bytes())
    reader = bp.open(url, endpoint=bucket.endpoint)
    result = advise.advise(reader, on=dataclasses.replace(HERE, storage="s3"), trial_runner=pretend)
    assert result.facts.remote
    assert get_format(result.format).can.remote_ranges
    assert {"order": "random", "prefetch_batches": 6, "cache": True}.items() <= result.settings.items()
    here = advise.machine(reader)
    assert here.storage == "s3"


# -- commands ------------------------------------------------------------------------------------------

JPEG = {"max_resolution": 32, "image_format": "jpeg", "quality": 80}
WAYS: dict[str, tuple[StorageOption, dict[str, Any]]] = {
    "options": (StorageOption("tfrecord", ".tfrecord", {"records": "example"}), {}),
    "images": (
        StorageOption("beton", ".beton", {}, {"max_resolution": 32, "image_format": "jpeg", "quality": 80}),
        {},
    ),
    "raw": (StorageOption("beton", ".beton", {}, {"image_format": "raw"}), {"order": "quasi_random"}),
    "shards": (StorageOption("webdataset", ".tar"), {"shard_size": 1_000_000, "shuffle": True}),
    "a folder": (StorageOption("imagefolder"), {"skip_errors": True}),
    "as it is": (
        StorageOption("imagefolder", unchanged=True),
        {"order": "random", "prefetch_batches": 4, "workers": 2},
    ),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("a folder") / "my photos"
    for number in range(12):
        (folder / f"c{number % 2}").mkdir(parents=True, exist_ok=True)
        (folder / f"c{number % 2}" / f"{number}.jpg").write_bytes(DATA.jpeg(rng, 64, 48))
    return folder


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        *((name, "train") for name in WAYS),
        ("shards", "archive"),
        *exhaustive(*((name, "archive") for name in WAYS)),
    ],
)
def test_commands_run_as_they_are_printed(
    name: str, goal: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    option, settings = WAYS[name]
    answers = Answers(goal=goal, size=16, batch_size=4)
    lines, opened = advice.commands([str(images)], option, settings, answers)
    assert len(lines) == (1 if option.unchanged else 3)
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "batchplant"
        assert main(words) == 0, line
    assert len(bp.open(opened)) == 12
    scope: dict[str, Any] = {}
    exec(advice.loop(opened, bp.open(opened).schema, settings, answers), scope)
    counts = [len(next(iter(batch.values()))) for batch in scope["loader"]]
    scope["loader"].close()
    assert sum(counts) == 12


def test_nothing_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.tar").write_text("")
    assert advice.target_of("data/train.tar", StorageOption("webdataset", ".tar"), {})[0] == "train-new.tar"
    assert advice.target_of("data/train.tar", StorageOption("beton", ".beton"), {})[0] == "train.beton"
    assert advice.target_of("data/{a,b}.tar", StorageOption("beton", ".beton"), {})[0] == "data.beton"


# -- the command ---------------------------------------------------------------------------------------


def test_command(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """For real: everything is looked at, tried and printed, and nothing is left behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    argv = ["advise", str(images), "--formats", "beton,tfrecord", "--seconds", "0.05", "--size", "16"]
    assert main([*argv, "--explain", "--gpus", "2", "--step-ms", "1000"]) == 0
    shown = capsys.readouterr().out
    for word in (
        "busy        a load of 1000.0 on ",
        "looked at   12 samples",
        "advice ",
        "predicted ",
        "bottleneck ",
        "workers: ",
        "(+ applies)",
    ):
        assert word in shown
    assert all(rule.doc in shown and rule.name in shown for rule in RULES.values())
    assert list(scratch.iterdir()) == []
    assert main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["format"] in ("beton", "tfrecord", "imagefolder")
    assert {row["name"] for row in answer["rules"]} == set(RULES)
    assert answer["advice"]["prediction"]["rate"] > 0
    assert not answer["advice"]["error"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("goal", ["archive", "analyse", "stream", "share"])
def test_other_goals_for_real(goal: str) -> None:
    source = bp.open({"x": np.arange(500), "y": np.arange(500.0)})
    result = advise.advise(source, goal=goal, formats=("arrow", "hdf5"), seconds=0.05, on=HERE)
    assert result.format in ("arrow", "hdf5")
    assert result.best.value
    assert result.prediction.bytes > 0


@pytest.mark.exhaustive
def test_what_will_lie_in_a_bucket_is_tried_over_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = sys.modules["batchplant.tools.advise.trial"]
    opened: list[str] = []

    def noted(where: Any, **options: Any) -> bp.Reader:
        opened.append(str(where))
        return bp.open(where, **options)

    monkeypatch.setattr(trials, "open_reader", noted)
    source = bp.open({"x": np.arange(500), "y": np.arange(500.0)})
    result = advise.advise(source, storage="s3", formats=("tfrecord", "arrow"), seconds=0.1, on=HERE)
    assert all(item.trial.error is None for item in result.tried)
    urls = [item for item in opened if item.startswith("http://127.0.0.1:")]
    assert {url.rpartition(".")[2] for url in urls} == {"tfrecord", "arrow"}
    # Nobody serves them any more.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(urls[0].split("/")[2].rpartition(":")[2])), 5)
    opened.clear()
    advise.advise(source, formats=("tfrecord",), seconds=0.1, on=HERE)
    assert not [item for item in opened if item.startswith("http:")]


def test_questions_are_asked(images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    argv = ["advise", str(images), "--ask", "--seconds", "0.05", "--formats", "beton,tfrecord", "--json"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(argv) == 2
    capsys.readouterr()
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "y" if "checksums" in question else ""

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answer)
    assert main([*argv, "--lossless"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["answers"]["yes"] == ["lossless", "safety"]
    assert result["format"] == "tfrecord"
    # What a flag has answered is not asked.
    assert len(asked) == len(QUESTIONS)


def test_wrong_use(tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    for argv, text in (
        (["empty.npy"], "no samples"),
        (["empty.npy", "--gpus", "0"], "at least 1"),
        (["empty.npy", "--step-ms", "-1"], "more than 0"),
        (["nothing.beton"], "no such"),
    ):
        assert main(["advise", str(tmp_path / argv[0]), *argv[1:]]) == 2, argv
        assert text in capsys.readouterr().err.lower()
    with pytest.raises(OptionError, match="there is no question"):
        Answers(yes=frozenset({"maybe"}))


# -- proof ---------------------------------------------------------------------------------------------


def test_proof(monkeypatch: pytest.MonkeyPatch, made: Callable[[str], str]) -> None:
    """What is measured stands beside what was predicted for as many samples."""
    result = advise.advise(made("token files"), on=HERE, trial_runner=pretend)
    asked: list[Any] = []

    def measured(reader: Any, candidates: list[Any], **options: Any) -> list[Measurement]:
        asked.extend(candidates)
        first = Measurement(
            candidates[0].format, samples=100, bytes=250_000, best={"epoch_warm": 1600.0}, write_rate=10_000.0
        )
        return [first, Measurement(candidates[1].format, error="it failed")]

    monkeypatch.setattr("batchplant.tools.measure.formats", measured)
    proofs = advice.prove(bp.open(made("token files")), result, seconds=1)
    assert [item.format for item in asked] == [result.format, result.alternatives[0].option.format]
    errors = {figure.name: figure.error for figure in proofs[0].figures}
    assert errors["samples/s of an epoch"] == pytest.approx(0.25)
    assert errors["samples/s written"] == pytest.approx(0)
    assert errors["bytes"] == pytest.approx(abs(result.best.trial.disk_bytes(100) / 250_000 - 1))
    assert "25% off" in next(proofs[0].lines())
    assert list(proofs[1].lines()) == ["not measured: it failed"]


def test_proof_for_real(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As typed: what is advised and the runner-up are converted and measured, and nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("batchplant.cli.advise.PROVE_SECONDS", 0.1)
    argv = ["advise", str(images), "--formats", "beton,tfrecord", "--seconds", "0.05", "--size", "16"]
    assert main([*argv, "--prove"]) == 0
    shown = capsys.readouterr().out
    proved = shown.partition("\nproved")[2].split("\n\n")[0]
    options = [line for line in proved.splitlines() if line.endswith(", 12 samples")]
    assert len(options) == 2
    assert {line.split()[0] for line in options} == {"beton", "tfrecord"}
    pattern = r"samples/s of an epoch: ([\d,]+) predicted, ([\d,]+) measured \(([\d,]+)% off\)"
    result = re.findall(pattern, proved)
    assert len(result) == 2
    assert "not measured" not in proved
    for figures in result:
        predicted, measured, error = (int(figure.replace(",", "")) for figure in figures)
        assert min(predicted, measured) > 0
        assert error == pytest.approx(100 * abs(predicted / measured - 1), abs=1.5)
    assert len(re.findall(r"  bytes: [\d,]+ predicted", proved)) == 2
    assert list(tmp_path.iterdir()) == []


def test_predictions_are_given_as_data() -> None:
    prediction = Prediction(rate=1.0, first=1.0, bytes=1.0, seconds=1.0, bottleneck="the disk")
    assert dataclasses.asdict(prediction)["needed"] is None


def test_preferences_are_those_of_known_formats_and_tell_all_of_them_apart() -> None:
    known = all_formats()
    for kind, goal in itertools.product(SUITED, GOALS):
        assert set(SUITED[kind]) <= set(known), kind
        assert len({preference(name, kind, goal) for name in known}) == len(known), (kind, goal)
        if goal == "analyse":
            first = sorted(known, key=lambda name: preference(name, kind, goal))
            assert first[:2] == ["parquet", "arrow"], kind
