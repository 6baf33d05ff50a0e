"""Recipes: what makes a batch of samples, as data that another process can follow.

A recipe has the dataset (how its reader was made), the plan, and the options of decoding. Ops, readers and
options are named by their class, which must be one of batchplant's, and have attributes that are data. A step
that is not data, such as a function, ends what the server does of an output; the reader does the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import os
from typing import Any

from ..._version import __version__
from ...data.concat import LazyReaders
from ...data.reader import Reader, open_reader
from ...errors import OptionError
from ...ops.base import CellOp, Op
from ...ops.values import Pad
from ...schema import Schema
from ...storage import is_remote, tag_of
from ...storage.urls import Url
from ..decoded import DecodedCache
from ..images import DecodeOptions
from ..plan import Output, Plan, padding_name
from .wire import Decoder, Encoder, NotPlainError

# Modules whose classes a recipe may name; none of them has an op that runs code of users.
MODULES = ("data", "formats", "loading", "ops", "order", "schema", "storage")
# Files of a dataset whose sizes and times tell whether it has changed.
MAX_TAGGED_FILES = 4096


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Dataset, plan and options that make a batch.

    fingerprint: of the dataset when it was opened. device: name of the one that makes the images.
    """

    reader: Reader
    plan: Plan
    seed: int
    decode: DecodeOptions
    cache: DecodedCache | None
    fingerprint: str
    device: str | None = None


class RecipeEncoder(Encoder):
    """Encodes recipes."""

    def custom(self, value: Any) -> Any:
        if isinstance(value, Reader):
            return self._reader(value)
        if isinstance(value, Schema):
            return ["schema", self.tree(value.to_json())]
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if type(value) is Url:
            return ["url", str(value), self.tree(value.options)]
        if isinstance(value, Op):
            return ["object", self.name_of(type(value)), self.tree(vars(value))]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return ["object", self.name_of(type(value)), self.tree(fields)]
        return super().custom(value)

    def name_of(self, kind: type) -> str:
        """Return the name of a class that another process may use; raise NotPlainError for others."""
        name = f"{kind.__module__}:{kind.__qualname__}"
        try:
            if _class_named(name) is kind:
                return name
        except (ValueError, AttributeError):
            pass
        raise NotPlainError(f"{kind.__qualname__} is not a class of batchplant")

    def _reader(self, reader: Reader) -> Any:
        try:
            if type(reader).__reduce__ is not Reader.__reduce__:
                raise NotPlainError(f"{type(reader).__name__} is not plain data")
            args, options = reader._init_args
            return ["reader", self.name_of(type(reader)), self.tree(_located(args)), self.tree(options)]
        except NotPlainError:
            again = reader._reopen
            if not isinstance(again, functools.partial):
                raise
            return ["open", self.tree(_located(again.args)), self.tree(again.keywords)]


class RecipeDecoder(Decoder):
    """Makes recipes out of what another process of this user sent."""

    def make_schema(self, tree: Any) -> Schema:
        return Schema.from_json(self.value(tree))

    def make_url(self, text: str, options: Any) -> Url:
        return Url(text, self.value(options))

    def make_open(self, args: Any, options: Any) -> Reader:
        return open_reader(*self.value(args), **self.value(options))

    def make_object(self, name: str, state: Any) -> Any:
        kind = _class_named(name)
        if not (issubclass(kind, Op) or dataclasses.is_dataclass(kind)):
            raise ValueError(f"{name} is no op and has no options")
        instance: Any = object.__new__(kind)
        for attribute, value in self.value(state).items():
            object.__setattr__(instance, attribute, value)
        return instance

    def make_reader(self, name: str, args: Any, options: Any) -> Reader:
        kind = _class_named(name)
        if not issubclass(kind, Reader):
            raise ValueError(f"{name} is no reader")
        return kind(*self.value(args), **self.value(options))


def dump(recipe: Recipe) -> bytes:
    """Return a recipe as bytes, the same in every process; raise NotPlainError where it is not data."""
    return RecipeEncoder().dump([__version__, recipe])


def load(data: bytes) -> Recipe:
    """Return the recipe; raise OptionError where the dataset is not the one that the other process has."""
    version, recipe = RecipeDecoder().load(data)
    if version != __version__ or not isinstance(recipe, Recipe):
        raise OptionError(f"the recipe is of batchplant {version}, and this is {__version__}")
    if fingerprint(recipe.reader) != recipe.fingerprint:
        raise OptionError("the dataset has changed", path=recipe.reader.path)
    return recipe


def fingerprint(reader: Reader) -> str:
    """Return a checksum of what tells a dataset from others: its fields, length, and tags of its files."""
    facts = repr((len(reader), reader.schema.to_json(), _tags(reader)))
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def _tags(value: object) -> list[str]:
    """Return the tags (size, time, inode) of the local files of readers, as these found them."""
    if isinstance(value, Reader):
        return [value._file_tag, *_tags(value._init_args[0])]
    if isinstance(value, LazyReaders):
        paths = [value.path(number) for number in range(min(len(value), MAX_TAGGED_FILES))]
        return [tag_of(os.stat(path)) for path in paths if not is_remote(path)]
    if isinstance(value, dict):
        return _tags(list(value.values()))
    return [tag for item in value for tag in _tags(item)] if isinstance(value, list | tuple) else []


