"""saved_model.pb: the signatures, operators and functions of a SavedModel, for `batchplant info`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...codecs.protobuf import BYTES, VARINT, messages, parts, text
from ...errors import DamagedError
from .bundle import DTYPES, OTHER_DTYPES, open_shape

# Signatures that are TensorFlow's own business.
INTERNAL = "__saved_model"


def read_graphs(data: memoryview) -> dict[str, Any]:
    """Facts about a saved_model.pb for info."""
    result: dict[str, Any] = {"tags": [], "signatures": {}}
    operators: Counter[str] = Counter()
    functions: list[str] = []
    graphs = 0
    for part in parts(data, 0, len(data)):
        if part[:2] == (1, VARINT):
            result["schema version"] = part.value
        elif part[:2] == (2, BYTES):
            graphs += 1
            _meta_graph(data, part.start, part.end, result, operators, functions)
    if not graphs:
        raise DamagedError("there is no graph in saved_model.pb")
    result["graphs"] = graphs
    result["operators"] = dict(operators.most_common())
    result["functions"] = len(functions)
    return result


def _meta_graph(
    data: memoryview,
    start: int,
    end: int,
    found: dict[str, Any],
    operators: Counter[str],
    functions: list[str],
) -> None:
    for part in parts(data, start, end):
        match part.number, part.kind:
            case 1, 2:
                for one in parts(data, part.start, part.end):
                    if one[:2] == (4, BYTES):
                        found["tags"].append(text(data, one))
                    elif one[:2] == (5, BYTES):
                        found["tensorflow"] = text(data, one)
            case 2, 2:
                _graph(data, part.start, part.end, operators, functions)
            case 5, 2:
                key, value = _pair(data, part.start, part.end)
                if value is not None and not key.startswith(INTERNAL):
                    found["signatures"][key] = _signature(data, *value)
            case 6, 2:
                found["assets"] = found.get("assets", 0) + 1


def _graph(data: memoryview, start: int, end: int, operators: Counter[str], functions: list[str]) -> None:
    """Nodes of the graph itself, and those of its functions, where most are today."""
    for part in parts(data, start, end):
        if part[:2] == (1, BYTES):
            operators[_operator(data, part.start, part.end)] += 1
        elif part[:2] == (2, BYTES):
            for function in messages(data, part.start, part.end, 1):
                for one in parts(data, *function):
                    if one[:2] == (3, BYTES):
                        operators[_operator(data, one.start, one.end)] += 1
                    elif one[:2] == (1, BYTES):
                        functions.append(_first(data, one.start, one.end, 1))


def _operator(data: memoryview, start: int, end: int) -> str:
    return _first(data, start, end, 2)


def _first(data: memoryview, start: int, end: int, number: int) -> str:
    """The text in the first field of this number."""
    return next((text(data, part) for part in parts(data, start, end) if part[:2] == (number, BYTES)), "")


def _pair(data: memoryview, start: int, end: int) -> tuple[str, tuple[int, int] | None]:
    """An entry of a map: its key, and where its value lies."""
    key, value = "", None
    for part in parts(data, start, end):
        if part[:2] == (1, BYTES):
            key = text(data, part)
        elif part[:2] == (2, BYTES):
            value = part.start, part.end
    return key, value


def _signature(data: memoryview, start: int, end: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {"inputs": {}, "outputs": {}}
    for part in parts(data, start, end):
        side = {1: "inputs", 2: "outputs"}.get(part.number)
        if side is not None and part.kind == BYTES:
            key, value = _pair(data, part.start, part.end)
            if value is not None:
                found[side][key] = _tensor(data, *value)
    return {side: dict(sorted(tensors.items())) for side, tensors in found.items()}


def _tensor(data: memoryview, start: int, end: int) -> str:
    """A TensorInfo as text: ``float32 (?, 4)``."""
    dtype, shape = "", "unknown shape"
    for part in parts(data, start, end):
        if part[:2] == (2, VARINT):
            dtype = DTYPES.get(part.value) or OTHER_DTYPES.get(part.value, f"type {part.value}")
        elif part[:2] == (3, BYTES):
            sizes = open_shape(data, part.start, part.end)
            if sizes is not None:
                said = ", ".join("?" if size is None else str(size) for size in sizes)
                shape = f"({said})"
    return f"{dtype} {shape}"
