"""Options of packing, as users write them or as a plan of a mixture names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import order as orders
from ...data import mix_config as mixplan
from ...errors import OptionError, listed, near, no_such
from ...order.keyed import LONGEST, whole
from ...schema.columns import (
    I64,
    AnyArray,
)
from ...storage.spans import Spans

STRATEGIES = ("best_fit", "first_fit", "concat_split", "none")
OVERLONG = ("split", "truncate", "drop")
LABELS = ("same", "shifted", None)
# The outputs of a batch besides its tokens.
OUTPUTS = (
    "labels", "loss_mask", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "pieces"
)  # fmt: skip


# Returns the number of tokens of documents, including the end token that they get (below 0: leave it out),
# and their spans, if these are known.
Sizes = Callable[[I64], tuple[AnyArray, Spans | None]]


@dataclasses.dataclass(frozen=True)
class Pack:
    """Pack documents into rows of ``length`` tokens: ``Loader("train.idx", 8, pack=Pack(8192, eos=0))``.

    field: the field of tokens. strategy: ``best_fit`` (the longest document first, each into the row that it
    fills best), ``first_fit``, ``concat_split`` (one after another, cut where a row ends), ``none`` (one
    document in each row). window: number of documents that are packed together. eos: a token to append to
    documents that do not end with it; 64 documents of a source decide for all of it where they
    agree. pad: the token that fills the rest of a row. overlong: ``split``, ``truncate`` or ``drop``
    documents that are longer than a row. multiple_of: pad each piece of a document to a multiple of so many
    tokens; that padding is part of its sequence. across: treat a row as one sequence; by default each
    document is a sequence of its own.

    A batch has the tokens under the name of the field and these ``outputs``; naming fewer saves time:
    ``labels``; ``loss_mask``; ``position_ids``; ``document_ids`` (-1 in the padding); ``cu_seqlens`` and
    ``max_seqlen``, the bounds of sequences in the batch as one long row, as flash-attention takes them; and
    ``pieces``, the (row, place, size, start, document) of each piece of a document. Other fields are given
    for each document. dtype: ``int64`` or ``int32``, of tokens and labels.

    labels: ``same`` (the tokens, as the models of Hugging Face take them), ``shifted`` (the next token of
    each) or None. ignore: the label of tokens that are not learned. prompt: a field with the number of tokens
    at the start of each document that are not learned.

    sizes: lengths of the documents where they are not known without reading: a field, a number for each
    sample, or a function of sample numbers. image_tokens: number of tokens that stand for a document's images
    before its text, given in the same ways, or one number for all. They are ``image_token_id`` and are not
    learned.

    Raises: OptionError for values that are none of these, and, in the Loader, for a field without tokens.
    """

    length: int
    field: str = "tokens"
    strategy: str = "best_fit"
    window: int = 4096
    eos: int | None = None
    pad: int = 0
    overlong: str = "split"
    across: bool = False
    labels: str | None = "same"
    ignore: int = -100
    prompt: str | None = None
    sizes: Any = None
    dtype: str = "int64"
    image_tokens: Any = None
    image_token_id: int = 0
    outputs: Sequence[str] = OUTPUTS
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("strategy", self.strategy, STRATEGIES),
            ("overlong", self.overlong, OVERLONG),
            ("labels", self.labels, LABELS),
            ("dtype", self.dtype, ("int32", "int64")),
        ):
            if value not in choices:
                raise OptionError(f"{name} is one of {', '.join(map(str, choices))}, not {value!r}")
        if not isinstance(self.outputs, list | tuple):
            raise OptionError(f"outputs is a list of names, as ['labels'], not {self.outputs!r}")
        for name in self.outputs:
            if name not in OUTPUTS:
                raise OptionError(no_such("output", name, OUTPUTS))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        token = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        numbers = {
            "length": (1, 2**24),
            "multiple_of": (1, 2**24),
            "window": (1, LONGEST),
            "pad": token,
            "ignore": token,
        }
        for name, bounds in {**numbers, "image_token_id": token, "eos": token}.items():
            value = getattr(self, name)
            if name != "eos" or value is not None:
                object.__setattr__(self, name, whole(name, value, *bounds))

        if self.length % self.multiple_of:
            raise OptionError(
                f"length is a multiple of multiple_of, and {self.length} is not of {self.multiple_of}"
            )
        if self.across and self.multiple_of > 1:
            raise OptionError(
                "with across, a row is one sequence: multiple_of is for documents by themselves"
            )

    def mark(self, eos: bool | str) -> list[Any]:
        """Return the options that decide which documents share a row; ``eos``: which ones get that token."""
        mark = [self.length, self.field, self.strategy, self.window, eos, self.overlong]
        mark += [] if self.multiple_of == 1 else [f"multiples of {self.multiple_of}"]
        return mark if self.image_tokens is None else [*mark, str(orders.mark(self.image_tokens))]


def pack_of(plan: mixplan.MixPlan) -> Pack | None:
    """Return the packing that a plan of a mixture describes."""
    if plan.pack is None:
        return None
    options = {field.name for field in dataclasses.fields(Pack)}
    for name in plan.pack:
        if name not in options:
            prefix = plan.file.line_prefix("pack", name)
            raise OptionError(
                f"{prefix}pack has no {name!r}{near(name, options)}; there are {listed(sorted(options))}",
                path=plan.path,
            )
    if "length" not in plan.pack:
        raise OptionError(f"{plan.file.line_prefix('pack')}pack needs a length", path=plan.path)
    try:
        return Pack(**plan.pack)
    except OptionError as error:
        raise OptionError(plan.file.line_prefix("pack") + error.message, path=plan.path) from None