def _located(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a reader, whose first names a dataset; the server may be in another folder."""
    return tuple(_absolute(value) if not number else value for number, value in enumerate(args))


def _absolute(value: Any) -> Any:
    if type(value) is str or isinstance(value, os.PathLike):
        text = os.fspath(value)
        return text if is_remote(text) or not os.path.lexists(text) else os.path.abspath(text)
    if type(value) in (list, tuple):
        return type(value)(map(_absolute, value))
    return {key: _absolute(item) for key, item in value.items()} if type(value) is dict else value


def _class_named(name: str) -> type:
    """Return a class of batchplant; no other code is imported."""
    module, _, path = name.partition(":")
    package, part, *_ = [*module.split("."), ""]
    if package != "batchplant" or part not in MODULES or not path.isidentifier():
        raise ValueError(f"{name} is not a class of batchplant")
    kind = vars(importlib.import_module(module))[path]
    if not isinstance(kind, type):
        raise ValueError(f"{name} is not a class")
    return kind


# -- what the server does, and what the reader ---------------------------------------------------------------


def divide(plan: Plan) -> tuple[Plan, Plan | None]:
    """Return the plan of the server, and that of the reader for what follows; None if nothing does.

    Raises OptionError where an output cannot be begun by the server.
    """
    joint = 0
    while joint < len(plan.joint) and _is_plain(plan.joint[joint].op):
        joint += 1
    return divide_at(plan, {output.name: _plain_steps(output) for output in plan.outputs}, joint)


def divide_at(plan: Plan, counts: dict[str, int], joint: int) -> tuple[Plan, Plan | None]:
    """Return the plan of so many steps of each output and joint steps, and that of what follows."""
    first: list[Output] = []
    then: list[Output] = []
    # What follows of outputs that have all their steps: none.
    whole: list[Output] = []
    for output in plan.outputs:
        count, steps = _shared_steps(output, counts[output.name]), output.steps
        if output.beside is not None and not _is_padded(output, plan, counts):
            then.append(output)
            continue
        first.append(
            dataclasses.replace(
                output, steps=steps[:count], device_steps=min(output.device_steps, count),
                on_device=output.on_device and output.device_from <= count,
            )
        )  # fmt: skip
        behind = dataclasses.replace(
            output, steps=steps[count:], image=None, mover=None, rows_of=None, drawn=None, beside=None,
            on_device=output.on_device and output.device_steps >= count,
            device_from=max(0, output.device_from - count), device_steps=max(0, output.device_steps - count),
        )  # fmt: skip
        (then if count < len(steps) else whole).append(behind)
    joint = 0 if then else joint
    if joint < len(plan.joint):
        # Joint steps have to know which values are on the device.
        then += [output for output in whole if output.on_device]
    tail = Plan(tuple(then), plan.joint[joint:])
    return Plan(tuple(first), plan.joint[:joint]), tail if tail.outputs or tail.joint else None


def _shared_steps(output: Output, count: int) -> int:
    """Return how many of the first ``count`` steps leave what follows to know where and what its input is."""
    fetched = output.on_device and 0 < count == output.device_steps < len(output.steps)
    # The last step on the device says whether the CPU gets a tensor or an array.
    return count - 1 if fetched and output.steps[count - 1].spec.torch else count


def _plain_steps(output: Output) -> int:
    """Return how many steps of an output, from the first on, are data."""
    if not _is_plain(dataclasses.replace(output, steps=())):
        raise OptionError(
            f'share="node" sends the steps that decode images to the server, and one of {output.name!r} is '
            f"not an op of batchplant: {output}",
            field=output.name,
        )
    count = 0
    while count < len(output.steps) and _is_plain(output.steps[count].op):
        count += 1
    if not count and output.steps and isinstance(output.steps[0].op, CellOp):
        raise OptionError(
            f'share="node" sends the step that decodes {output.name!r} to the server, and '
            f"{output.steps[0].op!r} is not an op of batchplant that another process can be given",
            field=output.name,
        )
    return count


def _is_padded(mask: Output, plan: Plan, counts: dict[str, int]) -> bool:
    """Return True if the server pads the values that a mask belongs to."""
    padded = next(output for output in plan.outputs if output.name == mask.beside)
    places = [
        number
        for number, step in enumerate(padded.steps)
        if isinstance(step.op, Pad) and padding_name(step.op, padded.name) == mask.name
    ]
    return not places or places[0] < counts[padded.name]


def _is_plain(value: object) -> bool:
    try:
        RecipeEncoder().tree(value)
    except (NotPlainError, RecursionError):
        return False
    return True
