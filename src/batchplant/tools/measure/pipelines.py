"""The pipelines that benches run, by name, for every image field."""

from __future__ import annotations

from collections.abc import Callable

from ...data.reader import Reader, ReaderWrapper
from ...errors import OptionError
from ...ops import CenterCrop, Op, RandomHorizontalFlip, RandomResizedCrop
from ...schema import Bool, Bytes, Field, Float, Image, Int, Schema, Text

PIPELINES = ("train", "val", "none", "raw")


class Undecoded(ReaderWrapper):
    """A dataset whose images are plain bytes, so that nobody decodes them."""

    def __init__(self, base: Reader) -> None:
        super().__init__(base)
        self.schema = Schema(
            (name, Bytes(optional=field.optional) if isinstance(field, Image) else field)
            for name, field in base.schema.items()
        )


def image_fields(schema: Schema) -> list[str]:
    return [name for name, field in schema.items() if isinstance(field, Image)]


def column_of(schema: Schema) -> str:
    """The field that a query would look at: the first number or flag, else the first text, else the first."""
    for kinds in ((Int, Float, Bool), (Text,), (Field,)):
        for name, field in schema.items():
            if isinstance(field, kinds):
                return name
    raise OptionError("there are no fields")


def pipelines(schema: Schema, name: str, size: int) -> dict[str, list[Op]]:
    """The standard pipeline of that name for every image field; they draw the same boxes and flips."""
    steps: dict[str, Callable[[], list[Op]]] = {
        "train": lambda: [RandomResizedCrop(size, share="box"), RandomHorizontalFlip(share="flip")],
        "val": lambda: [CenterCrop(size)],
        "none": list,
        "raw": list,
    }
    return {field: steps[name]() for field in image_fields(schema)}
