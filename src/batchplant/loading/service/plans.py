"""Plans of servers: pipelines as data, in TOML, YAML or JSON.

A plan names ops and their arguments, and their constructors check these. No plan names an op that reads
files, nor code unless ``allow_code`` is given, so the client can follow the plan of a server that it does not
trust.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from ... import ops
from ...data import config
from ...errors import OptionError, exceptions_as, listed, located, near
from ...ops.base import Op
from ...ops.joint import JointOp
from ..plan import Pipe

KEYS = ("pipelines", "joint")
PIPE_KEYS = ("field", "ops", "keep")
# Ops whose arguments are functions, or name files of this machine.
NO_DATA = {
    "Function": "calls a function", "Map": "calls a function", "Tokenize": "reads a file",
    "Categories": "may read a file",
}  # fmt: skip
MAX_OPS, MAX_ARGUMENT = 1024, 1 << 20

# Exceptions of constructors that get wrong arguments.
FAULTS = (TypeError, ValueError, OverflowError, MemoryError)
# Code of users may raise anything.
CODE_FAULTS = (Exception,)

PlanValues = dict[str, Any]


def read(path: str | os.PathLike[str], *, allow_code: bool = False) -> PlanValues:
    """Read a plan and check its keys; its ops are checked when they are made."""
    values = config.read(path).value
    with located(path=path):
        build(values, allow_code=allow_code)
    return values


def digest(values: PlanValues) -> str:
    """Return a checksum of a plan and of the files with its code, the same for every order of its keys."""
    checksum = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16)
    for module in sorted({name.partition(":")[0] for name in _code_names(values)}):
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        with contextlib.suppress(OSError):
            checksum.update(Path(file).read_bytes())
    return checksum.hexdigest()


def _code_names(values: object) -> Iterator[str]:
    """Return the names of code in a plan."""
    if isinstance(values, str) and ":" in values:
        yield values
    if isinstance(values, Mapping | list):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _code_names(value)


def build(values: PlanValues, *, allow_code: bool = False) -> list[Any]:
    """Return the ``pipelines`` of a Loader as a plan says.

    allow_code: import what the plan names as ``package.module:Name``.

    Raises: OptionError, with the name of the op, for what a plan cannot say.
    """
    if unknown := [name for name in values if name not in KEYS]:
        raise OptionError(f"a plan has no {unknown[0]!r}{near(unknown[0], KEYS)}; it has {listed(KEYS)}")
    pipelines, joint = values.get("pipelines", {}), values.get("joint", [])
    if not isinstance(pipelines, Mapping) or not isinstance(joint, list):
        raise OptionError("pipelines is a table of lists of ops by field, and joint a list of ops")
    builder = _Builder(allow_code=allow_code)
    steps = {}
    for name, pipeline in pipelines.items():
        with located(field=name):
            steps[name] = builder.pipeline(pipeline)
    return [steps, *(builder.joint(entry) for entry in joint)]


class _Builder:
    """Makes ops, at most ``MAX_OPS``."""

    def __init__(self, *, allow_code: bool) -> None:
        self._allow_code, self._count = allow_code, 0

    def pipeline(self, value: Any) -> Any:
        if value is False:
            return None
        if isinstance(value, Mapping):
            if unknown := [key for key in value if key not in PIPE_KEYS]:
                raise OptionError(f"a pipeline has no {unknown[0]!r}; it has {listed(PIPE_KEYS)}")
            if not isinstance(value.get("field"), str) or not isinstance(value.get("keep", ""), str):
                raise OptionError("a pipeline that is a table names its field, as text")
            return Pipe(value["field"], self.ops(value.get("ops", [])), value.get("keep"))
        return self.ops(value)

    def joint(self, entry: Any) -> Any:
        if isinstance(entry, Mapping) and "op" not in entry:
            return {name: self.ops(steps) for name, steps in entry.items()}
        op = self.op(entry)
        if not isinstance(op, JointOp):
            raise OptionError(f"{type(op).__name__} is a step of one field: it goes into pipelines")
        return op

    def ops(self, value: Any) -> list[Op | FunctionType]:
        if not isinstance(value, list):
            raise OptionError(f"a pipeline is a list of ops, or false to leave the field out, not {value!r}")
        return [self.op(entry) for entry in value]

    def op(self, entry: Any) -> Op | FunctionType:
        """Return the op of an entry: a name, or a table with ``op`` and arguments."""
        entry = {"op": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, Mapping) or not isinstance(entry.get("op"), str):
            raise OptionError(f'an op is a name or a table, as {{op = "Resize", size = 64}}, not {entry!r}')
        self._count += 1
        if self._count > MAX_OPS:
            raise OptionError(f"a plan has at most {MAX_OPS} ops")
        name = entry["op"]
        kind = self._code(name) if ":" in name else _op_named(name)
        if not isinstance(kind, type):
            if len(entry) > 1:
                raise OptionError(f"{name} is a function, which takes a batch and no arguments: name a class")
            return kind
        arguments = {key: self._argument(value) for key, value in entry.items() if key != "op"}
        with exceptions_as(OptionError, f"{name} cannot be made", *(CODE_FAULTS if ":" in name else FAULTS)):
            return kind(**arguments)

    def _code(self, name: str) -> type[Op] | FunctionType:
        """Return the class or function that ``package.module:Name`` names."""
        if not self._allow_code:
            raise OptionError(
                f"{name} is code, and a plan is data: if you trust it, allow it with `batchplant serve "
                "--allow-code`, and with allow_code=True in the bp.open of the trainer"
            )
        module, _, path = name.partition(":")
        with exceptions_as(OptionError, f"{name} cannot be imported", *CODE_FAULTS):
            code: object = functools.reduce(getattr, path.split("."), importlib.import_module(module))
        if isinstance(code, FunctionType) or (isinstance(code, type) and issubclass(code, Op)):
            return code
        raise OptionError(f"{name} is neither a function nor a class that is an Op")

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self.op(value)
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        is_large = isinstance(value, int | float) and abs(value) > MAX_ARGUMENT
        if is_large or not isinstance(value, bool | int | float | str):
            raise OptionError(f"{value!r} is no argument that a plan has")
        return value


def _op_named(name: str) -> type[Op]:
    kind = getattr(ops, name, None) if name in ops.__all__ else None
    if not isinstance(kind, type) or not issubclass(kind, Op):
        kinds = [name for name in ops.__all__ if isinstance(getattr(ops, name), type)]
        raise OptionError(f"there is no op {name!r}{near(name, kinds)}; see batchplant.ops")
    if name in NO_DATA:
        raise OptionError(
            f"{name} {NO_DATA[name]}, and a plan is data: leave it out here, and give it in the "
            "pipelines of the Loader behind the same steps, where it runs"
        )
    return kind
