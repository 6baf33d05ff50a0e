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
    """Rows of ``length`` tokens, made of documents: ``Loader("train.idx", 8, pack=Pack(8192, eos=0))``.

    field: what the documents are. strategy: ``best_fit`` (the longest first, each where it fits best),
    ``first_fit``, ``concat_split`` (one after another, cut where a row ends), ``none`` (a document for each
    row). window: how many documents are packed together. eos: a token put after each document that does not
    end with it; if all of 64 documents of a source do, or none does, so do all of that source. pad: the token
    after the last document. overlong: what is longer than a row is ``split``, ``truncate``-d or
    ``drop``-ped. across: a row is one sequence, not one for each document.

    A batch has ``tokens`` (under the name of the field), ``labels`` (``same``: the tokens, as Hugging Face's
    models take them; ``shifted``: the next token of each; None: none), ``loss_mask``, ``position_ids``,
    ``document_ids`` (-1 where padding is), ``cu_seqlens`` and ``max_seqlen`` (where sequences begin in the
    batch as one row, as flash-attention takes it). Labels that are not to be learned are ``ignore``. prompt:
    a field that says how many tokens of a document are the prompt, which is not learned. What other fields
    hold comes document by document; ``pieces`` says which (row, place, size, start, document) they became.
    outputs: those of these names that are wanted, where that is not all: what is not made takes no time.
    dtype: ``int64`` or ``int32``, of the tokens and labels.

    sizes: how many tokens a document has, where that cannot be told without reading it: a field, one number
    for each sample, or a function of sample numbers. image_tokens: how many places a document's images take
    before its text, said in the same ways, or one number for all; they hold ``image_token_id`` and are not
    learned.
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
        numbers = {"length": (1, 2**24), "window": (1, LONGEST), "pad": token, "ignore": token}
        for name, bounds in {**numbers, "image_token_id": token, "eos": token}.items():
            value = getattr(self, name)
            if name != "eos" or value is not None:
                object.__setattr__(self, name, whole(name, value, *bounds))

    def mark(self, eos: bool | str) -> list[Any]:
        """Return the options that decide which documents share a row; ``eos``: which ones get that token."""
        mark = [self.length, self.field, self.strategy, self.window, eos, self.overlong]
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
