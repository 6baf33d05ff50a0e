"""PMML: what info shows of a model, and XML that means harm."""

import json
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import batchplant as bp
import repository
from batchplant.testing.cases import cells, cuts, flips, memory_bounded, survive

GOLDEN = repository.GOLDEN / "models"
HEAD = '<PMML xmlns="http://www.dmg.org/PMML-4_4" version="4.4">'
FIELDS = '<DataDictionary><DataField name="x" optype="continuous" dataType="double"/></DataDictionary>'


def pmml(path, *parts, head=HEAD, before=""):
    path.write_text(f"{before}{head}{''.join(parts)}</PMML>", "utf-8")
    return path


def sound(path):
    try:
        with bp.open(path, format="pmml") as reader:
            list(reader)
            reader.facts()
        return bp.verify(path, format="pmml", decode=True).ok
    except bp.BatchplantError:
        return False


@pytest.mark.parametrize(
    ("name", "kind", "size", "fields"),
    [
        ("tree", "TreeModel", {"trees": 1, "nodes": 7}, {"categorical integer": 1, "continuous float": 2}),
        (
            "logistic",
            "RegressionModel",
            {"coefficients": 12},
            {"categorical integer": 1, "continuous double": 4},
        ),
        (
            "forest",
            "MiningModel",
            {"segments": 3, "trees": 3, "nodes": 14},
            {"categorical integer": 1, "continuous float": 3},
        ),
    ],
)
def test_what_info_shows(name, kind, size, fields):
    with bp.open(GOLDEN / f"{name}.pmml") as reader:
        facts = reader.facts()
        [model] = facts["models"]
        assert (model["type"], model["function"]) == (kind, "classification")
        assert model["algorithm"].startswith("sklearn.")
        assert (facts["version"], facts["targets"], facts["outputs"]) == ("4.4", ["target"], 3)
        assert (facts["model size"], facts["data fields"]) == (size, fields)
        assert facts["application"] == "SkLearn2PMML package 0.133.1"
        assert facts["timestamp"].startswith("2026-11-14T23:55")
        assert facts["transformations"] == 0
        json.dumps(facts)
        assert len(reader) == sum(fields.values())
        target = {"name": "target", "dtype": "integer", "optype": "categorical", "usage": "target"}
        assert reader[0] == {**target, "values": ["0", "1", "2"]}
        assert reader[-1]["usage"] == "active"
    assert bp.verify(GOLDEN / f"{name}.pmml", decode=True).problems == []


def test_values_intervals_transformations_and_several_models(tmp_path):
    path = pmml(
        tmp_path / "a.pmml",
        '<Header copyright="©" description="größe"/>',
        '<DataDictionary numberOfFields="3">',
        '<DataField name="a" optype="ordinal" dataType="string">',
        '<Value value="low"/><Value value="-1" property="missing"/></DataField>',
        '<DataField name="b" optype="continuous" dataType="double">',
        '<Interval closure="closedOpen" leftMargin="0" rightMargin="9"/></DataField>',
        '<DataField name="unused" optype="continuous" dataType="double"/></DataDictionary>',
        '<TransformationDictionary><DerivedField name="d"/><DefineFunction name="f"/>',
        "</TransformationDictionary>",
        '<NeuralNetwork functionName="regression" modelName="one"><MiningSchema><MiningField name="a"/>',
        '<MiningField name="b" usageType="predicted"/></MiningSchema>',
        '<NeuralLayer><Neuron id="1"><Con from="0" weight="1"/><Con from="1" weight="2"/></Neuron>',
        "</NeuralLayer></NeuralNetwork>",
        '<ClusteringModel functionName="clustering"><Cluster/><Cluster/></ClusteringModel>',
    )
    with bp.open(path) as reader:
        assert [sample["values"] for sample in reader] == [
            ["low", {"value": "-1", "property": "missing"}],
            [{"closure": "closedOpen", "leftMargin": "0", "rightMargin": "9"}],
            [],
        ]
        assert [sample["usage"] for sample in reader] == ["active", "predicted", ""]
        facts = reader.facts()
        assert [fact["type"] for fact in facts["models"]] == ["NeuralNetwork", "ClusteringModel"]
        assert facts["models"][0]["model"] == "one"
        assert (facts["targets"], facts["transformations"], facts["copyright"]) == (["b"], 2, "©")
        assert facts["model size"] == {"layers": 1, "neurons": 1, "weights": 2, "clusters": 2}
    assert bp.verify(path).ok


