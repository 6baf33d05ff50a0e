"""The suite for formats serves a plug-in that is installed like any other, and finds what is wrong."""

import os
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import processes
import repository
from batchplant.testing import FormatSuite
from batchplant.testing.cases import EXHAUSTIVE, cut_points, flip_points, memory_bounded
from variants import exhaustive

PLUG_IN = '''
"""A JSON list: the schema, then the samples. BROKEN makes it misbehave."""
import json
from pathlib import Path
import batchplant as bp
from batchplant.codecs.cells import decode_cell, encode_samples

BROKEN = None

class JsonReader(bp.Reader):
    def __init__(self, path):
        self.path = path
        try:
            head, *rows = json.loads(Path(path).read_bytes())
            self.schema = bp.Schema.from_json(head)
            self.columns = encode_samples(self.schema, rows)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            if BROKEN == "errors":
                raise
            if BROKEN == "memory":
                bytearray(300 << 20)[::4096] = b"x" * (300 << 8)
            raise bp.DamagedError(f"not a list: {error}", path=path) from None
        self.length = len(rows)

    def _read(self, indices, fields):
        if BROKEN == "order":
            indices = sorted(indices)
        return bp.Columns((name, self.columns[name]) for name in fields).take(indices)

    def _spans(self, field, indices):
        if BROKEN == "spans":
            return bp.Spans([self.path], indices * 0, indices * 0 + 8)

class JsonWriter(bp.Writer):
    def _begin(self, state):
        self.lines = self.partial.spool("lines")
        if BROKEN == "resume":
            self.lines.resize(0)

    def _write(self, columns):
        for row in range(columns.rows):
            values = {name: decode_cell(field, columns[name], row) for name, field in self.schema.items()}
            if BROKEN == "values":
                values = {name: value or value for name, value in values.items() if value is not False}
            self.lines.write((", " + json.dumps(values)).encode())

    def _finish(self):
        out = self.partial.spool("out")
        out.write(b"[" + json.dumps(self.schema.to_json()).encode())
        out.write(self.lines.read_at(self.lines.size, 0))
        out.write(b"]")
        return "out"

FORMAT = bp.Format(
    name="jsonlist", title="JSON list", suffixes=(".jsonlist",), spec="https://example.org",
    reader=JsonReader, writer=JsonWriter, optional=True,
    sniff=lambda probe: probe.head.startswith(b'[[{"name"') or BROKEN == "sniff",
    kinds=(bp.Int, bp.Float, bp.Bool, bp.Text, bp.Json),
)
'''
TESTS = """
from batchplant.testing import FormatSuite

class TestJsonList(FormatSuite):
    format = "jsonlist"
    suffix = ".jsonlist"
    in_place = False
"""
# How it misbehaves, the test that notices, and what that says.
BROKEN = {
    "errors": ("test_damage", "JSONDecodeError"),
    "memory": ("test_damage", "MiB for a file of"),
    # The values that differ, which pytest shows where it has rewritten the assertions.
    "order": ("test_samples_by_number", "At index 0 diff"),
    "resume": ("test_an_interrupted_conversion_resumes", "assert"),
    "sniff": ("test_files_of_other_formats", "is not jsonlist"),
    # The whole of its name: pytest takes "test_spans" for the class, too.
    "spans": ("test_spans_are_where", "assert"),
    "values": ("test_many_kinds", "value0"),
}


@pytest.fixture(scope="module")
def plug_in(tmp_path_factory):
    """A folder that Python takes for an installed package with a format, and that package's tests."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "jsonlist.py").write_text(PLUG_IN)
    (folder / "test_jsonlist.py").write_text(TESTS)
    about = folder / "jsonlist-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: jsonlist\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[batchplant.formats]\njsonlist = jsonlist:FORMAT\n")
    return folder


@pytest.fixture(scope="module")
def findings(plug_in):
    """Test → what it said, "" where it passed: of the suite, and of one for each way of misbehaving."""
    result = "import jsonlist, pytest\nfrom batchplant.testing import FormatSuite\n"
    for broken in BROKEN:
        result += f"""
class Test_{broken}(FormatSuite):
    format, suffix, in_place = "jsonlist", ".jsonlist", False

    @pytest.fixture(autouse=True)
    def misbehave(self, monkeypatch):
        monkeypatch.setattr(jsonlist, "BROKEN", "{broken}")
"""
    (plug_in / "test_broken.py").write_text(result)
    tried = {broken: test for broken, (test, _) in BROKEN.items() if EXHAUSTIVE or broken != "sniff"}
    chosen = " or ".join(f"(Test_{broken} and {test})" for broken, test in tried.items())
    # To write files of all formats, and to start one more process, takes longer than all the rest.
    own = "TestJsonList" if EXHAUSTIVE else "(TestJsonList and not (other_formats or another_process))"
    report = plug_in / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = processes.run(
        [*command, "-k", f"{own} or {chosen}", "test_jsonlist.py", "test_broken.py"],
        cwd=plug_in,
        env={**os.environ, "PYTHONPATH": str(plug_in), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    return {
        f"{case.get('classname')}::{case.get('name')}": "".join(
            text for kind in ("failure", "error") for item in case.iter(kind) for text in item.itertext()
        )
        for case in ElementTree.parse(report).iter("testcase")
    }


def test_a_plug_in_passes_in_five_lines(findings):
    output = {
        name: text for name, text in findings.items() if name.startswith("test_jsonlist.TestJsonList::")
    }
    assert len(output) > 25
    assert not any(output.values()), output


@pytest.mark.parametrize(
    "broken",
    [
        *(item for item in BROKEN if item not in ("sniff", "memory")),
        pytest.param("memory", marks=pytest.mark.linux),
        *exhaustive("sniff"),
    ],
)
def test_the_suite_finds_what_is_wrong(broken, findings):
    test, reason = BROKEN[broken]
    output = [
        text for name, text in findings.items() if name.startswith(f"test_broken.Test_{broken}::{test}")
    ]
    assert output
    assert any(reason in text for text in output)


def test_the_guide_and_the_docstring_explain_every_attribute():
    guide = (repository.ROOT / "docs" / "guides" / "add-a-format.md").read_text("utf-8")
    for name in FormatSuite.__annotations__:
        assert f"{name}:" in FormatSuite.__doc__, name
        assert f"`{name}`" in guide, name


@pytest.mark.parametrize("size", [1, 100, 64 << 10, 1 << 20])
def test_where_files_are_damaged(size):
    cuts = cut_points(size, 300)
    assert cuts == sorted(set(cuts), reverse=True)
    assert (cuts[0], cuts[-1]) == (size - 1, 0)
    assert len(cuts) == size or 200 < len(cuts) <= 300
    assert len(cut_points(size, size)) == size
    flips = flip_points(size, 120)
    assert len(flips) == 120
    assert all(0 <= place < size and 0 <= bit < 8 for place, bit in flips)
    assert flips == flip_points(size, 120)


@pytest.mark.linux
def test_memory_is_measured():
    with memory_bounded(0):
        np.ones(10 << 20, np.uint8)
    with pytest.raises(AssertionError, match="MiB for a file of 5 bytes"), memory_bounded(5):
        np.ones(200 << 20, np.uint8)
