"""Readers whose texts are token ids, which ``convert(tokenize=…)`` writes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..codecs.tokens import Tokenizer, texts_of
from ..errors import BatchplantError, DecodeError, OptionError, no_such
from ..schema import Bytes, Schema, Tensor, Text
from ..schema.columns import I64, Columns, Ragged
from ..storage.spans import Spans
from .reader import Reader, ReaderWrapper

TOKENS = "tokens"


class Tokenized(ReaderWrapper):
    """The samples of a reader, with ids in the place of some texts.

    The ids of one field are called ``tokens``, those of several ``NAME_tokens``.
    """

    def __init__(self, base: Reader, tokenizers: Mapping[str, Tokenizer]) -> None:
        super().__init__(base)
        self._tokenizers = dict(tokenizers)
        # Names of texts → names of their ids, and back.
        self.names = {name: TOKENS if len(tokenizers) == 1 else f"{name}_{TOKENS}" for name in tokenizers}
        self._texts = {ids: name for name, ids in self.names.items()}
        fields = {}
        for name, field in base.schema.items():
            if name not in tokenizers:
                fields[name] = field
                continue
            ids = self.names[name]
            if not isinstance(field, Text | Bytes):
                raise OptionError(f"only text is tokenized, and this is {field}", path=self.path, field=name)
            if ids in base.schema and ids not in tokenizers:
                raise OptionError(
                    f"the ids of {name!r} would be called {ids!r}, as another field is", path=self.path
                )
            fields[ids] = Tensor(tokenizers[name].dtype.name, (None,))
        self.schema = Schema(fields)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        texts = self._base_names(fields)
        columns = self.base._read(indices, tuple(dict.fromkeys(texts)))
        return Columns(
            (name, self._ids(text, columns[text], indices) if name in self._texts else columns[text])
            for name, text in zip(fields, texts, strict=True)
        )

    def _ids(self, name: str, column: Any, indices: I64) -> Ragged:
        texts, failures = texts_of(column)
        encoded = self._tokenizers[name].encode(texts)
        failures |= encoded.failures
        if failures:
            row = min(failures)
            error = failures[row]
            if not isinstance(error, BatchplantError):
                message = f"the tokenizer raised {type(error).__name__}: {error}"
                raise DecodeError(message, sample=int(indices[row]), field=name) from error
            raise error.at(sample=int(indices[row]), field=name)
        values = np.ascontiguousarray(encoded.values).view(np.uint8)
        return Ragged(values, encoded.offsets * encoded.values.dtype.itemsize)

    @property
    def identity(self) -> dict[str, Any]:
        """JSON of everything that the ids depend on besides the text."""
        return {name: tokenizer.identity for name, tokenizer in self._tokenizers.items()}

    def tokens_in(self, columns: Columns, names: Mapping[str, str]) -> int:
        """Count the ids in these columns; ``names``: the fields' names there."""
        count = 0
        for ids, text in self._texts.items():
            column = columns.get(names.get(ids, ids))
            if isinstance(column, Ragged):
                width = self._tokenizers[text].dtype.itemsize
                count += int(column.offsets[-1] - column.offsets[0]) // width
        return count

    def _base_names(self, fields: Sequence[str]) -> list[str]:
        return [self._texts.get(name, name) for name in fields]

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return None if field in self._texts else super()._spans(field, indices)


def tokenizers_of(option: Any, schema: Schema) -> dict[str, Tokenizer]:
    """Return the tokenizers of ``tokenize=`` by field; a single one is for ``text`` or the only text."""
    if isinstance(option, Mapping):
        for name in option:
            if name not in schema:
                raise OptionError(no_such("field", name, schema))
        return {name: as_tokenizer(tokenizer) for name, tokenizer in option.items()}
    texts = [name for name, field in schema.items() if type(field) is Text]
    name = "text" if "text" in texts else texts[0] if len(texts) == 1 else None
    if name is None:
        hint = f"it has {', '.join(texts)}" if texts else "it has no field of text"
        raise OptionError(f'which field is tokenized? {hint}; name it: tokenize={{"NAME": …}}, --field NAME')
    return {name: as_tokenizer(option)}


def check_portable(tokenizer: Tokenizer) -> None:
    """Raise OptionError if processes that do not run this script cannot load a tokenizer."""
    why = None
    if getattr(tokenizer.tokenizer, "__module__", None) == "__main__":
        why = "it stands in the script that runs"
    elif tokenizer.path is None:
        try:
            pickle.dumps(tokenizer)
        except Exception as error:
            why = str(error)
    if why is not None:
        raise OptionError(
            f"other processes cannot load this tokenizer: {why}; give a tokenizer.json, or a function of a "
            "module"
        )


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
