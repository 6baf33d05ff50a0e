"""Plans of mixtures: what a file says, what a dry run says of it, and what a loader then gives."""

from __future__ import annotations

import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant
import servers
from batchplant import Loader, Mix, Pack, cli
from batchplant.data.config import parse_yaml
from batchplant.errors import BatchplantError, MissingLibraryError, OptionError
from batchplant.tools.measure import mixing
from batchplant.tools.measure.mixing import DryRunTuning, dry_run
from variants import exhaustive

PLAN = """
sources:
  web: {path: web.idx, weight: 0.75}   # of samples
  books:
    path: books.idx
    weight: 0.25
  code: {path: code.parquet, weight: 0}
schedule:
  - at: 40
    weights: {web: 0.5, code: 0.25}
stop: all
max_repeats: 2
seed: 3
batch_size: 2
pack: {length: 96, eos: 1, window: 16}
"""
# Ten lists, each of ten times the one before it.
LAUGHS = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))


def write(path: Path, count: int, mean: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with batchplant.create(path, {"tokens": batchplant.Tensor("int32", (None,))}) as out:
        for size in rng.lognormal(mean, 0.8, count).astype(int).clip(1, 200):
            out.append({"tokens": rng.integers(1, 99, size, dtype=np.int32)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("mix")
    write(result / "web.idx", 70, 3, 0)
    write(result / "books.idx", 12, 4, 1)
    pytest.importorskip("pyarrow")
    write(result / "code.parquet", 20, 3, 2)
    (result / "plan.yaml").write_text(PLAN)
    return result


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code = cli.main(["mix", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


# -- plans ---------------------------------------------------------------------------------------------------


def test_yaml_has_lists_parts_and_values() -> None:
    text = (
        "a: 1 # one\nb:\n  c: [x, 'y, z', 2.5]\n  d: {e: yes, f: {g: null}}\n"
        "h:\n- i: 1\n  j: 2\n- 1e3\n-\n  k: '#'\nl: m\n"
    )
    assert parse_yaml(text) == {
        "a": 1,
        "b": {"c": ["x", "y, z", 2.5], "d": {"e": True, "f": {"g": None}}},
        "h": [{"i": 1, "j": 2}, 1000.0, {"k": "#"}],
        "l": "m",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n  b: 2\n", "line 2: mapping values are not allowed here"),
        ("a:\n    b: 2\n  c: 3\n", "line 3"),
        ("a: [1, 2\n", "line 2: while parsing a flow sequence"),
        ("a: {b: [1}, c]\n", "line 1"),
        ("a: 1\n- b\n", "line 2"),
        ("a:\n\tb: 1\n", "line 2: while scanning for the next token found character '\\t'"),
        ("a: 1\nb: 2\na: 3\n", "line 3: a is there twice"),
        ("a: 1\nb: {? [c] : d}\n", "line 2: a name is text"),
        ("a: 1\nb: !!python/name:os.system x\n", "line 2: 'tag:yaml.org,2002:python/name:os"),
        ("a: !!int x\n", "line 1: invalid literal for int"),
        ("a: 1\nb: \x00\n", "line 2: '\\x00' is no character of YAML"),
        ("a: 1\n---\nb: 2\n", "line 2: expected a single document"),
        ("a: &b [*b]\n", "line 1: this is nested too deeply"),
        ("a: &a [1]\nb: *c\n", "line 2: found undefined alias 'c'"),
        (LAUGHS, "there are too many values"),
        ("- a\n", "line 1: a plan is made of"),
        ("a:\n" + "".join(" " * n + "- a:\n" for n in range(2, 60, 2)), "nested too deeply"),
    ],
)  # fmt: skip
def test_yaml_that_is_no_plan_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="line") as raised:
        parse_yaml(text)
    assert message in str(raised.value)


def test_plain_values_are_those_of_yaml_1_2() -> None:
    text = (
        "a: 1e6\nb: 1:30\nc: 2020-01-02\nd: .5\ne: -.inf\nf: '1'\ng: |\n  x\n  y\nh: 1_000\ni:\n"
        "1: ~\nj: &k [No]\nl: *k\n"
    )
    assert parse_yaml(text) == {
        "a": 1e6, "b": "1:30", "c": "2020-01-02", "d": 0.5, "e": -math.inf, "f": "1", "g": "x\ny\n",
        "h": 1000, "i": None, "1": None, "j": [False], "l": [False],
    }  # fmt: skip


def test_yaml_without_its_library_is_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingLibraryError, match=r"plan\.yaml: .*pip install .batchplant\[yaml\]"):
        Mix.from_file(folder / "plan.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("idx, weight: 0.75", "idx, weigth: 1"), "line 3: .*did you mean weight"),
        (("weight: 0.25", "weight: -1"), "line 6: the weight of books is a number that is not below 0"),
        (("    weight: 0.25\n", ""), "line 4: books has no weight: give every source one, or none"),
        (("path: books.idx", "path: nothing.idx"), "line 5: books cannot be opened: .*no such file"),
        (("code: 0.25", "cod: 0.25"), "line 10: there is no source 'cod' .did you mean code"),
        (("at: 40", "at: 0"), "line 9: at is a whole number of at least 1"),
        (("stop: all", "stop: last"), "line 11: stop is first, all, never"),
        (("batch_size: 2", "batchsize: 2"), "line 14: .* no 'batchsize' .did you mean batch_size"),
        (("eos: 1", "end: 1"), "line 15: pack has no 'end'"),
        (("length: 96", "length: long"), "line 15: length must be a whole number, not 'long'"),
        (("batch_size: 2\n", ""), "no batch_size"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_one_error_with_its_line(
    folder: Path, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    for name in ("web", "books"):
        for suffix in ("idx", "bin"):
            (tmp_path / f"{name}.{suffix}").symlink_to(folder / f"{name}.{suffix}")
    (tmp_path / "code.parquet").symlink_to(folder / "code.parquet")
    assert change[0] in PLAN
    (tmp_path / "plan.yaml").write_text(PLAN.replace(*change))
    with pytest.raises(BatchplantError, match=message) as raised:
        Loader.from_file(tmp_path / "plan.yaml")
    assert str(raised.value).startswith(str(tmp_path / "plan.yaml"))


# -- dry runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "steps", "packed"), [(1, None, True), (3, None, True), (2, 5, True), (2, None, False)]
)
def test_a_dry_run_says_what_the_loader_gives(
    folder: Path, world_size: int, steps: int | None, packed: bool
) -> None:
    mix = Mix.from_file(folder / "plan.yaml")
    pack = Pack(96, eos=1, window=16) if packed else None
    output = dry_run(mix, batch_size=2, world_size=world_size, steps=steps, pack=pack)
    tokens = dict.fromkeys(mix.names, 0)
    samples: dict[str, set[Any]] = {name: set() for name in mix.names}
    for rank in range(world_size):
        loader = Loader.from_file(folder / "plan.yaml", rank=rank, world_size=world_size, pack=pack)
        rows = own = 0
        written = 0
        for step, batch in enumerate(loader):
            if steps is not None and step == steps:
                break
            written += 1
            result = loader.replay(step)
            assert result.origins is not None
            if packed:
                rows += len(batch["tokens"])
                sizes, documents = batch["pieces"][:, 2], batch["pieces"][:, 4]
            else:
                offsets = batch["tokens"][1]
                rows += len(offsets) - 1
                sizes, documents = np.diff(offsets), np.arange(len(offsets) - 1)
            own += int(sizes.sum())
            for document, size in zip(documents.tolist(), sizes.tolist(), strict=True):
                name, number, lap = result.origins[document]
                tokens[name] += size
                samples[name].add((number, lap))
        loader.close()
        assert (output.ranks[rank].steps, output.ranks[rank].rows, output.ranks[rank].tokens) == (
            written,
            rows,
            own,
        )
    # Of Parquet nothing tells how long documents are, but it has so few that all were read.
    assert output.estimated == []
    assert {source.name: source.samples for source in output.sources} == {
        name: len(sample) for name, sample in samples.items()
    }
    assert {source.name: source.tokens for source in output.sources} == tokens
    assert output.tokens == sum(tokens.values())
    assert output.rows == sum(rank.rows for rank in output.ranks)
    if packed and output.fill is not None:
        assert output.fill == pytest.approx((output.tokens or 0) / (output.rows * 96))


def test_first_and_last_positions_are_those_of_the_order(folder: Path) -> None:
    mix = Mix.from_file(folder / "plan.yaml")
    for end in (1, 7, 41, mix.blend.length):
        source = mix.blend.at(np.arange(end))[0]
        first, last = mix.blend.span(end)
        for number in range(3):
            places = np.flatnonzero(source == number)
            expected = (places[0], places[-1]) if len(places) else (-1, -1)
            assert (first[number], last[number]) == expected


def test_lengths_that_nothing_tells_are_estimated_from_some(folder: Path) -> None:
    mix = Mix([(folder / "code.parquet", 1)])
    exact = dry_run(mix, batch_size=4, pack=Pack(96))
    about = dry_run(mix, batch_size=4, pack=Pack(96), tuning=DryRunTuning(read_documents=10))
    assert len(about.estimated) == 1
    assert about.tokens == pytest.approx(exact.tokens, rel=0.4)
    assert about.tokens != exact.tokens


def test_a_long_run_is_estimated_and_says_so(folder: Path) -> None:
    mix = Mix([(folder / "web.idx", 2), (folder / "books.idx", 1)], stop=40_000)
    pack = Pack(96, window=64)
    exact = dry_run(mix, batch_size=4, pack=pack)
    tuning = DryRunTuning(max_positions=10_000, sampled_windows=100)
    about = dry_run(mix, batch_size=4, pack=pack, tuning=tuning)
    assert exact.estimated == []
    assert about.estimated == ["100 windows of 64 samples stand for all"]
    assert about.samples == exact.samples == 40_000
    assert about.rows == pytest.approx(exact.rows, rel=0.02)
    assert about.tokens == pytest.approx(exact.tokens, rel=0.02)
    assert about.fill == pytest.approx(exact.fill, abs=0.01)


def test_sources_beyond_the_colours_are_counted_in_the_figure(folder: Path) -> None:
    text = pytest.importorskip("matplotlib.text")
    count = mixing.MAX_COLOURED_SOURCES + 3
    mix = Mix([(folder / "web.idx", 1)] * count, stop=2_000)
    figure = mixing.draw(dry_run(mix, batch_size=4), None)
    labels = {label.get_text() for label in figure.findobj(text.Text)}
    assert any("3 others" in label for label in labels)


def test_the_command_says_it_in_words_in_json_and_in_a_figure(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = command(capsys, folder / "plan.yaml", "--dry-run", "--world-size", "2")
    assert code == 0
    assert [row["name"] for row in output["sources"]] == ["web", "books", "code"]
    assert (output["world_size"], len(output["ranks"])) == (2, 2)
    # With other weights from position 40 on; from where books was gone through twice on, it comes no more.
    assert output["changes"][0][0] == 40
    assert output["sources"][1]["passes"] == 2.0
    arguments = ["mix", str(folder / "plan.yaml"), "--steps", "3"]
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        pass
    else:
        arguments += ["--figure", str(tmp_path / "mix.svg")]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "the run: 3 steps" in shown
    assert "books" in shown
    if "--figure" in arguments:
        assert (
            "how often each source" in (tmp_path / "mix.svg").read_text()
            or (tmp_path / "mix.svg").stat().st_size
        )
    code, output = command(capsys, tmp_path / "none.yaml")
    assert (code, output["error"]["kind"]) == (2, "NotFoundError")


def test_the_example_is_a_plan(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mix", "--example"]) == 0
    (folder / "example.yaml").write_text(capsys.readouterr().out)
    code, output = command(capsys, folder / "example.yaml")
    assert (code, output["batch_size"], output["length"]) == (0, 8, 2048)


# -- mixtures of one source, seeds, servers ------------------------------------------------------------------


def test_classes_come_equally_often_or_as_weights_say() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 3])
    reader = batchplant.open({"label": labels, "number": np.arange(93)})
    mix = Mix.by_class(reader, "label")
    loader = Loader(mix, 9, order="random", ids=True)
    for batch in list(loader)[:-1]:
        assert np.bincount(batch["label"], minlength=3).tolist() == [3, 3, 3]
        source, number, _ = mix.origin(batch["ids"])
        assert number.tolist() == batch["number"].tolist()
        assert [mix.names[item] for item in source] == [str(item) for item in batch["label"]]
    assert set(np.concatenate([batch["number"] for batch in loader])) == set(range(93))
    some = Mix.by_class(reader, "label", {0: 2, "2": 0}, stop=30, seed=5)
    (batch,) = Loader(some, 30, order="random")
    assert np.bincount(batch["label"], minlength=3).tolist() == [20, 10, 0]
    assert len(pickle.loads(pickle.dumps(some))) == len(some)
    with pytest.raises(OptionError, match="no class '7'"):
        Mix.by_class(reader, "label", {7: 2})


def test_samples_come_as_often_as_their_weights_say() -> None:
    weights = np.array([0, 1, 1, 2, 4, 0.5] * 20)
    reader = batchplant.open({"number": np.arange(120), "weight": weights})
    for given in (weights, "weight"):
        (batch,) = Loader(Mix.weighted(reader, given, stop=1700), 1700, order="random", seed=2)
        came = np.bincount(batch["number"], minlength=120)
        assert (np.abs(came - weights * 1700 / weights.sum()) <= 1).all()
    assert Mix.weighted(reader, weights).blend.length == 120
    many = np.random.default_rng(0).lognormal(0, 2, 20_000)
    result = Mix.weighted(batchplant.open({"number": np.arange(20_000)}), many, stop=200_000)
    assert len(result.names) <= 4096
    (batch,) = Loader(result, 200_000, order="random")
    came, wanted = np.bincount(batch["number"], minlength=20_000), many * 200_000 / many.sum()
    assert (np.abs(came - wanted) <= 1 + 0.01 * wanted).all()
    with pytest.raises(OptionError, match="120 finite numbers"):
        Mix.weighted(reader, weights - 1)


def test_a_seed_of_the_mixture_gives_another_order_and_steps_count_samples() -> None:
    sources = [(batchplant.open({"x": np.arange(n)}), 1) for n in (50, 40)]
    taken = [
        next(iter(Loader(Mix(sources, seed=seed), 40, order="random")))["x"].tolist() for seed in (0, 0, 1)
    ]
    assert taken[0] == taken[1] != taken[2]
    mix = Mix(sources, schedule=[(10, [1, 0])], step=4, stop="all")
    assert mix.weights(39).tolist() == [0.5, 0.5]
    assert mix.weights(40).tolist() == [1, 0]
    with pytest.raises(OptionError, match=r"the weight of .* must be finite"):
        Mix([(sources[0][0], -1), (sources[1][0], 1)])
    readers = [source for source, _ in sources]
    assert Mix(readers, weights=[3, 1]).weights().tolist() == [0.75, 0.25]
    with pytest.raises(OptionError, match="2 sources, but 1 weights: give every source one"):
        Mix(readers, weights=[1])
    with pytest.raises(OptionError, match="2 sources, but 1 weights"):
        Mix([sources[0], readers[1]])
    with pytest.raises(OptionError, match="sources have weights already"):
        Mix(sources, weights=[3, 1])


def test_sources_on_a_server_are_mixed_and_packed(folder: Path) -> None:
    pytest.importorskip("obstore")
    with servers.http_server(str(folder)) as url:
        mix = Mix([(f"{url}/web.idx", 3), (folder / "books.idx", 1)], stop="all")
        local = Mix([(folder / "web.idx", 3), (folder / "books.idx", 1)], stop="all")
        pack = Pack(96, eos=1, window=16)
        remote = [batch["tokens"] for batch in Loader(mix, 4, order="random", pack=pack)]
        expected = [batch["tokens"] for batch in Loader(local, 4, order="random", pack=pack)]
    np.testing.assert_array_equal(np.concatenate(remote), np.concatenate(expected))


@pytest.mark.parametrize(
    ("overlong", "drop_last"),
    [
        *zip(("split", "truncate", "drop"), (False, True, False), strict=True),
        *exhaustive(*zip(("split", "truncate", "drop"), (True, False, True), strict=True)),
    ],
)
def test_a_loader_counts_what_its_dry_run_counts(tmp_path: Path, overlong: str, drop_last: bool) -> None:
    write(tmp_path / "a.idx", 600, 3.0, 3)
    write(tmp_path / "b.idx", 300, 4.0, 4)
    mix = Mix({"a": tmp_path / "a.idx", "b": tmp_path / "b.idx"})
    pack = Pack(64, eos=0, overlong=overlong, window=128)
    loader = Loader(mix, 8, order="random", pack=pack, drop_last=drop_last)
    rows = sum(len(batch["tokens"]) for batch in loader)
    seen = dry_run(mix, batch_size=8, pack=pack, drop_last=drop_last)
    counted = loader.stats()["packing"]
    assert counted["documents"] <= 900
    assert counted["rows"] == rows
    names = ("rows", "documents", "tokens", "overlong")
    assert [counted[name] for name in names] == [seen.rows, seen.samples, seen.tokens, seen.overlong]
    assert counted["fill"] == pytest.approx(seen.fill)


def test_a_plan_by_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = PLAN.replace("stop: all", "stop: all\nby: tokens")
    (folder / "tokens.yaml").write_text(plan)
    code, by_plan = command(capsys, folder / "tokens.yaml", "--dry-run")
    assert code == 0
    assert command(capsys, folder / "plan.yaml", "--by", "tokens")[1]["sources"] == by_plan["sources"]
    assert by_plan["by"] == "tokens"
    assert command(capsys, folder / "plan.yaml")[1]["sources"] != by_plan["sources"]
    loader = Loader.from_file(folder / "tokens.yaml")
    assert sum(len(batch["tokens"]) for batch in loader) == by_plan["rows"]
    assert loader.stats()["packing"]["tokens"] == by_plan["tokens"]