def test_threads_pickles_and_other_formats(tmp_path):
    with bp.open(GOLDEN / "forest.pmml") as reader, ThreadPoolExecutor(4) as pool:
        expected = cells(reader)
        assert all(item == expected for item in pool.map(lambda _: cells(reader), range(16)))
        assert cells(pickle.loads(pickle.dumps(reader))) == expected
        bp.convert(reader, tmp_path / "a.jsonl")
        assert [sample["name"] for sample in bp.open(tmp_path / "a.jsonl")] == [
            sample["name"] for sample in reader
        ]
    with pytest.raises(bp.OptionError, match="read only"):
        bp.create(tmp_path / "b.pmml", reader.schema)


def test_content_tells_the_format(tmp_path):
    for before in ("", "\ufeff", '<?xml version="1.0"?>\n<!-- made by hand -->\n'):
        assert bp.open(pmml(tmp_path / "nameless", FIELDS, before=before)).format == "pmml"
    prefixed = '<p:PMML xmlns:p="http://www.dmg.org/PMML-4_4" version="4.4"></p:PMML>'
    (tmp_path / "nameless").write_text(prefixed)
    assert bp.open(tmp_path / "nameless").facts()["version"] == "4.4"
    (tmp_path / "a.pmml").write_bytes(pmml(tmp_path / "b.pmml", FIELDS).read_text().encode("utf-16"))
    assert bp.open(tmp_path / "a.pmml")[0]["name"] == "x"


def test_verify_compares_the_parts(tmp_path):
    uses = '<MiningSchema><MiningField name="y"/></MiningSchema>'
    model = f'<TreeModel functionName="regression">{uses}</TreeModel>'
    [problem] = bp.verify(pmml(tmp_path / "a.pmml", FIELDS, model)).problems
    assert "'y' that nothing describes" in problem.message
    wrong = FIELDS.replace("<DataDictionary>", '<DataDictionary numberOfFields="2">')
    [problem] = bp.verify(pmml(tmp_path / "b.pmml", wrong)).problems
    assert "promises 2 fields and has 1" in problem.message
    twice = FIELDS.replace("</DataDictionary>", '<DataField name="x"/></DataDictionary>')
    [problem] = bp.verify(pmml(tmp_path / "c.pmml", twice)).problems
    assert "2 data fields are called 'x'" in problem.message


def test_document_types_are_refused(tmp_path):
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 30))
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    for declared in (
        f'<!DOCTYPE PMML [<!ENTITY l0 "ha">{laughs}]>',
        f'<!DOCTYPE PMML [<!ENTITY l29 SYSTEM "file://{secret}">]>',
        f'<!DOCTYPE PMML SYSTEM "file://{secret}">',
        '<!DOCTYPE PMML [<!ENTITY % p SYSTEM "http://127.0.0.1:9/x">%p;]>',
    ):
        path = pmml(tmp_path / "a.pmml", "<Header><Timestamp>&l29;</Timestamp></Header>", before=declared)
        with memory_bounded(1000), pytest.raises(bp.UnsafeError, match="document type") as caught:
            bp.open(path)
        assert caught.value.path == str(path)
        assert caught.value.offset is not None


def test_lies_and_limits(tmp_path):
    path = tmp_path / "a.pmml"
    for parts, message in (
        (["<Node>" * 6000, "</Node>" * 6000], "nested more than 5000"),
        (["<DataDictionary><DataField/></DataDictionary>"], "DataField has no name"),
        (["&undefined;"], "undefined entity"),
        (["<a></b>"], "mismatched tag"),
        (["\x01"], "not well-formed"),
    ):
        with pytest.raises(bp.DamagedError, match=message) as caught:
            bp.open(pmml(path, *parts), format="pmml")
        assert caught.value.offset is not None
    path.write_text("<html></html>")
    with pytest.raises(bp.DamagedError, match="of html, not of PMML"):
        bp.open(path)
    path.write_bytes(b'<?xml version="1.0" encoding="rot13"?>' + HEAD.encode() + b"</PMML>")
    with pytest.raises(bp.DamagedError, match="no XML"):
        bp.open(path)
    pmml(path, FIELDS)
    with pytest.raises(bp.OptionError, match="most_bytes=100"):
        bp.open(path, most_bytes=100)
    assert len(bp.open(path, most_bytes=os.path.getsize(path))) == 1


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage_gives_errors_or_values(damage, tmp_path):
    path = tmp_path / "a.pmml"
    shutil.copy(GOLDEN / "tree.pmml", path)
    assert sound(path)
    whole = path.read_bytes().rstrip()
    for what, good in survive(damage(path), lambda: sound(path)):
        noticed = not good or damage is flips or path.stat().st_size >= len(whole)
        assert noticed, f"unnoticed: {what}"
