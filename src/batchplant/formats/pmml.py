"""PMML, models of classical statistics as XML. Read only: one sample for each field that the model knows.

- ``name``, ``dtype`` and ``optype`` (continuous, categorical, ordinal) are those of its DataField,
- ``usage`` is what the model does with the field: active, target, …; empty where it does nothing,
- ``values`` lists the values and intervals that the data dictionary gives it.

What the model is and how large is in the facts: `batchplant info`. The file is read once, from front to end,
by a parser that refuses document types: there are no entities to expand and no other files to fetch.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..codecs.xml import Parser
from ..data.reader import Reader
from ..errors import BatchplantError, DamagedError, OptionError, Problem
from ..schema import Json, Schema, Text
from ..schema.columns import I64, Columns, Ragged
from ..storage import open_source
from .base.format import Capabilities, Format, Probe

SCHEMA = Schema(name=Text(), dtype=Text(), optype=Text(), usage=Text(), values=Json())
CHUNK = 1 << 16
# Trees are nested as deep as they are high; expat itself does not mind.
MAX_DEPTH = 5000
MAX_TEXT_CHARS = 1000
# What the size of a model is counted in: what is shown, and the elements that make it.
SIZES = {
    "segments": ("Segment",),
    "trees": ("TreeModel", "DecisionTree"),
    "nodes": ("Node",),
    "coefficients": ("NumericPredictor", "CategoricalPredictor", "PredictorTerm", "PCell", "Coefficient"),
    "support vectors": ("SupportVector",),
    "layers": ("NeuralLayer",),
    "neurons": ("Neuron",),
    "weights": ("Con",),
    "clusters": ("Cluster",),
    "rules": ("SimpleRule", "AssociationRule", "SequenceRule"),
    "characteristics": ("Characteristic",),
    "training instances": ("row",),
}
TRANSFORMATIONS = ("DerivedField", "DefineFunction")
COUNTED = {*TRANSFORMATIONS, *(name for names in SIZES.values() for name in names)}
TARGETS = ("target", "predicted")


class _Document:
    """State of parsing a file."""

    def __init__(self) -> None:
        self.version = ""
        self.header: dict[str, str] = {}
        self.fields: list[dict[str, Any]] = []
        self.models: list[dict[str, str]] = []
        self.usage: dict[str, str] = {}
        self.outputs = 0
        self.counts: Counter[str] = Counter()
        self.promised: int | None = None
        self._stack: list[str] = []
        self._text: list[str] = []
        self._parser = Parser(self._start, self._end, self._take_text, "PMML")
        self.feed = self._parser.feed

    @property
    def offset(self) -> int:
        return self._parser.offset

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name, stack = tag.rpartition(" ")[2], self._stack
        if not stack and name != "PMML":
            raise DamagedError(f"an XML file of {name[:80]}, not of PMML", offset=self.offset)
        if len(stack) >= MAX_DEPTH:
            raise DamagedError(f"elements are nested more than {MAX_DEPTH} deep", offset=self.offset)
        inside = stack[-1] if stack else ""
        stack.append(name)
        if name in COUNTED:
            self.counts[name] += 1
        depth = len(stack)
        if depth == 1:
            self.version = attributes.get("version", "")
        elif inside == "PMML" and depth == 2 and "functionName" in attributes:
            model = {"type": name, "function": attributes["functionName"]}
            names = {key: attributes.get(f"{key}Name", "") for key in ("algorithm", "model")}
            self.models.append(model | {key: value for key, value in names.items() if value})
        elif inside == "DataDictionary" and name == "DataField":
            if "name" not in attributes:
                raise DamagedError("a DataField has no name", offset=self.offset)
            field = {key: attributes.get(key, "") for key in ("name", "dataType", "optype")}
            self.fields.append({**field, "values": []})
        elif inside == "DataField" and stack[-3:-2] == ["DataDictionary"] and name in ("Value", "Interval"):
            self.fields[-1]["values"].append(
                attributes["value"] if set(attributes) == {"value"} else attributes
            )
        elif name == "MiningField" and depth == 4 and inside == "MiningSchema":
            if "name" not in attributes:
                raise DamagedError("a MiningField has no name", offset=self.offset)
            self.usage.setdefault(attributes["name"], attributes.get("usageType", "active"))
        elif name == "OutputField" and depth == 4:
            self.outputs += 1
        elif name == "DataDictionary":
            count = attributes.get("numberOfFields", "")
            self.promised = int(count) if re.fullmatch(r"[0-9]{1,18}", count) else None
        elif inside == "Header" and name == "Application":
            producer = (attributes.get("name", ""), attributes.get("version", ""))
            self.header["application"] = " ".join(filter(None, producer))
        elif name == "Header":
            self.header |= {key: attributes[key] for key in ("description", "copyright") if key in attributes}
        elif inside == "Header" and name == "Timestamp":
            self._text = []

    def _end(self, _: str) -> None:
        name = self._stack.pop()
        if name == "Timestamp" and self._stack[-1:] == ["Header"]:
            self.header["timestamp"] = "".join(self._text).strip()[:MAX_TEXT_CHARS]

    def _take_text(self, data: str) -> None:
        if self._stack[-2:] == ["Header", "Timestamp"] and len(self._text) < MAX_TEXT_CHARS:
            self._text.append(data[:MAX_TEXT_CHARS])

    @property
    def derived(self) -> int:
        return sum(self.counts[name] for name in TRANSFORMATIONS)


class PmmlReader(Reader):
    """Reads PMML files of any version. ``most_bytes``: larger files are refused (default 2 GiB)."""

    def __init__(self, path: str, *, most_bytes: int = 2 << 30) -> None:
        self.path = path
        self.schema = SCHEMA
        self._document = document = _Document()
        source = open_source(path)
        try:
            if source.size > most_bytes:
                raise OptionError(
                    f"{source.size} bytes of XML are more than most_bytes={most_bytes} allows", path=path
                )
            for start in range(0, source.size, CHUNK):
                document.feed(source.view(start, min(CHUNK, source.size - start)).tobytes(), False)
            document.feed(b"", True)
        except BatchplantError as error:
            raise error.at(path=path) from None
        finally:
            source.close()
        self.length = len(document.fields)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        rows = [self._document.fields[row] for row in indices]
        return Columns((name, Ragged.from_cells([self._cell(row, name) for row in rows])) for name in fields)

    def _cell(self, row: dict[str, Any], name: str) -> bytes:
        if name == "values":
            return json.dumps(row["values"], ensure_ascii=False).encode()
        if name == "usage":
            return self._document.usage.get(row["name"], "").encode()
        text: str = row["dataType" if name == "dtype" else name]
        return text.encode()

    def facts(self) -> dict[str, object]:
        document = self._document
        sizes = {
            name: sum(document.counts[element] for element in elements) for name, elements in SIZES.items()
        }
        return {
            "version": document.version,
            "models": [dict(model) for model in document.models],
            "targets": [name for name, usage in document.usage.items() if usage in TARGETS],
            "data fields": dict(Counter(f"{row['optype']} {row['dataType']}" for row in document.fields)),
            "outputs": document.outputs,
            "transformations": document.derived,
            "model size": {name: count for name, count in sizes.items() if count},
            **document.header,
        }

    def _verify(self) -> Iterator[Problem]:
        document = self._document
        names = [row["name"] for row in document.fields]
        if document.promised not in (None, len(names)):
            message = f"the data dictionary promises {document.promised} fields and has {len(names)}"
            yield Problem(message, self.path)
        for name, count in Counter(names).items():
            if count > 1:
                yield Problem(f"{count} data fields are called {name!r}", self.path)
        if not document.derived:
            for name in document.usage:
                if name not in names:
                    yield Problem(f"the model uses a field {name!r} that nothing describes", self.path)


def sniff(probe: Probe) -> bool:
    """XML whose first element is PMML, as far as the first bytes tell."""
    head = probe.head
    plain = re.match(rb"(\xef\xbb\xbf)?\s*<", head) is not None
    return plain and re.search(rb"<([\w.-]+:)?PMML[\s>]", head) is not None


FORMAT = Format(
    name="pmml",
    title="PMML",
    suffixes=(".pmml",),
    spec="https://dmg.org/pmml/v4-4-1/GeneralStructure.html",
    reader=PmmlReader,
    sniff=sniff,
    kinds=(Text, Json),
    notes="read only: the fields that a model knows; what it is and how large is in the facts",
    can=Capabilities(
        max_size="2 GiB",
        human_readable=True,
        ecosystem=("JPMML", "KNIME", "R", "SAS"),
    ),
)
