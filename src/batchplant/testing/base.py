"""Bench: what is peculiar about a format, and how the suite writes and reads it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ..data.reader import Reader
from ..data.shards import ShardWriter
from ..data.writer import Writer
from ..errors import BatchplantError
from ..formats import registry
from ..formats.base.format import Format
from ..jobs.conversion.run import Conversion
from ..jobs.convert import convert
from ..jobs.verify import verify
from ..schema import Audio, Field, Image, Video
from ..storage import side_car
from .cases import ORDINARY, SOME, Case, Sample, all_cases, ordinary, sequences
from .damage import EXHAUSTIVE


class Bench:
    """The attributes and helpers of a suite; :class:`FormatSuite` explains the attributes."""

    format: ClassVar[str]
    suffix: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    open_options: ClassVar[Mapping[str, Any]] = {}
    beside: ClassVar[Mapping[str, tuple[Field, Any]]] = {}
    leave_out: ClassVar[Collection[str]] = ()
    values: ClassVar[Mapping[str, list[Any]]] = {}
    keeps_schema: ClassVar[bool] = True
    keeps_jpeg: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    wraps: ClassVar[bool] = False
    notices_cuts: ClassVar[bool] = True
    golden: ClassVar[Path | None] = None
    only_field: ClassVar[tuple[str, Field, Callable[[int], Any]] | None] = None

    # -- what a subclass may override ------------------------------------------------------------------

    def write(
        self, path: str, schema: Mapping[str, Field], samples: Iterable[Sample], **options: Any
    ) -> None:
        with self.create(path, schema, **options) as out:
            for sample in samples:
                out.append(sample)

    def files(self, path: str) -> list[Path]:
        """The files to damage."""
        found = [Path(path)] if os.path.isfile(path) else sorted(Path(path).rglob("*"))
        return [file for file in found if file.is_file()]

    # -- helpers ---------------------------------------------------------------------------------------

    def names(self, folder: Path) -> list[str]:
        """What lies in a folder, without the side-cars that the format writes."""
        found = sorted(os.listdir(folder))
        templates = self.spec.writer.side_cars if self.spec.writer is not None else ()
        beside = {side_car(name, template).name for name in found for template in templates}
        return [name for name in found if name not in beside]

    @property
    def spec(self) -> Format:
        return registry.get_format(self.format)

    def create(self, path: str, schema: Mapping[str, Field], **options: Any) -> Writer | ShardWriter:
        if self.spec.writer is None:
            pytest.skip(f"{self.format} is read only")
        return registry.create(path, schema, format=self.format, **{**self.options, **options})

    def open(self, path: str) -> Reader:
        return registry.open(path, format=self.format, **self.open_options)

    def path(self, folder: Path, name: str = "data") -> str:
        return str(folder / (name + self.suffix))

    def cases(self, *, held: bool = True) -> dict[str, Case]:
        """The cases that the format holds (or does not); those of SOME, or all, also with missing values."""
        found: dict[str, Case] = {}
        for name, (field, values) in all_cases().items():
            some = name in SOME or EXHAUSTIVE
            values = self.values.get(name, values)
            if name not in self.leave_out and (some or not self.wraps):
                found[name] = field, values
            if name not in self.leave_out and some:
                optional = dataclasses.replace(field, optional=True)
                found[f"{name}, optional"] = optional, [None, *values, None]
        if self.spec.fields and held:
            found = {name: (one[0], self.values.get(name, one[1])) for name, one in sequences().items()}
        return {
            name: one for name, one in found.items()
            if name not in self.leave_out and (self.spec.refuses(one[0]) is None) == held
        }  # fmt: skip

    def together(self) -> dict[str, Case]:
        """Cases that are tried as fields of one dataset; in the thorough run, each has a dataset of its own.

        Not those of SOME, unless the suite wraps another; nor images, sounds and videos, of which a sample
        may have to have just one.
        """
        if EXHAUSTIVE or self.spec.fields or self.only_field is not None:
            return {}
        return {
            name: case for name, case in self.cases().items()
            if (self.wraps or (name not in SOME and not case[0].optional))
            and not isinstance(case[0], Image | Audio | Video)
        }  # fmt: skip

    def around(self, name: str, field: Field, values: Iterable[Any]) -> tuple[dict[str, Field], list[Sample]]:
        """A dataset with one field of these values, and those that the format cannot do without."""
        beside = {key: one for key, one in self.beside.items() if one[0].kind != field.kind}
        if self.only_field is not None and self.spec.refuses(field) is None:
            name = self.only_field[0]
        if self.spec.fields and self.spec.refuses(field) is None:
            name = next(iter(self.spec.fields))
        schema = {**{key: other for key, (other, _) in beside.items()}, name: field}
        rest = {key: value for key, (_, value) in beside.items()}
        return schema, [{**rest, name: value} for value in values]

    def dataset(self, count: int, *fields: str) -> tuple[dict[str, Field], list[Sample]]:
        """Samples with one field of every kind that the format holds, or with these fields."""
        if self.only_field is not None:
            name, field, value = self.only_field
            return {name: field}, [{name: value(n)} for n in range(count)]
        chosen = {name: ORDINARY[name] for name in fields or ORDINARY}
        if self.spec.fields:
            chosen = ordinary(self.spec.fields)
        schema = {name: field for name, (field, _) in chosen.items() if self.spec.refuses(field) is None}
        kinds = {field.kind for field in schema.values()}
        beside = {name: one for name, one in self.beside.items() if one[0].kind not in kinds}
        schema = {**{name: field for name, (field, _) in beside.items()}, **schema}
        return schema, [
            {name: beside[name][1] if name in beside else chosen[name][1](n) for name in schema}
            for n in range(count)
        ]

    def written(self, folder: Path, count: int = 20, *fields: str, **options: Any) -> str:
        path = self.path(folder)
        self.write(path, *self.dataset(count, *fields), **options)
        return path

    def converted(self, source: str, target: str, **how: Any) -> Conversion:
        if self.spec.writer is None:
            pytest.skip(f"{self.format} is read only")
        how |= {"source_options": dict(self.open_options), "target_options": dict(self.options)}
        return convert(source, target, target_format=self.format, **how)

    def is_sound(self, path: str) -> bool:
        """Read it in every way; False where something was wrong and we said so in our own terms."""
        try:
            with self.open(path) as reader:
                for row in range(min(len(reader), 1000)):
                    with contextlib.suppress(BatchplantError):
                        reader[row]
                for name in reader.schema:
                    with contextlib.suppress(BatchplantError):
                        reader.spans(name)
            return verify(path, format=self.format, decode=True, **self.open_options).ok
        except BatchplantError:
            return False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            together = self.together()
            metafunc.parametrize("case", [name for name in self.cases() if name not in together])
