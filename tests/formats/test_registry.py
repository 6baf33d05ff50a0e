"""Finding the format of a path, opening many paths as one, and formats of other packages."""

import dataclasses
import importlib.metadata
import os
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import formats
from batchplant.formats import registry
from batchplant.formats._table import OUTLINES
from batchplant.formats.base.folders import media
from batchplant.formats.base.format import FOLDER_ENTRIES, never
from batchplant.formats.registry import expand, find, find_format, get_format, target_format
from batchplant.schema.columns import Columns
from batchplant.testing.cases import jpeg


@pytest.fixture
def numbered(tmp_path):
    """Twelve files of one number each, in a folder of their own."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(12):
        np.save(folder / f"part-{number}.npy", np.array([number]))
    return folder


def numbers(reader):
    return [sample["data"] for sample in reader]


# --- paths --------------------------------------------------------------------------------------------


def test_globs_sort_numbers_as_numbers(numbered):
    assert numbers(bp.open(f"{numbered}/part-*.npy")) == list(range(12))
    assert numbers(bp.open(f"{numbered}/part-1?.npy")) == [10, 11]


def test_braces(numbered):
    assert numbers(bp.open(f"{numbered}/part-{{3..6}}.npy")) == [3, 4, 5, 6]
    assert numbers(bp.open(f"{numbered}/part-{{7,1}}.npy")) == [7, 1]
    assert numbers(bp.open(f"{numbered}/part-{{1,}}{{0..1}}.npy")) == [10, 11, 0, 1]


def test_lists_keep_their_order(numbered):
    paths = [numbered / "part-5.npy", str(numbered / "part-2.npy"), f"{numbered}/part-1?.npy"]
    assert numbers(bp.open(paths)) == [5, 2, 10, 11]
    assert numbers(bp.open([numbered / "part-5.npy"])) == [5]


def test_a_folder_of_shards(numbered):
    (numbered / "README.txt").write_text("x")
    (numbered / ".hidden.npy").write_text("x")
    assert numbers(bp.open(numbered)) == list(range(12))
    assert find_format(str(numbered)) is None


def test_a_folder_of_shards_of_several_formats(numbered):
    np.savez(numbered / "part-99.npz", data=np.arange(1))
    with pytest.raises(bp.UnknownFormatError, match="files of several formats"):
        bp.open(numbered)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("x-{000..003}.tar", ["x-000.tar", "x-001.tar", "x-002.tar", "x-003.tar"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("s3://bucket/{0..1}.npz", ["s3://bucket/0.npz", "s3://bucket/1.npz"]),
    ],
)
def test_expanding(pattern, expected):
    assert expand(pattern) == expected


@pytest.mark.parametrize("name", ["{0..1}.npy", "a*.npy", "[1].npy"])
def test_a_path_that_exists_is_taken_as_it_is(name, tmp_path):
    np.save(tmp_path / name, np.array([7]))
    assert numbers(bp.open(tmp_path / name)) == [7]


@pytest.mark.parametrize("pattern", ["{5..2}", "{0..99999999}"])
def test_ranges_that_cannot_be(pattern):
    with pytest.raises(bp.OptionError, match="is no range of shards"):
        bp.open(pattern)


@pytest.mark.parametrize("path", ["nothing.npy", "nothing*.npy", "nothing", ["nothing.npy"]])
def test_what_is_not_there(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(bp.NotFoundError, match="nothing"):
        bp.open(path)


def test_no_path_at_all():
    with pytest.raises(bp.OptionError, match="there is no path"):
        bp.open([])


@pytest.mark.parametrize(("result", "times"), [("shards", 1), ("classes", 2)])
def test_a_folder_is_probed_once(result, times, numbered, tmp_path, monkeypatch):
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.jpg").write_bytes(jpeg())
    folder = str(numbered if result == "shards" else images)
    # Several formats look at a folder of images in one way, and the reader lists it once more.
    listed, asked, scandir, look = [], [], os.scandir, media.metadata_of
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
    monkeypatch.setattr(os, "listdir", None)
    monkeypatch.setattr(media, "metadata_of", lambda path: asked.append(path) or look(path))
    bp.open(folder)
    assert [path.rstrip("/") for path in listed].count(folder) == times
    assert asked == [folder]


def test_a_folder_of_more_files_than_a_probe_lists(tmp_path):
    for number in range(FOLDER_ENTRIES + 1):
        (tmp_path / f"{number}.npy").touch()
    probe = bp.Probe(str(tmp_path))
    assert len(probe.names) == FOLDER_ENTRIES
    result = registry.files_of([tmp_path])
    assert [os.path.basename(item.path) for item in result] == [f"{n}.npy" for n in range(FOLDER_ENTRIES + 1)]


def test_tables_of_text_beside_shards_describe_them(numbered):
    (numbered / "labels.csv").write_text("a\n1\n")
    (numbered / "about.json").write_text('{"a": 1}')
    assert numbers(bp.open(numbered)) == list(range(12))
    for path in numbered.glob("*.npy"):
        path.unlink()
    with pytest.raises(bp.UnknownFormatError, match=r"files of several formats \(csv, json\); name some"):
        bp.open(numbered)


# --- formats ------------------------------------------------------------------------------------------


def test_the_table_is_made_of_the_formats():
    modules = {
        module.name
        for module in pkgutil.iter_modules(formats.__path__)
        if module.name not in ("_table", "base", "registry")
    }
    assert {name: item.outline for name, item in registry.own_formats().items()} == OUTLINES, "make docs"
    assert set(OUTLINES) == modules, "make docs"
    assert [name for name, item in registry.own_formats().items() if item.name != name] == []


@pytest.mark.parametrize(
    "code",
    ["bp.open(path)", "bp.open([path, path])", "bp.create(path, {'n': bp.Int()}, overwrite=True).close()"],
)
def test_only_the_module_of_the_format_is_imported(code, tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    code = f"import sys, batchplant as bp; path = sys.argv[1]; {code}; print(*sys.modules)"
    done = processes.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[2] for name in done.stdout.split() if name.startswith("batchplant.formats.")}
    assert loaded - {"base", "registry"} == {"_table", "npy"}


def test_a_folder_needs_only_the_formats_of_folders(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    code = "import sys, batchplant as bp; bp.open(sys.argv[1]); print(*sys.modules)"
    done = processes.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[2] for name in done.stdout.split() if name.startswith("batchplant.formats.")}
    assert "imagefolder" in loaded
    assert loaded <= {
        "_table",
        "base",
        "registry",
        *(name for name, outline in OUTLINES.items() if outline.folder is not False),
    }


def test_content_beats_the_suffix(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    os.rename(tmp_path / "a.npy", tmp_path / "a.beton")
    assert numbers(bp.open(tmp_path / "a.beton")) == [0, 1, 2]
    assert find_format(str(tmp_path / "a.beton")).name == "npy"


def test_the_suffix_decides_where_content_does_not(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 nonsense")
    with pytest.raises(bp.DamagedError, match="not a ZIP file"):
        bp.open(tmp_path / "a.npz")


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "a.bin").touch()
    with pytest.raises(bp.UnknownFormatError, match="the file is empty, and its name does not tell a format"):
        bp.open(tmp_path / "a.bin")


@pytest.mark.parametrize("data", [b"hello world", bytes(20_000)])
def test_unknown_bytes(data, tmp_path):
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(
        bp.UnknownFormatError, match=r"no format knows these bytes.*beton,.* imagefolder,.* npy, npz"
    ):
        bp.open(tmp_path / "a.bin")


def test_the_format_can_be_named(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"hello world")
    with pytest.raises(bp.DamagedError, match="not an NPY header"):
        bp.open(tmp_path / "a.bin", format="npy")
    with pytest.raises(bp.OptionError, match=r"no format 'nonsense'; the formats are: .*beton, .*mds"):
        bp.open(tmp_path / "a.bin", format="nonsense")


def test_unknown_options_are_answered_with_the_known(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with pytest.raises(
        bp.OptionError, match="npz has no option 'nonsense'; its options are: fields, allow_pickle"
    ):
        bp.open(tmp_path / "a.npz", nonsense=1)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.beton", "beton"),
        ("A.NPZ", "npz"),
        ("x/y.npy", "npy"),
        ("folder", "imagefolder"),
        ("folder/", "imagefolder"),
    ],
)
def test_the_format_to_write(path, name):
    assert target_format(path).name == name


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"n": bp.Int(), "x": bp.Audio()}, "audiofolder"),
        ({"x": bp.Video(), "n": bp.Int()}, "videofolder"),
        ({"x": bp.Video(), "y": bp.Image()}, "imagefolder"),
    ],
)
def test_the_schema_tells_which_folder_to_write(schema, name):
    assert target_format("folder", schema).name == name
    assert target_format("a.npz", schema).name == "npz"


def test_a_name_without_a_suffix_is_no_folder_of_numbers():
    with pytest.raises(bp.UnknownFormatError, match="give the name a suffix"):
        target_format("folder", {"n": bp.Int()})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a.qqqq", r"no format that we write has the suffix \.qqqq; `batchplant formats` lists all$"),
        ("a.beto", r"the suffix \.beto \(did you mean \.beton\?\); `batchplant formats` lists all$"),
        ("a.PARQET", r"suffix \.parqet \(did you mean \.parquet"),
    ],
)
def test_no_format_to_write(path, reason):
    with pytest.raises(bp.UnknownFormatError, match=reason):
        target_format(path)


@pytest.mark.parametrize("one", registry.all_formats().values(), ids=lambda item: item.name)
def test_every_format_describes_itself(one):
    row = one.describe()
    assert row["name"] == one.name == one.reader.format
    assert row["spec"].startswith(("https://", "http://"))
    assert row["kinds"] or row["tensors"]
    assert row["title"]
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in row["suffixes"])


def test_damaged_bytes_are_a_no_for_every_format(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "a"
    for size in (0, 1, 7, 24, 1065, 20_000):
        path.write_bytes(rng.bytes(size))
        for spec in registry.all_formats().values():
            assert spec.matches(bp.Probe(str(path))) is False


def test_a_probe_of_a_folder(tmp_path):
    for name in ("b.jpg", ".hidden", "a.txt"):
        (tmp_path / name).write_bytes(jpeg())
    (tmp_path / "sub").mkdir()
    probe = bp.Probe(str(tmp_path))
    assert (probe.folder, probe.size, probe.head) == (True, 0, b"")
    assert probe.names == ["a.txt", "b.jpg", "sub/"]


# --- formats of other packages ------------------------------------------------------------------------


class LinesReader(bp.Reader):
    """One number per line."""

    def __init__(self, path, *, base: int = 10):
        self.path = path
        self.schema = bp.Schema(n=bp.Int())
        self._values = np.array([int(line, base) for line in Path(path).read_text().splitlines()])
        self.length = len(self._values)

    def _read(self, indices, fields):
        return Columns((name, self._values[indices]) for name in fields)


LINES = bp.Format(
    name="lines", title="Lines", suffixes=(".lines",), spec="https://example.org", reader=LinesReader,
    writer=None, sniff=never, kinds=(bp.Int,),
)  # fmt: skip
NO_FORMAT = "not a format"


@pytest.fixture
def installed(monkeypatch):
    """Pretend that a package with these entry points is installed."""

    def install(**entries):
        result = [
            importlib.metadata.EntryPoint(name, value, find.ENTRY_POINTS) for name, value in entries.items()
        ]
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: result if group == find.ENTRY_POINTS else []
        )
        find.plug_ins.cache_clear()

    yield install
    monkeypatch.undo()
    find.plug_ins.cache_clear()


def test_a_plug_in_is_a_format_like_others(installed, tmp_path):
    installed(lines=f"{__name__}:LINES")
    (tmp_path / "a.lines").write_text("5\n-7\n")
    with bp.open(tmp_path / "a.lines") as reader:
        assert list(reader) == [{"n": 5}, {"n": -7}]
    assert [sample["n"] for sample in bp.open(tmp_path / "a.lines", base=16)] == [5, -7]
    bp.convert(tmp_path / "a.lines", tmp_path / "a.npz")
    assert list(bp.open(tmp_path / "a.npz")) == [{"n": 5}, {"n": -7}]
    with pytest.raises(bp.OptionError, match="lines is read only"):
        bp.create(tmp_path / "b.lines", {"n": bp.Int()})
    with pytest.raises(bp.OptionError, match="lines has no option 'x'; its options are: base"):
        bp.open(tmp_path / "a.lines", x=1)


@pytest.mark.parametrize("value", ["no.such.module:FORMAT", f"{__name__}:NOTHING", f"{__name__}:NO_FORMAT"])
def test_a_plug_in_that_does_not_load_takes_no_other_with_it(value, installed):
    installed(broken=value, lines=f"{__name__}:LINES")
    with pytest.warns(UserWarning, match="the format plug-in broken does not load"):
        result = registry.all_formats()
    assert "lines" in result
    assert "npz" in result


def test_a_plug_in_cannot_replace_a_format_of_ours(installed, monkeypatch):
    ours = get_format("npy")
    monkeypatch.setitem(globals(), "LINES", dataclasses.replace(LINES, name="npy"))
    installed(npy=f"{__name__}:LINES")
    assert get_format("npy") is ours


def test_a_plug_in_may_say_what_belongs_together(installed, monkeypatch, tmp_path):
    """Files that come through another one are not opened on their own; what describes others is no shard."""
    lead = dataclasses.replace(
        LINES,
        suffixes=(".lines", ".lead"),
        parts=lambda path: [f"{tmp_path}/b.lines"] if path.endswith(".lead") else [],
    )
    notes = dataclasses.replace(LINES, name="notes", suffixes=(".notes",), describes=True)
    monkeypatch.setitem(globals(), "LINES", lead)
    monkeypatch.setitem(globals(), "NO_FORMAT", notes)
    installed(lines=f"{__name__}:LINES", notes=f"{__name__}:NO_FORMAT")
    for number, name in enumerate(("a.lead", "b.lines", "c.lines", "d.notes")):
        (tmp_path / name).write_text(f"{number}\n")
    assert [sample["n"] for sample in bp.open(tmp_path)] == [0, 2]
    assert [sample["n"] for sample in bp.open(f"{tmp_path}/*.l*")] == [0, 2]
