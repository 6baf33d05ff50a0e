"""Text as token ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codecs.tokens import Tokenizer, texts_of
from ..errors import DataError, OptionError
from ..schema import Bytes, Field, Text
from ..schema.columns import I64, Ragged
from .base import CellErrors, CellOp, Draws, RowError, Spec


class Tokenize(Tokenizer, CellOp):
    """Text as ids of varying length: ``{"text": [Tokenize("tokenizer.json"), Pad(64)]}``.

    tokenizer: the path of a ``tokenizer.json``, or of a folder that has one; an object of the library
    ``tokenizers``, of Transformers or of tiktoken, or any other with ``encode_batch``; or a function from a
    text to its ids. Fields are Text, or Bytes that are UTF-8. A text that is missing has no ids.

    max_length: at most so many ids; what is longer is cut at the side ``truncate``, ``right`` or ``left``
    (default: as the tokenizer itself is set up). add_special_tokens: those that the tokenizer itself puts
    around a text. bos, eos: a token, by its id or its name, put at the beginning or end unless it is there;
    ``eos=True`` is the tokenizer's own. dtype: that of the ids.
    """

    def __repr__(self) -> str:
        given = self.path if self.path is not None else getattr(self.tokenizer, "__name__", None)
        said = [repr(given) if self.path else given or type(self.tokenizer).__name__]
        usual = {"truncate": "right", "add_special_tokens": True, "dtype": np.dtype("int32")}
        for name, value in self._options().items():
            if value != usual.get(name):
                said.append(f"{name}={str(value) if name == 'dtype' else value!r}")
        return f"Tokenize({', '.join(said)})"

    def infer_field(self, field: Field) -> Spec:
        if not isinstance(field, Text | Bytes):
            raise OptionError(f"Tokenize takes text, and this is {field}")
        return Spec(self.dtype, (None,), ragged=True)

    def infer(self, spec: Spec) -> Spec:
        # What a function before it made: text, as far as anybody knows.
        if spec.dtype is not None or spec.torch:
            raise OptionError(f"Tokenize takes text, not {spec}")
        return Spec(self.dtype, (None,), ragged=True)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        texts, failures = texts_of(batch) if isinstance(batch, Ragged) else (list(batch), {})
        found = self.encode(texts)
        failures |= found.failures
        wrong = {row: error for row, error in failures.items() if isinstance(error, DataError)}
        if wrong:
            raise CellErrors(wrong)
        # A user's function raised it.
        for row, error in failures.items():
            raise RowError(row, error)
        return found.values, found.offsets
